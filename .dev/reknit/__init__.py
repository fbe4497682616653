"""reknit: the refit controller that keeps an RL run going when a generation engine dies or freezes.

The public names, loaded when they are first used: importing `reknit` alone costs nothing and needs the standard
library only; the controller needs `transitions`, everything over Ray needs the extra `reknit[ray]`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from .runtime import messages
    from .runtime.broadcast import BroadcastTransport
    from .runtime.controller import RefitController
    from .runtime.embed import refit_controller
    from .runtime.errors import ControllerClosed, ControllerStuck, RefitHalted
    from .runtime.journal import FileJournal
    from .runtime.member import Participant
    from .runtime.report import RefitReport, Snapshot
    from .runtime.seams import Clock, Fleet, Journal, MeetingPoint, Member, Rendezvous, Trainer, Transport, Worker
    from .spec.config import RefitConfig
    from .spec.lifecycle import commands, events
    from .spec.lifecycle.errors import (
        AlreadyStarted,
        FloorReached,
        NotStarted,
        RefitUnderWay,
        Refused,
        RunClosed,
        UnknownShard,
        VersionNotNewer,
    )
    from .spec.lifecycle.events import Version
    from .spec.lifecycle.state import HaltReason
    from .spec.membership import NoSurvivingShards
    from .spec.roster import Roster, Topology

# Where each name lives. The modules at the end are for those who bring a fleet or a transport of their own.
_HOMES = {
    "AlreadyStarted": ".spec.lifecycle.errors",
    "BroadcastTransport": ".runtime.broadcast",
    "Clock": ".runtime.seams",
    "ControllerClosed": ".runtime.errors",
    "ControllerStuck": ".runtime.errors",
    "FileJournal": ".runtime.journal",
    "Fleet": ".runtime.seams",
    "FloorReached": ".spec.lifecycle.errors",
    "HaltReason": ".spec.lifecycle.state",
    "Journal": ".runtime.seams",
    "MeetingPoint": ".runtime.seams",
    "Member": ".runtime.seams",
    "NoSurvivingShards": ".spec.membership",
    "NotStarted": ".spec.lifecycle.errors",
    "Participant": ".runtime.member",
    "RefitConfig": ".spec.config",
    "RefitController": ".runtime.controller",
    "RefitHalted": ".runtime.errors",
    "RefitReport": ".runtime.report",
    "RefitUnderWay": ".spec.lifecycle.errors",
    "Refused": ".spec.lifecycle.errors",
    "Rendezvous": ".runtime.seams",
    "Roster": ".spec.roster",
    "RunClosed": ".spec.lifecycle.errors",
    "Snapshot": ".runtime.report",
    "Topology": ".spec.roster",
    "Trainer": ".runtime.seams",
    "Transport": ".runtime.seams",
    "UnknownShard": ".spec.lifecycle.errors",
    "Version": ".spec.lifecycle.events",
    "VersionNotNewer": ".spec.lifecycle.errors",
    "Worker": ".runtime.seams",
    "refit_controller": ".runtime.embed",
}
_MODULES = {"commands": ".spec.lifecycle.commands", "events": ".spec.lifecycle.events", "messages": ".runtime.messages"}

__all__ = [
    "AlreadyStarted",
    "BroadcastTransport",
    "Clock",
    "ControllerClosed",
    "ControllerStuck",
    "FileJournal",
    "Fleet",
    "FloorReached",
    "HaltReason",
    "Journal",
    "MeetingPoint",
    "Member",
    "NoSurvivingShards",
    "NotStarted",
    "Participant",
    "RefitConfig",
    "RefitController",
    "RefitHalted",
    "RefitReport",
    "RefitUnderWay",
    "Refused",
    "Rendezvous",
    "Roster",
    "RunClosed",
    "Snapshot",
    "Topology",
    "Trainer",
    "Transport",
    "UnknownShard",
    "Version",
    "VersionNotNewer",
    "Worker",
    "__version__",
    "commands",
    "events",
    "messages",
    "refit_controller",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        value: Any = import_module(_MODULES[name], __name__)
    elif name in _HOMES:
        value = getattr(import_module(_HOMES[name], __name__), name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value
