"""What differs between two tables is found, told and drawn, and what does not differ is not."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("graphviz")

from reknit.statemachine.compare import Mark, alone, compare, summary
from reknit.statemachine.diagrams import DOT, draw, render
from reknit.statemachine.diagrams.shapes import INK
from reknit.statemachine.export import Export, ExportedEvent, ExportedPlace, this_table

NEW = this_table()
HALTED = "trainer_lost@built"


def without(*ids: str) -> Export:
    kept = tuple(entry for entry in NEW.entries if entry.id not in ids)
    assert len(kept) == len(NEW.entries) - len(ids)
    return replace(NEW, entries=kept)


def altered(which: str, **changes: Any) -> Export:
    assert any(entry.id == which for entry in NEW.entries)
    return replace(NEW, entries=tuple(replace(e, **changes) if e.id == which else e for e in NEW.entries))


def swapped(first: str, second: str) -> Export:
    entries = list(NEW.entries)
    one, two = (next(i for i, e in enumerate(entries) if e.id == name) for name in (first, second))
    entries[one], entries[two] = entries[two], entries[one]
    return replace(NEW, entries=tuple(entries))


def differing(old: Export, new: Export = NEW) -> dict[str, tuple[Mark, tuple[str, ...]]]:
    return {e.of.id: (e.mark, e.changes) for e in compare(old, new).entries if e.mark.differs}


def test_a_table_does_not_differ_from_itself() -> None:
    assert differing(NEW) == {}
    assert summary(compare(NEW, NEW)) == ["nothing differs: it is the same table"]


def test_what_is_added_and_what_is_removed_depends_on_which_is_older() -> None:
    old = without("failure_heard@aborted", "loaded@restarting")
    assert differing(old) == {"failure_heard@aborted": (Mark.ADDED, ()), "loaded@restarting": (Mark.ADDED, ())}
    assert {mark for mark, _ in differing(NEW, old).values()} == {Mark.REMOVED}
    assert summary(compare(NEW, old)) == [
        "0 added, 2 removed, 0 changed",
        "- communicator failure_heard@aborted: RankFailed in aborted if is_about_the_break: stays, hear_failure: "
        "the rank that knows why is rarely the first to fail",
        "- shard loaded@restarting: ReplacementLoaded in restarting: -> rejoined, welcome: "
        "it can take part; it serves only after a refit that it took part in",
    ]


@pytest.mark.parametrize(
    ("field", "was", "told"),
    [
        ("target", "closed", "target closed -> halted"),
        ("guard", "is_late", "guard is_late -> none"),
        ("effect", "close", "effect close -> halt_trainer_lost"),
        ("why", "so it is", 'why "so it is" -> "trainers are never excluded: without one there is no training"'),
        ("event", "Settled", "event Settled -> TrainerLost"),
    ],
)
def test_a_row_of_which_something_else_is_said_is_changed(field: str, was: str, told: str) -> None:
    assert differing(altered(HALTED, **{field: was})) == {HALTED: (Mark.CHANGED, (told,))}


def test_a_row_whose_guard_or_effect_does_something_else_is_changed() -> None:
    old = replace(NEW, code=dict(NEW.code) | {"nobody_can_return": "0" * 64, "tear": "0" * 64})
    found = differing(old)
    assert set(found) == {e.id for e in NEW.entries if e.guard == "nobody_can_return" or e.effect == "tear"}
    assert found["nobody_left@stale"] == (Mark.CHANGED, ("the code of guard nobody_can_return",))
    assert found["torn@serving"] == (Mark.CHANGED, ("the code of effect tear",))


def test_a_row_that_is_tried_earlier_or_later_in_its_cell_is_changed() -> None:
    found = differing(swapped("nobody_left@stale", "floor_lost@stale"))
    assert list(found.values()) == [(Mark.CHANGED, ("its order in the cell",))]
    assert set(found) < {"nobody_left@stale", "floor_lost@stale"}


def test_a_row_that_only_stands_below_a_new_one_is_not_changed() -> None:
    assert set(differing(without("nobody_left@stale"))) == {"nobody_left@stale"}
    # The order of cells is nothing that decides.
    assert differing(replace(NEW, entries=NEW.entries[::-1]), NEW) == differing(replace(NEW, entries=NEW.entries[::-1]))
    assert differing(swapped("close@built", "trainer_lost@built")) == {}


def test_places_events_and_code_that_differ_are_told_behind_the_entries() -> None:
    paused = ExportedPlace(name="paused", meaning="rests", traits=())
    nudged = ExportedEvent(name="Nudged", fields={}, signal=True)
    settled = next(event for event in NEW.events if event.name == "Settled")
    old = replace(
        NEW,
        phases=(*(p for p in NEW.phases if p.name != "closed"), paused),
        shard_states=(replace(NEW.shard_states[0], meaning="works", traits=()), *NEW.shard_states[1:]),
        events=(*(e for e in NEW.events if e is not settled), replace(settled, fields={"rank": "int"}), nudged),
        parts=dict(NEW.parts) | {"reading": "0" * 64, "table": "0" * 64},
    )
    assert summary(compare(old, NEW)) == [
        "0 added, 0 removed, 0 changed",
        "+ phase closed",
        "- phase paused",
        '~ shard state serving: meaning works -> "gets traffic, is a member"; traits none -> member serves',
        '~ event Settled: fields "signal (rank: int)" -> "signal ()"',
        "- event Nudged",
        "~ code behind the rows, by part: reading",
    ]


# --- drawn ---------------------------------------------------------------------------------------------------------


def arrow(dot: str, name: str) -> str:
    """The attributes of the one arrow on which this stands."""
    (found,) = (line for line in dot.splitlines() if re.search(rf'label="(.*\\l)?{re.escape(name)}\\l', line))
    return found


def test_an_added_row_is_green_a_removed_one_red_and_dashed_a_changed_one_amber() -> None:
    old = altered("last_transferred@refitting", guard="is_last")
    old = replace(old, entries=tuple(e for e in old.entries if e.id != "wrong_version@refitting"))
    gone = next(e for e in NEW.entries if e.id == "transfer@built")
    old = replace(old, entries=(*old.entries, replace(gone, id="hurry@built", target="halted")))
    dot = draw("communicator", "dot", compare(old, NEW))
    assert f'color="{INK[Mark.ADDED]}"' in arrow(dot, "+ wrong_version")
    assert f'color="{INK[Mark.CHANGED]}"' in arrow(dot, "~ last_transferred")
    removed = arrow(dot, "- hurry")
    assert "built -> halted" in removed
    assert f'color="{INK[Mark.REMOVED]}"' in removed
    assert "style=dashed" in removed
    assert f'color="{INK[Mark.SAME]}"' in arrow(dot, "trainer_lost")
    assert all(f">{text}<" in dot for text in ("added", "removed", "changed", "as before"))
    mermaid = draw("communicator", "mermaid", compare(old, NEW))
    (number,) = re.findall(r'built -->\|"-hurry"\| halted\n    linkStyle (\d+) ', mermaid)
    assert f"linkStyle {number} stroke:{INK[Mark.REMOVED]},color:{INK[Mark.REMOVED]},stroke-dasharray" in mermaid
    assert "-->" in mermaid.split(f"linkStyle {number} ")[0]
    assert mermaid[: mermaid.index(f"linkStyle {number} ")].count("-->") == int(number) + 1


def test_what_is_ignored_or_refused_is_drawn_where_it_differs() -> None:
    old = without("ignore_RankLeft@built", "ignore_RankFailed_if_is_late@forming")
    dot = draw("communicator", "dot", compare(old, NEW))
    assert f'<FONT COLOR="{INK[Mark.ADDED]}">+ ignore RankLeft</FONT>' in dot
    assert f'<FONT COLOR="{INK[Mark.ADDED]}">+ ignore RankFailed if is_late</FONT>' in dot
    assert dot.count("ignore") == 2
    assert "+ignore RankLeft" in draw("communicator", "mermaid", compare(NEW, old)).replace("-ignore", "+ignore")


def test_a_phase_that_is_new_does_not_scatter_what_leads_from_every_other() -> None:
    paused = ExportedPlace(name="paused", meaning="rests", traits=())
    row = next(e for e in NEW.entries if e.id == "close@built")
    new = replace(
        NEW,
        phases=(*NEW.phases, paused),
        entries=(*NEW.entries, replace(row, id="close@paused", source="paused")),
    )
    for old, later, mark in ((NEW, new, Mark.ADDED), (new, NEW, Mark.REMOVED)):
        dot = draw("communicator", "dot", compare(old, later))
        assert "ltail=cluster_group" in arrow(dot, "close")
        assert f'paused -> closed [label="{mark.value} close\\l" color="{INK[mark]}"' in dot
        assert "\tpaused [" in dot


@pytest.mark.parametrize("what", DOT)
@pytest.mark.parametrize(
    "edit", [lambda: NEW, lambda: without("promoted@torn"), lambda: altered("form@stale", raises=("Nudged",))]
)
def test_every_picture_of_a_difference_can_be_rendered_and_is_stable(what: str, edit: Callable[[], Export]) -> None:
    shown = compare(edit(), NEW)
    assert draw(what, "mermaid", shown) == draw(what, "mermaid", compare(edit(), NEW))
    dot = draw(what, "dot", shown)
    assert dot == draw(what, "dot", compare(edit(), NEW))
    svg = render.render_svg(dot)
    assert svg is None or "added" in svg


def test_alone_a_table_is_drawn_without_any_sign() -> None:
    for what in DOT:
        assert draw(what, "dot", alone(NEW)) == draw(what, "dot")
        assert not re.search(r"[+~] \w", draw(what, "dot"))
