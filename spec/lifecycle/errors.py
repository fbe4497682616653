"""What a step raises when it refuses an event. Nothing has changed when one of these is raised."""

from __future__ import annotations

from dataclasses import fields
from enum import Enum

from .events import Event
from .state import Phase, ShardState


def describe(event: Event) -> str:
    """The event as one readable clause."""
    named = ((f.name, getattr(event, f.name)) for f in fields(event))
    facts = ", ".join(f"{name} {value.value if isinstance(value, Enum) else value}" for name, value in named)
    return f"{type(event).__name__}({facts})"


class Refused(Exception):
    """The table does not allow this event here. Names the event, the phase or shard state, and the epoch."""

    def __init__(self, event: Event, where: Phase | ShardState, epoch: int, why: str) -> None:
        super().__init__(f"{describe(event)} refused while {where.value} in epoch {epoch}: {why}")
        self.event = event
        self.where = where
        self.epoch = epoch
        self.why = why

    def __reduce__(self) -> tuple[type[Refused], tuple[Event, Phase | ShardState, int, str]]:
        return (type(self), (self.event, self.where, self.epoch, self.why))


class UnknownShard(Refused):
    """No slot of the fleet has this number."""


class VersionNotNewer(Refused):
    """A refit must carry a version newer than the committed one."""


class RefitUnderWay(Refused):
    """One refit at a time."""


class DeltaNotAllowed(Refused):
    """After a (re)build the first refit must carry all weights."""


class NotStarted(Refused):
    """No communicator was ever formed."""


class AlreadyStarted(Refused):
    """The first communicator was already asked for."""


class FloorReached(Refused):
    """Retiring this slot would leave fewer slots than `min_healthy_shards`."""


class RunHalted(Refused):
    """The run has halted; its reason is in the halt."""


class RunClosed(Refused):
    """The controller was closed."""


class ImpossibleHere(Refused):
    """A signal reached a phase where no row raises it: a mistake in the table itself."""
