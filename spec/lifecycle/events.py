"""Everything that can happen, as values.

Three kinds. *Calls* come from the trainer, *observations* from the fleet and the clock; both enter from outside.
*Signals* are raised by the effect of one row and consumed by another row in the same step: they couple the
communicator to the shards and are never sent from outside.

Every reply of a rank carries the `Stamp` of the command it answers. A stamp that is not the current one marks a
late reply: legal, ignored, and journalled as such.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple


class Stamp(NamedTuple):
    """Which operation a message belongs to: the `attempt`-th command to the ranks of communicator `epoch`."""

    epoch: int
    attempt: int

    def __str__(self) -> str:
        return f"{self.epoch}.{self.attempt}"


class Version(NamedTuple):
    """A weight version. Ordered: a restarted trainer's step 1 is newer than its predecessor's step 900."""

    trainer_incarnation: int
    step: int

    def __str__(self) -> str:
        return f"{self.trainer_incarnation}.{self.step}"


class Payload(Enum):
    """What a refit carries: all weights, or only what changed since the committed version."""

    FULL = "full"
    DELTA = "delta"


class Cause(Enum):
    """Why an operation of a rank ended without success, or why the controller broke it off.

    Classified where it happens and carried as data: an exception's type does not survive a remote call.
    """

    DEPARTURE = "departure"  # a member left the fleet while the operation was under way
    DEADLINE = "deadline"  # a wait ran out
    PEER = "peer"  # the communication library reported a broken peer
    TRANSIENT = "transient"  # a named local cause that may pass: a port, the store
    MANIFEST = "manifest"  # tensor lists differ between participants
    REJECTED = "rejected"  # the member itself raised: its engine refused the weights, or it cannot go on
    CLAIM = "claim"  # wrong world size, a duplicate rank, a foreign nonce


class Progress(Enum):
    """How far a rank got in the operation that it left."""

    NEVER_ENTERED = "never_entered"  # it answers, but it never started
    ENTERED = "entered"  # it took part; no weight of its own has changed
    PARTIAL = "partial"  # some of its weights have changed
    STUCK = "stuck"  # it left, but a callable of its own has not returned: its weights may still be changing
    COMPLETE = "complete"  # it holds the new version whole


@dataclass(frozen=True, slots=True)
class Event:
    """Base of everything that a step accepts."""


# --- calls from the trainer ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StartRequested(Event):
    """Form the first communicator."""


@dataclass(frozen=True, slots=True)
class RefitRequested(Event):
    """Carry `version` to every shard that can take part."""

    version: Version
    payload: Payload = Payload.FULL


@dataclass(frozen=True, slots=True)
class ReconcileRequested(Event):
    """Bring the communicator in line with who is there, without a refit."""


@dataclass(frozen=True, slots=True)
class RetireRequested(Event):
    """The operator takes a slot out of the fleet for good."""

    slot: int


@dataclass(frozen=True, slots=True)
class CloseRequested(Event):
    """The run is over."""


# --- replies of ranks ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RankReply(Event):
    """A reply of one rank of the current epoch to the command with this stamp."""

    stamp: Stamp
    rank: int


@dataclass(frozen=True, slots=True)
class RankJoined(RankReply):
    """The rank exchanged a real payload with every member of the new communicator."""


@dataclass(frozen=True, slots=True)
class RankTransferred(RankReply):
    """The rank holds `version` whole (a trainer rank: has sent it)."""

    version: Version


@dataclass(frozen=True, slots=True)
class RankProgressed(RankReply):
    """The rank moved on inside a transfer: a big refit that moves is not a hang."""


@dataclass(frozen=True, slots=True)
class RankFailed(RankReply):
    """The rank is out of the operation, without success."""

    cause: Cause
    detail: str = ""


@dataclass(frozen=True, slots=True)
class RankLeft(RankReply):
    """The rank is out of the broken communicator for good, and says how far it got. detail: where it is stuck."""

    progress: Progress
    detail: str = ""


# --- observations of the fleet ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TrainerLost(Event):
    """A trainer process is certainly gone."""

    rank: int


@dataclass(frozen=True, slots=True)
class ControllerFailed(Event):
    """The controller could not write its journal, or not carry out a command. detail: at what it failed, and how."""

    detail: str = ""


@dataclass(frozen=True, slots=True)
class ShardObservation(Event):
    """Something seen of one process: the incarnation that fills, or filled, this slot."""

    slot: int
    incarnation: int


@dataclass(frozen=True, slots=True)
class ShardExited(ShardObservation):
    """Every process of this incarnation is certainly gone. detail: its last words, as far as anybody heard them."""

    detail: str = ""


@dataclass(frozen=True, slots=True)
class WorkerExited(ShardObservation):
    """One worker of several is gone; the others may still run."""

    worker: int


@dataclass(frozen=True, slots=True)
class ProbeFailed(ShardObservation):
    """A liveness probe was not answered."""


@dataclass(frozen=True, slots=True)
class ProbeSucceeded(ShardObservation):
    """A liveness probe was answered."""


@dataclass(frozen=True, slots=True)
class RequestFailed(ShardObservation):
    """A generation request failed."""


@dataclass(frozen=True, slots=True)
class RequestSucceeded(ShardObservation):
    """A generation request was served."""


@dataclass(frozen=True, slots=True)
class ReplacementLoaded(ShardObservation):
    """A replacement has started, loaded, and can take part in a communicator."""


@dataclass(frozen=True, slots=True)
class RestartFailed(ShardObservation):
    """A restart attempt ended without a usable process."""

    detail: str = ""


# --- the clock -------------------------------------------------------------------------------------------------


class Timer(Enum):
    """The deadlines. At most one of each is armed; of the last three, at most one per shard."""

    FORM = "form"
    PROGRESS = "progress"
    SETTLE = "settle"
    REFIT = "refit"
    BACKOFF = "backoff"
    RESTART = "restart"
    FENCE = "fence"


@dataclass(frozen=True, slots=True)
class FormExpired(Event):
    """Not every rank joined in time."""

    stamp: Stamp


@dataclass(frozen=True, slots=True)
class ProgressExpired(Event):
    """No rank moved on inside the transfer for the whole progress deadline."""

    stamp: Stamp


@dataclass(frozen=True, slots=True)
class SettleExpired(Event):
    """Not every rank confirmed in time that it left the broken communicator."""

    stamp: Stamp


@dataclass(frozen=True, slots=True)
class RefitExpired(Event):
    """The whole path of one refit, recoveries included, took too long."""

    version: Version


@dataclass(frozen=True, slots=True)
class BackoffElapsed(ShardObservation):
    """The pause before the next restart attempt is over."""


@dataclass(frozen=True, slots=True)
class RestartExpired(ShardObservation):
    """The restart attempt did not finish in time."""


@dataclass(frozen=True, slots=True)
class FenceExpired(ShardObservation):
    """The death of a fenced process could not be confirmed in time."""


# --- signals: raised by one row, consumed by another, in the same step -------------------------------------------


@dataclass(frozen=True, slots=True)
class Signal(Event):
    """Base of what one machine tells the other."""


@dataclass(frozen=True, slots=True)
class FormDue(Signal):
    """Nothing stands in the way of a new communicator but the question of who is in it."""


@dataclass(frozen=True, slots=True)
class TransferDue(Signal):
    """A communicator is live and a refit waits for it."""


@dataclass(frozen=True, slots=True)
class Settled(Signal):
    """Every rank left the broken communicator, or its budget ran out: decide."""


@dataclass(frozen=True, slots=True)
class WindowOpened(Signal):
    """Nothing is under way: queued changes of the membership may be applied."""


@dataclass(frozen=True, slots=True)
class Departed(Signal):
    """Shard to communicator: an incarnation can no longer take part, or is now certainly dead."""

    slot: int
    incarnation: int


@dataclass(frozen=True, slots=True)
class Returned(Signal):
    """Shard to communicator: a replacement waits for its first refit."""

    slot: int
    incarnation: int


@dataclass(frozen=True, slots=True)
class FenceUnconfirmed(Signal):
    """Shard to communicator: a condemned process may still be alive."""

    slot: int
    incarnation: int


@dataclass(frozen=True, slots=True)
class ShardSignal(Signal):
    """Communicator to the shards in `slots`."""

    slots: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Promoted(ShardSignal):
    """These shards took part in a refit of `version` that completed."""

    version: Version


@dataclass(frozen=True, slots=True)
class Carried(ShardSignal):
    """These shards hold `version` whole although the refit broke for others."""

    version: Version


@dataclass(frozen=True, slots=True)
class Torn(ShardSignal):
    """These shards hold a mixture of old and new weights, or nobody knows what they hold."""


@dataclass(frozen=True, slots=True)
class Condemned(ShardSignal):
    """Evidence singles these shards out: fence them."""


@dataclass(frozen=True, slots=True)
class RetireOrdered(ShardSignal):
    """These slots leave the fleet for good."""
