"""What must always hold, as named predicates on a state or on a step.

Each returns None when it holds and a sentence when it does not. They are written against the meaning of the lifecycle,
not by asking the guards: a rule that is wrong in the table must be seen as wrong here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..config import RefitConfig
from ..membership import ShardSeat, TrainerSeat
from .commands import Form, Leave, ReportCompleted, Transfer
from .events import (
    Cause,
    Event,
    FenceExpired,
    Payload,
    ProbeFailed,
    Progress,
    RankLeft,
    RankTransferred,
    RequestFailed,
    RetireRequested,
    SettleExpired,
    ShardExited,
    Timer,
    TrainerLost,
    WorkerExited,
)
from .interpret import Step
from .state import (
    LIVE,
    MEMBERS,
    TERMINAL,
    HaltReason,
    Phase,
    Shard,
    ShardState,
    State,
    evolve,
    serving_shards,
)

Verdict = str | None
StateProperty = Callable[[State], Verdict]
StepProperty = Callable[[State, Event, Step], Verdict]


@dataclass(frozen=True, slots=True)
class Invariant:
    """A named safety property. Exactly one of `of_state` and `of_step` may be absent."""

    id: str
    says: str
    of_state: StateProperty | None = None
    of_step: StepProperty | None = None


def _spans(state: State) -> bool:
    """Whether the roster of this epoch means a set of ranks that are, or will be, talking."""
    return state.phase in LIVE or state.phase is Phase.FORMING


def _gone(state: State, slot: int) -> bool:
    """Whether the member of this epoch in `slot` is known to be unable to take part."""
    shard = state.shards[slot]
    return shard.incarnation != state.roster[slot] or shard.state not in MEMBERS


def _rank_slot(state: State, rank: int) -> int | None:
    seat = state.membership.seat_of(rank=rank)
    return seat.shard if isinstance(seat, ShardSeat) else None


def _certainly_out(state: State, rank: int) -> bool:
    """The process behind this rank cannot be inside anything any more."""
    slot = _rank_slot(state, rank)
    if slot is None:
        return False
    shard = state.shards[slot]
    if shard.incarnation != state.roster[slot]:
        return True
    return shard.state not in MEMBERS and not shard.fencing


# --- S1, S2, S13: the layout -----------------------------------------------------------------------------------


def layout_is_exact(state: State) -> Verdict:
    if not _spans(state):
        return None
    topology, roster = state.topology, list(state.roster)
    seats: list[tuple[int, int]] = []  # (rank, slot), counted by hand and not by the layout functions
    rank = topology.train_world_size
    for slot in sorted(roster):
        for _ in range(topology.workers_per_shard):
            seats.append((rank, slot))
            rank += 1
    membership = state.membership
    if membership.world_size != rank or membership.train_world_size != topology.train_world_size:
        return f"world of {membership.world_size} ranks, {rank} expected"
    for expected_rank, slot in seats:
        if expected_rank not in membership.ranks_of(shard=slot):
            return f"rank {expected_rank} should belong to shard {slot}, which has {membership.ranks_of(shard=slot)}"
    return None


def root_is_a_trainer(state: State) -> Verdict:
    if not _spans(state):
        return None
    seat = state.membership.seat_of(rank=0)
    return None if isinstance(seat, TrainerSeat) else f"rank 0 is {seat}"


def trainers_keep_their_ranks(state: State) -> Verdict:
    if not _spans(state):
        return None
    for rank in range(state.topology.train_world_size):
        if not isinstance(state.membership.seat_of(rank=rank), TrainerSeat):
            return f"rank {rank} no longer belongs to a trainer"
    return None


def trainer_loss_halts(before: State, event: Event, step: Step) -> Verdict:
    if not isinstance(event, TrainerLost) or before.phase in TERMINAL:
        return None
    halt = step.state.halt
    if step.state.phase is Phase.HALTED and halt is not None and halt.reason is HaltReason.TRAINER_LOST:
        return None
    return f"trainer rank {event.rank} is lost and the run goes on in {step.state.phase.value}"


# --- S3, S4, S5, S6, S7: what is formed and used -----------------------------------------------------------------


def refit_starts_on_the_desired_roster(before: State, event: Event, step: Step) -> Verdict:
    for transfer in (c for c in step.commands if isinstance(c, Transfer)):
        state = step.state
        if state.phase is not Phase.REFITTING or transfer.roster != state.roster:
            return f"transfer ordered in {state.phase.value} over {transfer.roster}, communicator is {state.roster}"
        missing = [slot for slot in state.roster if _gone(state, slot)]
        if missing:
            return f"transfer ordered over absent shards {missing}"
        if before.phase not in (Phase.FORMING, Phase.BUILT, Phase.REBUILT):
            return f"transfer ordered in {before.phase.value}: there is no communicator over whom it should span"
        joiners = [s.slot for s in state.shards if s.state in MEMBERS and s.slot not in state.roster]
        formed_for_it = before.phase is Phase.FORMING
        if joiners and not formed_for_it:
            return f"transfer ordered although shards {joiners} wait and nothing was being formed"
    return None


def no_absentee_in_a_used_communicator(state: State) -> Verdict:
    if state.phase not in (Phase.FORMING, Phase.BUILT, Phase.REBUILT, Phase.REFITTING):
        return None
    gone = [slot for slot in state.roster if _gone(state, slot) or state.shards[slot].fencing]
    return f"{state.phase.value} over absent, fenced or replaced shards {gone}" if gone else None


def nothing_runs_on_a_stale_communicator(state: State) -> Verdict:
    if state.phase in (Phase.BUILT, Phase.STALE, Phase.REBUILT, Phase.UNBUILT) and state.inside:
        return f"ranks {sorted(state.inside)} are inside an operation while {state.phase.value}"
    return None


def one_epoch_at_a_time(before: State, event: Event, step: Step) -> Verdict:
    forms = [c for c in step.commands if isinstance(c, Form)]
    after = step.state
    if after.epoch != before.epoch + len(forms) or len(forms) > 1:
        return f"epoch went from {before.epoch} to {after.epoch} with {len(forms)} builds ordered"
    for form in forms:
        if form.stamp.epoch != after.epoch or form.roster != after.roster or after.phase is not Phase.FORMING:
            return f"ordered {form} but recorded epoch {after.epoch} over {after.roster} in {after.phase.value}"
        if before.phase in LIVE - {Phase.STALE}:
            return f"formed over a communicator that is live and wanted ({before.phase.value})"
    orders = [c.stamp for c in step.commands if isinstance(c, Form | Transfer | Leave)]
    if any(stamp.epoch > after.epoch for stamp in orders):
        return f"a command is stamped {max(orders)} ahead of epoch {after.epoch}"
    if any(later <= earlier for earlier, later in zip([before.stamp, *orders], orders, strict=False)):
        return f"commands {orders} do not grow from stamp {before.stamp}"
    return None


def nothing_forms_over_an_unsettled_one(before: State, event: Event, step: Step) -> Verdict:
    if before.epoch == 0 or not any(isinstance(c, Form) for c in step.commands):
        return None
    left = {event.rank} if isinstance(event, RankLeft) and event.stamp == before.stamp else set()
    inside = {r for r in before.inside - left if not _certainly_out(_with_shards(before, step.state), r)}
    budget_spent = isinstance(event, SettleExpired) or (
        before.phase is Phase.ABORTED and Timer.SETTLE not in before.timers
    )
    if inside and not budget_spent:
        return f"ranks {sorted(inside)} may still be inside epoch {before.epoch}"
    return None


def _with_shards(before: State, after: State) -> State:
    """The old epoch, with what is known of its members now."""
    return evolve(before, shards=after.shards)


def no_retry_without_new_evidence(before: State, event: Event, step: Step) -> Verdict:
    if before.phase is not Phase.ABORTED or not any(isinstance(c, Form) for c in step.commands):
        return None
    after = step.state
    if any(not after.roster.holds(slot, incarnation) for slot, incarnation in before.roster.items()):
        return None
    if before.cause is Cause.TRANSIENT and after.transients > before.transients:
        return None
    if any(isinstance(c, ReportCompleted) for c in step.commands):
        return None  # every rank answered, after the break, that it holds the version
    committed = before.refit is None and before.committed is not None and before.broke_in is Phase.REFITTING
    if committed and before.holders == _everyone(before):
        return None
    return (
        f"epoch {after.epoch} forms over {after.roster}, as did epoch {before.epoch}, which broke: nothing new is known"
    )


def _everyone(state: State) -> frozenset[int]:
    return frozenset(range(state.membership.world_size))


# --- S8, S9, S12: who serves what --------------------------------------------------------------------------------


def serving_shards_are_current(state: State) -> Verdict:
    for slot in serving_shards(state):
        version = state.shards[slot].version
        if version is None or (state.committed is not None and version < state.committed):
            return f"shard {slot} serves {version}, committed is {state.committed}"
    return None


def delta_only_on_what_is_whole(before: State, event: Event, step: Step) -> Verdict:
    for transfer in (c for c in step.commands if isinstance(c, Transfer) and c.payload is Payload.DELTA):
        other = [slot for slot in transfer.roster if before.shards[slot].version != before.committed]
        if other or not before.carried:
            return f"a delta ordered over {transfer.roster}, but shards {other} do not hold {before.committed} whole"
    return None


def success_means_everybody(before: State, event: Event, step: Step) -> Verdict:
    for report in (c for c in step.commands if isinstance(c, ReportCompleted)):
        said = set(before.holders if before.phase is Phase.ABORTED else _everyone(before) - before.inside)
        if isinstance(event, RankTransferred) and event.stamp == before.stamp and event.version == report.version:
            said.add(event.rank)
        if isinstance(event, RankLeft) and event.progress is Progress.COMPLETE and event.stamp == before.stamp:
            said.add(event.rank)
        if report.epoch != before.epoch or report.roster != before.roster:
            return f"reported {report} for epoch {before.epoch} over {before.roster}"
        if before.refit is None or report.version != before.refit.version:
            return f"reported version {report.version}, asked for was {before.refit}"
        if before.phase is Phase.ABORTED and before.broke_in is not Phase.REFITTING:
            return f"reported {report.version} complete, but epoch {before.epoch} broke before it carried anything"
        if before.phase is Phase.ABORTED and not before.refit.touched.issuperset(before.roster):
            return f"reported {report.version} complete, but it was asked for after the break and never dispatched"
        if silent := _everyone(before) - said:
            return f"reported {report.version} complete, but ranks {sorted(silent)} never acknowledged it"
    return None


def nobody_serves_unproven(before: State, event: Event, step: Step) -> Verdict:
    serves = (ShardState.SERVING, ShardState.SUSPECT)
    completed = [c for c in step.commands if isinstance(c, ReportCompleted)]
    reopened = {*serving_shards(step.state)} - {*serving_shards(before)}
    for old, new in zip(before.shards, step.state.shards, strict=True):
        if new.slot not in reopened and (new.state not in serves or old.state in serves):
            continue
        if not any(c.roster.holds(new.slot, new.incarnation) for c in completed):
            return f"shard {new.slot} serves without a completed refit that it took part in"
    return None


# --- S10, S11, S14: evidence, deadlines, budgets -----------------------------------------------------------------


def nobody_is_lost_without_evidence(before: State, event: Event, step: Step) -> Verdict:
    retired_by_order = set(before.queued)
    if isinstance(event, RetireRequested):
        retired_by_order.add(event.slot)
    for old, new in zip(before.shards, step.state.shards, strict=True):
        if old.state not in MEMBERS or new.state in MEMBERS:
            continue
        about_it = getattr(event, "slot", None) == old.slot and getattr(event, "incarnation", None) == old.incarnation
        if isinstance(event, ShardExited | WorkerExited) and about_it:
            continue
        if about_it and _streak_after(old, event) >= before.config.unhealthy_threshold:
            continue
        if new.state is ShardState.RETIRED and old.slot in retired_by_order:
            continue
        return f"shard {old.slot} went from {old.state.value} to {new.state.value} on {event}, which is no evidence"
    return None


def _streak_after(shard: Shard, event: Event) -> int:
    match event:
        case ProbeFailed():
            return shard.failed_probes + 1
        case RequestFailed():
            return shard.failed_requests + 1
        case _:
            return 0


def every_wait_is_bounded(state: State) -> Verdict:
    if state.phase in TERMINAL:
        return None
    fencing = any(shard.timer is Timer.FENCE for shard in state.shards)
    if state.phase is Phase.FORMING and Timer.FORM not in state.timers:
        return "forming without a deadline"
    if state.phase is Phase.REFITTING and Timer.PROGRESS not in state.timers:
        return "refitting without a deadline"
    if state.phase is Phase.ABORTED and state.inside and Timer.SETTLE not in state.timers and not fencing:
        return f"ranks {sorted(state.inside)} are awaited without a deadline"
    if state.refit is not None and Timer.REFIT not in state.timers and not state.refit.expired:
        return "an open refit without a deadline"
    for shard in state.shards:
        wanted: tuple[Timer, ...] = ()
        if shard.state is ShardState.RESTARTING:
            wanted = (Timer.RESTART,)
        elif shard.state is ShardState.ABSENT:
            wanted = (Timer.FENCE,) if shard.fencing else (Timer.BACKOFF,)
        elif shard.state in MEMBERS:
            wanted = (Timer.FENCE,) if shard.fencing else ()
            if not wanted and shard.timer is not None:
                return f"shard {shard.slot} is {shard.state.value} with {shard.timer.value} armed"
        if wanted and shard.timer not in wanted:
            return f"shard {shard.slot} is {shard.state.value} without a {wanted[0].value} deadline"
    return None


def budgets_hold(state: State) -> Verdict:
    config: RefitConfig = state.config
    if state.tries > config.max_attempts_per_refit:
        return f"{state.tries} attempts, {config.max_attempts_per_refit} allowed"
    if state.transients > config.max_transient_retries:
        return f"{state.transients} transient retries, {config.max_transient_retries} allowed"
    for shard in state.shards:
        if shard.restarts > config.max_restart_attempts_per_shard:
            return f"shard {shard.slot} restarted {shard.restarts} times"
    if _spans(state) and len(state.roster) < config.min_healthy_shards:
        return f"a communicator over {len(state.roster)} shards, the floor is {config.min_healthy_shards}"
    return None


def retired_is_for_ever(before: State, event: Event, step: Step) -> Verdict:
    for old, new in zip(before.shards, step.state.shards, strict=True):
        if old.state is ShardState.RETIRED and new.state is not ShardState.RETIRED:
            return f"shard {old.slot} came back from retirement as {new.state.value}"
        if new.incarnation < old.incarnation:
            return f"shard {old.slot} went back from incarnation {old.incarnation} to {new.incarnation}"
    return None


# --- P4 as a step property: quiet means quiet --------------------------------------------------------------------


def no_rebuild_for_nothing(before: State, event: Event, step: Step) -> Verdict:
    if before.phase in LIVE and any(isinstance(c, Form) for c in step.commands) and step.state.roster == before.roster:
        return f"rebuilt over {before.roster} although it was live over just that"
    return None


INVARIANTS: tuple[Invariant, ...] = (
    Invariant(
        "S1",
        "ranks are exactly 0..world_size-1, survivors contiguous in slot order",
        of_state=layout_is_exact,
    ),
    Invariant("S2", "rank 0 is a trainer in every epoch", of_state=root_is_a_trainer),
    Invariant(
        "S3",
        "a refit starts only on a live communicator over the desired roster of its snapshot",
        of_step=refit_starts_on_the_desired_roster,
    ),
    Invariant(
        "S4",
        "no communicator in use contains an absent, fenced or replaced incarnation",
        of_state=no_absentee_in_a_used_communicator,
    ),
    Invariant(
        "S5",
        "one epoch at a time, and epochs only grow",
        of_state=nothing_runs_on_a_stale_communicator,
        of_step=one_epoch_at_a_time,
    ),
    Invariant(
        "S6",
        "nothing forms while a rank may be inside the older communicator",
        of_step=nothing_forms_over_an_unsettled_one,
    ),
    Invariant(
        "S7",
        "after a break nothing forms over the same roster without newer evidence",
        of_step=no_retry_without_new_evidence,
    ),
    Invariant(
        "S8",
        "a serving shard holds the committed version, whole; a delta goes only to who holds what it builds on",
        of_state=serving_shards_are_current,
        of_step=delta_only_on_what_is_whole,
    ),
    Invariant("S9", "success means that every participant acknowledged", of_step=success_means_everybody),
    Invariant("S10", "nobody becomes absent without evidence", of_step=nobody_is_lost_without_evidence),
    Invariant("S11", "every wait has its deadline armed", of_state=every_wait_is_bounded),
    Invariant(
        "S12",
        "a rejoined shard serves only after a refit that it took part in",
        of_step=nobody_serves_unproven,
    ),
    Invariant(
        "S13",
        "trainers are never excluded; their loss halts",
        of_state=trainers_keep_their_ranks,
        of_step=trainer_loss_halts,
    ),
    Invariant(
        "S14",
        "budgets are respected; retired is for ever",
        of_state=budgets_hold,
        of_step=retired_is_for_ever,
    ),
    Invariant(
        "P4",
        "quiet means quiet: no rebuild over the very roster that is live",
        of_step=no_rebuild_for_nothing,
    ),
)


def violations(before: State, event: Event, step: Step) -> tuple[str, ...]:
    """Every property that this step breaks, as `id: sentence`. Empty when all hold."""
    found: list[str] = []
    for invariant in INVARIANTS:
        for verdict in (
            invariant.of_state(step.state) if invariant.of_state else None,
            invariant.of_step(before, event, step) if invariant.of_step else None,
        ):
            if verdict:
                found.append(f"{invariant.id}: {verdict}")
    return tuple(found)


__all__ = ["INVARIANTS", "FenceExpired", "Invariant", "violations"]
