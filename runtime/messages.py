"""What the controller asks a member, what the member answers, and what members tell each other inside a
group.

Requests and replies are small frozen values that pickle: no tensor, no torch, no Ray. How they travel is the
transport's matter. The rows at the end are of fixed size, because an all-gather carries equal shares.
"""

from __future__ import annotations

import hashlib
import json
import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import ClassVar

from ..spec.lifecycle.events import Cause, Progress, Stamp, Version

# --- requests -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """Who are you? Answered with `HelloReply`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Join:
    """Leave whatever older communicator you are in and take `rank` in that of `stamp.epoch`.

    run: names the run for its whole life. nonce: drawn by the controller for this epoch, so that a process
    that was not asked cannot guess the rendezvous. store_host, store_port: the store that the controller
    hosts.
    backend: "gloo" or "nccl". timeout_s: seconds for all of it, handshake included.
    Answered with `Joined` or `Failed`.
    """

    stamp: Stamp
    run: str
    nonce: str
    store_host: str
    store_port: int
    rank: int
    world_size: int
    train_world_size: int
    backend: str = "gloo"
    timeout_s: float

    @property
    def charter(self) -> str:
        """Hex digest of what every member of this communicator must have been told alike."""
        return charter_digest(
            run=self.run,
            epoch=self.stamp.epoch,
            nonce=self.nonce,
            world_size=self.world_size,
            train_world_size=self.train_world_size,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """Carry `version` from rank 0 to every rank. Answered with `Transferred` or `Failed`.

    timeout_s: seconds for each single wait (the gate, one bucket), not for the whole. It must be longer
    than one receiver needs to accept one bucket, and than the root needs to produce one.
    verify: digest all bytes on every rank and compare at the end.
    """

    stamp: Stamp
    version: Version
    timeout_s: float
    verify: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Leave:
    """Break off whatever you wait in, leave `stamp.epoch` for good, say how far you got. Answered with
    `Left`.

    breaking: the stamp of the operation that is broken off. A member that never saw it answers NEVER_ENTERED,
    whatever it did earlier in that epoch. None means the latest operation that the member did see.
    """

    stamp: Stamp
    breaking: Stamp | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """How far are you in what you do now? Answered at once with `StatusReply`, also from inside a transfer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """Held until the participant is closed, then answered with `Closed`. Its failing says: the process is
    gone.

    identity: whom to watch, from its `HelloReply`. Another participant behind the same address answers with its own
    `HelloReply`, at once: the one that was meant is gone.
    """

    identity: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Close:
    """Leave, release everything, take part in nothing any more. Answered at once with `Closed`."""


Request = Hello | Join | Transfer | Leave | Status | Watch | Close

# --- replies ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class HelloReply:
    """The process behind this member. started: seconds since the epoch; a process id is used again, such a pair is
    not. device: where its tensors live, as torch spells it.

    identity: drawn by each participant for itself. A process that was started anew is another one, with start-up
    weights, even where the same handle leads to it.
    """

    identity: str
    pid: int
    started: float
    host: str
    device: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """This rank exchanged a real payload with every member. digest: the charter that all of them stated."""

    stamp: Stamp
    rank: int
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Transferred:
    """This rank holds `version` whole (a trainer rank: everything was sent).

    digest: hex xxh3_128 of all tensor bytes in order, equal on every rank; None unless asked to verify.
    tensors, bytes: how many were sent or handed on; bytes without the gaps between them. seconds: gate to
    end.
    """

    stamp: Stamp
    rank: int
    version: Version
    digest: str | None
    tensors: int
    bytes: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """This rank is in no communicator of `stamp.epoch` any more. rank: None if it never took a place in it.

    detail: for people; in which callable it is stuck, and for how long.
    """

    stamp: Stamp
    rank: int | None
    progress: Progress
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """The operation ended here without success. rank: None for a member that sits in no communicator.

    message: for people; says what was waited for or compared, with numbers. Decide on `cause`, never on the
    text.
    """

    stamp: Stamp
    rank: int | None
    cause: Cause
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusReply:
    """What this member does. operation: "join", "transfer" or "idle", under `stamp`.

    buckets: how many the running transfer has in all; bucket: how many of them this rank is done with.
    """

    operation: str
    stamp: Stamp | None = None
    bucket: int = 0
    buckets: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Closed:
    """This participant takes part in nothing any more."""


Reply = HelloReply | Joined | Transferred | Left | Failed | StatusReply | Closed

# --- what members tell each other ---------------------------------------------------------------------------


def charter_digest(*, run: str, epoch: int, nonce: str, world_size: int, train_world_size: int) -> str:
    """Hex SHA-256 of what defines one communicator; the controller can compare a `Joined.digest` with it."""
    text = json.dumps([run, epoch, nonce, world_size, train_world_size])
    return hashlib.sha256(text.encode()).hexdigest()


class Standing(IntEnum):
    """What a member says about the tensor list that the root published."""

    UNSTATED = 0  # it takes whatever comes
    AGREED = 1
    DIFFERS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Greeting:
    """The payload of the handshake: what one member was told, and which plan it read. Digests are hex
    SHA-256.
    """

    charter: str
    rank: int
    standing: Standing
    plan: str

    _FORM: ClassVar[struct.Struct] = struct.Struct("<32siB32s")

    def encode(self) -> bytes:
        """Bytes of fixed length."""
        return self._FORM.pack(bytes.fromhex(self.charter), self.rank, self.standing, bytes.fromhex(self.plan))

    @classmethod
    def decode(cls, row: bytes) -> Greeting:
        """Inverse of `encode`."""
        charter, rank, standing, plan = cls._FORM.unpack(row)
        return cls(charter=charter.hex(), rank=rank, standing=Standing(standing), plan=plan.hex())


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """The payload of the gate: which version this rank is about to carry, by which plan."""

    version: Version
    plan: str

    _FORM: ClassVar[struct.Struct] = struct.Struct("<qq32s")

    def encode(self) -> bytes:
        """Bytes of fixed length."""
        return self._FORM.pack(*self.version, bytes.fromhex(self.plan))

    @classmethod
    def decode(cls, row: bytes) -> Entry:
        """Inverse of `encode`."""
        incarnation, step, plan = cls._FORM.unpack(row)
        return cls(version=Version(incarnation, step), plan=plan.hex())


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """The payload of the last exchange of a verified transfer. digest: hex xxh3_128."""

    digest: str
    tensors: int
    nbytes: int

    def __str__(self) -> str:
        return f"{self.digest} ({self.tensors} tensors, {self.nbytes} bytes)"

    _FORM: ClassVar[struct.Struct] = struct.Struct("<16sqq")

    def encode(self) -> bytes:
        """Bytes of fixed length."""
        return self._FORM.pack(bytes.fromhex(self.digest), self.tensors, self.nbytes)

    @classmethod
    def decode(cls, row: bytes) -> Receipt:
        """Inverse of `encode`."""
        digest, tensors, nbytes = cls._FORM.unpack(row)
        return cls(digest=digest.hex(), tensors=tensors, nbytes=nbytes)
