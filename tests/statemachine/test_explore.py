"""The gate for the model: every ordering of events in small fleets, and every property on every step.

The figures are printed with `pytest -s`. A violation fails with the shortest story that leads to it.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from reknit.spec.lifecycle import HaltReason, Phase, ShardState, State, Step, interpret
from reknit.spec.lifecycle import events as ev
from reknit.spec.lifecycle.events import Event
from reknit.spec.lifecycle.state import evolve
from reknit.statemachine.environment import Bounds
from reknit.statemachine.explore import Report, reach, row_ids, search
from reknit.statemachine.slices import FENCE, GOALS, SLICES, SMALL, Slice, fleet, serves

# The biggest one here. Two shards and two faults under the policy to stop are the matter of the coupled search.
GATE = Slice(fleet(2), FENCE, Bounds(faults=2, refits=1))
ALL = {"2 shards, 2 faults, fence": GATE, **SLICES}


@cache
def report_of(name: str) -> Report:
    report = search(*ALL[name])
    print(f"\n{name}: {report.states} states, {report.transitions} transitions, depth {report.depth}")
    return report


@pytest.mark.parametrize("name", ALL)
def test_every_property_holds_in_every_ordering(name: str) -> None:
    """S1 to S14 and P4, and no signal ever arrives where the table says it cannot."""
    report = report_of(name)
    assert not report.violation, report.story()
    assert report.complete


def test_every_row_fires_and_every_halt_reason_occurs() -> None:
    """The checks are not vacuous: nothing in the table is dead."""
    reports = [report_of(name) for name in SLICES]
    fired = set[str]().union(*(report.fired for report in reports))
    halts = set[HaltReason]().union(*(report.halts for report in reports))
    assert sorted(row_ids() - fired) == []
    assert halts == set(HaltReason)
    everything = Report(State.initial(fleet(1)), fired=fired)
    assert everything.rows_never_fired() == ()


def test_late_and_impossible_events_change_nothing_in_any_state() -> None:
    """F12: everything that is late, doubled, foreign or not allowed is tried in every state of three slices."""
    for topology, config, bounds in (
        (fleet(2), FENCE, Bounds(faults=1, refits=1)),
        (fleet(1, workers=2), SMALL, Bounds(faults=1, refits=1)),
        (fleet(2), SMALL, Bounds(faults=0, refits=2, operator=2)),
    ):
        report = search(topology, config, bounds, with_noise=True)
        assert not report.violation, report.story()
        assert report.complete


# --- goals: what must be reachable --------------------------------------------------------------------------------


def reached(name: str) -> State:
    goal = GOALS[name]
    report = reach(*goal.slice, goal.legs)
    assert report.reached is not None, report.story()
    assert not report.violation, report.story()
    return report.reached


def test_a_shard_can_be_lost_and_rejoin_twice() -> None:
    """P2."""
    assert reached("rejoin_twice").roster[1] == 2


def test_a_frozen_shard_can_be_fenced_and_its_replacement_serves() -> None:
    """R6."""
    assert reached("fence_and_replace").epoch == 3


def test_a_forming_attempt_can_fail_and_the_next_succeeds() -> None:
    """F6."""
    state = reached("form_again")
    assert (state.epoch, len(state.roster)) == (2, 1)


def test_a_refit_can_complete_after_a_break() -> None:
    """P1."""
    state = reached("refit_after_break")
    assert (state.epoch, state.committed) == (2, ev.Version(0, 1))


# --- the search itself -------------------------------------------------------------------------------------------


def promotes_joiners(state: State, event: Event) -> Step:
    """A mistake: whoever waits is promoted by a completed refit, whether it took part or not (M11)."""
    step = interpret(state, event)
    if state.refit is None or step.state.refit is not None:
        return step
    version = step.state.committed
    shards = tuple(
        evolve(shard, state=ShardState.SERVING, version=version) if shard.state is ShardState.REJOINED else shard
        for shard in step.state.shards
    )
    return Step(evolve(step.state, shards=shards), step.commands, step.fired, step.ignored)


def counts_late_replies(state: State, event: Event) -> Step:
    """A mistake: a reply of an older attempt counts for the current one."""
    if isinstance(event, ev.RankJoined) and event.rank in state.inside:
        event = replace(event, stamp=state.stamp)
    return interpret(state, event)


def test_a_mistake_is_found_with_a_shortest_story_that_can_be_read() -> None:
    report = search(fleet(2), SMALL, Bounds(faults=1, refits=1), stepper=promotes_joiners)
    assert report.violation
    assert report.violation[0].startswith("S12: shard")
    lines = report.story().splitlines()
    assert lines[0] == "unbuilt epoch 0 over {} | 0:0=rejoined 1:0=rejoined"
    assert lines[1].startswith("  1. ")
    assert "[last_transferred" in lines[-3]
    assert lines[-1].startswith("  => S12: shard")
    # Lost, replaced, and promoted by the refit of the others: no shorter way leads there.
    assert [type(event).__name__ for event in report.trace].count("ShardExited") == 1
    assert len(report.trace) == 9


def test_a_counted_late_reply_is_found() -> None:
    """F12."""
    report = search(fleet(2), SMALL, Bounds(faults=1, refits=1), stepper=counts_late_replies, with_noise=True)
    assert report.violation[0].startswith("noise: RankJoined(")
    assert "should change nothing, it fired joined@forming" in report.violation[0]


def test_a_signal_in_the_wrong_place_ends_the_story() -> None:
    def lost(state: State, event: Event) -> Step:
        if state.phase is Phase.FORMING:
            return interpret(state, ev.FormDue())
        return interpret(state, event)

    report = search(fleet(1), SMALL, Bounds(faults=0, refits=0), stepper=lost)
    assert report.violation[0].startswith("table: FormDue()")
    assert report.story().splitlines()[-2].endswith("-> ImpossibleHere")


def test_a_truncated_search_says_so() -> None:
    report = search(fleet(2), SMALL, Bounds(faults=1, refits=1), max_states=100)
    assert (report.complete, report.states) == (False, 100)


def test_a_search_is_repeatable() -> None:
    runs = [search(fleet(2), SMALL, Bounds(faults=0, refits=2, operator=1)) for _ in range(2)]
    assert runs[0].fired == runs[1].fired
    assert [(r.states, r.transitions, r.depth) for r in runs[:1]] == [
        (r.states, r.transitions, r.depth) for r in runs[1:]
    ]


def test_a_goal_that_cannot_be_reached_is_not() -> None:
    report = reach(fleet(2), SMALL, Bounds(faults=0, refits=1), [serves(1, 0), serves(1, 1)])
    assert report.reached is None
    assert report.trace
