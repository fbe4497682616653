"""When two states are the same for every purpose of a search.

Three reductions. *Symmetry*: slots differ by their number only, trainer ranks too, and so do the workers of one
shard; permuting them permutes every behaviour. *Relativity*: rows compare stamps, incarnations and versions for
equality and order only, so just their relation to the current ones counts. *Irrelevance*: what is only there to be
told to people (`failure`), or is read only under a condition that does not hold, is left out.

Tests hold the reductions against the plain search: the same states, and the same behaviour of states with one key.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import NamedTuple

from ..spec.lifecycle.events import Cause, Timer
from ..spec.lifecycle.state import TERMINAL, Phase, Shard, State, missed

Key = tuple[Hashable, ...]
_Seats = tuple[int, ...]  # one number per rank: inside, holds, untouched, never began
_Slot = tuple[str, int, bool, int, int, int, int, int, int, _Seats]

_TIMER_BIT = {timer.value: 1 << position for position, timer in enumerate(Timer)}
_INSIDE, _HOLDS, _UNTOUCHED, _NEVER_BEGAN = 1, 2, 4, 8
_ALL = _INSIDE | _HOLDS | _UNTOUCHED | _NEVER_BEGAN
_NOBODY: frozenset[int] = frozenset()
# The causes that rows tell apart.
_CAUSE = {
    Cause.REJECTED.value: "rejected",
    Cause.DEADLINE.value: "deadline",
    Cause.TRANSIENT.value: "transient",
    Cause.MANIFEST.value: "disagreement",
    Cause.CLAIM.value: "disagreement",
}


class Orbits(NamedTuple):
    """One slot of each kind of slots that cannot be told apart, and one rank of each kind of ranks."""

    slots: tuple[int, ...]
    ranks: tuple[int, ...]


def key(state: State, *, symmetric: bool = True) -> Key:
    """Equal keys: the same future, up to renaming."""
    trainers, slots = local_kinds(state)
    if state.phase in TERMINAL:
        trainers, slots = [], [(*slot[:-3], 0, slot[-2], ()) for slot in slots]
    if not symmetric:
        return (shared_kind(state), *trainers, *slots)
    if state.topology.workers_per_shard > 1:
        slots = [_unordered(slot) for slot in slots]
    trainers.sort()
    slots.sort()
    return (shared_kind(state), *trainers, *slots)


def orbits(state: State, *, symmetric: bool = True) -> Orbits:
    """Which slots and ranks a search has to try."""
    trainers, slots = local_kinds(state)
    first, workers = len(trainers), state.topology.workers_per_shard
    if not symmetric:
        return Orbits(tuple(range(len(slots))), tuple(range(first + workers * len(state.roster))))
    tried = _first_of_each([_unordered(slot) for slot in slots])
    ranks = _first_of_each(trainers)
    for slot in state.roster:
        if slot in tried:
            ranks += [first + worker for worker in _first_of_each(slots[slot][-1])]
        first += workers
    return Orbits(tuple(tried), tuple(ranks))


def _first_of_each(kinds: Sequence[Hashable]) -> list[int]:
    seen: dict[Hashable, int] = {}
    for position, kind in enumerate(kinds):
        seen.setdefault(kind, position)
    return list(seen.values())


def _unordered(slot: _Slot) -> _Slot:
    seats = slot[-1]
    return (*slot[:-1], tuple(sorted(seats))) if len(seats) > 1 else slot


def shared_kind(state: State) -> Key:
    refit = state.refit
    return (
        state.phase._value_,
        state.started,
        state.epoch > 0,
        state.carried,
        state.broke_in and state.broke_in._value_,
        _CAUSE.get(state.cause._value_, "other") if state.cause else None,
        bool(state.blamed),  # whose fault it was counts even when it has departed since
        refit and (refit.payload._value_, refit.expired),
        state.committed is None,
        state.tries,
        state.transients,
        _mask(state.timers),
        state.halt and state.halt.reason._value_,
    )


def _mask(timers: Iterable[Timer]) -> int:
    mask = 0
    for timer in timers:
        mask |= _TIMER_BIT[timer._value_]
    return mask


def local_kinds(state: State) -> tuple[list[int], list[_Slot]]:
    """What is known of each trainer rank, and of each slot with its ranks."""
    inside, roster = state.inside, state.roster
    workers, trainers = state.topology.workers_per_shard, state.topology.train_world_size
    # Who holds what is read after a broken transfer only, and that who took no part is read as one.
    never = missed(state)
    holders, untouched = (state.holders, state.untouched) if state.broke_in is Phase.REFITTING else (_NOBODY, _NOBODY)
    # Once a rank is out without the version, not everybody can acknowledge it any more, and who does is only read of
    # the members that are still there: for their own weights.
    all_may_hold = len(inside | holders) == trainers + workers * len(roster)

    def seats_from(first: int, count: int, read: int) -> _Seats:
        return tuple(
            [
                read
                & (
                    (rank in inside)
                    + _HOLDS * (rank in holders)
                    + _UNTOUCHED * (rank in untouched)
                    + _NEVER_BEGAN * (rank in never)
                )
                for rank in range(first, first + count)
            ]
        )

    credit = _HOLDS if all_may_hold else 0
    rank = trainers
    seats_of_trainers = list(seats_from(0, rank, _INSIDE | _NEVER_BEGAN | credit))
    touched = state.refit.touched if state.refit else _NOBODY
    slots: list[_Slot] = []
    for shard in state.shards:
        slot = shard.slot
        seats: _Seats = ()
        member = 0
        if slot in roster:
            member = 1 if roster[slot] == shard.incarnation else 2
            there = member == 1 and shard.is_member
            seats = seats_from(rank, workers, _ALL if there else _INSIDE | credit)
            rank += workers
            blamed = there and slot in state.blamed
        else:
            blamed = False
        slots.append(
            (
                shard.state._value_,
                _holds(shard, state),
                shard.fencing,
                shard.failed_probes,
                shard.failed_requests,
                shard.restarts,
                _TIMER_BIT[shard.timer._value_] if shard.timer else 0,
                member,
                blamed + 2 * (slot in touched) + 4 * (slot in state.queued),
                seats,
            )
        )
    return seats_of_trainers, slots


def _holds(shard: Shard, state: State) -> int:
    if shard.version is None:
        return 0
    if shard.version == state.committed:
        return 2
    return 3 if state.refit is not None and shard.version == state.refit.version else 1
