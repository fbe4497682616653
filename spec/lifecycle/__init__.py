"""The lifecycle of the refit communicator and its shards: events in, a new state and commands out, nothing else."""

from .commands import Command
from .errors import Refused
from .events import Event, Payload, Stamp, Version
from .interpret import Step, interpret
from .invariants import INVARIANTS, violations
from .state import Halt, HaltReason, Phase, Shard, ShardState, State, desired_roster, serving_shards

__all__ = [
    "INVARIANTS",
    "Command",
    "Event",
    "Halt",
    "HaltReason",
    "Payload",
    "Phase",
    "Refused",
    "Shard",
    "ShardState",
    "Stamp",
    "State",
    "Step",
    "Version",
    "desired_roster",
    "interpret",
    "serving_shards",
    "violations",
]
