"""What may happen next to a fleet in a given state: the free environment of the searches.

A rank may answer anything to the command that it was given, in any order; processes die, freeze (they just never
answer), restart, fail to restart; a deadline fires whenever it is armed. Only faults, requests, reports and actions
of the operator are bounded. Every behaviour of a real fleet within the bounds is among these.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from ..spec.lifecycle import events as ev
from ..spec.lifecycle.state import TERMINAL, Phase, Shard, ShardState, State
from .symmetry import Orbits


class Budget(NamedTuple):
    """What is left of the bounds of a run."""

    faults: int
    refits: int
    reports: int
    operator: int

    def covers(self, other: Budget) -> bool:
        """Whether everything that may happen under `other` may happen under this."""
        return all(mine >= its for mine, its in zip(self, other, strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """How much of each kind of event one run may contain.

    faults: what nobody asked for, deadlines included. refits: requests of the trainer. reports: failed probes and
    failed requests, good news being free. operator: retire, reconcile, close, and refits that carry a delta only.
    kinds: the faults to choose from; None for all.
    """

    faults: int = 2
    refits: int = 2
    reports: int = 0
    operator: int = 0
    kinds: frozenset[type[ev.Event]] | None = None

    @property
    def budget(self) -> Budget:
        return Budget(self.faults, self.refits, self.reports, self.operator)


FAILURES = (ev.Cause.PEER, ev.Cause.TRANSIENT, ev.Cause.MANIFEST, ev.Cause.REJECTED)


def moves(state: State, budget: Budget, orbits: Orbits, bounds: Bounds) -> Iterator[tuple[ev.Event, Budget]]:
    """Every event that may come next, with the budget that is left after it; one for each orbit."""
    if state.phase in TERMINAL:
        return
    for event in replies(state, orbits):
        yield event, budget
    if budget.refits and state.refit is None:
        yield ev.RefitRequested(next_version(state)), budget._replace(refits=budget.refits - 1)
    if budget.operator:
        used = budget._replace(operator=budget.operator - 1)
        for event in operator_actions(state, orbits):
            yield event, used
    if budget.reports:
        used = budget._replace(reports=budget.reports - 1)
        for event in bad_reports(state, orbits):
            yield event, used
    if budget.faults:
        used = budget._replace(faults=budget.faults - 1)
        for event in faults(state, orbits):
            if bounds.kinds is None or type(event) in bounds.kinds:
                yield event, used


def next_version(state: State) -> ev.Version:
    """The version of the trainer's next step."""
    return ev.Version(0, 1) if state.committed is None else ev.Version(0, state.committed.step + 1)


def replies(state: State, orbits: Orbits) -> Iterator[ev.Event]:
    """What a healthy fleet does, and what follows from faults that happened already."""
    if state.phase is Phase.UNBUILT and not state.started and state.refit is None:
        yield ev.StartRequested()
    for rank in orbits.ranks if state.inside else ():
        if rank not in state.inside:
            continue
        match state.phase:
            case Phase.FORMING:
                yield ev.RankJoined(state.stamp, rank)
            case Phase.REFITTING:
                yield ev.RankTransferred(state.stamp, rank, _carried(state))
            case _:
                for progress in ev.Progress:
                    yield ev.RankLeft(state.stamp, rank, progress)
    for shard in _chosen(state, orbits):
        slot, incarnation = shard.slot, shard.incarnation
        if shard.fencing:
            yield ev.ShardExited(slot, incarnation)
        if shard.timer is ev.Timer.BACKOFF:
            yield ev.BackoffElapsed(slot, incarnation)
        if shard.state is ShardState.RESTARTING:
            yield ev.ReplacementLoaded(slot, incarnation)
        if shard.failed_probes:
            yield ev.ProbeSucceeded(slot, incarnation)
        if shard.failed_requests:
            yield ev.RequestSucceeded(slot, incarnation)


def operator_actions(state: State, orbits: Orbits) -> Iterator[ev.Event]:
    """What somebody may order besides refits that carry everything."""
    yield ev.ReconcileRequested()
    yield ev.CloseRequested()
    for slot in orbits.slots:
        yield ev.RetireRequested(slot)
    if state.refit is None:
        yield ev.RefitRequested(next_version(state), ev.Payload.DELTA)


def bad_reports(state: State, orbits: Orbits) -> Iterator[ev.Event]:
    """What condemns a shard when it repeats."""
    for shard in _chosen(state, orbits):
        if shard.is_member:
            yield ev.ProbeFailed(shard.slot, shard.incarnation)
            yield ev.RequestFailed(shard.slot, shard.incarnation)


def faults(state: State, orbits: Orbits) -> Iterator[ev.Event]:
    """What nobody asked for."""
    yield from deadlines(state, orbits)
    yield ev.TrainerLost(0)
    yield ev.ControllerFailed()
    if state.phase in (Phase.FORMING, Phase.REFITTING):
        for rank in orbits.ranks:
            if rank in state.inside:
                for cause in FAILURES:
                    yield ev.RankFailed(state.stamp, rank, cause)
                if state.phase is Phase.REFITTING:
                    wrong = _carried(state)._replace(trainer_incarnation=1)
                    yield ev.RankTransferred(state.stamp, rank, wrong)
                    yield ev.RankProgressed(state.stamp, rank)
    if state.phase is Phase.ABORTED:
        yield ev.RankFailed(_broken_off(state), 0, ev.Cause.PEER)
    for shard in _chosen(state, orbits):
        slot, incarnation = shard.slot, shard.incarnation
        if shard.is_member or shard.state is ShardState.RESTARTING:
            if not shard.fencing:
                yield ev.ShardExited(slot, incarnation)
            yield ev.WorkerExited(slot, incarnation, 0)
        if shard.state is ShardState.RESTARTING:
            yield ev.RestartFailed(slot, incarnation)


def deadlines(state: State, orbits: Orbits, *, pauses: bool = False) -> Iterator[ev.Event]:
    """What the clock may say: every deadline that is armed. `pauses`: the back-off before a restart too."""
    for timer, expiry in (
        (ev.Timer.FORM, ev.FormExpired),
        (ev.Timer.PROGRESS, ev.ProgressExpired),
        (ev.Timer.SETTLE, ev.SettleExpired),
    ):
        if timer in state.timers:
            yield expiry(state.stamp)
    if state.refit is not None and ev.Timer.REFIT in state.timers:
        yield ev.RefitExpired(state.refit.version)
    for shard in _chosen(state, orbits):
        if shard.timer is ev.Timer.RESTART:
            yield ev.RestartExpired(shard.slot, shard.incarnation)
        elif shard.timer is ev.Timer.FENCE:
            yield ev.FenceExpired(shard.slot, shard.incarnation)
        elif shard.timer is ev.Timer.BACKOFF and pauses:
            yield ev.BackoffElapsed(shard.slot, shard.incarnation)


def noise(state: State, orbits: Orbits) -> Iterator[ev.Event]:
    """What must be refused, or change nothing: late, doubled, foreign and impossible events."""
    version = _carried(state)
    stamp = state.stamp
    old = [ev.Stamp(stamp.epoch - 1, stamp.attempt), _broken_off(state)]
    for rank in orbits.ranks if state.epoch else ():
        for given in old if rank in state.inside else (*old, stamp):
            yield ev.RankJoined(given, rank)
            yield ev.RankTransferred(given, rank, version)
            yield ev.RankProgressed(given, rank)
            if state.phase is not Phase.ABORTED or given != _broken_off(state):
                yield ev.RankFailed(given, rank, ev.Cause.PEER)
            yield ev.RankLeft(given, rank, ev.Progress.COMPLETE)
    for given in old:
        yield from (ev.FormExpired(given), ev.ProgressExpired(given), ev.SettleExpired(given))
    yield ev.RefitExpired(version._replace(step=version.step - 1))
    for shard in _chosen(state, orbits):
        for incarnation in (shard.incarnation - 1, shard.incarnation + 1):
            yield from about(shard.slot, incarnation)
    yield from about(state.topology.dp_size, 0)
    yield from (ev.RetireRequested(state.topology.dp_size), ev.RetireRequested(-1))
    if state.phase is not Phase.UNBUILT or state.started:
        yield ev.StartRequested()
    if state.refit is not None:
        yield ev.RefitRequested(version._replace(step=version.step + 1))
    if state.committed is not None:
        yield ev.RefitRequested(state.committed)
    if not state.carried:
        yield ev.RefitRequested(next_version(state), ev.Payload.DELTA)


def about(slot: int, incarnation: int) -> tuple[ev.Event, ...]:
    """One of every observation of this process."""
    return (
        ev.ShardExited(slot, incarnation),
        ev.WorkerExited(slot, incarnation, 0),
        ev.ProbeFailed(slot, incarnation),
        ev.ProbeSucceeded(slot, incarnation),
        ev.RequestFailed(slot, incarnation),
        ev.RequestSucceeded(slot, incarnation),
        ev.ReplacementLoaded(slot, incarnation),
        ev.RestartFailed(slot, incarnation),
        ev.BackoffElapsed(slot, incarnation),
        ev.RestartExpired(slot, incarnation),
        ev.FenceExpired(slot, incarnation),
    )


def _broken_off(state: State) -> ev.Stamp:
    """The command before the current one: while aborted, the operation that was broken off."""
    return ev.Stamp(state.epoch, state.attempt - 1)


def _carried(state: State) -> ev.Version:
    return state.refit.version if state.refit is not None else state.committed or ev.Version(0, 1)


def _chosen(state: State, orbits: Orbits) -> Iterator[Shard]:
    return (state.shards[slot] for slot in orbits.slots)
