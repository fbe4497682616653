"""The table as plain data, and the fingerprint of all that decides.

An export is one JSON object, the same bytes for the same table. It holds all that a picture of the table needs, so that
a table of long ago can be drawn beside that of today by whoever has its export alone.

The fingerprint goes into every journal and says by which rules it was decided. It covers the entries, in their order
and with their reasons, and the code behind them; invariants are no part of it, for they check and decide nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cache
from importlib import import_module
from types import MappingProxyType, ModuleType
from typing import Any, NoReturn, TypeGuard

from ..spec.lifecycle.entries import Entry, Refuse, Row
from ..spec.lifecycle.events import Signal
from ..spec.lifecycle.state import LIVE, MEMBERS, TERMINAL, Phase, ShardState
from ..spec.lifecycle.table import COMMUNICATOR, SHARDS
from .coupling import raised_by
from .source import digest, digest_of_function, digest_of_modules
from .words import event_types, meanings

FORMAT = 1
_NAME = re.compile("[A-Za-z_][A-Za-z0-9_]*(@[a-z_]+)?")
MACHINES: Mapping[str, tuple[Entry, ...]] = MappingProxyType({"communicator": COMMUNICATOR, "shard": SHARDS})
WAITING = frozenset({Phase.FORMING, Phase.REFITTING, Phase.ABORTED})
SERVES = frozenset({ShardState.SERVING, ShardState.SUSPECT})
AWAITED = frozenset({ShardState.ABSENT, ShardState.RESTARTING})
# The code behind the entries. events and commands are what it takes and gives; budgets are the configuration; words are
# the texts of refusals and halts, which a journal repeats.
_CODE: Mapping[str, tuple[str, ...]] = {
    "guards": ("lifecycle.guards",),
    "effects": ("lifecycle.effects",),
    "shard_effects": ("lifecycle.shard_effects",),
    "reading": ("lifecycle.interpret",),
    "state": ("lifecycle.state", "lifecycle.events", "lifecycle.commands"),
    "layout": ("layout", "membership", "roster"),
    "budgets": ("config",),
    "words": ("lifecycle.errors", "lifecycle.explain"),
}


# --- the shape -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedPlace:
    """A phase or a state of a shard. traits: of live, waits, terminal; of member, serves, waits, terminal."""

    name: str
    meaning: str
    traits: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedEvent:
    """An event with its fields, each with its type."""

    name: str
    fields: Mapping[str, str]
    signal: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedEntry:
    """One entry by the names of what it refers to. raises: the signals that its effect may raise."""

    id: str
    machine: str
    event: str
    source: str
    kind: str
    guard: str | None
    target: str | None
    effect: str | None
    error: str | None
    why: str
    raises: tuple[str, ...]

    @property
    def name(self) -> str:
        """The name under which it stands in the table, without its place."""
        return self.id.split("@")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Export:
    """A whole table.

    table: its hash. parts: the digests that it is made of. code: the digest of each guard and effect together with
    the functions that it calls.
    """

    table: str
    parts: Mapping[str, str]
    phases: tuple[ExportedPlace, ...]
    shard_states: tuple[ExportedPlace, ...]
    events: tuple[ExportedEvent, ...]
    entries: tuple[ExportedEntry, ...]
    code: Mapping[str, str]

    def places(self, machine: str) -> tuple[ExportedPlace, ...]:
        """The places of one machine."""
        return self.phases if machine == "communicator" else self.shard_states

    def of(self, machine: str) -> tuple[ExportedEntry, ...]:
        """The entries of one machine, in their order."""
        return tuple(entry for entry in self.entries if entry.machine == machine)


# --- this table ------------------------------------------------------------------------------------------------


@cache
def fingerprint() -> Mapping[str, str]:
    """The digest of each part of what decides, by the name of the part: `table` is the entries, the rest their code.

    Worked out once per process; that takes about 0.1 s, for some 2,500 lines are parsed.
    """
    rows = json.dumps([asdict(entry) | {"raises": None} for entry in _entries()])
    code = {part: digest_of_modules(map(_module, names)) for part, names in _CODE.items()}
    return MappingProxyType({"table": digest([rows])} | code)


def _module(name: str) -> ModuleType:
    """A module of the specification, also where a package has put a function of that name before it."""
    return import_module(f"..spec.{name}", __package__)


@cache
def table_hash() -> str:
    """The fingerprint as one digest: two journals with the same one were decided by the same rules."""
    return digest(f"{name}={part}" for name, part in fingerprint().items())


@cache
def this_table() -> Export:
    """The table of this version."""
    return Export(
        table=table_hash(),
        parts=fingerprint(),
        phases=tuple(_place(phase) for phase in Phase),
        shard_states=tuple(_place(each) for each in ShardState),
        events=tuple(
            ExportedEvent(
                name=kind.__name__,
                fields={field.name: str(field.type) for field in fields(kind)},
                signal=issubclass(kind, Signal),
            )
            for kind in event_types()
        ),
        entries=tuple(_entries()),
        code=dict(sorted(_code())),
    )


def _place(place: Phase | ShardState) -> ExportedPlace:
    traits: Mapping[str, frozenset[Any]] = (
        {"live": LIVE, "waits": WAITING, "terminal": TERMINAL}
        if isinstance(place, Phase)
        else {"member": MEMBERS, "serves": SERVES, "waits": AWAITED, "terminal": frozenset({ShardState.RETIRED})}
    )
    return ExportedPlace(
        name=place.value,
        meaning=meanings(type(place))[place.value] or "gets traffic, is a member",
        traits=tuple(trait for trait, holders in traits.items() if place in holders),
    )


def _entries() -> Iterator[ExportedEntry]:
    for machine, entries in MACHINES.items():
        for entry in entries:
            row = entry if isinstance(entry, Row) else None
            yield ExportedEntry(
                id=entry.id,
                machine=machine,
                event=entry.event.__name__,
                source=entry.source.value,
                kind=type(entry).__name__.lower(),
                guard=entry.guard.__name__ if entry.guard else None,
                target=row.target.value if row else None,
                effect=row.effect.__name__ if row else None,
                error=entry.error.__name__ if isinstance(entry, Refuse) else None,
                why=entry.why,
                raises=tuple(signal.__name__ for signal in raised_by(row.effect.__name__)) if row else (),
            )


def _code() -> Iterator[tuple[str, str]]:
    """Every guard and effect that an entry names, with the digest of what it does."""
    entries = (*COMMUNICATOR, *SHARDS)
    named = {entry.guard for entry in entries} | {entry.effect for entry in entries if isinstance(entry, Row)}
    yield from ((function.__name__, digest_of_function(function)) for function in named if function)


# --- as text, and back -----------------------------------------------------------------------------------------


def written(exported: Export) -> str:
    """The export as JSON: ASCII, one place, event or entry a line, so that a plain diff of two exports is readable."""
    parts = [f'"format": {FORMAT}']
    for field in fields(exported):
        parts.append(f'"{field.name}": {_lines(getattr(exported, field.name))}')
    return "{\n" + ",\n".join(parts) + "\n}\n"


def _lines(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{\n" + ",\n".join(f"{json.dumps(name)}: {json.dumps(text)}" for name, text in value.items()) + "\n}"
    if isinstance(value, tuple):
        return "[\n" + ",\n".join(json.dumps(asdict(each)) for each in value) + "\n]"
    return json.dumps(value)


def read(text: str) -> Export:
    """The export that `written` wrote. Raises `ValueError`, in one line, for anything else."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"it is no JSON ({error})") from None
    if not isinstance(data, dict) or "format" not in data:
        raise ValueError("it is no table written by `reknit table --json`: it names no format")
    if data["format"] != FORMAT:
        raise ValueError(f"it is a table of format {json.dumps(data['format'])[:40]}; this version reads {FORMAT}")
    read_ = Export(
        table=_text(data, "table"),
        parts=_texts(data, "parts"),
        phases=tuple(_place_of(each) for each in _objects(data, "phases")),
        shard_states=tuple(_place_of(each) for each in _objects(data, "shard_states")),
        events=tuple(
            ExportedEvent(name=_name(each, "name"), fields=_texts(each, "fields"), signal=each.get("signal") is True)
            for each in _objects(data, "events")
        ),
        entries=tuple(_entry_of(each) for each in _objects(data, "entries")),
        code=_texts(data, "code"),
    )
    _consistent(read_)
    return read_


def _consistent(exported: Export) -> None:
    """Whether every entry stands once, and stands and leads where there is a place."""
    seen: set[tuple[str, str]] = set()
    for entry in exported.entries:
        if entry.machine not in MACHINES or entry.kind not in ("row", "ignore", "refuse"):
            raise ValueError(f"the entry {_short(entry.id)} is of no known machine or kind")
        known = {place.name for place in exported.places(entry.machine)}
        if entry.source not in known or (entry.target is not None and entry.target not in known):
            raise ValueError(f"the entry {_short(entry.id)} stands in, or leads to, a place that is not listed")
        if (entry.target is None) is (entry.kind == "row"):
            raise ValueError(f"the entry {_short(entry.id)} must have a target if it is a row, and only then")
        if (entry.machine, entry.id) in seen:
            raise ValueError(f"the entry {_short(entry.id)} is there more than once")
        seen.add((entry.machine, entry.id))


def _place_of(data: Mapping[str, Any]) -> ExportedPlace:
    return ExportedPlace(name=_name(data, "name"), meaning=_text(data, "meaning"), traits=_names(data, "traits"))


def _entry_of(data: Mapping[str, Any]) -> ExportedEntry:
    def maybe(name: str) -> str | None:
        return None if data.get(name) is None else _name(data, name)

    return ExportedEntry(
        id=_name(data, "id"),
        machine=_name(data, "machine"),
        event=_name(data, "event"),
        source=_name(data, "source"),
        kind=_name(data, "kind"),
        guard=maybe("guard"),
        target=maybe("target"),
        effect=maybe("effect"),
        error=maybe("error"),
        why=_text(data, "why"),
        raises=_names(data, "raises"),
    )


def _text(data: Mapping[str, Any], name: str) -> str:
    value = data.get(name)
    return value if _printable(value) else _unfit(name, "text in one line", value)


def _name(data: Mapping[str, Any], name: str) -> str:
    """A text that may stand in any picture as it is."""
    value = data.get(name)
    return value if isinstance(value, str) and _NAME.fullmatch(value) else _unfit(name, "a name", value)


def _texts(data: Mapping[str, Any], name: str) -> dict[str, str]:
    value = data.get(name)
    if not isinstance(value, dict) or not all(_printable(text) for text in value.values()):
        _unfit(name, "an object of texts", value)
    return value


def _printable(text: object) -> TypeGuard[str]:
    return isinstance(text, str) and text.isprintable()


def _names(data: Mapping[str, Any], name: str) -> tuple[str, ...]:
    value = data.get(name)
    if not isinstance(value, list) or not all(isinstance(text, str) and _NAME.fullmatch(text) for text in value):
        _unfit(name, "a list of names", value)
    return tuple(value)


def _objects(data: Mapping[str, Any], name: str) -> Sequence[Mapping[str, Any]]:
    value = data.get(name)
    if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
        _unfit(name, "a list of objects", value)
    return value


def _unfit(name: str, wanted: str, value: object) -> NoReturn:
    raise ValueError(f"{name} must be {wanted}, got {_short(value)}")


def _short(value: object) -> str:
    text = ascii(value)
    return text if len(text) <= 80 else f"{text[:80]}..."
