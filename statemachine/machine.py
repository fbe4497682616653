"""The table as a `transitions` machine: what the runtime steps.

Two flat machines are built from the one table, one for the communicator and one for a shard. The names and the
totality of the table are checked by the specification before anything is built, because `transitions` takes an
unknown state name, or a second row for the same cell, in silence. Only its plain features are used: no automatic
`to_<state>` triggers (they would bypass the table), no swallowing of errors or of illegal triggers, nothing in
`after` or `on_enter` (there the state has already changed when an exception comes). Effects run in `before`, so a
row that raises has changed nothing.

The library decides which entry of a cell is taken and where it leads; tests hold every one of its steps against the
plain interpretation of the same table.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from enum import Enum
from typing import Any, cast

from transitions import Machine

from ..spec.config import RefitConfig
from ..spec.lifecycle.effects import Outcome
from ..spec.lifecycle.entries import Entry, Place, Refuse, Row
from ..spec.lifecycle.errors import ImpossibleHere
from ..spec.lifecycle.events import Event
from ..spec.lifecycle.interpret import CELLS, SHARD_CELLS, Cells, Step, drive, refusal
from ..spec.lifecycle.shard_effects import ShardOutcome
from ..spec.lifecycle.state import Phase, Shard, ShardState, State, evolve

# At INFO the library tells of every callback of every event, which would drown a trainer's log.
logging.getLogger("transitions.core").setLevel(logging.WARNING)


class _Cursor:
    """The model that `transitions` moves: put on a place, triggered once, read."""

    state: str
    entry: Entry | None = None
    outcome: Outcome | ShardOutcome | None = None

    def put(self, place: Place) -> None:
        self.state, self.entry, self.outcome = place.value, None, None


class _Half:
    """One of the two machines: places, and the cells that lead between them."""

    def __init__(self, places: type[Enum], cells: Cells) -> None:
        self.cursor = _Cursor()
        self._machine = Machine(
            model=self.cursor,
            states=[place.value for place in places],
            transitions=list(self._rules(cells)),
            initial=next(iter(places)).value,
            auto_transitions=False,
        )

    def _rules(self, cells: Cells) -> Iterator[dict[str, Any]]:
        for (event, source), entries in cells.items():
            for entry in entries:
                yield {
                    "trigger": event.__name__,
                    "source": source.value,
                    "dest": entry.target.value if isinstance(entry, Row) else None,
                    "conditions": [entry.guard] if entry.guard else [],
                    "before": self._before(entry),
                }

    def _before(self, entry: Entry) -> Any:
        def before(*arguments: Any) -> None:
            if isinstance(entry, Row):
                effect = cast("Any", entry.effect)
                self.cursor.outcome = effect(*arguments)
            self.cursor.entry = entry

        return before

    def take(self, place: Place, event: Event, *arguments: object) -> Entry | None:
        """Trigger the event; None where the machine has no entry for it that holds."""
        self.cursor.put(place)
        trigger = self._machine.events.get(type(event).__name__)
        if trigger is None or place.value not in trigger.transitions:
            return None
        trigger.trigger(self.cursor, *arguments)
        return self.cursor.entry


class LifecycleMachine:
    """The lifecycle in motion. One instance per run; not thread-safe, its owner serialises the events.

    `state` is the last committed state. `peek` says what an event would do; `step` either commits the whole of an
    event, signals included, or raises and leaves `state` as it was.
    """

    def __init__(self, state: State) -> None:
        self.state = state
        self._communicator = _Half(Phase, CELLS)
        self._shard = _Half(ShardState, SHARD_CELLS)

    def peek(self, event: Event) -> Step:
        """What `step` would do, without doing it: for an owner who must write it down first. Raises `Refused`."""
        return drive(self.state, event, self._read_communicator, self._read_shard)

    def commit(self, step: Step) -> None:
        """Make what was peeked at true."""
        self.state = step.state

    def step(self, event: Event) -> Step:
        """Apply one event from outside. Raises `Refused`, naming event, place and epoch; then nothing has changed."""
        step = self.peek(event)
        self.commit(step)
        return step

    def _read_communicator(self, state: State, event: Event) -> tuple[Entry, Outcome] | None:
        half = self._communicator
        entry = half.take(state.phase, event, state, event)
        if entry is None:
            return None
        if isinstance(entry, Refuse):
            raise refusal(entry, state, event)
        outcome = half.cursor.outcome
        if not isinstance(outcome, Outcome):
            return entry, Outcome(state)
        return entry, Outcome(evolve(outcome.state, phase=Phase(half.cursor.state)), outcome.commands, outcome.signals)

    def _read_shard(self, shard: Shard, event: Event, config: RefitConfig, epoch: int) -> tuple[Entry, ShardOutcome]:
        half = self._shard
        entry = half.take(shard.state, event, shard, event, config)
        if entry is None:
            raise ImpossibleHere(event, shard.state, epoch, "the table has no such cell")
        if isinstance(entry, Refuse):
            raise entry.error(event, shard.state, epoch, entry.why)
        outcome = half.cursor.outcome
        if not isinstance(outcome, ShardOutcome):
            return entry, ShardOutcome(shard)
        moved = evolve(outcome.shard, state=ShardState(half.cursor.state))
        return entry, ShardOutcome(moved, outcome.commands, outcome.signals)
