"""The published layout functions: contiguous ranks and their inverse, every refusal, the rebuild rule."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import json
import operator
import pickle
from collections.abc import Callable, Iterable
from itertools import chain, combinations, permutations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reknit.spec.membership import (
    MAX_RANKS,
    NoSurvivingShards,
    RefitMembership,
    ShardSeat,
    TrainerSeat,
    desired_membership,
    plan_refit_membership,
    should_rebuild,
    workers_per_shard,
)


def plan(
    surviving: Iterable[Any], *, dp_size: Any = 4, total_gen_workers: Any = 8, train_world_size: Any = 3
) -> RefitMembership:
    return plan_refit_membership(
        surviving_shards=surviving,
        dp_size=dp_size,
        total_gen_workers=total_gen_workers,
        train_world_size=train_world_size,
    )


def desired(absent: Iterable[Any], *, dp_size: Any = 4, total_gen_workers: Any = 8) -> RefitMembership:
    return desired_membership(
        absent_shards=absent, dp_size=dp_size, total_gen_workers=total_gen_workers, train_world_size=3
    )


def seats_by_walking(survivors: Iterable[int], *, workers: int, trainers: int) -> list[TrainerSeat | ShardSeat]:
    """The layout without arithmetic: seat everybody one after the other and number them as they come."""
    seats: list[TrainerSeat | ShardSeat] = []
    for _ in range(trainers):
        seats.append(TrainerSeat(rank=len(seats)))
    for shard in sorted(set(survivors)):
        for worker in range(workers):
            seats.append(ShardSeat(shard=shard, worker=worker))
    return seats


def every_subset(dp_size: int) -> Iterable[tuple[int, ...]]:
    return chain.from_iterable(combinations(range(dp_size), size) for size in range(dp_size + 1))


@st.composite
def fleets_with_survivors(draw: st.DrawFn) -> tuple[list[int], int, int, int]:
    """(survivors in any order and with duplicates, dp_size, workers per shard, trainers)"""
    dp_size = draw(st.integers(1, 64))
    survivors = draw(st.lists(st.integers(0, dp_size - 1), min_size=1, max_size=80))
    return survivors, dp_size, draw(st.integers(1, 16)), draw(st.integers(1, 64))


# Layout


def test_all_shards_alive_gives_the_plain_layout() -> None:
    membership = plan([0, 1, 2, 3])
    assert membership == RefitMembership(
        world_size=11, train_world_size=3, shard_prefixes={0: 0, 1: 2, 2: 4, 3: 6}, workers_per_shard=2
    )
    assert membership.surviving_shards == [0, 1, 2, 3]


def test_a_lost_shard_moves_its_successors_down_and_shrinks_the_world() -> None:
    membership = plan([0, 2, 3])
    assert membership.shard_prefixes == {0: 0, 2: 2, 3: 4}
    assert membership.world_size == 9
    assert membership.workers_per_shard == 2


def test_every_small_fleet_is_laid_out_as_by_walking_through_it_and_without_a_hole() -> None:
    """M5: after any loss the generation block is one range, from its start to the end of the world."""
    for dp_size in range(1, 6):
        for workers in range(1, 4):
            for trainers in range(1, 4):
                for survivors in every_subset(dp_size):
                    if not survivors:
                        continue
                    membership = plan(
                        survivors,
                        dp_size=dp_size,
                        total_gen_workers=dp_size * workers,
                        train_world_size=trainers,
                    )
                    walked = seats_by_walking(survivors, workers=workers, trainers=trainers)
                    assert membership.world_size == len(walked)
                    assert membership.train_world_size == trainers
                    assert [membership.seat_of(rank=rank) for rank in range(membership.world_size)] == walked
                    for rank, seat in enumerate(walked):
                        if isinstance(seat, ShardSeat):
                            assert membership.rank_of(shard=seat.shard, worker=seat.worker) == rank
                    blocks = [list(membership.ranks_of(shard=shard)) for shard in survivors]
                    assert list(chain(*blocks)) == list(range(trainers, membership.world_size))


@given(fleets_with_survivors())
def test_any_fleet_is_contiguous_in_slot_order_and_inverts_both_ways(
    fleet: tuple[list[int], int, int, int],
) -> None:
    """M5: prefixes are multiples of the workers, in slot order, without a hole, whatever survives."""
    survivors, dp_size, workers, trainers = fleet
    membership = plan(survivors, dp_size=dp_size, total_gen_workers=dp_size * workers, train_world_size=trainers)

    members = sorted(set(survivors))
    assert membership.surviving_shards == members
    assert list(membership.shard_prefixes.items()) == [(shard, k * workers) for k, shard in enumerate(members)]
    assert membership.world_size == trainers + len(members) * workers

    for rank in range(membership.world_size):
        seat = membership.seat_of(rank=rank)
        if isinstance(seat, TrainerSeat):
            assert seat.rank == rank < trainers
        else:
            assert membership.rank_of(shard=seat.shard, worker=seat.worker) == rank >= trainers
    for shard in members:
        for worker, rank in enumerate(membership.ranks_of(shard=shard)):
            assert membership.rank_of(shard=shard, worker=worker) == rank
            assert membership.seat_of(rank=rank) == ShardSeat(shard=shard, worker=worker)


def test_the_input_order_never_changes_the_layout() -> None:
    """M14: all 24 orders of one set, and a set, an iterator and a range, are the same membership."""
    layouts = {plan(order) for order in permutations([0, 1, 2, 3])}
    layouts |= {plan({3, 2, 1, 0}), plan(iter([3, 1, 0, 2])), plan(range(4))}
    assert layouts == {plan([0, 1, 2, 3])}


@given(st.permutations([0, 2, 3, 5, 7]), st.lists(st.sampled_from([0, 2, 3, 5, 7])))
def test_a_duplicate_or_another_order_is_not_a_change(order: list[int], duplicates: list[int]) -> None:
    """M14: neither a reordered nor a repeated shard makes the layout differ, or asks for a rebuild."""
    sizes = {"dp_size": 8, "total_gen_workers": 16}
    built = plan([0, 2, 3, 5, 7], **sizes)
    again = plan(order + duplicates, **sizes)
    assert again == built
    assert hash(again) == hash(built)
    assert list(again.shard_prefixes) == list(built.shard_prefixes)
    assert not should_rebuild(desired=again, built=built, absent_shards=[6, 4, 1], force=False)


def test_the_broadcast_root_is_a_trainer_whoever_is_lost() -> None:
    assert {plan(survivors).seat_of(rank=0) for survivors in every_subset(4) if survivors} == {TrainerSeat(rank=0)}


# Desired membership: leaving and rejoining


def test_absent_shards_leave_and_come_back_through_the_same_question() -> None:
    assert desired([]) == plan([0, 1, 2, 3])
    assert desired([1]) == plan([0, 2, 3])
    assert desired([3, 1, 1]) == plan([0, 2])
    assert desired(iter([1])) == desired({1})


@given(st.integers(1, 40), st.data())
def test_desired_is_the_plan_over_everybody_who_is_not_absent(dp_size: int, data: st.DataObject) -> None:
    absent = data.draw(st.lists(st.integers(0, dp_size - 1), max_size=dp_size - 1))
    survivors = [shard for shard in range(dp_size) if shard not in absent]
    sizes = {"dp_size": dp_size, "total_gen_workers": dp_size * 2}
    assert desired(absent, **sizes) == plan(survivors, **sizes)


# The published rebuild rule


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("absent", [[], [1]])
def test_a_differing_layout_is_rebuilt_whatever_else_is_known(absent: list[int], force: bool) -> None:
    assert should_rebuild(desired=plan([0, 2, 3]), built=plan([0, 1, 2, 3]), absent_shards=absent, force=force) is True


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("absent", [[], [1]])
def test_nothing_built_differs_from_every_layout(absent: list[int], force: bool) -> None:
    assert should_rebuild(desired=plan([0, 2, 3]), built=None, absent_shards=absent, force=force) is True


@pytest.mark.parametrize(
    ("absent", "force", "expected"),
    [([], False, False), ([1], False, False), ([], True, False), ([1], True, True)],
)
def test_an_equal_layout_is_rebuilt_only_by_force_and_with_an_absence(
    absent: list[int], force: bool, expected: bool
) -> None:
    built = plan([0, 2, 3])
    assert should_rebuild(desired=plan([3, 2, 0]), built=built, absent_shards=absent, force=force) is expected
    assert should_rebuild(desired=plan([3, 2, 0]), built=built, absent_shards=iter(absent), force=force) is expected


def test_a_returned_shard_is_rebuilt_in_although_nothing_is_absent() -> None:
    """M1: the question is whether desired differs from built, not whether anything is absent."""
    assert should_rebuild(desired=desired([]), built=desired([1]), absent_shards=[], force=False)


def test_a_standing_absence_does_not_rebuild_at_every_refit() -> None:
    """M1: a shard that stays lost is a change once, when it leaves."""
    assert should_rebuild(desired=desired([1]), built=desired([]), absent_shards=[1], force=False)
    assert not should_rebuild(desired=desired([1]), built=desired([1]), absent_shards=[1], force=False)


def test_the_same_shards_of_a_fleet_of_other_sizes_differ() -> None:
    built = plan([0, 1])
    for other in (plan([0, 1], total_gen_workers=4), plan([0, 1], train_world_size=4)):
        assert should_rebuild(desired=other, built=built, absent_shards=[], force=False)


# Refusals. Each is one sentence that holds the numbers.

Refusal = tuple[Callable[[], object], str]

REFUSED_SIZES: dict[str, Refusal] = {
    "no shards": (lambda: plan([], dp_size=0), r"dp_size must be an int of at least 1, got 0"),
    "negative shards": (lambda: plan([0], dp_size=-4), r"dp_size must be .* got -4"),
    "bool shards": (lambda: plan([0], dp_size=True), r"dp_size must be .* got True"),
    "float shards": (lambda: plan([0], dp_size=4.0), r"dp_size must be .* got 4\.0"),
    "no shards, absences": (lambda: desired([], dp_size=0), r"dp_size must be .* got 0"),
    "text shards, absences": (lambda: desired([0], dp_size="4"), r"dp_size must be .* got '4'"),
    "no workers": (lambda: plan([0], total_gen_workers=0), r"total_gen_workers must be .* got 0"),
    "negative workers": (lambda: plan([0], total_gen_workers=-8), r"total_gen_workers must be .* got -8"),
    "bool workers": (
        lambda: plan([0], dp_size=1, total_gen_workers=True),
        r"total_gen_workers must be .* got True",
    ),
    "no workers, absences": (
        lambda: desired([0], total_gen_workers=0),
        r"total_gen_workers must be .* got 0",
    ),
    "uneven": (
        lambda: plan([0], total_gen_workers=10),
        r"not evenly sharded: total_gen_workers=10 over dp_size=4 leaves a remainder of 2",
    ),
    "uneven, absences": (
        lambda: desired([0], total_gen_workers=6),
        r"evenly sharded: .*=6 over dp_size=4 .* 2",
    ),
    "fewer workers than shards": (
        lambda: plan([0], total_gen_workers=3),
        r"evenly sharded: .*=3 over dp_size=4 .* 3",
    ),
    "no trainers": (lambda: plan([0], train_world_size=0), r"train_world_size must be .* got 0"),
    "negative trainers": (lambda: plan([0], train_world_size=-1), r"train_world_size must be .* got -1"),
    "bool trainers": (lambda: plan([0], train_world_size=True), r"train_world_size must be .* got True"),
}

REFUSED_SHARDS: dict[str, Refusal] = {
    "survivor after the last": (
        lambda: plan([0, 4]),
        r"surviving shard 4 is outside the fleet: dp_size=4 has shards 0\.\.3",
    ),
    "negative survivor": (lambda: plan([-1]), r"surviving shard -1 is outside the fleet"),
    "bool survivor": (lambda: plan([0, True]), r"must be an int, got surviving shard True"),
    "float survivor": (lambda: plan([1.0]), r"must be an int, got surviving shard 1\.0"),
    "text survivor": (lambda: plan("01"), r"must be an int, got surviving shard '0'"),
    "no index at all": (lambda: plan([0, None]), r"must be an int, got surviving shard None"),
    "absent after the last": (
        lambda: desired([4]),
        r"absent shard 4 is outside the fleet: dp_size=4 has shards 0\.\.3",
    ),
    "negative absent": (lambda: desired([-1]), r"absent shard -1 is outside the fleet"),
    "bool absent": (lambda: desired([False]), r"must be an int, got absent shard False"),
    "float absent": (lambda: desired([2.0]), r"must be an int, got absent shard 2\.0"),
    "bool absent in the rule": (
        lambda: should_rebuild(desired=plan([0]), built=plan([0]), absent_shards=[True], force=False),
        r"must be an int of at least 0, got True",
    ),
    "negative absent in the rule": (
        lambda: should_rebuild(desired=plan([0]), built=plan([0]), absent_shards=[-2], force=False),
        r"must be an int of at least 0, got -2",
    ),
}


def construct(
    *, world_size: Any = 7, train_world_size: Any = 3, shard_prefixes: Any = None, workers_per_shard: Any = 2
) -> RefitMembership:
    """Trainers at 0-2, shard 0 at 3-4, shard 2 at 5-6, unless a field is spoilt."""
    return RefitMembership(
        world_size=world_size,
        train_world_size=train_world_size,
        shard_prefixes={0: 0, 2: 2} if shard_prefixes is None else shard_prefixes,
        workers_per_shard=workers_per_shard,
    )


REFUSED_CONSTRUCTIONS: dict[str, Refusal] = {
    "no world": (lambda: construct(world_size=0), r"world_size must be an int of at least 1, got 0"),
    "bool world": (lambda: construct(world_size=True), r"world_size must be .* got True"),
    "world too big": (
        lambda: construct(world_size=8),
        r"world_size must be 7 \(train_world_size=3 \+ 2 shards x workers_per_shard=2\), got 8",
    ),
    "world too small": (lambda: construct(world_size=6), r"world_size must be 7 .* got 6"),
    "no trainers": (
        lambda: construct(train_world_size=0, world_size=4),
        r"train_world_size must be .* got 0",
    ),
    "bool trainers": (
        lambda: construct(train_world_size=True, world_size=5),
        r"train_world_size must be .* got True",
    ),
    "no workers": (
        lambda: construct(workers_per_shard=0, world_size=3, shard_prefixes={0: 0}),
        r"workers_per_shard must be .* got 0",
    ),
    "negative workers": (lambda: construct(workers_per_shard=-2), r"workers_per_shard must be .* got -2"),
    "nobody": (lambda: construct(world_size=3, shard_prefixes={}), r"shard_prefixes is empty"),
    "hole between shards": (
        lambda: construct(world_size=9, shard_prefixes={0: 0, 2: 4}),
        r"shard 2 is survivor number 1 and must start at prefix 2 \(1 x workers_per_shard=2\), got 4",
    ),
    "hole at the start": (
        lambda: construct(shard_prefixes={0: 2, 2: 4}),
        r"shard 0 .* must start at prefix 0 .* got 2",
    ),
    "overlap": (
        lambda: construct(shard_prefixes={0: 0, 2: 1}),
        r"shard 2 .* must start at prefix 2 .* got 1",
    ),
    "two at one prefix": (
        lambda: construct(shard_prefixes={0: 0, 2: 0}),
        r"shard 2 .* must start at prefix 2 .* got 0",
    ),
    "not in slot order": (
        lambda: construct(shard_prefixes={2: 0, 0: 2}),
        r"shard 0 .* must start at prefix 0 .* got 2",
    ),
    "bool prefix": (
        lambda: construct(shard_prefixes={0: False, 2: 2}),
        r"shard 0 .* must start at prefix 0 .* False",
    ),
    "float prefix": (
        lambda: construct(shard_prefixes={0: 0, 2: 2.0}),
        r"shard 2 .* must start at prefix 2 .* 2\.0",
    ),
    "negative shard": (lambda: construct(shard_prefixes={-1: 0, 2: 2}), r"shard index .* at least 0, got -1"),
    "bool shard": (lambda: construct(shard_prefixes={0: 0, True: 2}), r"shard index .* got True"),
    "text shard": (lambda: construct(shard_prefixes={0: 0, "2": 2}), r"shard index .* got '2'"),
}

REFUSED_QUESTIONS: dict[str, Refusal] = {
    "shard not a member": (
        lambda: construct().rank_of(shard=1, worker=0),
        r"shard 1 is not a member, the members are \[0, 2\]",
    ),
    "ranks of a shard that is not a member": (
        lambda: construct().ranks_of(shard=3),
        r"shard 3 is not a member",
    ),
    "bool shard": (lambda: construct().ranks_of(shard=False), r"shard index must be an int .* got False"),
    "worker after the last": (
        lambda: construct().rank_of(shard=0, worker=2),
        r"workers 0\.\.1, got worker 2",
    ),
    "negative worker": (lambda: construct().rank_of(shard=0, worker=-1), r"workers 0\.\.1, got worker -1"),
    "bool worker": (lambda: construct().rank_of(shard=0, worker=True), r"workers 0\.\.1, got worker True"),
    "rank after the last": (lambda: construct().seat_of(rank=7), r"ranks 0\.\.6, got rank 7"),
    "negative rank": (lambda: construct().seat_of(rank=-1), r"ranks 0\.\.6, got rank -1"),
    "bool rank": (lambda: construct().seat_of(rank=True), r"ranks 0\.\.6, got rank True"),
}

EVERY_REFUSAL = {
    f"{group}: {name}": refusal
    for group, refusals in {
        "size": REFUSED_SIZES,
        "shard": REFUSED_SHARDS,
        "construction": REFUSED_CONSTRUCTIONS,
        "question": REFUSED_QUESTIONS,
    }.items()
    for name, refusal in refusals.items()
}


@pytest.mark.parametrize(("ask", "sentence"), EVERY_REFUSAL.values(), ids=EVERY_REFUSAL.keys())
def test_impossible_numbers_are_refused_with_the_numbers_in_one_line(ask: Callable[[], object], sentence: str) -> None:
    """M5 among them: a layout with a hole, an overlap or a wrong world size cannot exist."""
    with pytest.raises(ValueError, match=sentence) as refusal:
        ask()
    assert "\n" not in str(refusal.value)


def test_the_construction_that_the_refusals_spoil_is_itself_accepted() -> None:
    assert construct() == plan([0, 2])


@pytest.mark.parametrize("nobody", [lambda: plan([]), lambda: desired([0, 1, 2, 3]), lambda: desired([3, 2, 1, 0, 0])])
def test_losing_every_shard_has_its_own_error(nobody: Callable[[], object]) -> None:
    """M15: one clear reason, and not a ValueError that a caller might take for a wrong argument."""
    with pytest.raises(NoSurvivingShards, match=r"no generation shard survives: 0 of dp_size=4") as error:
        nobody()
    assert isinstance(error.value, RuntimeError)
    assert not isinstance(error.value, ValueError)


def test_a_wrong_size_is_named_before_the_lack_of_survivors() -> None:
    """M15: the cause, not the consequence."""
    with pytest.raises(ValueError, match="evenly sharded"):
        plan([], total_gen_workers=7)
    with pytest.raises(ValueError, match="train_world_size"):
        plan([], train_world_size=0)


@pytest.mark.parametrize(("dp_size", "total", "expected"), [(1, 1, 1), (4, 8, 2), (3, 24, 8), (8, 8, 1)])
def test_workers_per_shard_divides_the_fleet(dp_size: int, total: int, expected: int) -> None:
    assert workers_per_shard(dp_size=dp_size, total_gen_workers=total) == expected


@given(st.integers(1, 200), st.integers(1, 4000))
def test_workers_per_shard_answers_exactly_when_the_fleet_divides_evenly(dp_size: int, total: int) -> None:
    sizes = [workers for workers in range(1, total // dp_size + 1) if workers * dp_size == total]
    if sizes:
        assert [workers_per_shard(dp_size=dp_size, total_gen_workers=total)] == sizes
    else:
        with pytest.raises(ValueError, match="evenly sharded"):
            workers_per_shard(dp_size=dp_size, total_gen_workers=total)


def test_every_published_argument_is_keyword_only() -> None:
    """A layout of four ints in the wrong order would be accepted; by keyword it cannot be."""
    callables: list[Callable[..., Any]] = [
        RefitMembership,
        plan_refit_membership,
        desired_membership,
        should_rebuild,
        workers_per_shard,
        RefitMembership.rank_of,
        RefitMembership.ranks_of,
        RefitMembership.seat_of,
    ]
    for function in callables:
        parameters = [p for name, p in inspect.signature(function).parameters.items() if name != "self"]
        assert parameters
        assert {p.kind for p in parameters} == {inspect.Parameter.KEYWORD_ONLY}, function


# A value


def test_equal_layouts_are_one_value() -> None:
    one, other = plan([0, 2]), construct(shard_prefixes={2: 2, 0: 0})
    assert one is not other
    assert one == other
    assert hash(one) == hash(other)
    assert len({one, other, plan([0, 3]), plan([0, 2], train_world_size=4)}) == 3
    assert list(other.shard_prefixes) == [0, 2]


def test_the_fields_cannot_be_assigned() -> None:
    membership = plan([0, 2])
    for field in dataclasses.fields(membership):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(membership, field.name, 1)
    assert membership == plan([0, 2])


CHANGES: dict[str, Callable[[Any], object]] = {
    "set": lambda prefixes: operator.setitem(prefixes, 1, 2),
    "overwrite": lambda prefixes: operator.setitem(prefixes, 0, 2),
    "delete": lambda prefixes: operator.delitem(prefixes, 0),
    "merge": lambda prefixes: prefixes.__ior__({1: 2}),
    "clear": lambda prefixes: prefixes.clear(),
    "pop": lambda prefixes: prefixes.pop(0),
    "popitem": lambda prefixes: prefixes.popitem(),
    "setdefault": lambda prefixes: prefixes.setdefault(1, 2),
    "update": lambda prefixes: prefixes.update({1: 2}),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_the_mapping_refuses_every_change(change: Callable[[Any], object]) -> None:
    membership = plan([0, 2])
    with pytest.raises(TypeError, match="cannot be changed"):
        change(membership.shard_prefixes)
    assert membership.shard_prefixes == {0: 0, 2: 2}


def test_every_way_in_which_a_dict_can_change_is_covered() -> None:
    reading = {"copy", "fromkeys", "get", "items", "keys", "values"}
    changing = {name for name in vars(dict) if not name.startswith("_")} - reading
    changing |= {"__setitem__", "__delitem__", "__ior__"}
    assert changing <= set(vars(type(plan([0]).shard_prefixes)))


def test_the_caller_s_mapping_and_lists_are_copied() -> None:
    prefixes = {0: 0, 2: 2}
    membership = construct(shard_prefixes=prefixes)
    prefixes[3] = 4
    membership.surviving_shards.append(9)
    assert membership.shard_prefixes == {0: 0, 2: 2}
    assert membership.surviving_shards == [0, 2]


@pytest.mark.parametrize(
    "travel",
    [copy.copy, copy.deepcopy, *(lambda m, p=p: pickle.loads(pickle.dumps(m, p)) for p in range(6))],
    ids=["copy", "deepcopy", *(f"pickle {p}" for p in range(6))],
)
def test_a_copy_is_equal_and_just_as_immutable(travel: Callable[[RefitMembership], RefitMembership]) -> None:
    membership = plan([3, 1])
    arrived = travel(membership)
    assert arrived == membership
    assert hash(arrived) == hash(membership)
    assert list(arrived.shard_prefixes.items()) == [(1, 0), (3, 2)]
    with pytest.raises(TypeError, match="cannot be changed"):
        operator.setitem(arrived.shard_prefixes, 0, 4)  # type: ignore[call-overload]
    with pytest.raises(dataclasses.FrozenInstanceError):
        arrived.world_size = 1  # type: ignore[misc]


def test_replace_makes_another_checked_value() -> None:
    membership = plan([0, 2])
    assert dataclasses.replace(membership) == membership
    moved = dataclasses.replace(membership, shard_prefixes={1: 0, 3: 2})
    assert moved == plan([1, 3])
    with pytest.raises(ValueError, match="world_size must be 9"):
        dataclasses.replace(membership, shard_prefixes={0: 0, 1: 2, 2: 4})


def test_a_membership_can_be_written_as_json_and_read_back() -> None:
    fields = json.loads(json.dumps(dataclasses.asdict(plan([0, 2]))))
    prefixes = {int(shard): prefix for shard, prefix in fields.pop("shard_prefixes").items()}
    assert RefitMembership(**fields, shard_prefixes=prefixes) == plan([0, 2])


# Sizes that nobody has


@pytest.mark.parametrize("name", ["dp_size", "total_gen_workers", "train_world_size"])
@pytest.mark.parametrize("size", [MAX_RANKS + 1, 2**63, 10**400])
def test_an_absurd_size_is_refused_before_anything_is_laid_out(name: str, size: int) -> None:
    sizes = {"dp_size": 1, "total_gen_workers": 1, "train_world_size": 1, name: size}
    with pytest.raises(ValueError, match=f"{name} must be at most {MAX_RANKS}, got {size}"):
        plan_refit_membership(surviving_shards=[0], **sizes)
    with pytest.raises(ValueError, match=f"{name} must be at most {MAX_RANKS}, got {size}"):
        desired_membership(absent_shards=[], **sizes)


def test_sizes_that_are_too_many_ranks_only_together_are_refused() -> None:
    with pytest.raises(ValueError, match=f"world_size must be at most {MAX_RANKS}, got {MAX_RANKS + 1}"):
        plan([0], dp_size=1, total_gen_workers=MAX_RANKS, train_world_size=1)
    assert plan([0], dp_size=1, total_gen_workers=MAX_RANKS - 1, train_world_size=1).world_size == MAX_RANKS
