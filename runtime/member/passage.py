"""Passage: how one rank carries one version through the buckets of its group, sending or receiving."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import xxhash
from torch import Tensor

from ...spec.lifecycle.events import Cause, Progress
from ..messages import Entry, Receipt, Transfer
from .group import Pending, RefitGroup
from .manifest import Bucket, BucketPlan, slot_bytes, slot_view
from .seat import Operation, Seat
from .tensors import Accept, NamedTensors, pack, spec_of, user_tensors
from .waits import OperationFailed


class Passage:
    """One transfer on one rank: the gate, the buckets one after the other, the comparison at the end.

    At most two buckets are alive: while one travels, the other is filled (root) or handed on (receiver). A
    buffer that a broken collective may still write into is never used again, since it stays with its group.
    """

    def __init__(
        self, request: Transfer, operation: Operation, seat: Seat, group: RefitGroup, plan: BucketPlan
    ) -> None:
        self._request = request
        self._operation = operation
        self._seat = seat
        self._group = group
        self._plan = plan
        self._staging: list[Tensor | None] = [None, None]
        self._hasher = xxhash.xxh3_128() if request.verify else None
        self.tensors = 0
        self.bytes = 0
        operation.buckets = len(plan.buckets)

    @property
    def digest(self) -> str | None:
        """Hex xxh3_128 of all tensor bytes so far; None unless asked to verify."""
        return None if self._hasher is None else self._hasher.hexdigest()

    def enter(self, ahead: BucketPlan) -> None:
        """The gate: return only when every rank is in, for the same version and by the same plan.

        ahead: the plan that this rank is about to follow. Nothing has moved yet, so whoever is missing
        tears nobody.
        """
        mine = Entry(version=self._request.version, plan=ahead.digest)
        entries = [Entry.decode(row) for row in self._exchange(mine.encode(), "the gate")]
        others = [f"rank {rank} {entry.version}" for rank, entry in enumerate(entries) if entry.version != mine.version]
        if others:
            raise OperationFailed(
                Cause.CLAIM,
                f"rank {self._seat.rank} entered the transfer of {mine.version}, {', '.join(others)}",
            )
        if entries[0].plan != self._plan.digest:
            changes = "; ".join(self._plan.manifest.differences(ahead.manifest)) or "see the failure of rank 0"
            raise OperationFailed(
                Cause.MANIFEST,
                f"rank 0 is about to send other tensors than it published when it joined: {changes}",
            )

    def send(self, source: NamedTensors) -> None:
        """The root: pack the next bucket while the one before travels."""
        tensors = user_tensors(source, "named_tensors")
        before: Pending | None = None
        for index, bucket in enumerate(self._plan.buckets):
            staging = self._take_staging(index)
            for slot in bucket.slots:
                self._operation.cancellation.check()
                name, tensor = self._next(tensors) or ("the end of named_tensors", None)
                found = None if tensor is None else spec_of(name, tensor)
                if found != slot.spec or tensor is None:
                    raise OperationFailed(
                        Cause.MANIFEST, f"named_tensors yields {found or name}, but {slot.spec} was published"
                    )
                pack(staging, slot, tensor)
            self._count(bucket, staging)
            self._finish(before, index - 1)
            # Before the last bucket leaves: afterwards receivers would take an incomplete list for the whole.
            extra = self._next(tensors) if bucket is self._plan.buckets[-1] else None
            if extra is not None:
                raise OperationFailed(
                    Cause.MANIFEST, f"named_tensors yields {extra[0]!r} after all {self.tensors} published tensors"
                )
            before = self._start(staging)
        self._finish(before, self._operation.buckets - 1)

    def _next(self, tensors: Iterator[tuple[str, Tensor]]) -> tuple[str, Tensor] | None:
        with self._operation.calling("named_tensors"):
            return next(tensors, None)

    def receive(self, sink: Accept | None) -> None:
        """All others: while a bucket is handed on, the next one arrives. Without a sink it is discarded."""
        buckets = self._plan.buckets
        coming = self._start(self._take_staging(0)) if buckets else None
        for index, bucket in enumerate(buckets):
            self._finish(coming, index)
            staging = self._staging_of(index)
            coming = self._start(self._take_staging(index + 1)) if index + 1 < len(buckets) else None
            # Digested before it is handed on: a sink may write into what it is given.
            self._count(bucket, staging)
            if sink is not None:
                self._hand_on(sink, bucket, staging)

    def exchange_receipts(self) -> list[Receipt]:
        """What every rank counted and digested, by rank."""
        mine = Receipt(digest=self.digest or "", tensors=self.tensors, nbytes=self.bytes)
        return [Receipt.decode(row) for row in self._exchange(mine.encode(), "the comparison of digests")]

    def _hand_on(self, sink: Accept, bucket: Bucket, staging: Tensor) -> None:
        with self._operation.cancellation.changed:
            # Decided together: after a departure was answered, no weight of this rank changes any more.
            self._operation.cancellation.check()
            self._seat.progress = Progress.PARTIAL
        try:
            with self._operation.calling("accept"):
                sink([(slot.spec.name, slot_view(staging, slot)) for slot in bucket.slots])
        except Exception as error:
            raise OperationFailed(Cause.REJECTED, f"accept raised {type(error).__name__}: {error}") from error

    def _start(self, staging: Tensor) -> Pending | None:
        # Nothing travels for a bucket of tensors without elements.
        return self._group.start_broadcast(staging, timeout_s=self._request.timeout_s) if len(staging) else None

    def _finish(self, pending: Pending | None, index: int) -> None:
        if pending is not None:
            what = f"bucket {index + 1} of {self._operation.buckets} of version {self._request.version}"
            cancellation, timeout_s = self._operation.cancellation, self._request.timeout_s
            self._group.finish(pending, cancellation=cancellation, timeout_s=timeout_s, what=what)
        self._operation.bucket = index + 1

    def _exchange(self, row: bytes, what: str) -> list[bytes]:
        what = f"{what} of version {self._request.version}"
        cancellation, timeout_s = self._operation.cancellation, self._request.timeout_s
        return self._group.exchange(row, cancellation=cancellation, timeout_s=timeout_s, what=what)

    def _count(self, bucket: Bucket, staging: Tensor) -> None:
        self.tensors += len(bucket.slots)
        self.bytes += sum(slot.spec.nbytes for slot in bucket.slots)
        if self._hasher is not None:
            here = staging.cpu()
            for slot in bucket.slots:
                self._hasher.update(slot_bytes(here, slot).numpy().data)

    def _take_staging(self, index: int) -> Tensor:
        """The buffer for a bucket: that of the one before the last, which is done with."""
        nbytes = self._plan.buckets[index].nbytes
        held = self._staging[index % 2]
        if held is None or len(held) < nbytes:
            # The smaller one goes before the larger one comes.
            held = self._staging[index % 2] = None
            held = self._staging[index % 2] = torch.empty(nbytes, dtype=torch.uint8, device=self._group.device)
        return held[:nbytes]

    def _staging_of(self, index: int) -> Tensor:
        held = self._staging[index % 2]
        assert held is not None
        return held[: self._plan.buckets[index].nbytes]
