"""What a step asks the runtime to do, as values. The runtime executes them and feeds the outcomes back as events."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..roster import Roster
from .events import Event, Payload, Stamp, Timer, Version
from .state import Halt


@dataclass(frozen=True, slots=True)
class Command:
    """Base of everything that a step may order."""


@dataclass(frozen=True, slots=True)
class Form(Command):
    """Every member of `roster`, and every trainer: join the communicator of this epoch, shake hands, answer."""

    stamp: Stamp
    roster: Roster


@dataclass(frozen=True, slots=True)
class Transfer(Command):
    """Every rank of the live communicator: carry `version`, answer when it is whole."""

    stamp: Stamp
    roster: Roster
    version: Version
    payload: Payload


@dataclass(frozen=True, slots=True)
class Leave(Command):
    """These ranks: break off `breaking`, the operation you wait in, leave this epoch for good, say how far you got."""

    stamp: Stamp
    breaking: Stamp
    roster: Roster
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Fence(Command):
    """Kill every process of this incarnation and report its exit when it is certain."""

    slot: int
    incarnation: int


@dataclass(frozen=True, slots=True)
class Restart(Command):
    """Start this incarnation in the background and report whether it loaded."""

    slot: int
    incarnation: int


@dataclass(frozen=True, slots=True)
class Arm(Command):
    """After `seconds`, feed `expiry`. Replaces an armed timer of the same name (and slot)."""

    timer: Timer
    seconds: float
    expiry: Event
    slot: int | None = None


@dataclass(frozen=True, slots=True)
class Disarm(Command):
    """The wait is over."""

    timer: Timer
    slot: int | None = None


@dataclass(frozen=True, slots=True)
class DisarmAll(Command):
    """No wait matters any more."""


@dataclass(frozen=True, slots=True)
class ReportFormed(Command):
    """A communicator is live: say who sits where."""

    epoch: int
    roster: Roster


@dataclass(frozen=True, slots=True)
class ReportCompleted(Command):
    """The refit of `version` is whole on every shard of `roster`."""

    version: Version
    epoch: int
    roster: Roster


@dataclass(frozen=True, slots=True)
class ReportHalted(Command):
    """The run must stop."""

    halt: Halt = field()
