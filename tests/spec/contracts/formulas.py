"""What the layout formulas promise, for CrossHair, which must confirm each contract over all paths: for every size."""

from __future__ import annotations

from reknit.spec import layout


def rank(trainers: int, workers: int, position: int, worker: int) -> int:
    """The rank of a worker of the survivor at `position`, by the real formulas. Has no contract of its own."""
    prefix = layout.prefix_of(position=position, workers_per_shard=workers)
    return layout.rank_at(train_world_size=trainers, prefix=prefix, worker=worker)


def world(trainers: int, workers: int, survivors: int) -> int:
    return layout.world_size_of(train_world_size=trainers, survivors=survivors, workers_per_shard=workers)


def every_rank_is_in_the_generation_block(
    trainers: int, workers: int, survivors: int, position: int, worker: int
) -> int:
    """
    pre: trainers >= 1 and 0 <= position < survivors and 0 <= worker < workers
    post: trainers <= __return__ < world(trainers, workers, survivors)
    """
    return rank(trainers, workers, position, worker)


def two_workers_never_share_a_rank(
    trainers: int, workers: int, position: int, worker: int, other: int, others_worker: int
) -> bool:
    """
    pre: trainers >= 1 and position >= 0 and other >= 0
    pre: 0 <= worker < workers and 0 <= others_worker < workers
    post: __return__ == ((position, worker) == (other, others_worker))
    """
    return rank(trainers, workers, position, worker) == rank(trainers, workers, other, others_worker)


def a_seat_is_found_again_by_its_rank(trainers: int, workers: int, position: int, worker: int) -> tuple[int, int]:
    """
    pre: trainers >= 1 and position >= 0 and 0 <= worker < workers
    post: __return__ == (position, worker)
    """
    found = rank(trainers, workers, position, worker)
    return layout.position_and_worker_at(rank=found, train_world_size=trainers, workers_per_shard=workers)


def every_rank_of_the_generation_block_is_taken(
    trainers: int, workers: int, survivors: int, wanted: int
) -> tuple[int, int, int]:
    """
    pre: trainers >= 1 and workers >= 1 and survivors >= 1
    pre: trainers <= wanted < world(trainers, workers, survivors)
    post: 0 <= __return__[0] < survivors and 0 <= __return__[1] < workers and __return__[2] == wanted
    """
    position, worker = layout.position_and_worker_at(rank=wanted, train_world_size=trainers, workers_per_shard=workers)
    return position, worker, rank(trainers, workers, position, worker)


def the_next_survivor_starts_where_the_last_one_ends(trainers: int, workers: int, position: int) -> tuple[int, int]:
    """
    pre: trainers >= 1 and workers >= 1 and position >= 0
    post: __return__[1] == __return__[0] + 1
    """
    return rank(trainers, workers, position, workers - 1), rank(trainers, workers, position + 1, 0)


def the_block_reaches_from_the_trainers_to_the_end_of_the_world(
    trainers: int, workers: int, survivors: int
) -> tuple[int, int]:
    """
    pre: trainers >= 1 and workers >= 1 and survivors >= 1
    post: __return__ == (trainers, world(trainers, workers, survivors) - 1)
    """
    return rank(trainers, workers, 0, 0), rank(trainers, workers, survivors - 1, workers - 1)


def the_trainers_keep_exactly_their_ranks(trainers: int, any_rank: int) -> bool:
    """
    pre: trainers >= 1 and any_rank >= 0
    post: __return__ == (any_rank < trainers)
    """
    return layout.is_trainer(rank=any_rank, train_world_size=trainers)


def rank_0_is_a_trainer(trainers: int) -> bool:
    """
    pre: trainers >= 1
    post: __return__
    """
    return layout.is_trainer(rank=0, train_world_size=trainers)
