"""A byte-level, decoder-only transformer, small enough to train on one slow core. Plain torch, float32.

Owns the network, its initial weights and how it writes text. Pre-norm; one embedding for input and output (tied), so
that a tensor which serves two places is carried once, as in real models. Positions are relative: each head pays less
attention to a byte the farther back it is (ALiBi, arXiv:2108.12409), which makes a few steps enough to learn something.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

BYTES = 256
KeyValue = tuple[Tensor, Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """Sizes of the network; `context` is how many bytes it sees at once. The default has 7.5 M parameters.

    Raises `ValueError` when the heads do not divide the width, or the context is shorter than 2 bytes.
    """

    width: int = 320
    layers: int = 6
    heads: int = 5
    context: int = 128

    def __post_init__(self) -> None:
        if self.width % self.heads:
            raise ValueError(f"width ({self.width}) must be a multiple of heads ({self.heads})")
        if self.context < 2:
            raise ValueError(f"context must be at least 2 bytes, got {self.context}")


class Block(nn.Module):
    """Causal self-attention, then a feed-forward part four times as wide; each reads a normalised input."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.attention_norm = nn.LayerNorm(shape.width)
        self.query_key_value = nn.Linear(shape.width, 3 * shape.width)
        self.attention_out = nn.Linear(shape.width, shape.width)
        self.feed_norm = nn.LayerNorm(shape.width)
        self.feed_in = nn.Linear(shape.width, 4 * shape.width)
        self.feed_out = nn.Linear(4 * shape.width, shape.width)

    def forward(self, x: Tensor, bias: Tensor, past: KeyValue | None) -> tuple[Tensor, KeyValue]:
        """`x` is `[batch, length, width]`, `bias` `[heads, length, past length + length]`, added to the attention."""
        batch, length, width = x.shape
        split = self.query_key_value(self.attention_norm(x)).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = split.permute(2, 0, 3, 1, 4)
        if past is not None:
            key, value = torch.cat((past[0], key), dim=2), torch.cat((past[1], value), dim=2)
        seen = functional.scaled_dot_product_attention(query, key, value, attn_mask=bias.expand(batch, -1, -1, -1))
        x = x + self.attention_out(seen.transpose(1, 2).reshape(batch, length, width))
        x = x + self.feed_out(functional.gelu(self.feed_in(self.feed_norm(x))))
        return x, (key, value)


class ByteModel(nn.Module):
    """Predicts the next byte. Equal seeds and shapes give equal weights, bit for bit; torch's own seed is left alone.

    Two buffers travel with the weights, as in real models: `trained_steps`, an int64 scalar that counts optimiser
    steps, and `distance_penalties`, the loss of attention per byte of distance, one for each head.
    """

    trained_steps: Tensor
    distance_penalties: Tensor

    def __init__(self, *, seed: int, shape: ModelShape) -> None:
        super().__init__()
        self.shape = shape
        with torch.random.fork_rng(devices=[]):  # torch's layers draw weights of their own, replaced below
            self.embedding = nn.Embedding(BYTES, shape.width)
            self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
            self.final_norm = nn.LayerNorm(shape.width)
        # From "the byte before" (4 a byte) to "anywhere in sight" (1/32 a byte).
        self.register_buffer("distance_penalties", 2.0 ** torch.linspace(2, -5, shape.heads))
        self.register_buffer("trained_steps", torch.zeros((), dtype=torch.int64))
        self._draw_weights(torch.Generator().manual_seed(seed))

    def _draw_weights(self, generator: torch.Generator) -> None:
        std = self.shape.width**-0.5
        # What writes into the residual stream starts smaller, so that its size does not grow with the depth.
        residual_std = std * (2 * self.shape.layers) ** -0.5
        for name, parameter in self.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(parameter)
            elif "norm" in name:
                nn.init.ones_(parameter)
            else:
                writes_residual = name.endswith(("attention_out.weight", "feed_out.weight"))
                nn.init.normal_(parameter, std=residual_std if writes_residual else std, generator=generator)

    def forward(self, ids: Tensor, past: list[KeyValue] | None = None) -> tuple[Tensor, list[KeyValue]]:
        """Logits `[batch, length, 256]` for `ids` (int64 `[batch, length]`), and the keys and values seen so far."""
        before = past[0][0].shape[2] if past else 0
        length = ids.shape[1]
        distance = torch.arange(before, before + length)[:, None] - torch.arange(before + length)[None, :]
        bias = -self.distance_penalties[:, None, None] * distance
        bias = bias.masked_fill(distance < 0, float("-inf"))  # nobody sees what comes later
        x = self.embedding(ids)
        seen: list[KeyValue] = []
        for index, block in enumerate(self.blocks):
            x, pair = block(x, bias, past[index] if past else None)
            seen.append(pair)
        return functional.linear(self.final_norm(x), self.embedding.weight), seen

    def loss(self, windows: Tensor) -> Tensor:
        """Mean cross-entropy in nats a byte over windows of `length + 1` bytes; ln 256 = 5.55 knows nothing."""
        logits, _ = self(windows[:, :-1])
        return functional.cross_entropy(logits.reshape(-1, BYTES), windows[:, 1:].reshape(-1))


@torch.no_grad()
def generate(model: ByteModel, prompt: str, n_bytes: int, *, seed: int, temperature: float = 0.7) -> str:
    """What the model writes after `prompt` (not repeated), `n_bytes` long; bytes that are no UTF-8 become U+FFFD.

    Equal weights, prompt and seed give equal text. Raises `ValueError` for a negative `n_bytes`.
    """
    if n_bytes < 0:
        raise ValueError(f"n_bytes must not be negative, got {n_bytes}")
    context = model.shape.context
    draw = random.Random(seed)
    unread = list(prompt.encode() or b"\n")[-context:]
    past: list[KeyValue] | None = None
    written = bytearray()
    while len(written) < n_bytes:
        logits, past = model(torch.tensor([unread]), past)
        past = [(key[:, :, 1 - context :], value[:, :, 1 - context :]) for key, value in past]
        cumulative = torch.softmax(logits[0, -1].double() / temperature, dim=0).cumsum(dim=0)
        # The sum may end a hair below 1, and the draw above it.
        written.append(min(int(torch.searchsorted(cumulative, draw.random())), BYTES - 1))
        unread = [written[-1]]
    return written.decode("utf-8", errors="replace")
