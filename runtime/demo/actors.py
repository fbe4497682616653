"""The demo's own Ray actors: a trainer and a generation worker, each with its model and a participant beside it.

This is all that a trainer's actors need of reknit: an object that they hold, and one method that hands it requests.
There is nothing here to make an actor fail; the demo kills it from outside.
"""

from __future__ import annotations

import os
from typing import Any

import ray

from ..member import Participant
from ..messages import Reply, Request
from .workload import Proof, ShardWorkload, TrainerWorkload

TRAINER_SEED = 1


@ray.remote(num_cpus=0, concurrency_groups={"reknit": 4})  # type: ignore[call-overload]
class TrainerActor:
    """One trainer rank. All ranks have one seed and see the same batches, so their weights are equal."""

    def __init__(self) -> None:
        self.workload = TrainerWorkload(seed=TRAINER_SEED)
        self.participant = Participant.trainer(self.workload.named_tensors)

    @ray.method(concurrency_group="reknit")
    def reknit(self, request: Request) -> Reply:
        """Hand a request of the controller to the participant."""
        return self.participant.handle(request)

    def train_step(self, step: int) -> float:
        """One optimiser step; its loss."""
        return self.workload.train_step(step)

    def proof(self) -> Proof:
        """Which weights this process holds."""
        return self.workload.proof()


@ray.remote(num_cpus=0, concurrency_groups={"reknit": 4})  # type: ignore[call-overload]
class ShardActor:
    """One worker of a generation shard. It starts with weights of its own, which no trainer ever had."""

    def __init__(self, slot: int, incarnation: int, worker: int) -> None:
        self.workload = ShardWorkload(seed=1000 + 100 * slot + 10 * worker + incarnation)
        self.participant = Participant.shard(self.workload.accept, expects=self.workload.expects)

    @ray.method(concurrency_group="reknit")
    def reknit(self, request: Request) -> Reply:
        """Hand a request of the controller to the participant."""
        return self.participant.handle(request)

    def proof(self) -> Proof:
        """Which weights this process holds."""
        return self.workload.proof()

    def generate(self, prompt: str, n_bytes: int) -> str:
        """Text under the weights that it holds."""
        return self.workload.generate(prompt, n_bytes)

    def pid(self) -> int:
        """The process to kill."""
        return os.getpid()


def start_shard(slot: int, incarnation: int, workers: int) -> list[Any]:
    """The actors of one shard, in rank order. They load in the background."""
    # Ray's decorator hides the constructor from the type checker.
    make: Any = ShardActor
    return [make.remote(slot, incarnation, worker) for worker in range(workers)]
