"""What differs between two tables: the entries, one by one, and what they rest on.

Entries are told apart by their ids, which name the row and its place. An entry is changed when the table says something
else of it, or when its guard or effect does something else under the same name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from enum import Enum
from typing import Generic, TypeVar

from .export import MACHINES, Export, ExportedEntry, ExportedEvent, ExportedPlace

T = TypeVar("T")
Named = TypeVar("Named", ExportedPlace, ExportedEvent)
_TOLD = ("event", "source", "kind", "guard", "target", "effect", "error", "why")


class Mark(Enum):
    """What became of something between two tables. The value is the sign that stands before its name."""

    ALONE = ""  # nothing was compared: the table is shown by itself
    SAME = " "
    ADDED = "+"
    REMOVED = "-"
    CHANGED = "~"

    @property
    def differs(self) -> bool:
        return self in (Mark.ADDED, Mark.REMOVED, Mark.CHANGED)


@dataclass(frozen=True, slots=True)
class Marked(Generic[T]):
    """Something with its mark. changes: for what is changed, one clause about each change."""

    of: T
    mark: Mark
    changes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A table beside an older one, or alone. Whatever either has is in it; what was removed stands at the end.

    parts: the parts of the code, by name, that differ.
    """

    entries: tuple[Marked[ExportedEntry], ...]
    phases: tuple[Marked[ExportedPlace], ...]
    shard_states: tuple[Marked[ExportedPlace], ...]
    events: tuple[Marked[ExportedEvent], ...]
    parts: tuple[str, ...] = ()
    compared: bool = True

    def of(self, machine: str) -> tuple[Marked[ExportedEntry], ...]:
        """The entries of one machine."""
        return tuple(entry for entry in self.entries if entry.of.machine == machine)

    def places(self, machine: str) -> tuple[Marked[ExportedPlace], ...]:
        """The places of one machine."""
        return self.phases if machine == "communicator" else self.shard_states


def alone(table: Export) -> Comparison:
    """One table, compared with nothing."""

    def shown(things: Iterable[T]) -> tuple[Marked[T], ...]:
        return tuple(Marked(thing, Mark.ALONE) for thing in things)

    return Comparison(
        entries=shown(table.entries),
        phases=shown(table.phases),
        shard_states=shown(table.shard_states),
        events=shown(table.events),
        compared=False,
    )


def compare(old: Export, new: Export) -> Comparison:
    """What is added, removed and changed from `old` to `new`."""
    moved = set(_moved(old, new))

    def entry_changes(before: ExportedEntry, after: ExportedEntry) -> Iterator[str]:
        for field in _TOLD:
            was, is_ = getattr(before, field), getattr(after, field)
            if was != is_:
                yield f"{field} {_quoted(was)} -> {_quoted(is_)}"
        for field in ("guard", "effect"):
            name = getattr(after, field)
            if name is not None and name == getattr(before, field) and old.code.get(name) != new.code.get(name):
                yield f"the code of {field} {name}"
        if (after.machine, after.id) in moved:
            yield "its order in the cell"

    def place_changes(before: ExportedPlace, after: ExportedPlace) -> Iterator[str]:
        for field, was, is_ in (("meaning", before.meaning, after.meaning), ("traits", before.traits, after.traits)):
            if was != is_:
                yield f"{field} {_quoted(was)} -> {_quoted(is_)}"

    def event_changes(before: ExportedEvent, after: ExportedEvent) -> Iterator[str]:
        if before != after:
            yield f"fields {_quoted(_declared(before))} -> {_quoted(_declared(after))}"

    return Comparison(
        entries=tuple(
            marked
            for machine in MACHINES
            for marked in _side_by_side(
                {entry.id: entry for entry in old.of(machine)},
                {entry.id: entry for entry in new.of(machine)},
                entry_changes,
            )
        ),
        phases=tuple(_side_by_side(_by_name(old.phases), _by_name(new.phases), place_changes)),
        shard_states=tuple(_side_by_side(_by_name(old.shard_states), _by_name(new.shard_states), place_changes)),
        events=tuple(_side_by_side(_by_name(old.events), _by_name(new.events), event_changes)),
        parts=tuple(
            sorted(part for part in {*old.parts, *new.parts} - {"table"} if old.parts.get(part) != new.parts.get(part))
        ),
    )


def _by_name(things: Iterable[Named]) -> dict[str, Named]:
    return {thing.name: thing for thing in things}


def _side_by_side(
    old: Mapping[str, T], new: Mapping[str, T], changes: Callable[[T, T], Iterable[str]]
) -> Iterator[Marked[T]]:
    for name, thing in new.items():
        if name not in old:
            yield Marked(thing, Mark.ADDED)
        elif told := tuple(changes(old[name], thing)):
            yield Marked(thing, Mark.CHANGED, told)
        else:
            yield Marked(thing, Mark.SAME)
    yield from (Marked(thing, Mark.REMOVED) for name, thing in old.items() if name not in new)


def _moved(old: Export, new: Export) -> Iterator[tuple[str, str]]:
    """Entries that stand in another order among those that their cell had before too."""
    before, after = _cells(old), _cells(new)
    for cell, ids in after.items():
        had, has = before.get(cell, []), ids
        had, has = [each for each in had if each in has], [each for each in has if each in had]
        kept = {
            has[position]
            for block in SequenceMatcher(a=had, b=has, autojunk=False).get_matching_blocks()
            for position in range(block.b, block.b + block.size)
        }
        yield from ((cell[0], each) for each in has if each not in kept)


def _cells(table: Export) -> dict[tuple[str, str, str], list[str]]:
    cells: dict[tuple[str, str, str], list[str]] = {}
    for entry in table.entries:
        cells.setdefault((entry.machine, entry.event, entry.source), []).append(entry.id)
    return cells


def _declared(event: ExportedEvent) -> str:
    kind = "signal " if event.signal else ""
    return f"{kind}({', '.join(f'{name}: {of}' for name, of in event.fields.items())})"


def _quoted(value: str | Sequence[str] | None) -> str:
    if value is None:
        return "none"
    if isinstance(value, str):
        return f'"{value}"' if " " in value else value
    return " ".join(value) or "none"


# --- in words --------------------------------------------------------------------------------------------------


def summary(comparison: Comparison) -> list[str]:
    """How many entries are added, removed and changed, and a line about each; then the rest that differs."""
    entries = [entry for entry in comparison.entries if entry.mark.differs]
    rest = [*_rest(comparison)]
    if not entries and not rest:
        return ["nothing differs: it is the same table"]
    counts = (f"{sum(entry.mark is mark for entry in entries)} {mark.name.lower()}" for mark in Mark if mark.differs)
    return [", ".join(counts), *map(_told, entries), *rest]


def _told(entry: Marked[ExportedEntry]) -> str:
    said = "; ".join(entry.changes) if entry.mark is Mark.CHANGED else _in_words(entry.of)
    return f"{entry.mark.value} {entry.of.machine} {entry.of.id}: {said}"


def _in_words(entry: ExportedEntry) -> str:
    condition = f" if {entry.guard}" if entry.guard else ""
    then = {
        "row": "stays" if entry.target == entry.source else f"-> {entry.target}",
        "ignore": "ignored",
        "refuse": f"refused ({entry.error})",
    }[entry.kind]
    does = f", {entry.effect}" if entry.effect else ""
    return f"{entry.event} in {entry.source}{condition}: {then}{does}: {entry.why}"


def _rest(comparison: Comparison) -> Iterator[str]:
    for kind, things in (
        ("phase", comparison.phases),
        ("shard state", comparison.shard_states),
        ("event", comparison.events),
    ):
        for thing in things:
            if thing.mark.differs:
                said = f": {'; '.join(thing.changes)}" if thing.changes else ""
                yield f"{thing.mark.value} {kind} {thing.of.name}{said}"
    if comparison.parts:
        yield f"~ code behind the rows, by part: {', '.join(comparison.parts)}"
