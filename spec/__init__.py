"""What is true: the layout, the roster, the budgets and the lifecycle of a refit communicator, as pure values.

Standard library only; no I/O, clock, logging, randomness or threads.
"""

from .config import RefitConfig
from .lifecycle import (
    INVARIANTS,
    Command,
    Event,
    Halt,
    HaltReason,
    Payload,
    Phase,
    Refused,
    Shard,
    ShardState,
    Stamp,
    State,
    Step,
    Version,
    desired_roster,
    interpret,
    serving_shards,
    violations,
)
from .membership import (
    NoSurvivingShards,
    RefitMembership,
    ShardSeat,
    TrainerSeat,
    desired_membership,
    plan_refit_membership,
    should_rebuild,
    workers_per_shard,
)
from .roster import Roster, Topology, must_rebuild

__all__ = [
    "INVARIANTS",
    "Command",
    "Event",
    "Halt",
    "HaltReason",
    "NoSurvivingShards",
    "Payload",
    "Phase",
    "RefitConfig",
    "RefitMembership",
    "Refused",
    "Roster",
    "Shard",
    "ShardSeat",
    "ShardState",
    "Stamp",
    "State",
    "Step",
    "Topology",
    "TrainerSeat",
    "Version",
    "desired_membership",
    "desired_roster",
    "interpret",
    "must_rebuild",
    "plan_refit_membership",
    "serving_shards",
    "should_rebuild",
    "violations",
    "workers_per_shard",
]
