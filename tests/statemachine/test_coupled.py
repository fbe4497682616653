"""The controller and the fleet searched together: what is believed, held against what is the case."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from reknit.spec.config import RefitConfig
from reknit.spec.lifecycle import HaltReason, Phase, ShardState, State, Step, guards, interpret
from reknit.spec.lifecycle import events as ev
from reknit.spec.lifecycle.events import Event
from reknit.spec.lifecycle.state import evolve
from reknit.spec.roster import Topology
from reknit.statemachine.abstract import Stepper, reordered, with_small_numbers
from reknit.statemachine.coupled import Coupled, Search
from reknit.statemachine.symmetry import key

CONFIG = RefitConfig(
    max_restart_attempts_per_shard=1,
    max_attempts_per_refit=2,
    max_transient_retries=1,
    unhealthy_threshold=1,
    on_frozen="fence",
)


def searched(
    shards: int,
    *,
    faults: int,
    refits: int,
    operator: int = 0,
    config: RefitConfig = CONFIG,
    stepper: Stepper = interpret,
) -> Coupled:
    topology = Topology(train_world_size=1, dp_size=shards)
    search = Search(topology, config, faults=faults, refits=refits, operator=operator, stepper=stepper)
    return search.run()


@pytest.mark.parametrize(
    ("shards", "faults", "refits", "policy"),
    [(2, 2, 1, "fence"), (2, 1, 2, "stop"), (1, 2, 2, "fence")],
)
def test_what_the_controller_believes_is_the_case_in_every_ordering(
    shards: int, faults: int, refits: int, policy: str
) -> None:
    """S1 to S14 on every step, and W1 to W5 of the fleet."""
    config = replace(CONFIG, on_frozen=policy)  # type: ignore[arg-type]
    report = searched(shards, faults=faults, refits=refits, config=config)
    print(f"\n{report.states} states in {report.seconds:.1f} s")
    assert [(violation.says, *violation.story) for violation in report.violations] == []
    assert report.states > 1000


def test_without_a_fault_nothing_breaks_and_nothing_halts() -> None:
    report = searched(2, faults=0, refits=2)
    assert report.violations == []
    assert report.halts == set()
    assert not any("@aborted" in row or row.startswith("break") for row in report.fired)


def test_losses_and_freezes_end_in_halts_that_name_them() -> None:
    report = searched(1, faults=2, refits=1)
    assert {HaltReason.TRAINER_LOST, HaltReason.TRAINER_SILENT, HaltReason.MAJORITY_SILENT} <= report.halts


# --- mistakes that it must find --------------------------------------------------------------------------------------


def keeps_traffic_open(state: State, event: Event) -> Step:
    """A mistake: whoever served goes on serving while a transfer writes into its weights (R11)."""
    step = interpret(state, event)
    refit = step.state.refit
    if refit is None or not refit.touched:
        return step
    return replace(step, state=evolve(step.state, refit=evolve(refit, touched=frozenset())))


def replaces_before_death_is_certain(state: State, event: Event) -> Step:
    """A mistake: an order to kill is taken for a death (H7, F12)."""
    step = interpret(state, event)
    shards = tuple(
        evolve(shard, fencing=False, timer=ev.Timer.BACKOFF) if shard.fencing and not shard.is_member else shard
        for shard in step.state.shards
    )
    return replace(step, state=evolve(step.state, shards=shards))


def promotes_whoever_waits(state: State, event: Event) -> Step:
    """A mistake: whoever has loaded serves when a refit completes, whether it took part or not (M11, H1)."""
    step = interpret(state, event)
    if state.refit is None or step.state.refit is not None or step.state.phase is Phase.HALTED:
        return step
    shards = tuple(
        evolve(shard, state=ShardState.SERVING, version=step.state.committed)
        if shard.state is ShardState.REJOINED
        else shard
        for shard in step.state.shards
    )
    return replace(step, state=evolve(step.state, shards=shards))


@pytest.mark.parametrize(
    ("mistake", "found"),
    [
        (keeps_traffic_open, ("S12", "W5")),
        (replaces_before_death_is_certain, ("W4", "S11")),
        (promotes_whoever_waits, ("S12", "W5")),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_a_mistake_is_found_with_a_story_that_can_be_read(mistake: Stepper, found: tuple[str, ...]) -> None:
    report = searched(2, faults=2, refits=2, stepper=mistake)
    assert report.violations
    violation = report.violations[0]
    assert violation.says.startswith(found), violation.says
    assert len(violation.story) >= 2
    assert all(line.split()[0] in ("a", "nobody", "not", "rank", "shard", "the") for line in violation.story)


def test_in_a_story_every_slot_keeps_its_name() -> None:
    """The search renames slots to visit one of all renamings; a reader must not notice."""
    report = searched(3, faults=1, refits=0, stepper=replaces_before_death_is_certain)
    violation = report.violations[0]
    (killed,) = [line for line in violation.story if line.startswith("a probe of shard")]
    shard = killed.split()[4]
    assert violation.story[-1] == f"the pause before the restart of shard {shard} is over"
    assert violation.says == f"W4: shard {shard} is replaced while its process is running"


def test_a_refit_that_was_never_dispatched_is_not_completed_by_the_break_before_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The fault that this search was asked to find again: S9, with a floor of all shards."""

    def forgets_which_refit_broke(state: State, event: object) -> bool:
        moved = state.broke_in is Phase.REFITTING and state.refit is not None
        return moved and state.holders == frozenset(range(state.membership.world_size))

    config = replace(CONFIG, min_healthy_shards=2)
    assert searched(2, faults=2, refits=2, config=config).violations == []
    forgetful = _with_guard(guards.everybody_acknowledged, forgets_which_refit_broke)
    report = searched(2, faults=2, refits=2, config=config, stepper=forgetful)
    assert report.violations
    assert report.violations[0].says.startswith(("S9", "W3", "table")), report.violations[0].says


def _with_guard(old: Callable[..., bool], new: Callable[..., bool]) -> Stepper:
    """The table with one guard exchanged, read plainly."""
    from reknit.spec.lifecycle.effects import Outcome
    from reknit.spec.lifecycle.entries import Entry, Ignore, Refuse, Row
    from reknit.spec.lifecycle.interpret import CELLS, choose, drive, read_communicator, read_shard

    cells = {
        place: tuple(replace(entry, guard=new) if entry.guard is old else entry for entry in entries)
        for place, entries in CELLS.items()
    }

    def read(state: State, event: Event) -> tuple[Entry, Outcome] | None:
        match choose(cells, (type(event), state.phase), state, event):
            case Row() as row:
                outcome = row.effect(state, event)  # type: ignore[call-arg]
                assert isinstance(outcome, Outcome)
                moved = evolve(outcome.state, phase=row.target)
                return row, Outcome(moved, outcome.commands, outcome.signals)
            case Ignore() | Refuse() | None:
                return read_communicator(state, event)
        return None

    return lambda state, event: drive(state, event, read, read_shard)


# --- the abstraction -------------------------------------------------------------------------------------------------


def test_small_numbers_and_other_slots_keep_what_a_state_means() -> None:
    topology = Topology(train_world_size=1, dp_size=3)
    state = State.initial(topology, CONFIG)
    for event in (
        ev.StartRequested(),
        *(ev.RankJoined(ev.Stamp(1, 0), rank) for rank in range(4)),
        ev.RefitRequested(ev.Version(0, 7)),
        ev.RankTransferred(ev.Stamp(1, 1), 1, ev.Version(0, 7)),
        ev.ShardExited(2, 0),
    ):
        state = interpret(state, event).state
        small = with_small_numbers(state)
        assert key(small) == key(state)
        turned = reordered(small, (2, 0, 1))
        assert key(turned) == key(state)
        assert reordered(turned, (1, 2, 0)) == small
