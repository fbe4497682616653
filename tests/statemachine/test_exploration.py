"""One answer from many searches, and the three holes of the published rule."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from reknit.spec.lifecycle import Phase, State
from reknit.spec.lifecycle import events as ev
from reknit.spec.lifecycle.interpret import interpret
from reknit.statemachine.diagrams.path import path_as_mermaid
from reknit.statemachine.exploration import (
    Asked,
    Exploration,
    Found,
    Searched,
    explore,
    look_at,
    look_for_goal,
    plan,
)
from reknit.statemachine.published import HOLES, Recording, published
from reknit.statemachine.scenario import BadScenario, read, replay, written
from reknit.statemachine.slices import GOALS, SMALL, fleet


@cache
def holes() -> dict[str, Found]:
    searched = look_at(Asked(shards=2, faults=2, refits=2, rule="published"))
    return {str(found.hole): found for found in searched.found}


def test_the_published_rule_has_three_holes_and_the_search_finds_each() -> None:
    assert sorted(holes()) == ["published_failed_rebuild", "published_old_absence", "published_same_layout"]


def test_the_same_slot_with_another_process_is_taken_for_the_same_communicator() -> None:
    """Hole 1: the layout is equal, nothing is rebuilt, and the transfer waits for somebody who was never in."""
    found = holes()["published_same_layout"]
    assert (found.property, found.faults) == ("S3", 1)
    assert found.trace == (
        "the trainer starts the run",
        "the trainer is done",
        "shard 0 is done",
        "shard 1 is done",
        "shard 1 is killed",
        "the pause before the restart of shard 1 is over",
        "the replacement for shard 1 has loaded",
        "the trainer asks for a refit",
    )


def test_an_old_absence_is_taken_as_evidence_for_a_new_silence() -> None:
    """Hole 2: something is absent, so it rebuilds over the very ranks that fell silent."""
    found = holes()["published_old_absence"]
    assert (found.property, found.faults) == ("S7", 2)
    assert found.says == "S7: epoch 3 forms over shards 1, as did epoch 2, which broke: nothing new is known"
    assert found.trace[0] == "shard 0 is killed"
    assert found.trace[5] == "everybody is slow"


def test_a_rebuild_that_failed_is_remembered_as_built() -> None:
    """Hole 3: by the time the attempt has failed the layout is again the one recorded before it."""
    found = holes()["published_failed_rebuild"]
    assert (found.property, found.faults) == ("S3", 2)
    assert found.trace[7:9] == ("the replacement for shard 1 has loaded", "everybody is slow")
    assert found.says.startswith("S3: transfer ordered in aborted")


def test_no_shorter_way_with_as_few_faults_leads_to_a_hole() -> None:
    """Every way with one step less is among those that were searched; and one fault less finds nothing of it."""
    one_fault = look_at(Asked(shards=2, faults=1, refits=2, rule="published"))
    assert [found.hole for found in one_fault.found] == ["published_same_layout"]
    none = look_at(Asked(shards=2, faults=0, refits=2, rule="published"))
    assert none.found == []


def test_with_our_rule_none_of_the_three_is_there() -> None:
    """The same fleets, faults and calls."""
    searched = look_at(Asked(shards=2, faults=2, refits=2))
    assert searched.found == []
    assert searched.states > 20_000


def test_where_no_hole_is_the_two_rules_agree() -> None:
    """The rest of the table is the same: a quiet run fires the same rows."""
    ours, theirs = State.initial(fleet(2), SMALL), Recording.initial(fleet(2), SMALL)
    for rank in (None, 0, 1, 2):
        event = ev.StartRequested() if rank is None else ev.RankJoined(ours.stamp, rank)
        mine, its = interpret(ours, event), published(theirs, event)
        assert (mine.fired, mine.commands) == (its.fired, its.commands)
        ours, theirs = mine.state, its.state  # type: ignore[assignment]
    assert ours.phase is Phase.REBUILT
    assert theirs.recorded == frozenset({0, 1})


def test_each_row_of_the_published_rule_says_why() -> None:
    assert all(row.why for row in HOLES)


# --- scenarios ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("hole", ["published_same_layout", "published_old_absence", "published_failed_rebuild"])
def test_what_was_found_can_be_written_down_and_followed_again(hole: str) -> None:
    found = holes()[hole]
    scenario = read(written(found))
    assert scenario.trace == found.trace
    assert replay(scenario).broken == (found.says,)


def test_the_same_way_under_our_rule_breaks_nothing() -> None:
    scenario = read(written(holes()["published_same_layout"]))
    ours = replace(scenario, asked=replace(scenario.asked, rule="ours"))
    assert replay(ours).broken == ()


def test_a_scenario_of_another_model_says_so() -> None:
    found = holes()["published_same_layout"]
    data = json.loads(written(found))
    data["steps"][3]["says"] = "shard 1 is tired"
    with pytest.raises(BadScenario, match=r"step 4 was 'shard 1 is tired' and is now 'shard 1 is done'"):
        replay(read(json.dumps(data)))
    data["steps"][3]["move"] = 99
    with pytest.raises(BadScenario, match=r"step 4 is move 99 of \d+ that are possible there"):
        replay(read(json.dumps(data)))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"format": 2}',
        '{"format": 1, "search": {}, "finds": "", "steps": []}',
        '{"format": 1, "search": {"shards": 0, "faults": 1, "refits": 1}, "finds": "", "steps": []}',
        '{"format": 1, "search": {"shards": 2, "faults": 1, "refits": 1, "rule": "best"}, "finds": "", "steps": []}',
        '{"format": 1, "search": {"shards": 2, "faults": 1, "refits": 1}, "finds": "", "steps": [{"move": -1}]}',
    ],
)
def test_what_is_no_scenario_is_refused_in_one_sentence(text: str) -> None:
    with pytest.raises(BadScenario):
        read(text)


# --- the sum -------------------------------------------------------------------------------------------------------


def test_the_searches_of_one_answer_have_all_of_the_faults_that_were_asked_for() -> None:
    assert [(asked.shards, asked.faults, asked.refits, asked.policy) for asked in plan(3, 3)[:4]] == [
        (3, 3, 1, "fence"),
        (3, 3, 1, "stop"),
        (3, 2, 2, "fence"),
        (3, 2, 2, "stop"),
    ]


@pytest.mark.parametrize("name", GOALS)
def test_every_goal_is_reached(name: str) -> None:
    assert look_for_goal(name).reached, GOALS[name].says


def test_a_small_answer_adds_up_and_is_plain_data() -> None:
    seen: list[Searched] = []
    result = explore(1, 1, "published", processes=1, on_searched=seen.append)
    data = json.loads(json.dumps(result.as_json()))
    assert data["states"] == sum(each.states for each in seen) > 100
    assert {"states", "transitions", "seconds", "violations", "rows_never_fired", "goals_not_reached"} <= data.keys()
    assert data["violations"][0]["property"] == "S3"
    assert data["violations"][0]["trace"][-1] == "the trainer asks for a refit"
    assert not result.holds


def test_what_is_missing_fails_the_answer() -> None:
    assert Exploration("ours").holds
    assert not Exploration("ours", rows_never_fired=("start@unbuilt",)).holds
    assert not Exploration("ours", goals_not_reached=("close",)).holds


@pytest.mark.parametrize(("shards", "faults"), [(0, 1), (1, -1)])
def test_a_search_of_nothing_is_refused(shards: int, faults: int) -> None:
    with pytest.raises(ValueError, match="at least 1 shard and 0 faults"):
        explore(shards, faults)


# --- the stories in the docs ---------------------------------------------------------------------------------------

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("hole", ["published_same_layout", "published_old_absence", "published_failed_rebuild"])
def test_the_stories_in_the_docs_are_what_the_search_finds(hole: str) -> None:
    kept = (DOCS / "holes" / f"{hole}.json").read_text()
    assert kept == written(holes()[hole])
    page = (DOCS / "holes.md").read_text()
    assert f"```mermaid\n{path_as_mermaid(read(kept))}```\n" in page
    assert f"holes/{hole}.json" in page


def test_the_picture_of_a_way_under_a_mended_rule_ends_with_nothing_broken() -> None:
    scenario = read(written(holes()["published_same_layout"]))
    picture = path_as_mermaid(replace(scenario, asked=replace(scenario.asked, rule="ours")))
    assert "broken" not in picture
    assert picture.splitlines()[-1].endswith("8. the trainer asks for a refit")
