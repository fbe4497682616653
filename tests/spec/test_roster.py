"""Who fills the slots: rosters compare processes, and the decision is the published one but for three holes."""

from __future__ import annotations

import pickle
from itertools import combinations, permutations, product

import pytest

from reknit.spec.membership import MAX_RANKS, NoSurvivingShards, should_rebuild
from reknit.spec.roster import Roster, Topology, must_rebuild

FLEET = Topology(train_world_size=2, dp_size=3, workers_per_shard=2)


def test_the_order_in_which_members_are_named_never_counts_as_a_change() -> None:
    """M14: the same set in another order is the same roster."""
    pairs = [(0, 1), (2, 0), (5, 3)]
    rosters = {Roster(order) for order in permutations(pairs)} | {Roster(dict(pairs))}
    assert rosters == {Roster(pairs)}
    assert all(list(roster) == [0, 2, 5] for roster in rosters)
    assert not must_rebuild(desired=Roster(pairs[::-1]), built=Roster(pairs))


def test_the_same_slot_with_another_incarnation_is_another_roster() -> None:
    """M2: slot equal, incarnation different."""
    assert Roster({0: 0, 2: 1}) != Roster({0: 0, 2: 0})
    assert must_rebuild(desired=Roster({0: 0, 2: 1}), built=Roster({0: 0, 2: 0}))


def test_a_roster_is_a_value() -> None:
    roster = Roster({1: 2, 0: 3})
    assert roster[1] == 2
    assert len(roster) == 2
    assert 1 in roster
    assert 2 not in roster
    assert roster.get(7) is None
    assert hash(roster) == hash(Roster({0: 3, 1: 2}))
    assert roster != {0: 3, 1: 2}
    assert pickle.loads(pickle.dumps(roster)) == roster
    assert str(roster) == "{0:3, 1:2}"
    assert repr(roster) == "Roster({0:3, 1:2})"
    with pytest.raises(TypeError):
        roster[0] = 4  # type: ignore[index]
    with pytest.raises(AttributeError):
        roster.extra = 1  # type: ignore[attr-defined]


def test_a_roster_knows_processes_and_not_only_slots() -> None:
    roster = Roster({0: 1, 2: 0})
    assert roster.holds(0, 1)
    assert not roster.holds(0, 0)
    assert not roster.holds(1, 0)
    assert roster.departed(Roster({0: 1, 1: 0, 2: 0})) == ()
    assert roster.departed(Roster({0: 2, 1: 0})) == (0, 2)


@pytest.mark.parametrize("pairs", [[(-1, 0)], [(0, -1)]])
def test_negative_numbers_are_refused(pairs: list[tuple[int, int]]) -> None:
    with pytest.raises(ValueError, match="count from 0"):
        Roster(pairs)


@pytest.mark.parametrize("pair", [(True, 0), (0, True), (1.0, 0), (0, 1.5), ("1", 0), (0, None)])
def test_what_cannot_count_is_no_slot_and_no_incarnation(pair: tuple[int, int]) -> None:
    """To Python True is 1 and 1.0 is 1; in a roster they would be the same process as one that they are not."""
    with pytest.raises(TypeError, match="slot and incarnation are whole numbers"):
        Roster([pair])


def test_a_slot_named_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="names each slot once"):
        Roster([(0, 0), (0, 1)])


def test_a_topology_lays_out_a_roster_without_holes() -> None:
    """M5: survivors sit contiguously, whoever is missing."""
    assert FLEET.total_gen_workers == 6
    membership = FLEET.membership(Roster({0: 4, 2: 1}))
    assert membership.world_size == 6
    assert dict(membership.shard_prefixes) == {0: 0, 2: 2}
    with pytest.raises(NoSurvivingShards):
        FLEET.membership(Roster())


@pytest.mark.parametrize("name", ["train_world_size", "dp_size", "workers_per_shard"])
@pytest.mark.parametrize("size", [0, -1])
def test_a_topology_refuses_sizes_below_one(name: str, size: int) -> None:
    sizes = {"train_world_size": 1, "dp_size": 1, "workers_per_shard": 1, name: size}
    with pytest.raises(ValueError, match="at least 1"):
        Topology(**sizes)


@pytest.mark.parametrize("name", ["train_world_size", "dp_size", "workers_per_shard"])
@pytest.mark.parametrize(
    ("size", "says"),
    [
        (True, "at least 1, got True"),
        (2.0, "at least 1, got 2.0"),
        ("2", "at least 1, got '2'"),
        (2**31, f"at most {MAX_RANKS}, got 2147483648"),
        (10**400, f"at most {MAX_RANKS}"),
    ],
)
def test_a_topology_names_the_size_that_is_none(name: str, size: int, says: str) -> None:
    sizes = {"train_world_size": 1, "dp_size": 1, "workers_per_shard": 1, name: size}
    with pytest.raises(ValueError, match=f"{name} must be .*{says}"):
        Topology(**sizes)


def test_a_topology_of_too_many_ranks_in_all_is_refused() -> None:
    with pytest.raises(ValueError, match=f"world_size must be at most {MAX_RANKS}, got {2**30 + 1}"):
        Topology(train_world_size=1, dp_size=2**15, workers_per_shard=2**15)


# --- our decision and the published one -----------------------------------------------------------------------------


def rosters(incarnations: int) -> list[Roster]:
    """Every roster of the fleet that is not empty."""
    slots = range(FLEET.dp_size)
    return [
        Roster(zip(members, filling, strict=True))
        for size in range(1, FLEET.dp_size + 1)
        for members in combinations(slots, size)
        for filling in product(range(incarnations), repeat=size)
    ]


def published(desired: Roster, built: Roster | None, *, force: bool) -> bool:
    """What the published rule says when it is asked as the published trainer asks it: with layouts."""
    return should_rebuild(
        desired=FLEET.membership(desired),
        built=None if built is None else FLEET.membership(built),
        absent_shards=[slot for slot in range(FLEET.dp_size) if slot not in desired],
        force=force,
    )


def test_on_a_live_communicator_the_rules_differ_only_where_a_slot_was_refilled() -> None:
    """M1, M2. Hole 1 of the design: the layout is equal, the process is another. Everywhere else they agree."""
    compared = 0
    for desired, built in product(rosters(2), repeat=2):
        ours, theirs = must_rebuild(desired=desired, built=built), published(desired, built, force=False)
        refilled = set(desired) == set(built) and desired != built
        assert (ours, theirs) == ((True, False) if refilled else (desired != built,) * 2)
        compared += 1
    assert compared == 26 * 26


def test_before_anything_was_built_both_rules_build() -> None:
    """M12: nothing recorded means nothing live, and that alone is a difference."""
    for desired in rosters(2):
        assert must_rebuild(desired=desired, built=None)
        assert published(desired, None, force=False)


def test_after_a_break_the_published_rule_takes_any_old_absence_for_evidence() -> None:
    """M3. Hole 2: with `force`, somebody absent for long licenses a rebuild over whoever went silent just now.

    Ours has no such answer to give: a communicator that is gone is built over nothing, so it must be formed anew, but
    whether it may is not asked here; the lifecycle wants evidence newer than the break (S7).
    """
    for roster in rosters(1):
        somebody_absent = len(roster) < FLEET.dp_size
        assert published(roster, roster, force=True) is somebody_absent
        assert must_rebuild(desired=roster, built=None)


def test_a_failed_forming_is_remembered_as_nothing_and_not_as_its_target() -> None:
    """M4. Hole 3: the published caller recorded the target as built, and equal layouts rebuild nothing."""
    target = Roster({0: 0, 1: 0})
    recorded_as_built, really_built = target, None
    assert not published(target, recorded_as_built, force=False)
    assert must_rebuild(desired=target, built=really_built)
