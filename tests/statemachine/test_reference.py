"""The reference page holds the whole table, in its order, and the page in the docs is current."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from reknit.spec.config import RefitConfig
from reknit.spec.lifecycle import INVARIANTS, HaltReason, Phase, ShardState
from reknit.spec.lifecycle import commands as cmd
from reknit.spec.lifecycle.entries import Entry, Ignore, Refuse, Row
from reknit.spec.lifecycle.events import Cause, Progress
from reknit.spec.lifecycle.explain import WHAT_TO_DO
from reknit.spec.lifecycle.table import COMMUNICATOR, SHARDS
from reknit.statemachine import reference
from reknit.statemachine.export import this_table, written
from reknit.statemachine.reference import kind_of, lifecycle_page, write_reference
from reknit.statemachine.words import event_types, knobs, meanings

DOCS = Path(__file__).resolve().parents[2] / "docs" / "reference"
PAGE = lifecycle_page()


def test_the_page_in_the_docs_is_current() -> None:
    assert (DOCS / "lifecycle.md").read_text(encoding="utf-8") == PAGE, "run `make diagrams`"


def test_the_table_in_the_docs_is_current() -> None:
    assert (DOCS / "table.json").read_text(encoding="utf-8") == written(this_table()), "run `make diagrams`"


def test_the_docs_hold_nothing_else() -> None:
    assert {path.name for path in DOCS.iterdir()} == {"lifecycle.md", "table.json"}


def test_the_page_can_be_written_anywhere(tmp_path: Path) -> None:
    page, table = write_reference(tmp_path / "new")
    assert page.read_text(encoding="utf-8") == PAGE == lifecycle_page()
    assert table.read_text(encoding="utf-8") == written(this_table())


def test_the_page_names_everything() -> None:
    for place in (*Phase, *ShardState):
        assert f"| `{place.value}` |" in PAGE
    for event in event_types():
        assert f"- `{event.__name__}({', '.join(field.name for field in fields(event))})`: " in PAGE
    for invariant in INVARIANTS:
        assert f"| {invariant.id} | {invariant.says} |" in PAGE
    for reason in HaltReason:
        assert f"- `{reason.value}` (" in PAGE
    for knob in fields(RefitConfig):
        assert f"| `{knob.name}` | `{knob.default!r}` | " in PAGE
    assert f"- `Form({', '.join(field.name for field in fields(cmd.Form))})`: " in PAGE


@pytest.mark.parametrize("entries", [COMMUNICATOR, SHARDS], ids=["communicator", "shard"])
def test_every_entry_stands_in_the_page_with_its_reason(entries: tuple[Entry, ...]) -> None:
    lines = PAGE.splitlines()
    for entry in entries:
        wanted = [f" {entry.why} |", f"| `{entry.guard.__name__}` |" if entry.guard else "|  |"]
        match entry:
            case Row():
                wanted += [f"**{entry.id.split('@')[0]}**: `{entry.effect.__name__}`"]
                wanted += ["| stays |" if entry.target is entry.source else f"| -> `{entry.target.value}` |"]
            case Refuse():
                wanted += [f"| refused | raises `{entry.error.__name__}` |"]
            case Ignore():
                wanted += ["| ignored |  |"]
        place = f"`{entry.source.value}`"
        assert any(place in line.split(" | ")[0] and all(part in line for part in wanted) for line in lines), entry.id


@pytest.mark.parametrize("entries", [COMMUNICATOR, SHARDS], ids=["communicator", "shard"])
def test_lines_that_stand_for_several_places_keep_the_order_of_every_cell(entries: tuple[Entry, ...]) -> None:
    for event in {entry.event for entry in entries}:
        cell_order: dict[object, list[str]] = {}
        for alike in reference._alike(entry for entry in entries if entry.event is event):
            for entry in alike:
                cell_order.setdefault(entry.source, []).append(entry.id)
        for place, ids in cell_order.items():
            assert ids == [entry.id for entry in entries if entry.event is event and entry.source is place]


def test_every_event_has_a_kind() -> None:
    kinds = [kind_of(event) for event in event_types()]
    assert [kinds.count(kind) for kind in dict.fromkeys(kinds)] == [5, 5, 10, 7, 12]


def test_a_halt_stands_with_the_rows_that_lead_to_it_and_what_to_do() -> None:
    leading = {reason: set() for reason in HaltReason}
    for entry in COMMUNICATOR:
        for reason in HaltReason:
            if isinstance(entry, Row) and entry.effect.__name__ == f"halt_{reason.value}":
                leading[reason].add(entry.id.split("@")[0])
    for reason, names in leading.items():
        (line,) = (line for line in PAGE.splitlines() if line.startswith(f"- `{reason.value}` ("))
        assert names
        assert set(line.partition("(")[2].partition(")")[0].split(", ")) == names
        assert line.endswith(f"What to do: {WHAT_TO_DO[reason]}.")


def test_every_knob_says_what_it_bounds() -> None:
    said = knobs(RefitConfig)
    assert set(said) == {knob.name for knob in fields(RefitConfig)}
    assert said["join_timeout_s"] == "one rank's own bound on joining."
    assert said["on_frozen"].endswith("confirms its death, and goes on.")


def test_meanings_are_read_from_the_specification() -> None:
    assert meanings(Phase)["unbuilt"] == "none was ever formed"
    assert set(meanings(Phase)) == {phase.value for phase in Phase}
    assert all(meanings(Phase).values())
    assert all(meanings(Cause).values())
    assert all(meanings(Progress).values())
    assert [state for state, meaning in meanings(ShardState).items() if not meaning] == ["serving"]
