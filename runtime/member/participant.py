"""The participant: what one member process does in a refit. A user's actor holds one and hands it requests.

    self.participant = Participant.trainer(model.named_parameters)               # on every trainer rank
    self.participant = Participant.shard(engine.load_weights, expects=manifest)  # on every worker of a shard

    def refit(self, request):        # a method of any actor, with several threads of its own
        return self.participant.handle(request)

`handle` may be called from several threads at once, and has to be: `Leave` must get through while
`Transfer` waits. The participant never touches the process's default group, decides nothing about
membership, and knows no Ray.

Its own rules. It is inside one communicator at most. What belongs to an older stamp is refused and changes
nothing. After `Left` was answered, nothing of that epoch reaches the user's callable any more, and a later
`Join` waits for a call that was already inside it. Success is answered only for a whole version.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable

import psutil
import torch

from ...spec.lifecycle.events import Cause, Progress
from ..messages import (
    Close,
    Closed,
    Failed,
    Hello,
    HelloReply,
    Join,
    Joined,
    Leave,
    Reply,
    Request,
    Status,
    StatusReply,
    Transfer,
    Transferred,
    Watch,
)
from .admission import Admission
from .forming import Forming
from .manifest import DEFAULT_BUCKET_BYTES, BucketPlan, Manifest
from .passage import Passage
from .seat import Operation, Seat
from .store import StoreConnections
from .tensors import Accept, NamedTensors, stating
from .waits import OperationFailed, explain

log = logging.getLogger(__name__)


def _refuse_event_loop() -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise RuntimeError(
        "Participant.handle blocks, and was called on the thread of an event loop: in an asyncio actor write "
        "`return await asyncio.to_thread(self.participant.handle, request)`"
    )


class Participant:
    """One member of refit communicators. Make it with `trainer` or `shard`."""

    def __init__(
        self,
        *,
        source: NamedTensors | None,
        sink: Accept | None,
        states: Callable[[], Manifest] | None,
        bucket_bytes: int,
        device: str | torch.device,
    ) -> None:
        if bucket_bytes < 1:
            raise ValueError(f"bucket_bytes must be positive, got {bucket_bytes}")
        self._source = source
        self._sink = sink
        self._states = states
        self._bucket_bytes = bucket_bytes
        self._device = torch.device(device)
        self._admission = Admission(sends=source is not None, device=self._device)
        self._connections = StoreConnections()
        self._closed = threading.Event()
        self._identity = secrets.token_hex(8)

    @classmethod
    def trainer(
        cls,
        named_tensors: NamedTensors,
        *,
        manifest: Manifest | None = None,
        bucket_bytes: int = DEFAULT_BUCKET_BYTES,
        device: str | torch.device = "cpu",
    ) -> Participant:
        """The participant of a trainer rank. Rank 0 sends; the others take part and discard what comes.

        named_tensors: yields every tensor of the model under its name, always the same list in the same
        order. It is called on rank 0 only and may produce its tensors one by one: each is copied before the
        next is asked for. Tensors of any device, strides and dense dtype.
        manifest: what `named_tensors` yields. Without it the callable is walked once more to find out, at
        every join and before every transfer, so that a change is noticed before anything moves; give it
        when tensors are costly to produce.
        bucket_bytes: how much travels in one message. At most two buckets are in memory at a time.
        device: where this rank's tensors live; with the backend "nccl" the buckets lie there, else in host
        memory.
        Raises `ValueError` for `bucket_bytes` below 1.
        """
        states = stating(manifest if manifest is not None else named_tensors, "named_tensors")
        return cls(source=named_tensors, sink=None, states=states, bucket_bytes=bucket_bytes, device=device)

    @classmethod
    def shard(
        cls,
        accept: Accept,
        *,
        expects: Manifest | NamedTensors | None = None,
        device: str | torch.device = "cpu",
    ) -> Participant:
        """The participant of one worker of a generation shard.

        accept: takes the next tensors of the new version as `(name, tensor)` pairs, some at a time, each
        once. They are views into a buffer and valid only during the call: copy them. An exception means
        that the engine refuses the weights. From the first call to the end of the transfer the engine holds
        a mixture, and must not serve.
        expects: the tensors that this engine takes, as a manifest or a callable that yields them (tensors
        on the meta device will do). If the trainer offers others, forming fails and says which. None takes
        anything.
        device: where this worker's tensors live; with the backend "nccl" the buckets lie there, else in
        host memory.
        """
        states = None if expects is None else stating(expects, "expects")
        return cls(source=None, sink=accept, states=states, bucket_bytes=DEFAULT_BUCKET_BYTES, device=device)

    # --- the outside ----------------------------------------------------------------------------------------

    def handle(self, request: Request) -> Reply:
        """Do what the controller asks and answer. Blocks for `Join`, `Transfer` and `Watch` only.

        Failures are answers, not exceptions. Raises `TypeError` for what is not a request, `RuntimeError` on the
        thread of an event loop, which it would block.
        """
        _refuse_event_loop()
        match request:
            case Hello():
                return self._introduction()
            case Join() | Transfer():
                return self._run_operation(request)
            case Leave():
                return self._admission.leave(request)
            case Status():
                return self.status
            case Watch(identity=identity) if identity != self._identity:
                return self._introduction()
            case Watch():
                self._closed.wait()
                return Closed()
            case Close():
                self.close()
                return Closed()
            case _:
                raise TypeError(f"not a request to a participant: {request!r}")

    def close(self) -> None:
        """Leave, release everything, answer a held `Watch`, join nothing any more. Never blocks."""
        with self._admission.changed:
            self._admission.close()
            self._connections.close()
            self._closed.set()

    @property
    def status(self) -> StatusReply:
        """What it does now, for a heartbeat: a big transfer that moves is not a hang."""
        with self._admission.changed:
            if not self._admission.running:
                return StatusReply(operation="idle")
            now = self._admission.running[-1]
            return StatusReply(operation=now.name, stamp=now.stamp, bucket=now.bucket, buckets=now.buckets)

    def _introduction(self) -> HelloReply:
        return HelloReply(
            identity=self._identity,
            pid=os.getpid(),
            started=psutil.Process().create_time(),
            host=socket.gethostname(),
            device=str(self._device),
        )

    # --- operations -----------------------------------------------------------------------------------------

    def _run_operation(self, request: Join | Transfer) -> Reply:
        operation: Operation | None = None
        try:
            if isinstance(request, Join):
                operation, seat = self._admission.begin_join(request)
                return self._join(request, operation, seat)
            operation, seat = self._admission.begin_transfer(request)
            return self._transfer(request, operation, seat)
        except Exception as error:
            failure = explain(error, operation.cancellation if operation is not None else None)
        finally:
            if operation is not None:
                self._admission.end(operation)
        rank = self._admission.rank_of(request)
        # The texts of the store name its keys. Where members meet is told to nobody who was not asked.
        message = self._admission.without_nonces(str(failure))
        log.warning(
            "operation failed request=%s stamp=%s rank=%s cause=%s message=%r",
            *(type(request).__name__, request.stamp, rank, failure.cause.value, message),
        )
        return Failed(stamp=request.stamp, rank=rank, cause=failure.cause, message=message)

    # --- joining --------------------------------------------------------------------------------------------

    def _join(self, join: Join, operation: Operation, seat: Seat) -> Joined:
        ends = time.monotonic() + join.timeout_s
        wait = operation.cancellation.wait
        # A call of an older epoch may still be inside the user's code. It must not overlap with this epoch.
        if not wait(lambda: self._admission.running[0] is operation, timeout_s=join.timeout_s):
            older = self._admission.running[0]
            raise OperationFailed(
                Cause.DEADLINE,
                f"the {older.name} of stamp {older.stamp} is still inside the user's callable after "
                f"{join.timeout_s:.1f} s; rank {join.rank} cannot join epoch {join.stamp.epoch}",
            )
        attempt = Forming(
            join,
            offers=self._plan_to_send(operation) if join.rank == 0 else None,
            expects=self._expected(operation),
            device=self._device if join.backend == "nccl" else torch.device("cpu"),
            connections=self._connections,
            cancellation=operation.cancellation,
            ends=ends,
        )
        attempt.start()
        try:
            if not wait(lambda: attempt.finished, timeout_s=ends - time.monotonic()):
                raise OperationFailed(
                    attempt.overdue,
                    f"rank {join.rank} of {join.world_size} did not join epoch {join.stamp.epoch} within "
                    f"{join.timeout_s:.1f} s; it was still {attempt.stage}",
                )
            with self._admission.changed:
                operation.cancellation.check()
                group, plan = attempt.adopt()
                seat.group, seat.plan, seat.usable = group, plan, True
        finally:
            attempt.abandon()
        log.info(
            "joined run=%s epoch=%d rank=%d world_size=%d tensors=%d bytes=%d buckets=%d",
            *(join.run, join.stamp.epoch, join.rank, join.world_size),
            *(len(plan.manifest), plan.manifest.nbytes, len(plan.buckets)),
        )
        return Joined(stamp=join.stamp, rank=join.rank, digest=join.charter)

    def _plan_to_send(self, operation: Operation) -> BucketPlan:
        assert self._states is not None, "a trainer states what it sends"
        with operation.calling("named_tensors"):
            return BucketPlan(self._states(), self._bucket_bytes)

    def _expected(self, operation: Operation) -> Manifest | None:
        if self._sink is None or self._states is None:
            return None
        with operation.calling("expects"):
            return self._states()

    # --- transferring ---------------------------------------------------------------------------------------

    def _transfer(self, request: Transfer, operation: Operation, seat: Seat) -> Transferred:
        with self._admission.changed:
            operation.cancellation.check()
            group, plan = seat.group, seat.plan
            assert group is not None
            assert plan is not None
            # Whatever ends this transfer early leaves ranks inside a collective: the group is spent.
            seat.usable = False
        begun = time.monotonic()
        passage = Passage(request, operation, seat, group, plan)
        passage.enter(self._plan_to_send(operation) if seat.rank == 0 else plan)
        if seat.rank == 0:
            assert self._source is not None
            passage.send(self._source)
        else:
            passage.receive(self._sink)
        receipts = passage.exchange_receipts() if request.verify else []
        strangers = [rank for rank, receipt in enumerate(receipts) if receipt != receipts[0]]
        with self._admission.changed:
            operation.cancellation.check()
            if seat.rank not in strangers:
                # What it holds is what the root sent, even if somebody else's is not.
                seat.progress = Progress.COMPLETE
                self._admission.held = request.version
            if strangers:
                raise OperationFailed(
                    Cause.PEER,
                    f"rank 0 sent version {request.version} as {receipts[0]}, but other bytes arrived: "
                    + "; ".join(f"rank {rank} {receipts[rank]}" for rank in strangers),
                )
            seat.usable = True
        seconds = time.monotonic() - begun
        log.info(
            "transferred stamp=%s rank=%d version=%s tensors=%d bytes=%d seconds=%.3f",
            *(request.stamp, seat.rank, request.version, passage.tensors, passage.bytes, seconds),
        )
        return Transferred(
            stamp=request.stamp,
            rank=seat.rank,
            version=request.version,
            digest=passage.digest,
            tensors=passage.tensors,
            bytes=passage.bytes,
            seconds=seconds,
        )
