"""What the demo's trainer and shards do between refits: learn, write text, and prove which weights they hold.

Owns the proof. A trainer and a shard run the same code over the same held-out bytes, so equal proofs from two
processes mean equal weights and equal arithmetic. Moves no weights: the transport does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
import xxhash
from torch import Tensor

from .corpus import Corpus, load_corpus
from .model import ByteModel, ModelShape, generate

TRAIN_WINDOWS = 8
PROOF_WINDOWS = 4
PEAK_LEARNING_RATE = 7e-4
WARM_UP_STEPS = 5
PROMPT = "def "


class UnacceptableTensor(ValueError):
    """A tensor was offered that the model does not have under that name, shape and type. Nothing was copied."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """Which weights a process holds and what they compute. Equal exactly when both are, bit for bit.

    digest: xxh3_128 over every tensor's name, type, shape and bytes, in the order of the names, as hex.
    heldout_loss_hex: the float32 of the held-out loss, as the hex of its IEEE 754 bits. Processes on different kinds
    of CPU may round differently, and then show other bits here for equal digests.
    heldout_loss: the same in nats a byte, for people. tensors, nbytes: how much was hashed.
    """

    digest: str
    heldout_loss_hex: str
    heldout_loss: float = field(compare=False)
    tensors: int = field(compare=False)
    nbytes: int = field(compare=False)

    def __str__(self) -> str:
        return f"{self.digest[:12]}/{self.heldout_loss_hex} (held-out loss {self.heldout_loss:.4f})"


class Workload:
    """A model, the corpus, and the proof: what a trainer and a shard have in common."""

    def __init__(self, *, seed: int, shape: ModelShape | None = None) -> None:
        use_one_thread()
        self.seed = seed
        self.model = ByteModel(seed=seed, shape=shape or ModelShape()).eval()
        self.corpus: Corpus = load_corpus()
        self._tensors = dict(tensors_of(self.model))

    def named_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Every parameter and buffer with its name, each once: the live memory, not a copy, without gradients."""
        yield from self._tensors.items()

    def trained_steps(self) -> int:
        """How many optimiser steps these weights have seen; it travels with them."""
        return int(self.model.trained_steps)

    def proof(self) -> Proof:
        """Hash the weights and evaluate them on the fixed held-out bytes. Changes nothing."""
        use_one_thread()
        windows = self.corpus.held_out_batch(size=PROOF_WINDOWS, length=self.model.shape.context)
        with torch.no_grad():
            loss = self.model.loss(windows)
        return Proof(
            digest=digest(self._tensors),
            heldout_loss_hex=f"{int(loss.view(torch.int32)) & 0xFFFFFFFF:08x}",
            heldout_loss=float(loss),
            tensors=len(self._tensors),
            nbytes=sum(tensor.nbytes for tensor in self._tensors.values()),
        )

    def generate(self, prompt: str = PROMPT, n_bytes: int = 80, *, seed: int = 0) -> str:
        """The text that follows `prompt` under these weights; equal weights and seed give equal text."""
        use_one_thread()
        return generate(self.model, prompt, n_bytes, seed=seed)


class TrainerWorkload(Workload):
    """Learns the corpus. Two trainers with one seed and the same steps hold the same weights, bit for bit."""

    def __init__(self, *, seed: int, windows: int = TRAIN_WINDOWS, shape: ModelShape | None = None) -> None:
        super().__init__(seed=seed, shape=shape)
        self._windows = windows
        self._optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=PEAK_LEARNING_RATE, betas=(0.9, 0.95), weight_decay=0.01
        )

    def train_step(self, step: int) -> float:
        """One optimiser step on the batch of (seed, step). Returns its loss before the step, in nats a byte."""
        use_one_thread()
        batch = self.corpus.batch(seed=self.seed, step=step, size=self._windows, length=self.model.shape.context)
        warmth = min(1.0, (self.trained_steps() + 1) / WARM_UP_STEPS)
        self._optimizer.param_groups[0]["lr"] = PEAK_LEARNING_RATE * warmth
        self._optimizer.zero_grad()
        loss = self.model.loss(batch)
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self._optimizer.step()
        self.model.trained_steps += 1
        return loss.item()


class ShardWorkload(Workload):
    """Serves text. Its seed gives the start-up weights, which a refit replaces: use another seed than the trainer's."""

    def expects(self) -> Iterator[tuple[str, Tensor]]:
        """Every tensor that `accept` takes, with the live memory that it would be copied into."""
        return self.named_tensors()

    def accept(self, tensors: Sequence[tuple[str, Tensor]]) -> None:
        """Copy the tensors into the model's own memory. All are checked before the first is copied.

        Raises `UnacceptableTensor` for an unknown name, another shape, or another type: a copy would stretch or
        convert it in silence.
        """
        for name, tensor in tensors:
            own = self._tensors.get(name)
            if own is None:
                raise UnacceptableTensor(f"the model has no tensor {name!r}; it has {len(self._tensors)}")
            if (tensor.shape, tensor.dtype) != (own.shape, own.dtype):
                raise UnacceptableTensor(
                    f"tensor {name!r} is {tensor.dtype} {tuple(tensor.shape)}, "
                    f"the model's own is {own.dtype} {tuple(own.shape)}"
                )
        with torch.no_grad():
            for name, tensor in tensors:
                self._tensors[name].copy_(tensor)


def use_one_thread() -> None:
    """Let torch compute on one thread: sums over several are split by their number, which changes the last bits.

    Asked for at every entry and never undone: the setting belongs partly to the calling thread and partly to the
    process, and putting it back would pull it from under another thread's proof.
    """
    if torch.get_num_threads() != 1:
        torch.set_num_threads(1)


def tensors_of(model: ByteModel) -> Iterator[tuple[str, Tensor]]:
    """The model's parameters and buffers, sharing its memory, without gradients."""
    for name, parameter in model.named_parameters():
        yield name, parameter.detach()
    yield from model.named_buffers()


def digest(tensors: dict[str, Tensor]) -> str:
    """xxh3_128 over names, types, shapes and bytes in the order of the names, as 32 hex digits."""
    state = xxhash.xxh3_128()
    for name, tensor in sorted(tensors.items()):
        state.update(repr((name, str(tensor.dtype), tuple(tensor.shape))).encode())
        # Hashed as bytes: a comparison of numbers would take -0.0 for 0.0 and know no NaN.
        state.update(tensor.reshape(-1).view(torch.uint8).cpu().numpy().data)
    return state.hexdigest()
