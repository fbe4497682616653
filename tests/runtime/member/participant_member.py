"""Real member processes for the tests of the participant, started in milliseconds.

Run as a script it imports torch once and then forks a member for every connection that it is handed. A
member holds one participant and answers, each in a thread of its own, `(number, what)` with `(number,
answer)`: `what` is a request to the participant, or a `Command` to the process itself. It reports
`("accepted", n)` after the n-th bucket.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

import torch
import xxhash
from torch import Tensor

from reknit.runtime.member import Participant
from reknit.runtime.member.graveyard import buried_groups


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a member is.

    sizes: tensors of so many bytes. tied: how often a trainer carries each of them, under different names.
    hold_at: a shard stops inside this accept, counted from 1, until it is released. discard: it keeps
    nothing.
    """

    trainer: bool
    sizes: tuple[int, ...]
    bucket_bytes: int = 4 << 20
    hold_at: int | None = None
    discard: bool = False
    tied: int = 1


@dataclass(frozen=True, kw_only=True)
class Command:
    """To the process, not to its participant; see `Member.obey` and `Member.run` for the names."""

    name: str
    value: Any = None


def fill(sizes: Sequence[int], seed: int) -> dict[str, Tensor]:
    """The weights of one version: the same on every process that is asked for the same seed."""
    generator = torch.Generator().manual_seed(seed)
    return {
        f"layer.{index}": torch.randint(0, 256, (size,), dtype=torch.uint8, generator=generator)
        for index, size in enumerate(sizes)
    }


def digest(weights: dict[str, Tensor]) -> str:
    """Hex xxh3_128 of all bytes in the order of the names' appearance: what a verified transfer must
    report.
    """
    hasher = xxhash.xxh3_128()
    for tensor in weights.values():
        hasher.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return hasher.hexdigest()


@dataclass
class Member:
    plan: Plan
    connection: Connection
    weights: dict[str, Tensor] = field(default_factory=dict)
    accepted: int = 0
    released: threading.Event = field(default_factory=threading.Event)
    sending: threading.Lock = field(default_factory=threading.Lock)

    def run(self) -> None:
        if self.plan.trainer:
            participant = Participant.trainer(self.tensors, bucket_bytes=self.plan.bucket_bytes)
        else:
            participant = Participant.shard(self.accept)
        while True:
            try:
                number, what = self.connection.recv()
            except EOFError:
                os._exit(0)
            if isinstance(what, Command) and what.name == "exit":
                participant.close()
                return
            threading.Thread(target=self.answer, args=(number, what, participant), daemon=True).start()

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        for copy in range(self.plan.tied):
            for name, tensor in self.weights.items():
                yield (f"{copy}.{name}" if copy else name), tensor

    def answer(self, number: int, what: Any, participant: Participant) -> None:
        self.send(number, self.obey(what, participant) if isinstance(what, Command) else participant.handle(what))

    def send(self, key: object, value: object) -> None:
        with self.sending:
            self.connection.send((key, value))

    def accept(self, tensors: Sequence[tuple[str, Tensor]]) -> None:
        self.accepted += 1
        if not self.plan.discard:
            for name, tensor in tensors:
                self.weights[name] = tensor.clone()
        self.send("accepted", self.accepted)
        if self.accepted == self.plan.hold_at:
            self.released.wait()

    def obey(self, command: Command, participant: Participant) -> Any:
        match command.name:
            case "fill":
                self.weights = fill(self.plan.sizes, command.value)
                return digest(self.weights)
            case "release":
                return self.released.set()
            case "digest":
                return digest(self.weights)
            case "progress":
                return participant.status
            case "buried":
                return buried_groups()
            case "fds":
                return len(os.listdir("/proc/self/fd"))
            case "tasks":
                return len(os.listdir("/proc/self/task"))
            case "reset_peak":
                with open("/proc/self/clear_refs", "w") as refs:
                    refs.write("5")
                return _memory("VmRSS")
            case "peak":
                return _memory("VmHWM")
        raise ValueError(f"unknown command {command}")


def _memory(key: str) -> int:
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) << 10 for line in status if line.startswith(key))


def serve(control: socket.socket) -> None:
    """Fork a member for every descriptor that comes through `control`, and answer its process id."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        _, (descriptor, *_), _, _ = socket.recv_fds(control, 1, 1)
        child = os.fork()
        if child:
            os.close(descriptor)
            control.sendall(child.to_bytes(8, "little"))
            continue
        control.close()
        torch.set_num_threads(1)
        connection = Connection(descriptor)
        Member(plan=connection.recv(), connection=connection).run()
        sys.exit(0)


if __name__ == "__main__":
    # Plans and commands are pickled by the tests under the name by which those know this module.
    sys.modules.setdefault("participant_member", sys.modules["__main__"])
    try:
        serve(socket.socket(fileno=int(sys.argv[1])))
    except ValueError:  # the other side is gone
        sys.exit(0)
