"""What the controller knows, as one immutable value, and the questions that rows ask of it.

The state holds knowledge, never handles: no clock, no process, no group. A step makes a new value; nothing is
changed in place, so an event that is refused has changed nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field, fields
from enum import Enum
from functools import lru_cache
from operator import attrgetter
from typing import Any, TypeVar, cast

from ..config import RefitConfig
from ..membership import RefitMembership
from ..roster import Roster, Topology
from .events import Cause, Payload, Stamp, Timer, Version


class Phase(Enum):
    """Where the communicator is in its life."""

    UNBUILT = "unbuilt"  # none was ever formed
    FORMING = "forming"  # a rendezvous over a target roster is under way
    BUILT = "built"  # live, over the desired roster, and a full refit went through it
    STALE = "stale"  # live, but the desired roster differs
    REFITTING = "refitting"  # a refit over the participants' roster is under way
    ABORTED = "aborted"  # gone: ranks are leaving, evidence is gathered, shards are fenced or awaited
    REBUILT = "rebuilt"  # live over a new roster, and owes a full refit
    HALTED = "halted"  # terminal, with a named reason
    CLOSED = "closed"  # terminal, orderly


class ShardState(Enum):
    """What the controller knows of the process in one slot."""

    SERVING = "serving"
    SUSPECT = "suspect"  # failing probes or requests, not condemned: still serves, still a member
    TORN = "torn"  # alive, but holds a mixture of old and new weights
    REJOINED = "rejoined"  # loaded, waits for its first refit
    ABSENT = "absent"  # cannot take part: exited, or condemned and being fenced
    RESTARTING = "restarting"  # a replacement is being started
    RETIRED = "retired"  # never comes back


LIVE = frozenset({Phase.BUILT, Phase.STALE, Phase.REFITTING, Phase.REBUILT})
TERMINAL = frozenset({Phase.HALTED, Phase.CLOSED})
MEMBERS = frozenset({ShardState.SERVING, ShardState.SUSPECT, ShardState.TORN, ShardState.REJOINED})
RETURNING = frozenset({ShardState.ABSENT, ShardState.RESTARTING})


class HaltReason(Enum):
    """Why a run must stop. Each has its own entry in the docs with what to do."""

    TRAINER_LOST = "trainer_lost"
    TRAINER_SILENT = "trainer_silent"
    TRAINER_REFUSED = "trainer_refused"
    FROZEN_SHARDS = "frozen_shards"
    WEIGHTS_REFUSED = "weights_refused"
    FENCE_UNCONFIRMED = "fence_unconfirmed"
    MAJORITY_SILENT = "majority_silent"
    NO_SHARD_IDENTIFIED = "no_shard_identified"
    MISMATCH = "mismatch"
    RETRIES_EXHAUSTED = "retries_exhausted"
    REFIT_TIMEOUT = "refit_timeout"
    BELOW_FLOOR = "below_floor"
    NO_SURVIVING_SHARDS = "no_surviving_shards"
    CONTROLLER_FAILED = "controller_failed"


@dataclass(frozen=True, slots=True)
class Halt:
    """The named reason, and what was known when it was decided."""

    reason: HaltReason
    detail: str = field(compare=False, default="")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """The record of one slot.

    version: what it holds whole; None for start-up weights or a mixture. fencing: its process was ordered killed and
    its death is not confirmed yet. failed_probes and failed_requests are streaks of this incarnation, kept apart
    because an engine can answer probes while it fails every request. restarts counts attempts over the whole run.
    timer: the one deadline of this shard that is armed. last_words: how its last process ended, in its own text.
    """

    slot: int
    state: ShardState = ShardState.REJOINED
    incarnation: int = 0
    version: Version | None = None
    fencing: bool = False
    failed_probes: int = 0
    failed_requests: int = 0
    restarts: int = 0
    timer: Timer | None = None
    last_words: str = field(compare=False, default="")

    @property
    def is_member(self) -> bool:
        return self.state in MEMBERS

    @property
    def is_certainly_dead(self) -> bool:
        """No process of this incarnation can still be inside a communicator."""
        return not self.is_member and not self.fencing


@dataclass(frozen=True, slots=True, kw_only=True)
class Refit:
    """A refit that was requested and has not completed.

    touched: slots to which a transfer of it was ever dispatched: their traffic is closed until it completes.
    """

    version: Version
    payload: Payload = Payload.FULL
    touched: frozenset[int] = frozenset()
    expired: bool = False


@dataclass(frozen=True, slots=True)
class Failure:
    """What one rank said of why the current epoch broke, in its own text. Only for people: no row looks at it."""

    rank: int
    cause: Cause
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """Everything the controller knows.

    epoch: communicators ever attempted; 0 for none. attempt: commands to the ranks within this epoch.
    roster: who epoch `epoch` is over: the target while forming, the members while live, the broken set while aborted.
    started: somebody asked for a communicator, so one is formed whenever it can be.
    inside: ranks of this epoch that may still be executing the current command.
    carried: a full refit completed in this epoch. After a break: broke_in is the phase that broke, cause the reason,
    holders the ranks that hold the new version whole, untouched those whose weights did not change, never_entered
    those that answer but never began, stuck those that answer from beside a callable that does not return, blamed the
    slots whose own engine refused.
    tries: communicators attempted since the last success. transients: repeats over an unchanged roster among them.
    queued: slots to retire when the window opens.
    """

    topology: Topology = field(hash=False)
    config: RefitConfig = field(default_factory=RefitConfig, hash=False)
    shards: tuple[Shard, ...]
    phase: Phase = Phase.UNBUILT
    started: bool = False
    epoch: int = 0
    attempt: int = 0
    roster: Roster = field(default_factory=Roster)
    inside: frozenset[int] = frozenset()
    carried: bool = False
    broke_in: Phase | None = None
    cause: Cause | None = None
    failures: tuple[Failure, ...] = field(compare=False, default=())
    holders: frozenset[int] = frozenset()
    untouched: frozenset[int] = frozenset()
    never_entered: frozenset[int] = frozenset()
    stuck: frozenset[int] = frozenset()
    blamed: frozenset[int] = frozenset()
    refit: Refit | None = None
    committed: Version | None = None
    tries: int = 0
    transients: int = 0
    queued: frozenset[int] = frozenset()
    timers: frozenset[Timer] = frozenset()
    halt: Halt | None = None

    @classmethod
    def initial(cls, topology: Topology, config: RefitConfig | None = None) -> State:
        """Every slot filled by incarnation 0, loaded, waiting for its first refit. Nothing was ever formed.

        Raises `ValueError` when the floor is higher than the fleet.
        """
        floor = (config or RefitConfig()).min_healthy_shards
        if floor > topology.dp_size:
            raise ValueError(f"min_healthy_shards ({floor}) is more than the fleet's {topology.dp_size} shards")
        return cls(
            topology=topology,
            config=config or RefitConfig(),
            shards=tuple(Shard(slot=slot) for slot in range(topology.dp_size)),
        )

    @property
    def stamp(self) -> Stamp:
        return Stamp(self.epoch, self.attempt)

    @property
    def membership(self) -> RefitMembership:
        """The layout of the current epoch. Raises `NoSurvivingShards` before the first."""
        return layout(self.topology, self.roster)

    def with_shard(self, shard: Shard) -> State:
        """The same state with one record replaced."""
        shards = self.shards
        return evolve(self, shards=(*shards[: shard.slot], shard, *shards[shard.slot + 1 :]))


T = TypeVar("T")


@lru_cache(maxsize=16)
def _plan(
    kind: type,
) -> tuple[dict[str, int], Callable[[Any], tuple[Any, ...]], tuple[Callable[[Any, Any], None], ...]]:
    """Where each field of a record stands, how to read all of them at once, and how to write each."""
    names = [field_.name for field_ in fields(kind)]
    return (
        {name: position for position, name in enumerate(names)},
        attrgetter(*names),
        tuple(getattr(kind, name).__set__ for name in names),
    )


def evolve(value: T, **changes: Any) -> T:
    """`dataclasses.replace` for slotted records that validate nothing: a step makes several, and this is much faster.

    Raises `KeyError` for a field that the record does not have.
    """
    positions, read, write = _plan(cast(Hashable, type(value)))
    values = list(read(value))
    for name, changed in changes.items():
        values[positions[name]] = changed
    copy = object.__new__(type(value))
    for put, kept in zip(write, values, strict=True):
        put(copy, kept)
    return copy


@lru_cache(maxsize=128)
def layout(topology: Topology, roster: Roster) -> RefitMembership:
    """`topology.membership(roster)`, remembered: the same epoch is asked for its layout many times."""
    return topology.membership(roster)


# --- questions -------------------------------------------------------------------------------------------------


def desired_roster(state: State) -> Roster:
    """Who the communicator should span: every incarnation that can take part in a collective."""
    return Roster((shard.slot, shard.incarnation) for shard in state.shards if shard.is_member)


def live_roster(state: State) -> Roster | None:
    """Who the live communicator spans; None when there is none: a failed forming is remembered as nothing."""
    return state.roster if state.phase in LIVE else None


def departed(state: State) -> tuple[int, ...]:
    """Slots of the current epoch's roster whose incarnation can no longer take part."""
    return tuple(
        slot
        for slot, incarnation in state.roster.items()
        if state.shards[slot].incarnation != incarnation or not state.shards[slot].is_member
    )


def ranks_of(state: State, slots: Iterable[int]) -> frozenset[int]:
    """The ranks that these member slots hold in the current epoch."""
    membership = state.membership
    return frozenset(rank for slot in slots for rank in membership.ranks_of(shard=slot))


def dead_ranks(state: State) -> frozenset[int]:
    """Ranks of the current epoch whose process is certainly gone."""
    return ranks_of(
        state,
        (
            slot
            for slot, incarnation in state.roster.items()
            if state.shards[slot].incarnation != incarnation or state.shards[slot].is_certainly_dead
        ),
    )


def all_ranks(state: State) -> frozenset[int]:
    """Every rank of the current epoch, trainers first."""
    return frozenset(range(state.membership.world_size))


def trainer_ranks(state: State) -> frozenset[int]:
    """The ranks that never change."""
    return frozenset(range(state.topology.train_world_size))


def slots_of(state: State, ranks: Iterable[int]) -> frozenset[int]:
    """The member slots that any of these ranks belongs to; trainer ranks belong to none."""
    wanted = frozenset(ranks)
    membership = state.membership
    return frozenset(slot for slot in state.roster if not wanted.isdisjoint(membership.ranks_of(shard=slot)))


def live_count(state: State) -> int:
    """Shards that can take part in a communicator now. Alive is not serving."""
    return sum(shard.is_member for shard in state.shards)


def serving_shards(state: State) -> tuple[int, ...]:
    """Slots that may be given traffic: they hold the committed version whole and no refit has its hands on them."""
    closed = state.refit.touched if state.refit else frozenset()
    return tuple(
        shard.slot
        for shard in state.shards
        if shard.state in (ShardState.SERVING, ShardState.SUSPECT) and shard.slot not in closed
    )


def silent_slots(state: State) -> frozenset[int]:
    """Members that were asked to leave and have not answered."""
    return slots_of(state, state.inside) - frozenset(departed(state))


def missed(state: State) -> frozenset[int]:
    """Ranks that answer but took no part while every other rank waited in vain: they never began, or are stuck.

    Only a wait that ran out makes this evidence: after a death, a slow member has merely not begun yet, or is still
    taking in what had arrived.
    """
    return state.never_entered | state.stuck if state.cause is Cause.DEADLINE else frozenset()


def absentees(state: State) -> frozenset[int]:
    """Members among those ranks."""
    ranks = missed(state)
    return slots_of(state, ranks) - frozenset(departed(state)) if ranks else ranks


def condemned(state: State) -> frozenset[int]:
    """Members that direct evidence singles out: silent past the grace, took no part, or refused the weights."""
    return silent_slots(state) | absentees(state) | (state.blamed - frozenset(departed(state)))


def broken_refit(state: State) -> Refit | None:
    """The open refit, if it is the one whose transfer broke: one asked for after the break has carried nothing yet."""
    refit = state.refit
    return refit if refit and refit.touched and state.broke_in is Phase.REFITTING else None


def torn_slots(state: State) -> frozenset[int]:
    """Members whose weights are a mixture, or unknown, after a broken transfer. A broken forming tears nobody."""
    if state.broke_in is not Phase.REFITTING:
        return frozenset()
    membership = state.membership
    gone = frozenset(departed(state))
    whole = (state.holders, state.untouched)
    return frozenset(
        slot
        for slot in state.roster
        if slot not in gone and not any(ranks.issuperset(membership.ranks_of(shard=slot)) for ranks in whole)
    )


def carried_slots(state: State) -> frozenset[int]:
    """Members that hold the new version whole although the transfer broke for others."""
    if state.broke_in is not Phase.REFITTING:
        return frozenset()
    membership = state.membership
    gone = frozenset(departed(state))
    return frozenset(
        slot for slot in state.roster if slot not in gone and state.holders.issuperset(membership.ranks_of(shard=slot))
    )
