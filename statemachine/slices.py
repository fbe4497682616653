"""The small fleets that are searched besides the one that is asked for: together they make every row fire.

No single small fleet meets everything: some rows need several trainers or workers, some a floor, some an operator who
interferes. Each slice is searched whole with the free environment (`explore`), which also asks what late, doubled and
foreign events change. The goals are what must be reachable, so that nobody mistakes a table that forbids everything
for one that is safe.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from ..spec.config import RefitConfig
from ..spec.lifecycle import events as ev
from ..spec.lifecycle.events import Event
from ..spec.lifecycle.state import LIVE, Phase, ShardState, State, serving_shards
from ..spec.roster import Topology
from .environment import Bounds

# Budgets as small as they can be and still be met from both sides.
SMALL = RefitConfig(
    max_restart_attempts_per_shard=1, max_attempts_per_refit=2, max_transient_retries=1, unhealthy_threshold=2
)
FENCE = replace(SMALL, on_frozen="fence")


class Slice(NamedTuple):
    """One fleet, its configuration, and how much may happen to it."""

    topology: Topology
    config: RefitConfig
    bounds: Bounds


def fleet(shards: int, *, trainers: int = 1, workers: int = 1) -> Topology:
    return Topology(train_world_size=trainers, dp_size=shards, workers_per_shard=workers)


def kinds(*events: type[Event]) -> frozenset[type[Event]]:
    return frozenset(events)


SLICES: Mapping[str, Slice] = {
    "3 shards, 1 fault, stop": Slice(fleet(3), SMALL, Bounds(faults=1, refits=2)),
    "3 shards, 1 fault, fence": Slice(fleet(3), FENCE, Bounds(faults=1, refits=2)),
    "one shard, served before": Slice(fleet(1), FENCE, Bounds(faults=1, refits=2, reports=1)),
    "one shard, none left": Slice(fleet(1), FENCE, Bounds(faults=2, refits=1)),
    "one suspect, fenced": Slice(
        fleet(1),
        replace(FENCE, max_restart_attempts_per_shard=0),
        Bounds(faults=2, refits=2, reports=1, kinds=kinds(ev.RankFailed, ev.FenceExpired, ev.ShardExited)),
    ),
    "reports": Slice(fleet(2), FENCE, Bounds(faults=0, refits=1, reports=3)),
    "reports that condemn at once": Slice(
        fleet(2),
        replace(SMALL, unhealthy_threshold=1, max_restart_attempts_per_shard=0),
        Bounds(faults=0, refits=1, reports=1, operator=1),
    ),
    "reports after a break": Slice(
        fleet(1),
        replace(SMALL, unhealthy_threshold=1),
        Bounds(faults=1, refits=1, reports=1, kinds=kinds(ev.RankFailed)),
    ),
    "operator": Slice(fleet(2), SMALL, Bounds(faults=0, refits=2, operator=2)),
    "operator and suspects": Slice(fleet(2), SMALL, Bounds(faults=0, refits=1, reports=1, operator=1)),
    "operator and losses": Slice(fleet(2), SMALL, Bounds(faults=1, refits=1, operator=2, kinds=kinds(ev.ShardExited))),
    "operator and fences": Slice(fleet(2), SMALL, Bounds(faults=1, refits=1, operator=1, kinds=kinds(ev.FenceExpired))),
    "restarts": Slice(
        fleet(1),
        replace(SMALL, max_restart_attempts_per_shard=2),
        Bounds(faults=3, refits=1, kinds=kinds(ev.ShardExited, ev.RestartFailed, ev.RestartExpired, ev.WorkerExited)),
    ),
    "floor of two": Slice(
        fleet(2),
        replace(SMALL, min_healthy_shards=2, max_restart_attempts_per_shard=0),
        Bounds(faults=1, refits=1),
    ),
    "floor of two, out of time": Slice(
        fleet(2),
        replace(SMALL, min_healthy_shards=2),
        Bounds(faults=2, refits=1, kinds=kinds(ev.ShardExited, ev.RefitExpired)),
    ),
    "two workers": Slice(fleet(1, workers=2), FENCE, Bounds(faults=1, refits=1)),
    "two trainers": Slice(
        fleet(2, trainers=2),
        replace(FENCE, max_restart_attempts_per_shard=0),
        Bounds(faults=1, refits=1),
    ),
}


# --- what must be reachable ------------------------------------------------------------------------------------------

Holds = Callable[[State], bool]


def shard_is(slot: int, state: ShardState, incarnation: int) -> Holds:
    return lambda s: s.shards[slot].state is state and s.shards[slot].incarnation == incarnation


def serves(slot: int, incarnation: int) -> Holds:
    return lambda s: slot in serving_shards(s) and s.shards[slot].incarnation == incarnation


def phase_is(*phases: Phase) -> Holds:
    return lambda s: s.phase in phases


def broke_in(phase: Phase) -> Holds:
    return lambda s: s.phase is Phase.ABORTED and s.broke_in is phase


@dataclass(frozen=True, slots=True)
class Goal:
    """What must be reachable: its legs one after the other, each within the bounds of the slice."""

    says: str
    slice: Slice
    legs: tuple[Holds, ...]


_TWO = fleet(2)
GOALS: Mapping[str, Goal] = {
    "rejoin_twice": Goal(
        "a shard is lost and rejoins, twice",
        Slice(
            _TWO,
            replace(SMALL, max_restart_attempts_per_shard=2),
            Bounds(faults=1, refits=1, kinds=kinds(ev.ShardExited)),
        ),
        (
            serves(1, 0),
            shard_is(1, ShardState.ABSENT, 0),
            serves(1, 1),
            shard_is(1, ShardState.ABSENT, 1),
            serves(1, 2),
        ),
    ),
    "fence_and_replace": Goal(
        "a frozen shard is fenced and its replacement serves",
        Slice(_TWO, FENCE, Bounds(faults=2, refits=1, kinds=kinds(ev.ProgressExpired, ev.SettleExpired))),
        (
            serves(1, 0),
            phase_is(Phase.REFITTING),
            lambda s: s.shards[1].fencing and s.shards[1].is_member,
            lambda s: s.phase in LIVE and 1 not in s.roster,
            serves(1, 1),
        ),
    ),
    "form_again": Goal(
        "an attempt to form fails and the next succeeds",
        Slice(_TWO, SMALL, Bounds(faults=1, refits=0, kinds=kinds(ev.ShardExited))),
        (phase_is(Phase.FORMING), broke_in(Phase.FORMING), phase_is(Phase.REBUILT)),
    ),
    "refit_after_break": Goal(
        "a refit completes after a break",
        Slice(_TWO, SMALL, Bounds(faults=1, refits=1, kinds=kinds(ev.ShardExited))),
        (broke_in(Phase.REFITTING), lambda s: s.committed is not None and s.phase in LIVE),
    ),
    "retire": Goal(
        "a shard is retired and the others go on without it",
        Slice(_TWO, SMALL, Bounds(faults=0, refits=1, operator=1)),
        (
            serves(1, 0),
            lambda s: s.shards[0].state is ShardState.RETIRED,  # of shards that are alike the first is tried
            lambda s: s.phase in LIVE and list(s.roster) == [1],
        ),
    ),
    "close": Goal(
        "the controller is closed in order",
        Slice(_TWO, SMALL, Bounds(faults=0, refits=1, operator=1)),
        (serves(0, 0), phase_is(Phase.CLOSED)),
    ),
}
