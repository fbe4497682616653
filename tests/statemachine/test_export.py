"""The table as data says all that the table says, comes back as it was, and its hash covers all that decides."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from reknit.spec.lifecycle import events as ev
from reknit.spec.lifecycle.entries import Row
from reknit.spec.lifecycle.state import Phase, ShardState
from reknit.spec.lifecycle.table import COMMUNICATOR, SHARDS
from reknit.statemachine import export as module
from reknit.statemachine import source
from reknit.statemachine.export import fingerprint, read, table_hash, this_table, written

TABLE = this_table()
TEXT = written(TABLE)


def test_the_export_holds_every_entry_in_order() -> None:
    assert [entry.id for entry in TABLE.entries] == [entry.id for entry in (*COMMUNICATOR, *SHARDS)]
    data = json.loads(TEXT)
    assert list(data) == ["format", "table", "parts", "phases", "shard_states", "events", "entries", "code"]
    first = next(entry for entry in data["entries"] if entry["id"] == "nobody_left@unbuilt")
    assert first == {
        "id": "nobody_left@unbuilt",
        "machine": "communicator",
        "event": "FormDue",
        "source": "unbuilt",
        "kind": "row",
        "guard": "nobody_can_return",
        "target": "halted",
        "effect": "halt_no_surviving_shards",
        "error": None,
        "why": "a communicator without shards is none, and none can return",
        "raises": [],
    }
    refused = next(entry for entry in data["entries"] if entry["kind"] == "refuse")
    assert (refused["error"], refused["target"], refused["effect"]) == ("AlreadyStarted", None, None)


def test_the_export_holds_every_place_and_every_event_with_its_fields() -> None:
    assert [place.name for place in TABLE.phases] == [phase.value for phase in Phase]
    assert [place.name for place in TABLE.shard_states] == [state.value for state in ShardState]
    assert all(place.meaning for place in (*TABLE.phases, *TABLE.shard_states))
    (failed,) = (event for event in TABLE.events if event.name == "RankFailed")
    assert (failed.fields, failed.signal) == (
        {"stamp": "Stamp", "rank": "int", "cause": "Cause", "detail": "str"},
        False,
    )
    assert {event.name for event in TABLE.events if event.signal} == {
        entry.event.__name__ for entry in (*COMMUNICATOR, *SHARDS) if issubclass(entry.event, ev.Signal)
    }


def test_an_export_is_ascii_and_comes_back_as_it_was() -> None:
    assert TEXT.isascii()
    assert written(read(TEXT)) == TEXT
    assert read(TEXT) == TABLE


def test_another_process_writes_the_same_bytes() -> None:
    code = "import sys; from reknit.statemachine.export import *; sys.stdout.write(written(this_table()))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env={"PYTHONHASHSEED": "7"} | {"PYTHONPATH": ":".join(sys.path)},
    )
    assert done.stdout == TEXT


def test_guards_and_effects_are_told_apart_by_their_names() -> None:
    """The digests of the code go by name, so no two functions may share one."""
    entries = (*COMMUNICATOR, *SHARDS)
    functions = {entry.guard for entry in entries if entry.guard} | {e.effect for e in entries if isinstance(e, Row)}
    # One effect per reason of a halt is made for each row that names it.
    named = {(function.__module__, function.__qualname__) for function in functions}
    assert len(named) == len({function.__name__ for function in functions}) == len(TABLE.code)


# --- the hash --------------------------------------------------------------------------------------------------


@pytest.fixture
def hashed_anew(monkeypatch: pytest.MonkeyPatch) -> Callable[[], str]:
    """The hash as another process would find it."""
    monkeypatch.setattr(module, "fingerprint", fingerprint.__wrapped__)
    return table_hash.__wrapped__


@pytest.mark.parametrize(
    "change", [{"why": "another reason"}, {"guard": "another"}, {"target": "built"}, {"kind": "ignore"}]
)
def test_the_hash_covers_every_entry(
    change: dict[str, Any], hashed_anew: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, *rest = TABLE.entries
    monkeypatch.setattr(module, "_entries", lambda: iter([replace(first, **change), *rest]))
    assert hashed_anew() != table_hash()


def test_the_hash_covers_the_order_of_the_entries(
    hashed_anew: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, *rest = TABLE.entries
    assert hashed_anew() == table_hash()
    monkeypatch.setattr(module, "_entries", lambda: iter([second, first, *rest]))
    assert hashed_anew() != table_hash()


def test_the_signals_that_are_listed_for_people_are_no_part_of_the_hash(
    hashed_anew: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, *rest = TABLE.entries
    monkeypatch.setattr(module, "_entries", lambda: iter([replace(first, raises=("Torn",)), *rest]))
    assert hashed_anew() == table_hash()


@pytest.mark.parametrize("part", sorted(module._CODE))
def test_the_hash_covers_the_code_of_every_part(
    part: str, hashed_anew: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    changed = module._module(module._CODE[part][-1])
    plain = source.inspect.getsource
    monkeypatch.setattr(
        source.inspect, "getsource", lambda what: plain(what) + ("\nMORE = 1\n" if what is changed else "")
    )
    found = fingerprint.__wrapped__()
    assert {name for name in found if found[name] != fingerprint()[name]} == {part}
    assert hashed_anew() != table_hash()


def test_every_module_of_the_specification_is_in_one_part_or_left_out_for_a_reason() -> None:
    covered = [f"reknit.spec.{name}" for names in module._CODE.values() for name in names]
    assert len(covered) == len(set(covered))
    left_out = {
        "reknit.spec.lifecycle.table",  # its entries are the part `table`
        "reknit.spec.lifecycle.entries",  # the short forms of the table
        "reknit.spec.lifecycle.invariants",  # checks, and decides nothing
        "reknit.spec",
        "reknit.spec.lifecycle",
    }
    inner = {name for name in sys.modules if name.split(".")[:2] == ["reknit", "spec"]}
    assert inner == set(covered) | left_out


# --- what is no export -----------------------------------------------------------------------------------------


def doctored(**changes: Any) -> str:
    return json.dumps(json.loads(TEXT) | changes)


FIRST = json.loads(TEXT)["entries"][0]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "it is no JSON"),
        ("hello", "it is no JSON"),
        ("[" * 100_000, "it is no JSON"),
        ("9" * 5000, "it is no JSON"),
        ("[]", "it names no format"),
        ('{"kind": "header", "journal": 1}', "it names no format"),
        ('{"format": 2}', "a table of format 2; this version reads 1"),
        ('{"format": 1}', "table must be text in one line, got None"),
        (doctored(parts=[]), "parts must be an object of texts"),
        (doctored(phases={}), "phases must be a list of objects"),
        (doctored(entries=[3]), "entries must be a list of objects"),
        (doctored(entries=[FIRST | {"why": None}]), "why must be text in one line, got None"),
        (doctored(entries=[FIRST | {"guard": 3}]), "guard must be a name, got 3"),
        (doctored(entries=[FIRST | {"why": "two\nlines"}]), "why must be text in one line"),
        (doctored(entries=[FIRST | {"effect": "<b>"}]), "effect must be a name, got '<b>'"),
        (doctored(entries=[FIRST | {"raises": "all"}]), "raises must be a list of names"),
        (doctored(entries=[FIRST, FIRST]), "is there more than once"),
        (doctored(entries=[FIRST | {"source": "nowhere"}]), "a place that is not listed"),
        (doctored(entries=[FIRST | {"target": "built"}]), "must have a target if it is a row, and only then"),
        (doctored(entries=[FIRST | {"machine": "third"}]), "of no known machine or kind"),
        (doctored(events=[{"name": "x" * 1000, "fields": 3}]), "fields must be an object of texts, got 3"),
        (doctored(code={"a": ["\n" * 1000]}), "code must be an object of texts"),
    ],
)
def test_what_is_no_export_is_refused_in_one_line(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says) as caught:
        read(text)
    assert len(str(caught.value).splitlines()) == 1
    assert len(str(caught.value)) < 250
