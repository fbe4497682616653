"""The arithmetic of the layout: five closed formulas, and nothing else.

They stand apart from `membership`, which checks, remembers and refuses, so that a proof can call them: a solver's
symbolic numbers take the place of the ints, and what is proven is this code and no copy of it. That is why nothing
here branches, loops, checks or looks into a container. Sizes are at least 1; the caller has seen to that.

A survivor is known by its `position`: how many survivors have a lower slot.
"""

from __future__ import annotations


def prefix_of(*, position: int, workers_per_shard: int) -> int:
    """Where a survivor starts in the generation block: right behind those before it, so that there is no hole."""
    return position * workers_per_shard


def world_size_of(*, train_world_size: int, survivors: int, workers_per_shard: int) -> int:
    """All ranks: the trainers, and the workers of every survivor."""
    return train_world_size + survivors * workers_per_shard


def rank_at(*, train_world_size: int, prefix: int, worker: int) -> int:
    """The rank of a worker of the shard that starts at `prefix`. The generation block comes after the trainers."""
    return train_world_size + prefix + worker


def position_and_worker_at(*, rank: int, train_world_size: int, workers_per_shard: int) -> tuple[int, int]:
    """Who sits at a rank of the generation block. Inverse of `rank_at` over `prefix_of`."""
    return divmod(rank - train_world_size, workers_per_shard)


def is_trainer(*, rank: int, train_world_size: int) -> bool:
    """Whether a rank is a trainer's. Whoever is lost, the trainers keep `0 .. train_world_size-1`."""
    return rank < train_world_size
