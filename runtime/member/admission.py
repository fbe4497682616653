"""Admission: which request a participant lets in, and what leaving means.

Owns the newest stamp, the seats, and what is under way, with the condition that guards them. Moves no bytes and
calls nothing of the user's.
"""

from __future__ import annotations

import logging
import threading

import torch

from ...spec.lifecycle.events import Cause, Progress, Stamp, Version
from ..messages import Failed, Join, Leave, Left, Transfer
from .seat import Operation, Seat
from .waits import OperationFailed

log = logging.getLogger(__name__)

_REMEMBERED_EPOCHS = 16


class Admission:
    """The desk of one participant. `changed` guards it and wakes every wait: for an answer, a departure, a collective.

    running: operations whose threads have not returned yet. After a departure the last one may still be inside the
    user's callable. held: the newest version that this rank holds whole.
    """

    def __init__(self, *, sends: bool, device: torch.device) -> None:
        """sends: whether it is the participant of a trainer."""
        self.changed = threading.Condition()
        self.running: list[Operation] = []
        self.held: Version | None = None
        self._sends = sends
        self._device = device
        self._newest: Stamp | None = None
        self._run: str | None = None
        self._seat: Seat | None = None
        self._seats: dict[int, Seat] = {}
        self._closed = False

    def begin_join(self, join: Join) -> tuple[Operation, Seat]:
        """Admit a join: leave what this rank was in, and take the new seat."""
        with self.changed:
            if self._run not in (None, join.run):
                raise OperationFailed(
                    Cause.CLAIM,
                    f"this participant belongs to run {self._run!r}, asked to join run {join.run!r}",
                )
            self._admit(join.stamp)
            self._run = join.run
            check_place(join, sends=self._sends, device=self._device)
            self._vacate(f"left for epoch {join.stamp.epoch}")
            seat = self._seat = self._seats[join.stamp.epoch] = Seat(join)
            while len(self._seats) > _REMEMBERED_EPOCHS:
                del self._seats[min(self._seats)]
            return self._begin("join", join.stamp), seat

    def begin_transfer(self, request: Transfer) -> tuple[Operation, Seat]:
        """Admit a transfer: into the seat of its epoch, with nothing else under way."""
        with self.changed:
            self._admit(request.stamp)
            seat = self._seat
            if seat is None or seat.epoch != request.stamp.epoch:
                where = "in no communicator" if seat is None else f"in epoch {seat.epoch}"
                raise OperationFailed(Cause.CLAIM, f"transfer {request.stamp} refused: this member is {where}")
            for current in self.running:
                raise OperationFailed(Cause.CLAIM, f"{current.name} {current.stamp} is still under way")
            if not seat.usable:
                raise OperationFailed(Cause.CLAIM, f"the communicator of epoch {seat.epoch} is broken on this rank")
            if self.held is not None and request.version < self.held:
                raise OperationFailed(
                    Cause.CLAIM, f"version {request.version} is older than version {self.held}, held already"
                )
            seat.entered, seat.progress = request.stamp, Progress.ENTERED
            return self._begin("transfer", request.stamp), seat

    def end(self, operation: Operation) -> None:
        """Its thread is about to return."""
        with self.changed:
            self.running.remove(operation)
            self.changed.notify_all()

    def leave(self, request: Leave) -> Left | Failed:
        """Leave that epoch, if this rank is in it or in an older one, and say how far it got."""
        with self.changed:
            stamp, seat = request.stamp, self._seat
            if seat is not None and seat.epoch == stamp.epoch and self._newest is not None and stamp < self._newest:
                message = f"stamp {stamp} is older than {self._newest} and its epoch is live; nothing was left"
                return Failed(stamp=stamp, rank=seat.rank, cause=Cause.CLAIM, message=message)
            if seat is not None and seat.epoch <= stamp.epoch:
                self._vacate(f"left epoch {seat.epoch}, told by stamp {stamp}")
            self._newest = stamp if self._newest is None else max(self._newest, stamp)
            record = self._seats.get(stamp.epoch)
            rank = record.rank if record else None
            # A call that is still inside the user's code may change weights yet, whatever became of its collective.
            if stuck := "; ".join(operation.inside for operation in self.running if operation.inside):
                return Left(stamp=stamp, rank=rank, progress=Progress.STUCK, detail=stuck)
            progress = record.progress_of(request.breaking) if record else Progress.NEVER_ENTERED
            return Left(stamp=stamp, rank=rank, progress=progress)

    def close(self) -> None:
        """Leave, and admit nothing any more."""
        with self.changed:
            self._vacate("closed this participant")
            self._closed = True

    def rank_of(self, request: Join | Transfer) -> int | None:
        """The rank that a request was for, as far as this participant knows."""
        seat_now = self._seats.get(request.stamp.epoch)
        return seat_now.rank if seat_now else request.rank if isinstance(request, Join) else None

    def without_nonces(self, text: str) -> str:
        """The text, with every nonce that this participant was told blotted out."""
        for seat in tuple(self._seats.values()):
            text = text.replace(seat.join.nonce, "...")
        return text

    def _admit(self, stamp: Stamp) -> None:
        """Refuse what is older than the newest stamp, or was handled already. Under the condition."""
        if self._closed:
            raise OperationFailed(Cause.DEPARTURE, "this participant was closed")
        if self._newest is not None and stamp <= self._newest:
            how = "was handled already" if stamp == self._newest else f"is older than {self._newest}, seen already"
            raise OperationFailed(Cause.CLAIM, f"stamp {stamp} {how}")
        self._newest = stamp

    def _begin(self, name: str, stamp: Stamp) -> Operation:
        operation = Operation(name, stamp, self.changed)
        self.running.append(operation)
        return operation

    def _vacate(self, reason: str) -> None:
        """Leave the current seat, if any, breaking off what is under way in it. Under the condition."""
        seat, self._seat = self._seat, None
        for operation in self.running:
            operation.cancellation.cancel(reason)
        if seat is None:
            return
        seat.usable = False
        group, seat.group, seat.plan = seat.group, None, None
        if group is not None:
            group.bury(reason)
        log.info(
            "left run=%s epoch=%d rank=%d progress=%s reason=%r",
            *(seat.join.run, seat.epoch, seat.rank, seat.progress.value, reason),
        )


def check_place(join: Join, *, sends: bool, device: torch.device) -> None:
    """Refuse a place that is impossible, or none for this participant. Raises `OperationFailed` with CLAIM.

    sends: whether it is the participant of a trainer.
    """
    numbers = f"rank={join.rank} world_size={join.world_size} train_world_size={join.train_world_size}"
    if not (0 <= join.rank < join.world_size and 1 <= join.train_world_size <= join.world_size):
        raise OperationFailed(Cause.CLAIM, f"impossible place: {numbers}")
    if (join.rank < join.train_world_size) != sends:
        here = "trainer" if sends else "shard"
        raise OperationFailed(Cause.CLAIM, f"this is the participant of a {here}, asked to be {numbers}")
    if join.backend not in ("gloo", "nccl") or (join.backend == "nccl" and device.type != "cuda"):
        raise OperationFailed(
            Cause.CLAIM,
            f"backend {join.backend!r} with device {str(device)!r}: gloo, or nccl with cuda",
        )
