"""The plain reading of the table: one event in, the new state and the commands out.

This is the definition that everything else is held against: the machine that the runtime steps, the journal, the
searches. It knows how to read a table and nothing about refits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import cast

from ..config import RefitConfig
from .commands import Command
from .effects import Effect, Outcome
from .entries import Entry, Ignore, Place, Refuse, Row
from .errors import ImpossibleHere, Refused
from .events import Event, ShardObservation, ShardSignal, Signal
from .shard_effects import ShardEffect, ShardOutcome
from .state import Phase, Shard, ShardState, State, evolve, live_count
from .table import COMMUNICATOR, SHARDS

Cells = Mapping[tuple[type[Event], Place], tuple[Entry, ...]]


class InvalidTable(Exception):
    """The table itself is wrong; raised when it is indexed, before anything runs."""


@dataclass(frozen=True, slots=True)
class Step:
    """What one event did.

    fired: ids of the rows taken, in order, each once in a row; ignored: the ids of ignored entries. A step that fired
    nothing changed nothing and orders nothing.
    """

    state: State
    commands: tuple[Command, ...]
    fired: tuple[str, ...]
    ignored: tuple[str, ...] = ()


def index(entries: Iterable[Entry]) -> Cells:
    """Entries by cell, in order. Raises `InvalidTable` for a cell that is not total, a hidden entry or a reused id."""
    cells: dict[tuple[type[Event], Place], list[Entry]] = {}
    seen: set[str] = set()
    for entry in entries:
        if entry.id in seen:
            raise InvalidTable(f"two entries share the id {entry.id}")
        if not entry.why:
            raise InvalidTable(f"{entry.id} does not say why")
        if isinstance(entry, Row) and type(entry.target) is not type(entry.source):
            raise InvalidTable(f"{entry.id} leads from {entry.source} to {entry.target}, of another machine")
        seen.add(entry.id)
        cell = cells.setdefault((entry.event, entry.source), [])
        if cell and cell[-1].guard is None:
            raise InvalidTable(f"{entry.id} stands behind {cell[-1].id}, which takes everything")
        cell.append(entry)
    for (event, source), cell in cells.items():
        if cell[-1].guard is not None and not _falls_through(event, source):
            raise InvalidTable(f"{event.__name__} in {source.value} is not classified when {cell[-1].id} does not hold")
    return MappingProxyType({key: tuple(cell) for key, cell in cells.items()})


def _falls_through(event: type[Event], source: Place) -> bool:
    """Observations of a shard that the communicator does not take are for the shard."""
    return isinstance(source, Phase) and issubclass(event, ShardObservation)


CELLS: Cells = index(COMMUNICATOR)
SHARD_CELLS: Cells = index(SHARDS)


def choose(cells: Cells, key: tuple[type[Event], Place], *arguments: object) -> Entry | None:
    """The first entry of the cell whose guard holds; None where the cell falls through or does not exist."""
    for entry in cells.get(key, ()):
        if entry.guard is None or entry.guard(*arguments):  # type: ignore[arg-type]
            return entry
    return None


CommunicatorReader = Callable[[State, Event], "tuple[Entry, Outcome] | None"]
ShardReader = Callable[[Shard, Event, RefitConfig, int], "tuple[Entry, ShardOutcome]"]


def refusal(entry: Refuse, state: State, event: Event) -> Refused:
    """The error of a refusal by the communicator, with what was known."""
    known = f"committed version {state.committed or 'none'}, {live_count(state)} of {len(state.shards)} shards live"
    return entry.error(event, state.phase, state.epoch, f"{entry.why} ({known})")


def read_communicator(state: State, event: Event, cells: Cells = CELLS) -> tuple[Entry, Outcome] | None:
    """One event, one cell, the communicator alone. None when the event is for a shard. Raises `Refused`."""
    match choose(cells, (type(event), state.phase), state, event):
        case Row() as row:
            outcome = cast(Effect, row.effect)(state, event)
            moved = evolve(outcome.state, phase=cast(Phase, row.target))
            return row, Outcome(moved, outcome.commands, outcome.signals)
        case Ignore() as entry:
            return entry, Outcome(state)
        case Refuse() as entry:
            raise refusal(entry, state, event)
    if isinstance(event, ShardObservation):
        return None
    raise ImpossibleHere(event, state.phase, state.epoch, "the table has no such cell")


def read_shard(shard: Shard, event: Event, config: RefitConfig, epoch: int) -> tuple[Entry, ShardOutcome]:
    """One event, one cell, one shard alone. Raises `Refused`."""
    match choose(SHARD_CELLS, (type(event), shard.state), shard, event, config):
        case Row() as row:
            outcome = cast(ShardEffect, row.effect)(shard, event, config)
            moved = evolve(outcome.shard, state=cast(ShardState, row.target))
            return row, ShardOutcome(moved, outcome.commands, outcome.signals)
        case Ignore() as entry:
            return entry, ShardOutcome(shard)
        case Refuse() as entry:
            raise entry.error(event, shard.state, epoch, entry.why)
    raise ImpossibleHere(event, shard.state, epoch, "the table has no such cell")


def drive(state: State, event: Event, communicator: CommunicatorReader, shard: ShardReader) -> Step:
    """One event from outside and every signal that it causes, first in, first out.

    The readers say what one machine does with one event; this says who is asked, and in which order. Nothing is
    kept unless everything succeeded. Raises `Refused`; then nothing has changed.
    """
    if isinstance(event, Signal):
        raise ImpossibleHere(event, state.phase, state.epoch, "signals are raised by rows, never sent from outside")
    queue: deque[Event] = deque((event,))
    commands: list[Command] = []
    fired: list[str] = []
    ignored: list[str] = []

    def take(entry: Entry, outcome: Outcome | ShardOutcome) -> None:
        ids = fired if isinstance(entry, Row) else ignored
        if not ids or ids[-1] != entry.id:
            ids.append(entry.id)
        commands.extend(outcome.commands)
        queue.extend(outcome.signals)

    while queue:
        current = queue.popleft()
        if isinstance(current, ShardSignal):
            shards = list(state.shards)
            for slot in current.slots:
                entry, told = shard(shards[slot], current, state.config, state.epoch)
                shards[slot] = told.shard
                take(entry, told)
            state = evolve(state, shards=tuple(shards))
        elif (read := communicator(state, current)) is not None:
            entry, outcome = read
            state = outcome.state
            take(entry, outcome)
        elif isinstance(current, ShardObservation):
            entry, seen = shard(state.shards[current.slot], current, state.config, state.epoch)
            if seen.shard is not state.shards[current.slot]:
                state = state.with_shard(seen.shard)
            take(entry, seen)
    return Step(state, tuple(commands), tuple(fired), tuple(ignored))


def interpret(state: State, event: Event) -> Step:
    """What the table says about this event in this state. Raises `Refused`; then nothing has changed."""
    return drive(state, event, read_communicator, read_shard)
