"""Embed reknit in a trainer of your own: own actors, own model, own process groups. Run it: python own_trainer.py

Two data-parallel trainer ranks average their gradients over their own default process group, which reknit never
touches. Two generation engines receive the weights. One engine is killed; the run goes on, and its replacement
comes back. Needs reknit with its extra `ray`. (Ray itself leaves its logs in /tmp/ray.)
"""

import os
import signal
import socket
import time

import ray
import torch
import torch.distributed as dist

from reknit import Participant, RefitConfig, refit_controller


def make_model() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.Tanh(), torch.nn.Linear(256, 1))


@ray.remote(num_cpus=0, concurrency_groups={"reknit": 4})
class MyTrainer:
    def __init__(self, rank: int, world_size: int, port: int) -> None:
        dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=world_size)
        torch.manual_seed(0)
        self.model = make_model()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05)
        self.random = torch.Generator().manual_seed(rank)
        # 1. The trainer side: a callable that yields named tensors.
        self.participant = Participant.trainer(self.model.state_dict().items)

    @ray.method(concurrency_group="reknit")
    def reknit(self, request):
        return self.participant.handle(request)

    def train(self) -> float:
        inputs = torch.randn(32, 64, generator=self.random)
        loss = (self.model(inputs) - inputs.sum(dim=1, keepdim=True)).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        for parameter in self.model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
        self.optimizer.step()
        return loss.item()

    def answer(self, seed: int) -> float:
        return ask(self.model, seed)


@ray.remote(num_cpus=0, concurrency_groups={"reknit": 4})
class MyEngine:
    def __init__(self) -> None:
        self.model = make_model()
        # 2. The generation side: a callable that accepts them, and what it expects to be given.
        self.participant = Participant.shard(self.load_weights, expects=self.model.state_dict().items)

    @ray.method(concurrency_group="reknit")
    def reknit(self, request):
        return self.participant.handle(request)

    def load_weights(self, tensors) -> None:
        own = self.model.state_dict()
        for name, tensor in tensors:
            own[name].copy_(tensor)  # the tensors are views that live only during this call: copy

    def answer(self, seed: int) -> float:
        return ask(self.model, seed)

    def pid(self) -> int:
        return os.getpid()


def ask(model: torch.nn.Module, seed: int) -> float:
    with torch.no_grad():
        return model(torch.randn(1, 64, generator=torch.Generator().manual_seed(seed))).item()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def main() -> None:
    ray.init(address="local", include_dashboard=False, log_to_driver=False)
    port = free_port()
    trainers = [MyTrainer.remote(rank, 2, port) for rank in range(2)]
    engines = {slot: [MyEngine.remote()] for slot in range(2)}

    def spawn(slot: int, incarnation: int):
        # All workers of the slot, in rank order; here a shard is one.
        engines[slot] = [MyEngine.remote()]
        return engines[slot]

    # 3. The driver: the controller.
    controller = refit_controller(
        trainers=trainers,
        shards=list(engines.values()),
        spawn=spawn,
        config=RefitConfig(restart_backoff_s=0.2),
        host="127.0.0.1",
    )
    with controller:
        controller.start()
        step = 0
        while step < 8 or 1 not in controller.serving_shards():
            step += 1
            losses = ray.get([trainer.train.remote() for trainer in trainers])
            if step == 3:
                os.kill(ray.get(engines[1][0].pid.remote()), signal.SIGKILL)
            report = controller.refit(step)
            truth = ray.get(trainers[0].answer.remote(step))
            for slot in controller.serving_shards():
                assert ray.get(engines[slot][0].answer.remote(step)) == truth
            print(f"step {step}: loss {losses[0]:.3f}, epoch {report.epoch}, serving {controller.serving_shards()}")
            time.sleep(0.5)  # stands for rollouts
        print("communicators:", *(f"{epoch}: {roster}" for epoch, roster in controller.communicators))
    ray.shutdown()


if __name__ == "__main__":
    main()
