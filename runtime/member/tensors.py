"""The user's two callables: one that yields named tensors, one that accepts them.

Whatever goes wrong inside them, or with a tensor that came out of them, is an `OperationFailed` that says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from torch import Tensor

from ...spec.lifecycle.events import Cause
from . import manifest
from .manifest import Manifest, Slot, TensorSpec
from .waits import OperationFailed

NamedTensors = Callable[[], Iterable[tuple[str, Tensor]]]
Accept = Callable[[Sequence[tuple[str, Tensor]]], object]


def stating(what: Manifest | NamedTensors, name: str) -> Callable[[], Manifest]:
    """How to find out what a callable of that name yields: by walking it, each time, unless it is stated already."""
    if isinstance(what, Manifest):
        return lambda: what

    def walk() -> Manifest:
        specs = tuple(spec_of(*pair) for pair in user_tensors(what, name))
        try:
            return Manifest(specs)
        except ValueError as error:
            raise OperationFailed(Cause.MANIFEST, str(error)) from error

    return walk


def user_tensors(source: NamedTensors, name: str) -> Iterator[tuple[str, Tensor]]:
    """What the user's callable yields. Its exceptions are its own and are named as such."""
    try:
        for pair in source():
            if not (isinstance(pair, tuple | list) and len(pair) == 2 and isinstance(pair[0], str)):
                raise OperationFailed(
                    Cause.REJECTED, f"{name} must yield pairs (name, tensor), it yielded {pair!r:.80}"
                )
            yield pair[0], pair[1]
    except OperationFailed:
        raise
    except Exception as error:
        raise OperationFailed(Cause.REJECTED, f"{name} raised {type(error).__name__}: {error}") from error


def spec_of(name: str, tensor: Tensor) -> TensorSpec:
    """What can be published about one tensor."""
    try:
        return TensorSpec.of(name, tensor)
    except ValueError as error:
        raise OperationFailed(Cause.MANIFEST, str(error)) from error


def pack(staging: Tensor, slot: Slot, tensor: Tensor) -> None:
    """Copy one tensor into its place in a bucket."""
    try:
        manifest.pack(staging, slot, tensor)
    except (RuntimeError, NotImplementedError) as error:
        raise OperationFailed(Cause.MANIFEST, f"tensor {slot.spec.name!r} cannot be copied: {error}") from error
