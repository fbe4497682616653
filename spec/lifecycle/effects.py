"""What rows do, as named pure functions: the new value, the commands, the signals. The row sets the target.

The effects of the communicator: each sees the whole state, computes first and returns once, so that nothing is half
changed when it raises. Those of a shard are in `shard_effects`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .commands import (
    Arm,
    Command,
    Disarm,
    DisarmAll,
    Form,
    Leave,
    ReportCompleted,
    ReportFormed,
    ReportHalted,
    Transfer,
)
from .events import (
    Carried,
    Cause,
    Condemned,
    Departed,
    Event,
    FormDue,
    FormExpired,
    Payload,
    Progress,
    ProgressExpired,
    Promoted,
    RankFailed,
    RankLeft,
    RankReply,
    RefitExpired,
    RefitRequested,
    RetireOrdered,
    RetireRequested,
    Settled,
    SettleExpired,
    Signal,
    Timer,
    Torn,
    TransferDue,
    WindowOpened,
)
from .explain import explain
from .state import (
    Failure,
    Halt,
    HaltReason,
    Phase,
    Refit,
    State,
    all_ranks,
    broken_refit,
    carried_slots,
    condemned,
    dead_ranks,
    departed,
    desired_roster,
    evolve,
    slots_of,
    torn_slots,
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a communicator row does."""

    state: State
    commands: tuple[Command, ...] = ()
    signals: tuple[Signal, ...] = ()


Effect = Callable[[State, Any], Outcome]


# --- timers ----------------------------------------------------------------------------------------------------


def _armed(state: State, timer: Timer, seconds: float, expiry: Event) -> tuple[State, Arm]:
    return evolve(state, timers=state.timers | {timer}), Arm(timer, seconds, expiry)


def _disarmed(state: State, *timers: Timer) -> tuple[State, tuple[Disarm, ...]]:
    over = [timer for timer in timers if timer in state.timers]
    return evolve(state, timers=state.timers.difference(over)), tuple(Disarm(timer) for timer in over)


# --- nothing changes but the phase -----------------------------------------------------------------------------


def stay(state: State, event: Event) -> Outcome:
    """The table's target says it all."""
    return Outcome(state)


def begin(state: State, event: Event) -> Outcome:
    """From now on a communicator is wanted."""
    return Outcome(evolve(state, started=True), signals=(FormDue(),))


def ask_to_form(state: State, event: Event) -> Outcome:
    """A communicator is wanted: look at who can be in it."""
    return Outcome(state, signals=(FormDue(),))


# --- requests --------------------------------------------------------------------------------------------------


def _opened(state: State, event: RefitRequested) -> tuple[State, Arm]:
    return _armed(
        evolve(state, refit=Refit(version=event.version, payload=event.payload)),
        Timer.REFIT,
        state.config.refit_timeout_s,
        RefitExpired(event.version),
    )


def open_refit(state: State, event: RefitRequested) -> Outcome:
    """Record the request; whoever is under way takes it up when done."""
    opened, arm = _opened(state, event)
    return Outcome(opened, (arm,))


def open_refit_and_transfer(state: State, event: RefitRequested) -> Outcome:
    """Record the request; the communicator is ready for it."""
    opened, arm = _opened(state, event)
    return Outcome(opened, (arm,), (TransferDue(),))


def open_refit_and_form(state: State, event: RefitRequested) -> Outcome:
    """Record the request; a communicator must be formed first."""
    opened, arm = _opened(state, event)
    return Outcome(opened, (arm,), (FormDue(),))


def queue_retirement(state: State, event: RetireRequested) -> Outcome:
    """Never applied under a running operation."""
    return Outcome(evolve(state, queued=state.queued | {event.slot}))


def order_retirement(state: State, event: RetireRequested) -> Outcome:
    """Nothing is under way: the slot leaves the fleet now."""
    return Outcome(state, signals=(RetireOrdered((event.slot,)),))


def order_queued_retirements(state: State, event: Event) -> Outcome:
    """The window is open: apply what was queued."""
    return Outcome(evolve(state, queued=frozenset()), signals=(RetireOrdered(tuple(sorted(state.queued))),))


# --- forming ---------------------------------------------------------------------------------------------------


def begin_forming(state: State, event: Event) -> Outcome:
    """One snapshot decides the roster, the layout and everyone who is told. It is recorded before it is dispatched."""
    forming = evolve(
        state,
        epoch=state.epoch + 1,
        attempt=0,
        roster=desired_roster(state),
        carried=False,
        broke_in=None,
        cause=None,
        failures=(),
        holders=frozenset(),
        untouched=frozenset(),
        never_entered=frozenset(),
        stuck=frozenset(),
        blamed=frozenset(),
        tries=state.tries + 1,
    )
    forming = evolve(forming, inside=all_ranks(forming))
    forming, over = _disarmed(forming, Timer.SETTLE)
    forming, arm = _armed(forming, Timer.FORM, state.config.form_timeout_s, FormExpired(forming.stamp))
    return Outcome(forming, (*over, arm, Form(forming.stamp, forming.roster)))


def count_reply(state: State, event: RankReply) -> Outcome:
    """This rank is done; others are awaited."""
    return Outcome(evolve(state, inside=state.inside - {event.rank}))


def count_transfer(state: State, event: RankReply) -> Outcome:
    """This rank is done; that is progress, so the others get the whole deadline again."""
    return Outcome(evolve(state, inside=state.inside - {event.rank}), (_progress_deadline(state),))


def complete_forming(state: State, event: RankReply) -> Outcome:
    """Everyone shook hands. A waiting refit goes on at once; otherwise the window opens."""
    formed, over = _disarmed(evolve(state, inside=frozenset()), Timer.FORM)
    report = ReportFormed(formed.epoch, formed.roster)
    if formed.refit is not None:
        return Outcome(formed, (*over, report), (TransferDue(),))
    return Outcome(evolve(formed, tries=0, transients=0), (*over, report), (WindowOpened(),))


# --- refitting -------------------------------------------------------------------------------------------------


def _progress_deadline(state: State) -> Arm:
    return Arm(Timer.PROGRESS, state.config.progress_timeout_s, ProgressExpired(state.stamp))


def begin_transfer(state: State, event: Event) -> Outcome:
    """Close the traffic of every participant in the record, then tell the ranks."""
    assert state.refit is not None, "a transfer is only due while a refit is open"
    refit = evolve(
        state.refit,
        touched=state.refit.touched | frozenset(state.roster),
        # A communicator formed meanwhile owes a full refit: what was asked as a delta carries everything now.
        payload=state.refit.payload if state.carried else Payload.FULL,
    )
    moving = evolve(
        state,
        attempt=state.attempt + 1,
        inside=all_ranks(state),
        refit=refit,
        timers=state.timers | {Timer.PROGRESS},
    )
    transfer = Transfer(moving.stamp, moving.roster, refit.version, refit.payload)
    return Outcome(moving, (_progress_deadline(moving), transfer))


def extend_progress(state: State, event: RankReply) -> Outcome:
    """Somebody moved: a big refit that moves is not a hang."""
    return Outcome(state, (_progress_deadline(state),))


def _committed(state: State) -> Outcome:
    """Promotion is by participation: the incarnations of this epoch's roster that are still there, nobody else."""
    assert state.refit is not None, "only an open refit can be committed"
    version = state.refit.version
    gone = departed(state)
    done, over = _disarmed(
        evolve(state, refit=None, committed=version, carried=True, inside=frozenset(), tries=0, transients=0),
        Timer.PROGRESS,
        Timer.SETTLE,
        Timer.REFIT,
    )
    return Outcome(
        done,
        (*over, ReportCompleted(version, state.epoch, state.roster)),
        (Promoted(tuple(slot for slot in state.roster if slot not in gone), version), WindowOpened()),
    )


def complete_refit(state: State, event: RankReply) -> Outcome:
    """Every participant holds the version whole."""
    return _committed(state)


def commit_after_break(state: State, event: Event) -> Outcome:
    """Everything had moved when it broke: the refit counts, nobody is torn, only the communicator is gone."""
    done = _committed(state)
    promoted = tuple(signal for signal in done.signals if isinstance(signal, Promoted))
    return Outcome(done.state, done.commands, (*promoted, FormDue()))


# --- a break ---------------------------------------------------------------------------------------------------


def _broken(state: State, cause: Cause, failure: Failure | None = None) -> Outcome:
    """Ask everyone who may be alive to leave. Those who had acknowledged keep that credit."""
    held = all_ranks(state) - state.inside if state.phase is Phase.REFITTING else frozenset()
    blamed = slots_of(state, (failure.rank,)) if failure and failure.cause is Cause.REJECTED else frozenset()
    broken = evolve(
        state,
        attempt=state.attempt + 1,
        broke_in=state.phase,
        cause=cause,
        failures=(failure,) if failure else (),
        holders=held,
        blamed=blamed,
        inside=all_ranks(state) - dead_ranks(state),
    )
    broken, over = _disarmed(broken, Timer.FORM, Timer.PROGRESS)
    broken, arm = _armed(broken, Timer.SETTLE, state.config.settle_timeout_s, SettleExpired(broken.stamp))
    return Outcome(broken, (*over, arm, Leave(broken.stamp, state.stamp, broken.roster, tuple(sorted(broken.inside)))))


def break_on_departure(state: State, event: Departed) -> Outcome:
    """A collective needs every rank: break the others' waits now, not when they time out."""
    return _broken(state, Cause.DEPARTURE)


def break_on_failure(state: State, event: RankFailed) -> Outcome:
    """One rank is out without success: the operation cannot complete."""
    return _broken(state, event.cause, Failure(event.rank, event.cause, event.detail))


def hear_failure(state: State, event: RankFailed) -> Outcome:
    """It changes nothing but what a person will be told."""
    heard = Failure(event.rank, event.cause, event.detail)
    return Outcome(evolve(state, failures=(*state.failures, heard)[:8]))


def break_on_wrong_version(state: State, event: RankReply) -> Outcome:
    """A rank that carried something else has not carried this."""
    return _broken(state, Cause.CLAIM, Failure(event.rank, Cause.CLAIM, "acknowledged another version"))


def break_on_deadline(state: State, event: Event) -> Outcome:
    """Nobody moved for too long: find out who is missing."""
    fired = Timer.FORM if isinstance(event, FormExpired) else Timer.PROGRESS
    return _broken(evolve(state, timers=state.timers - {fired}), Cause.DEADLINE)


def break_on_refit_deadline(state: State, event: RefitExpired) -> Outcome:
    """The whole path is out of time: leave in order, then halt."""
    return _broken(_out_of_time(state), Cause.DEADLINE)


def _out_of_time(state: State) -> State:
    assert state.refit is not None, "only an open refit has a deadline"
    return evolve(state, refit=evolve(state.refit, expired=True), timers=state.timers - {Timer.REFIT})


def mark_out_of_time(state: State, event: RefitExpired) -> Outcome:
    """The ranks are still leaving; the verdict follows when they have."""
    return Outcome(_out_of_time(state))


def record_leaving(state: State, event: RankLeft) -> Outcome:
    """This rank is out, and how far it got is evidence."""
    rank = frozenset((event.rank,))
    left = evolve(state, inside=state.inside - rank)
    match event.progress:
        case Progress.COMPLETE:
            left = evolve(left, holders=left.holders | rank)
        case Progress.ENTERED:
            left = evolve(left, untouched=left.untouched | rank)
        case Progress.NEVER_ENTERED:
            left = evolve(left, untouched=left.untouched | rank, never_entered=left.never_entered | rank)
        case Progress.STUCK:
            words = Failure(event.rank, Cause.DEADLINE, event.detail)
            left = evolve(left, stuck=left.stuck | rank, failures=(*left.failures, words)[:8])
        case Progress.PARTIAL:
            pass
    return Outcome(left)


def record_last_leaving(state: State, event: RankLeft) -> Outcome:
    """Everyone is out: decide."""
    left, over = _disarmed(record_leaving(state, event).state, Timer.SETTLE)
    return Outcome(left, over, (Settled(),))


def settle_on_deadline(state: State, event: SettleExpired) -> Outcome:
    """The budget for leaving is spent: decide by who answered."""
    return Outcome(evolve(state, timers=state.timers - {Timer.SETTLE}), signals=(Settled(),))


def drop_the_dead(state: State, event: Departed) -> Outcome:
    """The dead are out of everything. If nobody else is awaited, decide."""
    left = evolve(state, inside=state.inside - dead_ranks(state))
    fencing = any(left.shards[slot].is_member and left.shards[slot].fencing for slot in left.roster)
    if left.inside or fencing:
        return Outcome(left)
    left, over = _disarmed(left, Timer.SETTLE)
    return Outcome(left, over, (Settled(),))


def _weights_marked(state: State) -> tuple[Signal, ...]:
    """Say what the survivors of a broken transfer hold."""
    signals: list[Signal] = []
    if torn := torn_slots(state):
        signals.append(Torn(tuple(sorted(torn))))
    if (refit := broken_refit(state)) and (whole := carried_slots(state)):
        signals.append(Carried(tuple(sorted(whole)), refit.version))
    return tuple(signals)


def condemn_suspects(state: State, event: Settled) -> Outcome:
    """Kill the ones that evidence singles out; they count as absent only when their death is confirmed."""
    return Outcome(state, signals=(*_weights_marked(state), Condemned(tuple(sorted(condemned(state))))))


def rebuild_over_the_rest(state: State, event: Settled) -> Outcome:
    """Somebody is certainly gone: that is the evidence a new roster needs."""
    return Outcome(evolve(state, inside=frozenset()), signals=(*_weights_marked(state), FormDue()))


def rebuild_after_transient(state: State, event: Settled) -> Outcome:
    """The cause names something that may pass."""
    return Outcome(evolve(state, transients=state.transients + 1), signals=(*_weights_marked(state), FormDue()))


# --- the end ---------------------------------------------------------------------------------------------------


def _halted(state: State, reason: HaltReason, event: Event) -> Outcome:
    halt = Halt(reason, explain(state, reason, event))
    ended = evolve(state, halt=halt, timers=frozenset(), inside=frozenset())
    leave: tuple[Command, ...] = ()
    if state.inside and state.phase is not Phase.ABORTED:
        ended = evolve(ended, attempt=state.attempt + 1)
        leave = (Leave(ended.stamp, state.stamp, state.roster, tuple(sorted(state.inside))),)
    return Outcome(ended, (DisarmAll(), *leave, ReportHalted(halt)), _weights_marked(state))


def halt_with(reason: HaltReason) -> Effect:
    """The effect that ends the run with this reason, breaking every wait that is still open."""

    def halt(state: State, event: Event) -> Outcome:
        return _halted(state, reason, event)

    halt.__name__ = halt.__qualname__ = f"halt_{reason.value}"
    halt.__doc__ = f"End the run: {reason.value.replace('_', ' ')}. Break every open wait and say what was known."
    return halt


def close(state: State, event: Event) -> Outcome:
    """Let everyone go. Nothing is awaited: closing never blocks on a member."""
    if state.epoch == 0:
        return Outcome(evolve(state, timers=frozenset(), refit=None), (DisarmAll(),))
    # A refit that was open stays in the record: whom it had touched may hold a mixture, and must not serve it now.
    ended = evolve(
        state,
        attempt=state.attempt + 1,
        timers=frozenset(),
        inside=frozenset(),
        queued=frozenset(),
    )
    ranks = tuple(sorted(all_ranks(state) - dead_ranks(state)))
    return Outcome(ended, (DisarmAll(), Leave(ended.stamp, state.stamp, state.roster, ranks)))
