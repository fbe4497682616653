"""The reference pages of the lifecycle, written from the table and the docstrings of what it names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields
from itertools import groupby
from pathlib import Path

from ..spec.config import RefitConfig
from ..spec.lifecycle import commands
from ..spec.lifecycle.entries import Entry, Ignore, Refuse, Row
from ..spec.lifecycle.events import (
    BackoffElapsed,
    ControllerFailed,
    Event,
    RankReply,
    ShardObservation,
    Signal,
    TrainerLost,
)
from ..spec.lifecycle.explain import WHAT_TO_DO
from ..spec.lifecycle.invariants import INVARIANTS
from ..spec.lifecycle.state import LIVE, TERMINAL, HaltReason, Phase, ShardState
from ..spec.lifecycle.table import COMMUNICATOR, SHARDS
from .coupling import raised_by
from .export import WAITING, table_hash, this_table, written
from .words import doc, event_types, knobs, meanings

INTRODUCTION = """\
# The lifecycle, complete

Written from the table by `reknit.statemachine.reference`; do not edit. Fingerprint of the table: `{fingerprint}`.
How to read it is told in [the lifecycle](../lifecycle.md); [table.json](table.json) is the same for programs.

A cell is one event in one place. Its entries are tried in the order of this page and the first whose condition holds is
taken. A row does something, an ignored entry is legal and does nothing, a refused one raises and changes nothing.
"""


def write_reference(folder: Path) -> list[Path]:
    """Write the page and the table as data into `folder` and say which."""
    folder.mkdir(parents=True, exist_ok=True)
    texts = {"lifecycle.md": lifecycle_page(), "table.json": written(this_table())}
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    return [folder / name for name in texts]


def lifecycle_page() -> str:
    """Every phase, shard state, event, command, entry, property, halt reason and budget."""
    return "\n".join(
        (
            INTRODUCTION.format(fingerprint=table_hash()[:12]),
            *_places(),
            *_events(),
            *_machine("The communicator", COMMUNICATOR),
            *_machine("One shard", SHARDS),
            *_named(),
            *_commands(),
            *_invariants(),
            *_halts(),
            *_budgets(),
        )
    )


# --- the sections -----------------------------------------------------------------------------------------------


def kind_of(event: type[Event]) -> str:
    """Where an event comes from."""
    if issubclass(event, Signal):
        return "Signals between the two machines"
    if issubclass(event, RankReply):
        return "Replies of ranks"
    if event.__name__.endswith("Expired") or event is BackoffElapsed:
        return "Deadlines"
    if issubclass(event, ShardObservation) or event in (TrainerLost, ControllerFailed):
        return "Observations of the fleet and the journal"
    return "Calls of the trainer and the operator"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield "| " + " | ".join(head) + " |"
    yield "| " + " | ".join("---" for _ in head) + " |"
    for row in rows:
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |"
    yield ""


def _places() -> Iterator[str]:
    yield "## Phases of the communicator\n"
    meaning = meanings(Phase)
    yield from _table(
        ("phase", "meaning", "live", "waits, with a deadline", "terminal"),
        (
            (
                f"`{phase.value}`",
                meaning[phase.value],
                "yes" if phase in LIVE else "",
                "yes" if phase in WAITING else "",
                "yes" if phase in TERMINAL else "",
            )
            for phase in Phase
        ),
    )
    yield "## States of a shard\n"
    meaning = meanings(ShardState)
    yield from _table(
        ("state", "meaning"),
        ((f"`{state.value}`", meaning[state.value] or "gets traffic, is a member") for state in ShardState),
    )


def _events() -> Iterator[str]:
    yield "## Events\n"
    heading = ""
    for event in sorted(event_types(), key=lambda event: _ORDER.index(kind_of(event))):
        if kind_of(event) != heading:
            heading = kind_of(event)
            yield f"\n### {heading}\n"
        names = ", ".join(field.name for field in fields(event))
        yield f"- `{event.__name__}({names})`: {doc(event)}"
    yield ""


_ORDER = (
    "Calls of the trainer and the operator",
    "Replies of ranks",
    "Observations of the fleet and the journal",
    "Deadlines",
    "Signals between the two machines",
)


def _machine(title: str, entries: Sequence[Entry]) -> Iterator[str]:
    yield f"## {title}\n"
    met = dict.fromkeys(entry.event for entry in entries)
    for event in sorted(met, key=lambda event: _ORDER.index(kind_of(event))):
        yield f"### {title}: `{event.__name__}`\n"
        yield from _table(
            ("in", "if", "then", "does", "because"),
            (_line(alike) for alike in _alike(entry for entry in entries if entry.event is event)),
        )


def _alike(entries: Iterable[Entry]) -> Iterator[list[Entry]]:
    """Neighbours that differ in their place only, together: the order within every cell stays that of the table."""

    def kind(entry: Entry) -> tuple[object, ...]:
        target = getattr(entry, "target", None)
        stays = target is entry.source
        return type(entry), _name(entry), entry.guard, stays or target, getattr(entry, "error", None), entry.why

    for _, alike in groupby(entries, key=kind):
        yield list(alike)


def _name(entry: Entry) -> str:
    return entry.id.split("@")[0]


def _line(alike: list[Entry]) -> tuple[str, str, str, str, str]:
    entry = alike[0]
    places = ", ".join(f"`{each.source.value}`" for each in alike)
    condition = f"`{entry.guard.__name__}`" if entry.guard else ""
    match entry:
        case Row():
            then = "stays" if entry.target is entry.source else f"-> `{entry.target.value}`"
            signals = ", ".join(f"`{signal.__name__}`" for signal in raised_by(entry.effect.__name__))
            does = f"**{_name(entry)}**: `{entry.effect.__name__}`" + (f", may raise {signals}" if signals else "")
            return places, condition, then, does, entry.why
        case Refuse():
            return places, condition, "refused", f"raises `{entry.error.__name__}`", entry.why
        case Ignore():
            return places, condition, "ignored", "", entry.why


def _named() -> Iterator[str]:
    entries = (*COMMUNICATOR, *SHARDS)
    guards = {entry.guard.__name__: doc(entry.guard) for entry in entries if entry.guard}
    effects = {entry.effect.__name__: doc(entry.effect) for entry in entries if isinstance(entry, Row)}
    errors = {entry.error.__name__: doc(entry.error) for entry in entries if isinstance(entry, Refuse)}
    for title, named in (("Conditions", guards), ("Effects", effects), ("Refusals", errors)):
        yield f"## {title}\n"
        yield from (f"- `{name}`: {text}" for name, text in sorted(named.items()))
        yield ""


def _commands() -> Iterator[str]:
    yield "## Commands to the runtime\n"
    for command in vars(commands).values():
        if isinstance(command, type) and issubclass(command, commands.Command) and command is not commands.Command:
            names = ", ".join(field.name for field in fields(command))
            yield f"- `{command.__name__}({names})`: {doc(command)}"
    yield ""


def _invariants() -> Iterator[str]:
    yield "## What always holds\n"
    yield from _table(("id", "property"), ((invariant.id, invariant.says) for invariant in INVARIANTS))


def _halts() -> Iterator[str]:
    yield "## Reasons of a halt\n"
    rows = [entry for entry in COMMUNICATOR if isinstance(entry, Row)]
    for reason in HaltReason:
        leading = dict.fromkeys(_name(row) for row in rows if row.effect.__name__ == f"halt_{reason.value}")
        yield f"- `{reason.value}` ({', '.join(leading)}). What to do: {WHAT_TO_DO[reason]}."
    yield ""


def _budgets() -> Iterator[str]:
    yield "## Budgets\n"
    yield "The fields of `RefitConfig`. Deadlines are in seconds.\n"
    said = knobs(RefitConfig)
    yield from _table(
        ("knob", "default", "bounds"),
        ((f"`{knob.name}`", f"`{knob.default!r}`", said[knob.name]) for knob in fields(RefitConfig)),
    )
