"""The demo's text: source files of Python's own standard library, which every machine that runs us already has.

Owns which bytes are learned from and which are held out. Reads files once; downloads nothing.
"""

from __future__ import annotations

import random
import sysconfig
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

PACKAGES = (
    "asyncio",
    "collections",
    "email",
    "http",
    "importlib",
    "json",
    "logging",
    "multiprocessing",
    "unittest",
    "urllib",
)
# Written by the distributor or the administrator, so they differ between machines that run the same Python.
LOCAL_MODULES = ("_sysconfigdata", "sitecustomize", "usercustomize", "test")
MAX_BYTES = 4 * 2**20
MIN_BYTES = 256 * 2**10
HELD_OUT_EVERY = 16


class CorpusTooSmall(RuntimeError):
    """This Python comes with too little of its own source text to learn from."""


@dataclass(frozen=True, slots=True, eq=False)
class Corpus:
    """Bytes to learn from (`train`) and bytes never learned from (`held_out`): uint8 tensors of one dimension."""

    train: Tensor
    held_out: Tensor
    files: int

    def batch(self, *, seed: int, step: int, size: int, length: int) -> Tensor:
        """`size` windows of `length + 1` training bytes, int64 `[size, length + 1]`: a function of (seed, step)."""
        # Not a torch generator: it keeps only 32 bits of its seed, too few to tell every (seed, step) apart.
        draw = random.Random(f"{seed}/{step}")
        return windows(self.train, [draw.randrange(len(self.train) - length) for _ in range(size)], length)

    def held_out_batch(self, *, size: int, length: int) -> Tensor:
        """`size` windows spread evenly over the held-out bytes, int64 `[size, length + 1]`: always the same ones."""
        stride = (len(self.held_out) - length) // size
        return windows(self.held_out, [row * stride for row in range(size)], length)


def windows(text: Tensor, starts: list[int], length: int) -> Tensor:
    """One row of `length + 1` bytes for each start: `length` inputs, each with the byte that follows it."""
    return torch.stack([text[start : start + length + 1] for start in starts]).long()


def source_files(root: Path) -> list[Path]:
    """The modules at the top of `root` and in `PACKAGES`, in an order that depends on their names alone."""
    found = list(root.glob("*.py"))
    for package in PACKAGES:
        found += root.glob(f"{package}/*.py")
    kept = (path for path in found if not path.name.startswith(LOCAL_MODULES))
    return sorted(kept, key=lambda path: path.relative_to(root).as_posix())


@lru_cache(maxsize=2)
def load_corpus(root: Path | None = None) -> Corpus:
    """The corpus of this Python (`root`: its standard library by default), at most `MAX_BYTES` long.

    Two processes under the same Python read the same corpus. Raises `CorpusTooSmall` under `MIN_BYTES`.
    """
    root = root or Path(sysconfig.get_path("stdlib"))
    texts: list[bytes] = []
    total = 0
    for path in source_files(root):
        text = path.read_bytes()
        if total + len(text) > MAX_BYTES:
            break
        texts.append(text)
        total += len(text)
    if total < MIN_BYTES:
        raise CorpusTooSmall(
            f"the demo learns from the standard library's source, and {root} holds {total} bytes of it in "
            f"{len(texts)} .py files where at least {MIN_BYTES} are needed: run it with a Python that was "
            "installed with its .py files"
        )
    # Whole files are held out: windows cut from one file would share its names and phrases with the training part.
    train = [text for index, text in enumerate(texts) if index % HELD_OUT_EVERY]
    held_out = [text for index, text in enumerate(texts) if index % HELD_OUT_EVERY == 0]
    return Corpus(train=as_tensor(train), held_out=as_tensor(held_out), files=len(texts))


def as_tensor(texts: list[bytes]) -> Tensor:
    """The texts end to end, as a uint8 tensor that owns its memory."""
    return torch.frombuffer(bytearray(b"".join(texts)), dtype=torch.uint8)
