"""One communicator of one epoch, as one member holds it: how it is made, how it carries bytes, how it is given up.

Collectives are issued without waiting. Whoever waits for one sleeps on a condition that a departure wakes as well.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor

from ...spec.lifecycle.events import Cause
from ..messages import Join
from . import graveyard
from .store import Store, c10d, own_address
from .waits import Cancellation, Cancelled, OperationFailed, classify

log = logging.getLogger(__name__)

_POLL_S = 0.001


class _Bell:
    """Rung once by a thread of the communication library when a collective has ended.

    That thread is the last to let go of it, so it knows nothing but the condition. If it led to the group, the
    group's last reference could fall in one of its own threads, which then joins itself and ends the process.
    """

    def __init__(self, changed: threading.Condition) -> None:
        self._changed = changed
        self.rung = False

    def ring(self) -> None:
        with self._changed:
            self.rung = True
            self._changed.notify_all()


class Pending:
    """One collective under way, and the memory that it may still read or write."""

    def __init__(self, tensors: list[Tensor], changed: threading.Condition) -> None:
        self.tensors = tensors
        self.work: Any = None
        self.future: Any = None
        self.bell = _Bell(changed)


class RefitGroup:
    """The communicator of one epoch. One thread at a time issues collectives; any may call `bury`.

    changed: the condition of the participant, notified whenever a collective ends.
    """

    def __init__(self, library: object, *, join: Join, device: torch.device, changed: threading.Condition) -> None:
        self.rank = join.rank
        self.world_size = join.world_size
        self.epoch = join.stamp.epoch
        self.device = device
        self._library: Any = library
        # gloo tells when a collective ends. NCCL tells when a kernel was queued, so there one has to ask.
        self._polls = join.backend == "nccl"
        self._changed = changed
        self._pending: list[Pending] = []
        self._buried = False
        graveyard.group_made(self)

    def start_broadcast(self, flat: Tensor, *, timeout_s: float) -> Pending:
        """Begin to carry `flat` from rank 0 into `flat` of every rank; it stays in use until that has ended."""
        options = c10d.BroadcastOptions()
        options.rootRank = 0
        options.timeout = _linger(timeout_s)
        return self._start([flat], lambda: self._library.broadcast([flat], options))

    def exchange(self, row: bytes, *, cancellation: Cancellation, timeout_s: float, what: str) -> list[bytes]:
        """Give `row` to every rank and return those of all, by rank. Rows have equal length everywhere.

        Returns only when every rank has entered. Raises as `finish`.
        """
        options = c10d.AllgatherOptions()
        options.timeout = _linger(timeout_s)
        mine = torch.frombuffer(bytearray(row), dtype=torch.uint8).to(self.device)
        rows = [torch.empty_like(mine) for _ in range(self.world_size)]
        pending = self._start([mine, *rows], lambda: self._library.allgather([rows], [mine], options))
        self.finish(pending, cancellation=cancellation, timeout_s=timeout_s, what=what)
        return [bytes(row.tolist()) for row in rows]

    def finish(self, pending: Pending, *, cancellation: Cancellation, timeout_s: float, what: str) -> None:
        """Wait until a collective has ended. `what` names it in errors.

        Raises `OperationFailed` with DEADLINE when `timeout_s` ran out, with PEER when the library says
        that it broke; `Cancelled` as soon as it is cancelled. After either the group is good for nothing
        but `bury`.
        """
        poll_s = _POLL_S if self._polls else None
        if not cancellation.wait(lambda: self._has_ended(pending), timeout_s=timeout_s, poll_s=poll_s):
            raise OperationFailed(Cause.DEADLINE, f"rank {self.rank} waited {timeout_s:.1f} s for {what}")
        try:
            (pending.work if self._polls else pending.future).wait()
        except RuntimeError as error:
            raise classify(error, f"rank {self.rank} in {what}") from error
        with self._changed:
            self._pending.remove(pending)

    def bury(self, reason: str) -> None:
        """Give the group up, at once; what is under way in it ends by itself, later. Idempotent."""
        with self._changed:
            if self._buried:
                return
            self._buried = True
        graveyard.keep(self)
        log.debug(
            "group buried epoch=%d rank=%d pending=%d reason=%r",
            *(self.epoch, self.rank, len(self._pending), reason),
        )
        graveyard.undertake(self, name=f"reknit-undertaker-{self.epoch}.{self.rank}")

    def has_ended(self) -> bool:
        """Whether no collective is under way in it."""
        return all(self._has_ended(pending) for pending in tuple(self._pending))

    def await_end(self) -> None:
        """Block until every collective has run into its end or its own time limit: for the undertaker only."""
        if self._polls:
            self._library.abort()
        with self._changed:
            while not self.has_ended():
                self._changed.wait(_POLL_S if self._polls else None)

    def release(self) -> None:
        """Let go of the library, which takes it some milliseconds: for the undertaker only."""
        self._library = None
        self._pending.clear()

    def _start(self, tensors: list[Tensor], issue: Callable[[], Any]) -> Pending:
        pending = Pending(tensors, self._changed)
        with self._changed:
            # Registered before it is issued: the undertaker must not overlook one that is just beginning.
            if self._buried:
                raise Cancelled(f"left epoch {self.epoch}")
            self._pending.append(pending)
        try:
            pending.work = issue()
        except RuntimeError as error:
            pending.bell.ring()
            raise classify(error, f"rank {self.rank} in a collective of epoch {self.epoch}") from error
        except BaseException:
            pending.bell.ring()
            raise
        if not self._polls:
            pending.future = pending.work.get_future()
            bell = pending.bell
            pending.future.add_done_callback(lambda _: bell.ring())
        return pending

    def _has_ended(self, pending: Pending) -> bool:
        if self._polls and pending.work is not None and not pending.bell.rung:
            pending.bell.rung = bool(pending.work.is_completed())
        return pending.bell.rung


def _linger(timeout_s: float) -> timedelta:
    """The library's own limit for a collective. Twice ours, so that ours, which says what was awaited, is first.

    While a receiver accepts a bucket, the next collective is under way up to one `timeout_s` before its wait.
    """
    return timedelta(seconds=2 * timeout_s)


def make_library(join: Join, store: Store, timeout: timedelta) -> object:
    """Connect to all other members, which blocks. Raises what the library raises, and `OperationFailed`."""
    if join.backend == "nccl":
        nccl: Any = c10d.ProcessGroupNCCL
        options = nccl.Options()
        options._timeout = timeout
        return nccl(store, join.rank, join.world_size, options)
    gloo: Any = c10d.ProcessGroupGloo
    options = gloo._Options()
    options._timeout = timeout
    options._devices = [_gloo_device(join)]
    return gloo(store, join.rank, join.world_size, options)


def _gloo_device(join: Join) -> object:
    create: Any = c10d.ProcessGroupGloo.create_device
    interface = os.environ.get("GLOO_SOCKET_IFNAME", "").split(",")[0]
    # A member advertises the address from which it reaches the store: every other member reaches that too.
    address = {"interface": interface} if interface else {"hostname": own_address(join.store_host, join.store_port)}
    try:
        try:
            # The environment may ask for lazy connections, but a missing peer must show while forming.
            return create(**address, lazy_init=False)
        except TypeError:  # torch before that option
            return create(**address)
    except RuntimeError as error:
        raise OperationFailed(Cause.TRANSIENT, f"rank {join.rank} could not listen at {address}: {error}") from error
