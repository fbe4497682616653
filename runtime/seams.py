"""The seams of the runtime: who the members are, how weights travel, where ranks meet, what time it is.

Small protocols, so that the same controller runs over Ray actors and torch.distributed, and over a simulated fleet in
virtual time. Nothing behind a seam decides anything: it does what a command says and reports what happened.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol

from ..spec.lifecycle.commands import Form, Leave, Transfer
from ..spec.lifecycle.events import Event, Version
from ..spec.membership import RefitMembership, ShardSeat
from ..spec.roster import Roster
from .messages import Reply, Request, Transferred

Feed = Callable[[Event], None]
"""Hand an observation to the controller. Never blocks on a member, never raises, may be called from any thread."""


@dataclass(frozen=True, slots=True)
class Trainer:
    """The process of one trainer rank."""

    rank: int

    def __str__(self) -> str:
        return f"trainer {self.rank}"


@dataclass(frozen=True, slots=True)
class Worker:
    """One process of one incarnation of one shard."""

    slot: int
    incarnation: int
    worker: int

    def __str__(self) -> str:
        return f"shard {self.slot} (incarnation {self.incarnation}) worker {self.worker}"


Member = Trainer | Worker


def member_at(membership: RefitMembership, roster: Roster, rank: int) -> Member:
    """Who sits at this rank: the membership says where, the roster says who."""
    seat = membership.seat_of(rank=rank)
    if isinstance(seat, ShardSeat):
        return Worker(seat.shard, roster[seat.shard], seat.worker)
    return Trainer(seat.rank)


class Fleet(Protocol):
    """Who the members are, and how to reach, kill and replace them."""

    def open(self, feed: Feed) -> None:
        """Begin to watch every trainer and incarnation 0 of every shard; report exits from now on."""

    def call(self, member: Member, request: Request) -> Future[Reply]:
        """Ask a member. The future fails when the process is gone; the caller bounds every wait."""

    def restart(self, slot: int, incarnation: int) -> None:
        """Start a replacement in the background. Reports `ReplacementLoaded` or `RestartFailed` (nothing is left)."""

    def fence(self, slot: int, incarnation: int) -> None:
        """Kill every process of this incarnation in the background. Reports `ShardExited` once that is certain."""

    def describe(self, member: Member) -> Mapping[str, str]:
        """Where it runs, as far as known (host, pid, device), for the one line at every build."""

    def close(self) -> None:
        """Stop watching and let the members go. Bounded; kills nobody who was not ordered killed."""


class Transport(Protocol):
    """Carries out the three collective commands and reports every rank's answer as an event."""

    def open(self, feed: Feed) -> None:
        """Answers go to `feed` from now on."""

    def form(self, command: Form, membership: RefitMembership) -> None:
        """Ask every rank to join. Reports `RankJoined` or `RankFailed` for each that answers."""

    def transfer(self, command: Transfer, membership: RefitMembership) -> None:
        """Ask every rank to carry the version. Reports `RankTransferred` or `RankFailed` for each that answers."""

    def leave(self, command: Leave, membership: RefitMembership) -> None:
        """Ask these ranks to leave. Reports `RankLeft` for each that answers."""

    def receipts(self, version: Version) -> Mapping[int, Transferred]:
        """What each rank said of the last transfer of this version: digest, tensors, bytes, seconds."""

    def close(self) -> None:
        """Release what belongs to the transport itself. Bounded."""


@dataclass(frozen=True, slots=True)
class MeetingPoint:
    """Where the ranks of one epoch find each other: a store, and a prefix that nobody can guess."""

    host: str
    port: int
    run: str
    nonce: str


class Rendezvous(Protocol):
    """One store for the whole run, hosted where no member can freeze it."""

    def meeting_point(self) -> MeetingPoint:
        """A fresh one for each epoch: the same prefix is never used twice."""

    def close(self) -> None:
        """Stop the store."""


class Cancel(Protocol):
    """An armed timer."""

    def cancel(self) -> None:
        """It must not fire any more. Idempotent."""


class Clock(Protocol):
    """Time, deadlines and waiting."""

    def now(self) -> float:
        """Seconds since some fixed moment."""

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Cancel:
        """Call back once, from the clock's own thread."""

    def wait(self, ready: Callable[[], bool], timeout_s: float) -> bool:
        """Block until `ready` holds or the time is up; says whether it holds. `wake` makes it look again."""

    def wake(self) -> None:
        """Something changed."""

    def close(self) -> None:
        """Nothing fires any more."""


class Journal(Protocol):
    """Where every event is written down before anything is dispatched."""

    def append(self, record: dict[str, Any]) -> None:
        """Write one record, whole."""

    def close(self) -> None:
        """Nothing more will come."""
