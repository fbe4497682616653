"""Every property can fail: for each, a step or a state that breaks it is made by hand and must be reported."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from reknit.spec.config import RefitConfig
from reknit.spec.lifecycle import INVARIANTS, Phase, ShardState, State, Step, interpret, violations
from reknit.spec.lifecycle import commands as cmd
from reknit.spec.lifecycle import events as ev
from reknit.spec.lifecycle import state as state_module
from reknit.spec.lifecycle.events import Cause, Payload, Stamp, Timer, Version
from reknit.spec.lifecycle.state import Refit, Shard, evolve
from reknit.spec.membership import RefitMembership, ShardSeat, TrainerSeat
from reknit.spec.roster import Roster, Topology

FLEET = Topology(train_world_size=2, dp_size=3)
CONFIG = RefitConfig(max_restart_attempts_per_shard=1)
V1, V2 = Version(0, 1), Version(0, 2)
QUIET = ev.ReconcileRequested()  # an event that explains nothing


def run(*steps: ev.Event | Callable[[State], list[ev.Event]]) -> State:
    """A state that really occurs."""
    state = State.initial(FLEET, CONFIG)
    for step in steps:
        for event in [step] if isinstance(step, ev.Event) else step(state):
            state = interpret(state, event).state
    return state


def joins(state: State) -> list[ev.Event]:
    return [ev.RankJoined(state.stamp, rank) for rank in sorted(state.inside)]


def transfers(state: State) -> list[ev.Event]:
    assert state.refit is not None
    return [ev.RankTransferred(state.stamp, rank, state.refit.version) for rank in sorted(state.inside)]


def leaves(state: State) -> list[ev.Event]:
    return [ev.RankLeft(state.stamp, rank, ev.Progress.ENTERED) for rank in sorted(state.inside)]


UNBUILT = run()
FORMING = run(ev.StartRequested())
REBUILT = run(ev.StartRequested(), joins)
REFITTING = run(ev.StartRequested(), ev.RefitRequested(V1), joins)
BUILT = run(ev.StartRequested(), ev.RefitRequested(V1), joins, transfers)
STALE = run(ev.StartRequested(), ev.RefitRequested(V1), joins, transfers, ev.ShardExited(1, 0))
ABORTED = run(ev.StartRequested(), ev.RefitRequested(V1), joins, ev.RankFailed(Stamp(1, 1), 2, Cause.PEER))


def with_shard(of: State, slot: int, **changes: Any) -> State:
    return of.with_shard(evolve(of.shards[slot], **changes))


def reported(before: State, after: State, *commands: cmd.Command, event: ev.Event = QUIET) -> set[str]:
    """The ids of what this step breaks."""
    return {broken.split(":")[0] for broken in violations(before, event, Step(after, commands, ("doctored",)))}


def reported_of(state: State) -> set[str]:
    """The ids of what this state breaks, whatever led to it."""
    return reported(state, state)


def test_real_steps_break_nothing() -> None:
    for state in (UNBUILT, FORMING, REBUILT, REFITTING, BUILT, STALE, ABORTED):
        assert reported_of(state) == set()


def test_every_property_of_the_design_is_checked() -> None:
    assert [invariant.id for invariant in INVARIANTS] == [f"S{n}" for n in range(1, 15)] + ["P4"]
    for invariant in INVARIANTS:
        assert invariant.says
        assert invariant.of_state or invariant.of_step


# --- the layout -----------------------------------------------------------------------------------------------------


class WrongLayout:
    """A layout that disagrees with the real one in one place."""

    def __init__(self, real: RefitMembership, **wrong: Any) -> None:
        self._real, self._wrong = real, wrong

    def __getattr__(self, name: str) -> Any:
        return self._wrong.get(name, getattr(self._real, name))


@pytest.mark.parametrize(
    ("wrong", "broken"),
    [
        ({"ranks_of": lambda shard: range(3 + shard, 4 + shard)}, "S1"),
        ({"world_size": 6}, "S1"),
        ({"train_world_size": 1}, "S1"),
        ({"seat_of": lambda rank: ShardSeat(shard=0, worker=0) if rank == 0 else TrainerSeat(rank=rank)}, "S2"),
        ({"seat_of": lambda rank: ShardSeat(shard=0, worker=0) if rank == 1 else TrainerSeat(rank=rank)}, "S13"),
    ],
    ids=["an off-by-one in a prefix", "a rank too many", "a trainer too few", "a shard as root", "a trainer excluded"],
)
def test_a_wrong_layout_is_reported(monkeypatch: pytest.MonkeyPatch, wrong: dict[str, Any], broken: str) -> None:
    """S1, S2, S13. M5, M18."""
    real = BUILT.membership
    monkeypatch.setattr(state_module, "layout", lambda topology, roster: WrongLayout(real, **wrong))
    assert broken in reported_of(BUILT)


def test_a_run_that_goes_on_without_a_trainer_is_reported() -> None:
    """S13. H9."""
    assert reported(BUILT, BUILT, event=ev.TrainerLost(1)) == {"S13"}
    halted = interpret(BUILT, ev.TrainerLost(1)).state
    assert reported(BUILT, halted, event=ev.TrainerLost(1)) == set()


# --- what is formed and used ----------------------------------------------------------------------------------------


def transfer(state: State, roster: Roster | None = None, payload: Payload = Payload.FULL) -> cmd.Transfer:
    return cmd.Transfer(state.stamp, state.roster if roster is None else roster, V2, payload)


def test_a_refit_over_another_roster_than_the_live_one_is_reported() -> None:
    """S3. M7: the refit is still dispatched to the lost shard."""
    before = evolve(REFITTING, phase=Phase.BUILT, attempt=0)
    assert reported(before, REFITTING, transfer(REFITTING)) == set()
    for nothing_live in (Phase.STALE, Phase.ABORTED):
        assert "S3" in reported(evolve(before, phase=nothing_live), REFITTING, transfer(REFITTING))
    assert "S3" in reported(before, REFITTING, transfer(REFITTING, Roster({0: 0, 1: 0})))
    assert "S3" in reported(before, evolve(REFITTING, phase=Phase.BUILT, inside=frozenset()), transfer(REFITTING))
    absent = with_shard(REFITTING, 1, state=ShardState.ABSENT, timer=Timer.BACKOFF)
    assert "S3" in reported(before, absent, transfer(REFITTING), event=ev.ShardExited(1, 0))


def test_a_refit_that_leaves_a_joiner_out_is_reported() -> None:
    """S3: the roster of a refit is the desired one of its snapshot."""
    without = evolve(REFITTING, roster=Roster({0: 0, 1: 0}), inside=frozenset({0, 1, 2, 3}))
    assert "S3" in reported(evolve(without, phase=Phase.STALE, attempt=0), without, transfer(without))


@pytest.mark.parametrize(
    "gone",
    [
        {"state": ShardState.ABSENT, "timer": Timer.BACKOFF},
        {"incarnation": 1},
        {"fencing": True, "timer": Timer.FENCE},
    ],
    ids=["absent", "replaced", "fenced"],
)
@pytest.mark.parametrize("state", [FORMING, REBUILT, REFITTING, BUILT], ids=lambda state: str(state.phase.value))
def test_a_communicator_over_somebody_who_is_gone_is_reported(state: State, gone: dict[str, Any]) -> None:
    """S4. M2, F6."""
    assert "S4" in reported_of(with_shard(state, 1, **gone))


def test_an_operation_outside_of_its_phase_is_reported() -> None:
    """S5."""
    assert "S5" in reported_of(evolve(BUILT, inside=frozenset({0})))


def form(state: State) -> cmd.Form:
    return cmd.Form(state.stamp, state.roster)


def formed_from(before: State, **changes: Any) -> State:
    """The state after a build was ordered."""
    timers = before.timers - {Timer.SETTLE} | {Timer.FORM}
    return evolve(before, phase=Phase.FORMING, epoch=before.epoch + 1, attempt=0, timers=timers, **changes)


def test_epochs_that_do_not_grow_by_one_are_reported() -> None:
    """S5. F1, M8."""
    after = formed_from(STALE, roster=Roster({0: 0, 2: 0}), tries=1)
    assert reported(STALE, after, form(after)) == set()
    skipped = evolve(after, epoch=after.epoch + 1)
    assert "S5" in reported(STALE, skipped, form(skipped))
    assert "S5" in reported(STALE, after)
    assert "S5" in reported(STALE, after, form(after), form(after))
    assert "S5" in reported(STALE, after, cmd.Form(after.stamp, Roster({0: 0})))
    assert "S5" in reported(STALE, after, cmd.Form(Stamp(1, 9), after.roster))


def test_commands_whose_stamps_do_not_grow_are_reported() -> None:
    """S5: everything is stamped, so that what is late can be told."""
    assert "S5" in reported(REFITTING, REFITTING, transfer(REFITTING))
    ahead = cmd.Transfer(Stamp(7, 0), REFITTING.roster, V1, Payload.FULL)
    assert "S5" in reported(REBUILT, REFITTING, ahead)


def test_forming_over_a_communicator_that_is_wanted_is_reported() -> None:
    """S5, P4."""
    after = formed_from(BUILT, tries=1)
    assert {"S5", "P4"} <= reported(BUILT, after, form(after))


def test_forming_while_somebody_is_inside_the_older_one_is_reported() -> None:
    """S6. F9."""
    after = formed_from(ABORTED, tries=2)
    assert "S6" in reported(ABORTED, after, form(after))
    spent = ev.SettleExpired(ABORTED.stamp)
    assert "S6" not in reported(ABORTED, after, form(after), event=spent)
    left = evolve(ABORTED, inside=frozenset({3}))
    last = ev.RankLeft(left.stamp, 3, ev.Progress.ENTERED)
    assert "S6" not in reported(left, after, form(after), event=last)


def test_the_dead_are_inside_nothing() -> None:
    """S6: but who is only being killed may still be."""
    before = evolve(with_shard(ABORTED, 1, state=ShardState.ABSENT, timer=Timer.BACKOFF), inside=frozenset({3}))
    after = formed_from(before, roster=Roster({0: 0, 2: 0}), tries=2, inside=frozenset())
    assert "S6" not in reported(before, after, form(after))
    fenced = with_shard(before, 1, fencing=True, timer=Timer.FENCE)
    assert "S6" in reported(fenced, after.with_shard(fenced.shards[1]), form(after))


def test_forming_the_same_roster_again_without_evidence_is_reported() -> None:
    """S7. M3, R8."""
    before = evolve(ABORTED, inside=frozenset())
    after = formed_from(before, tries=2)
    assert reported(before, after, form(after)) == {"S7"}
    smaller = evolve(after, roster=Roster({0: 0, 1: 0}))
    assert reported(before, smaller, form(smaller)) == set()


def test_a_named_transient_is_evidence_as_long_as_its_budget_lasts() -> None:
    """S7."""
    before = evolve(ABORTED, inside=frozenset(), cause=Cause.TRANSIENT)
    after = formed_from(before, tries=2)
    assert reported(before, after, form(after)) == {"S7"}
    counted = evolve(after, transients=1)
    assert reported(before, counted, form(counted)) == set()


def test_a_rebuild_over_the_roster_that_is_live_is_reported() -> None:
    """P4: quiet means quiet."""
    after = formed_from(STALE, tries=1)
    assert "P4" in reported(STALE, after, form(after))


# --- who serves what ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [None, Version(0, 0)], ids=["a mixture", "an old version"])
def test_a_shard_that_serves_something_else_than_the_committed_version_is_reported(version: Version | None) -> None:
    """S8. H1, R3."""
    assert reported_of(with_shard(BUILT, 1, version=version)) == {"S8"}


def test_a_shard_with_closed_traffic_may_hold_anything() -> None:
    closed = evolve(with_shard(REFITTING, 1, state=ShardState.SERVING), refit=Refit(version=V1, touched=frozenset({1})))
    assert "S8" not in reported_of(closed)


def test_a_delta_for_somebody_who_does_not_hold_what_it_builds_on_is_reported() -> None:
    """S8. R11: a mixture that nobody notices."""
    after = evolve(
        BUILT,
        phase=Phase.REFITTING,
        attempt=BUILT.attempt + 1,
        refit=Refit(version=V2, touched=frozenset({0, 1, 2})),
        timers=REFITTING.timers,
    )
    delta = transfer(after, payload=Payload.DELTA)
    assert reported(BUILT, after, delta) == set()
    assert reported(with_shard(BUILT, 1, version=None), after, delta) == {"S8"}
    assert reported(evolve(BUILT, carried=False), after, delta) == {"S8"}


def completed(before: State, **changes: Any) -> cmd.ReportCompleted:
    assert before.refit is not None
    return replace(cmd.ReportCompleted(before.refit.version, before.epoch, before.roster), **changes)


def test_success_before_everybody_acknowledged_is_reported() -> None:
    """S9. R9: published when sent, not when applied."""
    last = evolve(REFITTING, inside=frozenset({4}))
    report = completed(last)
    said = ev.RankTransferred(last.stamp, 4, V1)
    assert reported(last, last, report, event=said) == set()
    assert reported(last, last, report) == {"S9"}
    assert reported(last, last, report, event=replace(said, rank=3)) == {"S9"}
    assert reported(last, last, report, event=replace(said, stamp=Stamp(1, 0))) == {"S9"}
    assert reported(last, last, report, event=replace(said, version=V2)) == {"S9"}


@pytest.mark.parametrize("changes", [{"version": V2}, {"epoch": 0}, {"roster": Roster({0: 0})}])
def test_success_of_something_else_than_what_was_asked_is_reported(changes: dict[str, Any]) -> None:
    """S9."""
    last = evolve(REFITTING, inside=frozenset({4}))
    assert "S9" in reported(last, last, completed(last, **changes), event=ev.RankTransferred(last.stamp, 4, V1))


def test_success_after_a_break_needs_everybody_too() -> None:
    """S9. R2."""
    broken = evolve(ABORTED, inside=frozenset({4}), holders=frozenset({0, 1, 2, 3}))
    said = ev.RankLeft(broken.stamp, 4, ev.Progress.COMPLETE)
    assert reported(broken, broken, completed(broken), event=said) == set()
    assert reported(broken, broken, completed(broken), event=replace(said, progress=ev.Progress.PARTIAL)) == {"S9"}
    never_carried = evolve(broken, broke_in=Phase.FORMING)
    assert reported(never_carried, never_carried, completed(broken), event=said) == {"S9"}


def test_a_shard_that_serves_without_a_refit_that_it_took_part_in_is_reported() -> None:
    """S12. H1, M11."""
    last = evolve(REFITTING, inside=frozenset({4}))
    said = ev.RankTransferred(last.stamp, 4, V1)
    after = with_shard(last, 1, state=ShardState.SERVING, version=V1)
    assert "S12" not in reported(last, after, completed(last), event=said)
    assert "S12" in reported(last, after, event=said)
    other = with_shard(last, 1, state=ShardState.SERVING, version=V1, incarnation=1)
    assert "S12" in reported(last, other, completed(last), event=said)


# --- evidence, deadlines, budgets -----------------------------------------------------------------------------------


def test_a_shard_that_is_lost_without_evidence_is_reported() -> None:
    """S10."""
    lost = evolve(with_shard(STALE, 2, state=ShardState.ABSENT, timer=Timer.BACKOFF, version=None))
    for other in (QUIET, ev.ProbeSucceeded(2, 0), ev.ShardExited(1, 0), ev.ShardExited(2, 1), ev.ProbeFailed(2, 0)):
        assert "S10" in reported(STALE, lost, event=other)
    for evidence in (ev.ShardExited(2, 0), ev.WorkerExited(2, 0, 0)):
        assert "S10" not in reported(STALE, lost, event=evidence)
    failing = with_shard(STALE, 2, failed_probes=CONFIG.unhealthy_threshold - 1)
    assert "S10" not in reported(failing, lost, event=ev.ProbeFailed(2, 0))
    assert "S10" in reported(failing, lost, event=ev.RequestFailed(2, 0))


def test_only_the_operator_retires_a_member_without_evidence() -> None:
    """S10, S14."""
    retired = with_shard(STALE, 2, state=ShardState.RETIRED, version=None)
    assert "S10" in reported(STALE, retired)
    assert "S10" not in reported(STALE, retired, event=ev.RetireRequested(2))
    assert "S10" not in reported(evolve(STALE, queued=frozenset({2})), retired)


@pytest.mark.parametrize(
    "endless",
    [
        evolve(FORMING, timers=frozenset()),
        evolve(REFITTING, timers=frozenset({Timer.REFIT})),
        evolve(REFITTING, timers=frozenset({Timer.PROGRESS})),
        evolve(ABORTED, timers=frozenset({Timer.REFIT})),
        with_shard(STALE, 1, timer=None),
        with_shard(STALE, 1, state=ShardState.RESTARTING, timer=None),
        with_shard(STALE, 1, fencing=True, timer=Timer.BACKOFF),
        with_shard(ABORTED, 1, fencing=True),
        with_shard(BUILT, 1, timer=Timer.RESTART),
    ],
    ids=[
        "forming",
        "refitting",
        "an open refit",
        "settling",
        "a pause",
        "a restart",
        "the fence of an absent shard",
        "the fence of a member",
        "a member with a timer of another life",
    ],
)
def test_a_wait_without_a_deadline_is_reported(endless: State) -> None:
    """S11. F3, F7, H6."""
    assert reported_of(endless) == {"S11"}


@pytest.mark.parametrize(
    "spent",
    [
        evolve(FORMING, tries=CONFIG.max_attempts_per_refit + 1),
        evolve(ABORTED, transients=CONFIG.max_transient_retries + 1),
        with_shard(BUILT, 1, restarts=2),
        evolve(BUILT, config=replace(CONFIG, min_healthy_shards=4)),
    ],
    ids=["attempts", "transients", "restarts", "the floor"],
)
def test_a_budget_that_is_exceeded_is_reported(spent: State) -> None:
    """S14. R8, H6."""
    assert reported_of(spent) == {"S14"}


def test_a_return_from_retirement_is_reported() -> None:
    """S14."""
    retired = with_shard(STALE, 1, state=ShardState.RETIRED, timer=None)
    back = with_shard(retired, 1, state=ShardState.REJOINED)
    assert reported(retired, back) == {"S14"}


def test_an_incarnation_that_counts_backwards_is_reported() -> None:
    """S14. F12."""
    before = STALE.with_shard(
        Shard(slot=1, state=ShardState.RESTARTING, incarnation=1, restarts=1, timer=Timer.RESTART)
    )
    assert reported(before, with_shard(before, 1, incarnation=0)) == {"S14"}


def test_the_sentence_says_who_and_what() -> None:
    (broken,) = violations(BUILT, QUIET, Step(with_shard(BUILT, 1, version=None), (), ()))
    assert broken == "S8: shard 1 serves None, committed is 0.1"


def test_leaving_states_are_real() -> None:
    """The helper that lets everybody leave leads where the table says."""
    assert run(ev.StartRequested(), ev.RefitRequested(V1), joins, ev.ShardExited(1, 0), leaves).epoch == 2
