"""What a whole membership promises, for CrossHair: any survivors of a fleet of three, and every size that is let in.

Here the sizes are symbolic and the slots are not: a container of symbolic length has no end of paths. `searched` asks
the same of any fleet.
"""

from __future__ import annotations

from reknit.spec.membership import MAX_RANKS, RefitMembership, ShardSeat, plan_refit_membership


def plan(trainers: int, workers: int, first: bool, second: bool, third: bool) -> RefitMembership:
    """The real layout of a fleet of three shards, some of which survive, named in descending order."""
    return plan_refit_membership(
        surviving_shards=[slot for slot, survives in ((2, third), (1, second), (0, first)) if survives],
        dp_size=3,
        total_gen_workers=3 * workers,
        train_world_size=trainers,
    )


def let_in(trainers: int, workers: int) -> bool:
    return trainers >= 1 and workers >= 1 and trainers + 3 * workers <= MAX_RANKS


def every_rank_has_a_seat_that_leads_back_to_it(
    trainers: int, workers: int, first: bool, second: bool, third: bool, rank: int
) -> int:
    """
    pre: let_in(trainers, workers) and (first or second or third)
    pre: 0 <= rank < trainers + (first + second + third) * workers
    post: __return__ == rank
    """
    membership = plan(trainers, workers, first, second, third)
    seat = membership.seat_of(rank=rank)
    return membership.rank_of(shard=seat.shard, worker=seat.worker) if isinstance(seat, ShardSeat) else seat.rank


def the_last_slot_sits_behind_the_survivors_below_it(
    trainers: int, workers: int, first: bool, second: bool, worker: int
) -> tuple[int, int, int]:
    """
    pre: let_in(trainers, workers) and 0 <= worker < workers
    post: __return__[0] == trainers + (first + second) * workers + worker
    post: __return__[1] == trainers + (first + second) * workers
    post: __return__[2] == __return__[1] + workers
    """
    membership = plan(trainers, workers, first, second, True)
    ranks = membership.ranks_of(shard=2)
    return membership.rank_of(shard=2, worker=worker), ranks.start, ranks.stop
