"""Where everybody sits: the layout of one refit communicator.

This module owns what a layout may be, and the published question whether a layout differs from what was built.
The arithmetic between positions and ranks is `layout`'s. It knows slots only; which process fills a slot is the
roster's matter.

Names, keywords and meaning are those of the published NeMo-RL module `weight_sync.membership`, so that a
trainer written against it can switch its import. Impossible numbers that it lets pass are refused here.

The layout: trainers at ranks `0 .. train_world_size-1`, then the generation block, in which the k-th survivor
in ascending order takes `workers_per_shard` ranks from prefix `k * workers_per_shard`. No holes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from .layout import is_trainer, position_and_worker_at, prefix_of, rank_at, world_size_of

# Every shard is a record and every rank a seat, so an absurd size must be refused before anything is laid out. This one
# is far above any fleet there is, and small enough to be laid out in a second.
MAX_RANKS = 2**20


class NoSurvivingShards(RuntimeError):
    """No generation shard is left, so there is no communicator to plan and the run cannot be refitted."""


class _FrozenDict(dict[int, int]):
    """A dict that refuses every change. Still a dict, so that it compares, prints and serialises as one."""

    __slots__ = ()

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise TypeError("shard_prefixes of a membership cannot be changed; plan a new membership instead")

    __setitem__ = __delitem__ = __ior__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(frozenset(self.items()))

    def __reduce__(self) -> tuple[type[_FrozenDict], tuple[dict[int, int]]]:
        # The inherited way refills an empty dict item by item, which is refused here.
        return (_FrozenDict, (dict(self),))


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerSeat:
    """A seat in the trainer block. `rank` counts in the communicator; rank 0 is the broadcast root."""

    rank: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardSeat:
    """A seat in the generation block: worker `0 .. workers_per_shard-1` of a shard (its slot number)."""

    shard: int
    worker: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RefitMembership:
    """The layout of one communicator: who sits at which rank. An immutable, hashable value.

    world_size: all ranks, trainers and generation workers. train_world_size: ranks `0 .. train_world_size-1`.
    shard_prefixes: surviving shard -> its first rank, counted from the start of the generation block; copied,
    in ascending shard order, and refuses changes. workers_per_shard: ranks behind one shard.

    Raises `ValueError` when the fields contradict each other: an impossible size, no shard, a prefix that leaves
    a hole or an overlap (a shard-to-shard transport would address wrong slices without an error), or a world
    size that is not the sum of its parts. Source: design, "The published layout functions".
    """

    world_size: int
    train_world_size: int
    shard_prefixes: Mapping[int, int]
    workers_per_shard: int

    def __post_init__(self) -> None:
        check_size("world_size", self.world_size)
        check_size("train_world_size", self.train_world_size)
        check_size("workers_per_shard", self.workers_per_shard)
        for shard in self.shard_prefixes:
            _check_shard(shard)
        prefixes = _FrozenDict(sorted(self.shard_prefixes.items()))
        if not prefixes:
            raise ValueError("shard_prefixes is empty: a membership needs at least 1 generation shard")
        for position, (shard, prefix) in enumerate(prefixes.items()):
            expected = prefix_of(position=position, workers_per_shard=self.workers_per_shard)
            if not _is_int(prefix) or prefix != expected:
                raise ValueError(
                    f"shard {shard} is survivor number {position} and must start at prefix {expected} "
                    f"({position} x workers_per_shard={self.workers_per_shard}), got {prefix!r}"
                )
        expected_world = world_size_of(
            train_world_size=self.train_world_size,
            survivors=len(prefixes),
            workers_per_shard=self.workers_per_shard,
        )
        if self.world_size != expected_world:
            raise ValueError(
                f"world_size must be {expected_world} (train_world_size={self.train_world_size} + "
                f"{len(prefixes)} shards x workers_per_shard={self.workers_per_shard}), got {self.world_size}"
            )
        object.__setattr__(self, "shard_prefixes", prefixes)

    @property
    def surviving_shards(self) -> list[int]:
        """The shards that are members, ascending. A fresh list each time."""
        return list(self.shard_prefixes)

    def rank_of(self, *, shard: int, worker: int) -> int:
        """The rank of one worker of a shard: `train_world_size + prefix + worker`. Inverse of `seat_of`.

        Raises `ValueError` for a shard that is not a member, or a worker not in `0 .. workers_per_shard-1`.
        """
        prefix = self._prefix_of(shard)
        if not _is_int(worker) or not 0 <= worker < self.workers_per_shard:
            raise ValueError(f"a shard has workers 0..{self.workers_per_shard - 1}, got worker {worker!r}")
        return rank_at(train_world_size=self.train_world_size, prefix=prefix, worker=worker)

    def ranks_of(self, *, shard: int) -> range:
        """All ranks of a shard, in worker order. Raises `ValueError` for a shard that is not a member."""
        first = rank_at(train_world_size=self.train_world_size, prefix=self._prefix_of(shard), worker=0)
        return range(first, first + self.workers_per_shard)

    def seat_of(self, *, rank: int) -> TrainerSeat | ShardSeat:
        """Who sits at a rank. Inverse of `rank_of`: in the generation block, div and mod by the workers.

        Raises `ValueError` for a rank not in `0 .. world_size-1`.
        """
        if not _is_int(rank) or not 0 <= rank < self.world_size:
            raise ValueError(f"the communicator has ranks 0..{self.world_size - 1}, got rank {rank!r}")
        if is_trainer(rank=rank, train_world_size=self.train_world_size):
            return TrainerSeat(rank=rank)
        position, worker = position_and_worker_at(
            rank=rank, train_world_size=self.train_world_size, workers_per_shard=self.workers_per_shard
        )
        return ShardSeat(shard=self.surviving_shards[position], worker=worker)

    def _prefix_of(self, shard: int) -> int:
        """Where a member starts in the generation block. Raises `ValueError` for a shard that is not a member."""
        if type(shard) is not int:  # True would find shard 1
            _check_shard(shard)
        prefix = self.shard_prefixes.get(shard)
        if prefix is None:
            _check_shard(shard)
            raise ValueError(f"shard {shard} is not a member, the members are {self.surviving_shards}")
        return prefix


def workers_per_shard(*, dp_size: int, total_gen_workers: int) -> int:
    """Ranks behind one shard of a fleet of `total_gen_workers` ranks in `dp_size` shards of one size.

    The one owner of the rule that a fleet is evenly sharded. Raises `ValueError` for an impossible size, and for
    workers that do not divide evenly. Source: design, "The published layout functions".
    """
    check_size("dp_size", dp_size)
    check_size("total_gen_workers", total_gen_workers)
    workers, left_over = divmod(total_gen_workers, dp_size)
    if left_over:
        raise ValueError(
            f"the fleet is not evenly sharded: total_gen_workers={total_gen_workers} over dp_size={dp_size} "
            f"leaves a remainder of {left_over}"
        )
    return workers


def plan_refit_membership(
    *, surviving_shards: Iterable[int], dp_size: int, total_gen_workers: int, train_world_size: int
) -> RefitMembership:
    """The layout of a communicator over all trainers and the surviving shards (slots, of `0 .. dp_size-1`).

    Survivors sit contiguously from the start of the generation block, by shard index whatever the input
    order; duplicates count once. `total_gen_workers` counts the ranks of the whole fleet, lost ones included.

    Raises `ValueError` for an impossible size, a fleet that is not evenly sharded, a shard that is not an int or
    is outside the fleet; `NoSurvivingShards` when nothing survives. Source: design, "The published layout
    functions".
    """
    workers = workers_per_shard(dp_size=dp_size, total_gen_workers=total_gen_workers)
    check_size("train_world_size", train_world_size)
    survivors = sorted(_shards_of_the_fleet(surviving_shards, kind="surviving", dp_size=dp_size))
    if not survivors:
        raise NoSurvivingShards(f"no generation shard survives: 0 of dp_size={dp_size} are left to refit")
    return RefitMembership(
        world_size=world_size_of(
            train_world_size=train_world_size, survivors=len(survivors), workers_per_shard=workers
        ),
        train_world_size=train_world_size,
        shard_prefixes={
            shard: prefix_of(position=position, workers_per_shard=workers) for position, shard in enumerate(survivors)
        },
        workers_per_shard=workers,
    )


def desired_membership(
    *, absent_shards: Iterable[int], dp_size: int, total_gen_workers: int, train_world_size: int
) -> RefitMembership:
    """What the communicator should be, given who is absent: the fleet without the absent shards.

    Asked anew before each refit, it answers leaving and rejoining alike. Raises like `plan_refit_membership`;
    an absent shard outside the fleet is refused too. Source: design, "The published layout functions".
    """
    check_size("dp_size", dp_size)
    absent = _shards_of_the_fleet(absent_shards, kind="absent", dp_size=dp_size)
    return plan_refit_membership(
        surviving_shards=[shard for shard in range(dp_size) if shard not in absent],
        dp_size=dp_size,
        total_gen_workers=total_gen_workers,
        train_world_size=train_world_size,
    )


def should_rebuild(
    *, desired: RefitMembership, built: RefitMembership | None, absent_shards: Iterable[int], force: bool
) -> bool:
    """The published rule: whether the communicator must be formed anew.

    True when `desired` differs from what was `built` (None: nothing was built). With equal layouts True only
    if `force` (the communicator is gone, not merely unchanged) and something is absent. With nothing absent
    it is False: forcing would rebuild over the rank that just went silent, so the caller must report that no
    shard could be identified as absent, and stop. Layouts do not show everything: design, "Where the
    published rule is not enough".

    Raises `ValueError` for an absent shard that is not an int, or negative. Source: design, "The published
    layout functions".
    """
    absent = set[int]()
    for shard in absent_shards:
        _check_shard(shard)
        absent.add(shard)
    return desired != built or (bool(force) and bool(absent))


def _is_int(value: object) -> bool:
    """Whether it is a number that can count: True as a shard or a size is a mistake, not a 1."""
    return isinstance(value, int) and not isinstance(value, bool)


def check_size(name: str, value: int) -> None:
    """The one owner of what a size may be. Raises `ValueError`, naming it, unless it is an int of 1 to `MAX_RANKS`."""
    if not _is_int(value) or value < 1:
        raise ValueError(f"{name} must be an int of at least 1, got {value!r}")
    if value > MAX_RANKS:
        raise ValueError(f"{name} must be at most {MAX_RANKS}, got {value!r}")


def _check_shard(shard: int) -> None:
    if not _is_int(shard) or shard < 0:
        raise ValueError(f"a shard index must be an int of at least 0, got {shard!r}")


def _shards_of_the_fleet(shards: Iterable[int], *, kind: str, dp_size: int) -> set[int]:
    """`shards` without duplicates, each checked to be one of `0 .. dp_size-1`."""
    checked = set[int]()
    for shard in shards:
        if not _is_int(shard):
            raise ValueError(f"a shard index must be an int, got {kind} shard {shard!r}")
        if not 0 <= shard < dp_size:
            raise ValueError(
                f"{kind} shard {shard} is outside the fleet: dp_size={dp_size} has shards 0..{dp_size - 1}"
            )
        checked.add(shard)
    return checked
