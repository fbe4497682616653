"""Who fills the slots: the roster, and the decision that compares rosters.

A membership says *where* (slot -> ranks); a roster says *who* (slot -> incarnation). Comparing layouts alone
cannot see that a slot was refilled, that a communicator is gone, or that an old absence has nothing to do with
a new silence. This module owns the comparison that can; `membership` owns the layout.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from .membership import RefitMembership, check_size, plan_refit_membership


class Roster(Mapping[int, int]):
    """`{slot: incarnation}` of one communicator: immutable, hashable, ordered by slot whatever the input order.

    Two rosters are equal when the same incarnations fill the same slots; the order in which they were named
    never counts as a change. Raises `TypeError` for a slot or incarnation that is not an int (True as a slot is a
    mistake, not a 1), `ValueError` for a negative one, or a slot named twice.
    """

    __slots__ = ("_hash", "_seats")
    _seats: dict[int, int]
    _hash: int

    def __init__(self, members: Mapping[int, int] | Iterable[tuple[int, int]] = ()) -> None:
        pairs: list[tuple[int, int]] = sorted(members.items() if isinstance(members, Mapping) else members)
        seats: dict[int, int] = dict(pairs)
        if len(seats) != len(pairs):
            raise ValueError(f"a roster names each slot once, got {pairs}")
        for slot, incarnation in pairs:
            if type(slot) is not int or type(incarnation) is not int:
                raise TypeError(
                    f"slot and incarnation are whole numbers, got slot {slot!r} incarnation {incarnation!r}"
                )
            if slot < 0 or incarnation < 0:
                raise ValueError(f"slot and incarnation count from 0, got slot {slot} incarnation {incarnation}")
        self._seats = seats
        self._hash = hash(tuple(pairs))

    def __getitem__(self, slot: int) -> int:
        return self._seats[slot]

    def __iter__(self) -> Iterator[int]:
        return iter(self._seats)

    def __len__(self) -> int:
        return len(self._seats)

    def __contains__(self, slot: object) -> bool:
        return slot in self._seats

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Roster) and self._hash == other._hash and self._seats == other._seats

    def __repr__(self) -> str:
        return f"Roster({self})"

    def __str__(self) -> str:
        return "{" + ", ".join(f"{slot}:{incarnation}" for slot, incarnation in self._seats.items()) + "}"

    def __reduce__(self) -> tuple[type[Roster], tuple[tuple[tuple[int, int], ...]]]:
        return (Roster, (tuple(self._seats.items()),))

    def holds(self, slot: int, incarnation: int) -> bool:
        """Whether this very process, not merely its slot, is a member."""
        return self._seats.get(slot) == incarnation

    def departed(self, desired: Roster) -> tuple[int, ...]:
        """The member slots whose incarnation `desired` no longer holds: gone, or replaced by another process."""
        return tuple(slot for slot, incarnation in self._seats.items() if not desired.holds(slot, incarnation))


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """The sizes that never change during a run. Slots are numbered `0 .. dp_size-1` for ever.

    train_world_size: trainer ranks; dp_size: generation shards; workers_per_shard: ranks behind one shard
    (tensor-parallel x pipeline-parallel). Raises `ValueError`, naming it, for a size that is no int, is below 1, or
    makes more than `MAX_RANKS` ranks.
    """

    train_world_size: int
    dp_size: int
    workers_per_shard: int = 1

    def __post_init__(self) -> None:
        for name in ("train_world_size", "dp_size", "workers_per_shard"):
            check_size(name, getattr(self, name))
        check_size("world_size", self.train_world_size + self.total_gen_workers)

    @property
    def total_gen_workers(self) -> int:
        return self.dp_size * self.workers_per_shard

    def membership(self, roster: Roster) -> RefitMembership:
        """The layout of a communicator over `roster`. Raises `NoSurvivingShards` for an empty one."""
        return plan_refit_membership(
            surviving_shards=tuple(roster),
            dp_size=self.dp_size,
            total_gen_workers=self.total_gen_workers,
            train_world_size=self.train_world_size,
        )


def must_rebuild(*, desired: Roster, built: Roster | None) -> bool:
    """Whether the communicator must be formed anew: what should be differs from what is live.

    `built` is None when nothing is live: never formed, cut short, or its forming failed. This closes the three
    holes of comparing layouts (design, "Where the published rule is not enough"): a refilled slot differs by
    its incarnation; a communicator that is gone is built over nothing; and there is no `force`, so an old absence
    can never license a rebuild over a rank that has just gone silent: after an abort the lifecycle asks for
    evidence newer than the broken epoch (safety S7) instead of asking this question.
    """
    return built is None or desired != built
