"""What CrossHair can only search: any fleet and any survivors. It must find no counterexample in its time."""

from __future__ import annotations

from reknit.spec.membership import MAX_RANKS, ShardSeat, plan_refit_membership


def let_in(trainers: int, workers: int, dp_size: int) -> bool:
    return trainers >= 1 and workers >= 1 and trainers + dp_size * workers <= MAX_RANKS


def every_rank_has_a_seat_that_leads_back_to_it(
    trainers: int, workers: int, dp_size: int, survivors: list[int], rank: int
) -> int:
    """
    pre: let_in(trainers, workers, dp_size)
    pre: len(survivors) > 0 and all(0 <= slot < dp_size for slot in survivors)
    pre: 0 <= rank < trainers + len(set(survivors)) * workers
    post: __return__ == rank
    """
    membership = plan_refit_membership(
        surviving_shards=survivors,
        dp_size=dp_size,
        total_gen_workers=dp_size * workers,
        train_world_size=trainers,
    )
    seat = membership.seat_of(rank=rank)
    return membership.rank_of(shard=seat.shard, worker=seat.worker) if isinstance(seat, ShardSeat) else seat.rank
