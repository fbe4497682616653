"""What a refit carries and how it lies in the staging buffers: tensor lists, their differences, and the
bucket plan.

Owns names, shapes, dtypes and offsets. Moves nothing between processes; the only bytes it copies are those
of one tensor into its place in a bucket.
"""

from __future__ import annotations

import hashlib
import json
import math
import zlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

DEFAULT_BUCKET_BYTES = 16 << 20
# Every tensor starts at a multiple of this inside its bucket: enough for any dtype to be viewed in place.
ALIGNMENT = 64
_LISTED = 5


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One tensor of a refit. dtype is torch's name without the prefix, such as "bfloat16". Raises
    `ValueError`.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str

    def __post_init__(self) -> None:
        if not isinstance(getattr(torch, self.dtype, None), torch.dtype):
            raise ValueError(f"tensor {self.name!r} has dtype {self.dtype!r}, which this torch does not know")
        if any(size < 0 for size in self.shape):
            raise ValueError(f"tensor {self.name!r} has a negative size in its shape {list(self.shape)}")

    @classmethod
    def of(cls, name: str, tensor: Tensor) -> TensorSpec:
        """The spec of a dense tensor on any device, the meta device included. Raises `ValueError` for
        others.
        """
        if not isinstance(tensor, Tensor):
            raise ValueError(f"{name!r} is not a tensor but a {type(tensor).__name__}")
        if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_nested:
            raise ValueError(f"tensor {name!r} is not a plain dense tensor (layout {tensor.layout}, {tensor.dtype})")
        return cls(name, tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))

    def __str__(self) -> str:
        return f"{self.name} {list(self.shape)} {self.dtype}"

    @property
    def torch_dtype(self) -> torch.dtype:
        """The dtype as torch's object."""
        dtype: torch.dtype = getattr(torch, self.dtype)
        return dtype

    @property
    def nbytes(self) -> int:
        """Bytes of its elements, without gaps."""
        return math.prod(self.shape) * self.torch_dtype.itemsize


@dataclass(frozen=True)
class Manifest:
    """The tensors of one refit, in the order in which they are sent. Raises `ValueError` for a duplicate
    name.
    """

    specs: tuple[TensorSpec, ...]

    def __post_init__(self) -> None:
        twice = [name for name, times in Counter(spec.name for spec in self.specs).items() if times > 1]
        if twice:
            raise ValueError(f"a manifest names each tensor once; named more than once: {_some(twice)}")

    @classmethod
    def from_tensors(cls, named_tensors: Iterable[tuple[str, Tensor]]) -> Manifest:
        """The manifest of these tensors. Walks the iterable once and keeps no tensor, so it may produce
        them lazily.

        Two names may share one storage (tied weights): each is carried. Raises `ValueError` for a duplicate
        name and for a tensor that is not dense.
        """
        return cls(tuple(TensorSpec.of(name, tensor) for name, tensor in named_tensors))

    @cached_property
    def digest(self) -> str:
        """Hex SHA-256 of names, shapes, dtypes and their order."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()

    @cached_property
    def nbytes(self) -> int:
        """Bytes of all tensors, without gaps."""
        return sum(spec.nbytes for spec in self.specs)

    def __len__(self) -> int:
        return len(self.specs)

    def to_json(self) -> str:
        """One canonical JSON text: equal manifests give equal texts."""
        return json.dumps([[s.name, list(s.shape), s.dtype] for s in self.specs], separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Manifest:
        """Inverse of `to_json`. Raises `ValueError` for anything else."""
        return cls._from_rows(json.loads(text))

    @classmethod
    def _from_rows(cls, rows: Any) -> Manifest:
        try:
            return cls(tuple(TensorSpec(str(n), tuple(int(k) for k in shape), str(t)) for n, shape, t in rows))
        except TypeError as error:
            raise ValueError(f"not a manifest: {error}") from error

    def differences(self, other: Manifest) -> tuple[str, ...]:
        """How `other` (what is offered) departs from this one (what is expected). Empty: the same tensors.

        Their order is not a difference, since tensors are handed on by name. The answer stays short however
        long
        the lists are: each kind of difference is counted, and a few of its cases are named.
        """
        mine = {spec.name: spec for spec in self.specs}
        theirs = {spec.name: spec for spec in other.specs}
        both = [(spec, theirs[name]) for name, spec in mine.items() if name in theirs]
        kinds = (
            ("missing", [name for name in mine if name not in theirs]),
            ("unexpected", [name for name in theirs if name not in mine]),
            (
                "shape",
                [f"{a.name} {list(a.shape)} -> {list(b.shape)}" for a, b in both if a.shape != b.shape],
            ),
            ("dtype", [f"{a.name} {a.dtype} -> {b.dtype}" for a, b in both if a.dtype != b.dtype]),
        )
        words = {"shape": "other shape (expected -> offered)", "dtype": "other dtype (expected -> offered)"}
        return tuple(
            f"{len(cases)} {words.get(kind, kind)} of {len(theirs if kind == 'unexpected' else mine)}: {_some(cases)}"
            for kind, cases in kinds
            if cases
        )


@dataclass(frozen=True, slots=True)
class Slot:
    """Where one tensor lies in its bucket. offset: bytes from the start of the bucket."""

    spec: TensorSpec
    offset: int


@dataclass(frozen=True, slots=True)
class Bucket:
    """Consecutive tensors that travel as one message of `nbytes` bytes."""

    slots: tuple[Slot, ...]
    nbytes: int


@dataclass(frozen=True)
class BucketPlan:
    """How a manifest is cut into buckets. Every rank derives the same buckets from it.

    bucket_bytes: the size that a bucket does not exceed unless a single tensor does; such a tensor gets a
    bucket of its own. Raises `ValueError` unless it is positive.
    """

    manifest: Manifest
    bucket_bytes: int = DEFAULT_BUCKET_BYTES

    def __post_init__(self) -> None:
        if self.bucket_bytes < 1:
            raise ValueError(f"bucket_bytes must be positive, got {self.bucket_bytes}")

    @cached_property
    def digest(self) -> str:
        """Hex SHA-256 of the manifest and the bucket size."""
        return hashlib.sha256(f"{self.bucket_bytes}:{self.manifest.digest}".encode()).hexdigest()

    @cached_property
    def buckets(self) -> tuple[Bucket, ...]:
        """The buckets in the order in which they travel. Tensors without bytes lie in them as well."""
        buckets: list[Bucket] = []
        slots: list[Slot] = []
        end = 0
        for spec in self.manifest.specs:
            offset = -(-end // ALIGNMENT) * ALIGNMENT
            if slots and offset + spec.nbytes > self.bucket_bytes:
                buckets.append(Bucket(tuple(slots), end))
                slots, offset = [], 0
            slots.append(Slot(spec, offset))
            end = offset + spec.nbytes
        if slots:
            buckets.append(Bucket(tuple(slots), end))
        return tuple(buckets)

    def to_bytes(self) -> bytes:
        """What the root publishes. Compressed: names of thousands of layers repeat themselves."""
        return zlib.compress(f"[{self.bucket_bytes},{self.manifest.to_json()}]".encode())

    @classmethod
    def from_bytes(cls, data: bytes) -> BucketPlan:
        """Inverse of `to_bytes`. Raises `ValueError` for anything else."""
        try:
            bucket_bytes, rows = json.loads(zlib.decompress(data))
        except (zlib.error, TypeError) as error:
            raise ValueError(f"not a bucket plan: {error}") from error
        return cls(Manifest._from_rows(rows), int(bucket_bytes))


def slot_bytes(staging: Tensor, slot: Slot) -> Tensor:
    """The bytes of one tensor inside a flat uint8 buffer."""
    return staging[slot.offset : slot.offset + slot.spec.nbytes]


def slot_view(staging: Tensor, slot: Slot) -> Tensor:
    """One tensor inside a flat uint8 buffer, in its own dtype and shape, without a copy."""
    return slot_bytes(staging, slot).view(slot.spec.torch_dtype).view(slot.spec.shape)


def pack(staging: Tensor, slot: Slot, tensor: Tensor) -> None:
    """Copy one tensor into its place, whatever its strides and device. Raises what torch raises."""
    source = tensor.detach()
    try:
        slot_view(staging, slot).copy_(source)
    except NotImplementedError:
        # The sub-byte dtypes have no copy kernel of their own; their bytes do.
        slot_bytes(staging, slot).copy_(source.contiguous().reshape(-1).view(torch.uint8))


def _some(cases: Sequence[str]) -> str:
    rest = len(cases) - _LISTED
    return ", ".join(cases[:_LISTED]) + (f" and {rest} more" if rest > 0 else "")
