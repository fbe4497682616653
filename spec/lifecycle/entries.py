"""What a table is made of: rows, ignored entries and refusals, and the short forms in which they are written."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from .effects import Effect
from .errors import Refused
from .events import Event
from .guards import Guard, ShardGuard
from .shard_effects import ShardEffect
from .state import Phase, ShardState

Place = Phase | ShardState
AnyGuard = Guard | ShardGuard
AnyEffect = Effect | ShardEffect
SAME = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Something happens."""

    id: str
    event: type[Event]
    source: Place
    guard: AnyGuard | None
    target: Place
    effect: AnyEffect
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Ignore:
    """Legal, and nothing to do."""

    id: str
    event: type[Event]
    source: Place
    guard: AnyGuard | None
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Refuse:
    """Not allowed: raises `error`, changes nothing."""

    id: str
    event: type[Event]
    source: Place
    guard: AnyGuard | None
    error: type[Refused]
    why: str


Entry = Row | Ignore | Refuse


def row(
    name: str,
    event: type[Event],
    sources: Iterable[Place],
    target: Place | None,
    effect: AnyEffect,
    why: str,
    *,
    if_: AnyGuard | None = None,
) -> list[Entry]:
    return [
        Row(
            id=f"{name}@{source.value}",
            event=event,
            source=source,
            guard=if_,
            target=source if target is SAME else target,
            effect=effect,
            why=why,
        )
        for source in sources
    ]


def ignore(event: type[Event], sources: Iterable[Place], why: str, *, if_: AnyGuard | None = None) -> list[Entry]:
    return [
        Ignore(id=_entry_id("ignore", event, source, if_), event=event, source=source, guard=if_, why=why)
        for source in sources
    ]


def refuse(
    event: type[Event],
    sources: Iterable[Place],
    error: type[Refused],
    why: str,
    *,
    if_: AnyGuard | None = None,
) -> list[Entry]:
    return [
        Refuse(
            id=_entry_id("refuse", event, source, if_),
            event=event,
            source=source,
            guard=if_,
            error=error,
            why=why,
        )
        for source in sources
    ]


def _entry_id(kind: str, event: type[Event], source: Place, guard: AnyGuard | None) -> str:
    condition = f"_if_{guard.__name__}" if guard else ""
    return f"{kind}_{event.__name__}{condition}@{source.value}"
