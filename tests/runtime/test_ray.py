"""The controller over real Ray actors: real processes, real signals, real groups, real bytes.

Few and strong: one Ray for all tests of this file, actors with a small model of their own, and every journal checked
against the table when its test is over.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
import ray

from reknit.runtime.demo.cluster import local_ray
from reknit.runtime.embed import refit_controller
from reknit.runtime.errors import RefitHalted
from reknit.spec.config import RefitConfig
from reknit.spec.lifecycle.state import HaltReason, Phase, ShardState
from reknit.spec.roster import Roster
from reknit.statemachine.conform import conform

pytestmark = pytest.mark.ray

QUICK = RefitConfig(
    refit_timeout_s=60.0,
    form_timeout_s=6.0,
    join_timeout_s=4.0,
    progress_timeout_s=4.0,
    wait_timeout_s=3.0,
    settle_timeout_s=4.0,
    fence_timeout_s=10.0,
    restart_timeout_s=60.0,
    restart_backoff_s=0.1,
)
ANSWER_S = 60.0


def actor_classes() -> tuple[object, object, object]:
    """The actors of these tests, made in a function so that Ray ships them by value."""
    import torch
    import xxhash

    from reknit import Participant

    def weights(step: int, width: int) -> dict[str, torch.Tensor]:
        generator = torch.Generator().manual_seed(step)
        return {
            "embed": torch.randn(512, width, generator=generator),
            "mlp.bias": torch.randn(width, generator=generator).to(torch.bfloat16),
            "scale": torch.randn((), generator=generator),
            "head": torch.randn(width, 512, generator=generator),
        }

    def digest(tensors: dict[str, torch.Tensor]) -> str:
        state = xxhash.xxh3_128()
        for name in sorted(tensors):
            state.update(name.encode())
            state.update(tensors[name].reshape(-1).view(torch.uint8).numpy().tobytes())
        return str(state.hexdigest())

    class Base:
        def pid(self) -> int:
            return os.getpid()

        def digest(self) -> str:
            return digest(self.tensors)

    @ray.remote(num_cpus=0, concurrency_groups={"reknit": 4})
    class Trainer(Base):
        def __init__(self) -> None:
            self.tensors = weights(0, 300)
            self.participant = Participant.trainer(lambda: self.tensors.items(), bucket_bytes=1 << 16)

        @ray.method(concurrency_group="reknit")
        def reknit(self, request):
            return self.participant.handle(request)

        def train(self, step: int) -> str:
            self.tensors = weights(step, 300)
            return self.digest()

    @ray.remote(num_cpus=0, concurrency_groups={"reknit": 4})
    class Shard(Base):
        def __init__(self, width: int = 300, gate: str | None = None, never_up: bool = False) -> None:
            if never_up:
                time.sleep(3600)
            self.gate = gate
            self.tensors = weights(10_000 + os.getpid(), width)
            self.participant = Participant.shard(self.accept, expects=lambda: self.tensors.items())

        @ray.method(concurrency_group="reknit")
        def reknit(self, request):
            return self.participant.handle(request)

        def accept(self, tensors) -> None:
            for name, tensor in tensors:
                self.tensors[name].copy_(tensor)
            # A file, watched by this test's own engine, marks the exact point; the fault itself comes from outside.
            if self.gate is not None and os.path.exists(self.gate):
                Path(f"{self.gate}.reached").write_text(str(os.getpid()))
                while os.path.exists(self.gate):
                    time.sleep(0.01)

    @ray.remote(num_cpus=0, concurrency_groups={"reknit": 4})
    class AsyncShard(Base):
        """An engine whose methods are coroutines, as most inference engines are."""

        def __init__(self) -> None:
            self.tensors = weights(20_000 + os.getpid(), 300)
            self.participant = Participant.shard(self.accept, expects=lambda: self.tensors.items())

        @ray.method(concurrency_group="reknit")
        async def reknit(self, request):
            return await asyncio.to_thread(self.participant.handle, request)

        async def generate(self) -> str:
            return "text"

        def accept(self, tensors) -> None:
            for name, tensor in tensors:
                self.tensors[name].copy_(tensor)

    return Trainer, Shard, AsyncShard


@pytest.fixture(scope="module")
def cluster() -> Iterator[tuple[object, object, object]]:
    with local_ray():
        yield actor_classes()


class Run:
    """Actors of one test, the controller over them, and what to clean up."""

    def __init__(
        self,
        classes,
        journal: Path,
        *,
        trainers=1,
        shards=3,
        workers=1,
        config=QUICK,
        shard_options=None,
        asynchronous=False,
        restarted_in_place=0,
    ):
        trainer_class, shard_class, async_class = classes
        self.shard_class = async_class if asynchronous else shard_class
        # What Ray itself does with these actors when their process dies.
        self.shard_class = self.shard_class.options(max_restarts=restarted_in_place)
        self.workers = workers
        self.trainers = [trainer_class.remote() for _ in range(trainers)]
        options = shard_options or {}
        self.shards = {slot: self.start(**options.get(slot, {})) for slot in range(shards)}
        # Deadlines in these tests are short: actors first load, as in a run, and are then told to form.
        loading = [*self.trainers, *(w for slot in self.shards if slot not in options for w in self.shards[slot])]
        ray.get([actor.pid.remote() for actor in loading], timeout=ANSWER_S)
        self.journal = journal
        self.controller = refit_controller(
            trainers=self.trainers,
            shards=list(self.shards.values()),
            spawn=self.spawn,
            config=config,
            journal=journal,
            host="127.0.0.1",
        )

    def start(self, **options):
        return [self.shard_class.remote(**options) for _ in range(self.workers)]

    def spawn(self, slot: int, incarnation: int):
        self.shards[slot] = self.start()
        return self.shards[slot]

    def refit(self, step: int):
        """Train, refit, and compare every byte of every serving worker with the trainer."""
        truth = ray.get([trainer.train.remote(step) for trainer in self.trainers], timeout=ANSWER_S)[0]
        report = self.controller.refit(step)
        serving = self.controller.serving_shards()
        assert serving == tuple(report.roster)
        held = ray.get([w.digest.remote() for slot in serving for w in self.shards[slot]], timeout=ANSWER_S)
        assert held == [truth] * len(held)
        return report

    def pid(self, slot: int, worker: int = 0) -> int:
        return ray.get(self.shards[slot][worker].pid.remote(), timeout=ANSWER_S)

    def kill(self, slot: int, worker: int = 0) -> None:
        """SIGKILL from outside, and the proof that it hit."""
        process = psutil.Process(self.pid(slot, worker))
        process.send_signal(signal.SIGKILL)
        process.wait(timeout=10)

    def until(self, what: Callable[[], bool], seconds: float = 60.0) -> None:
        end = time.monotonic() + seconds
        while not what():
            assert time.monotonic() < end, f"not within {seconds} s: {self.controller.snapshot()}"
            time.sleep(0.02)

    def until_rejoined(self, slot: int, incarnation: int = 1) -> None:
        def rejoined() -> bool:
            shard = self.controller.snapshot().shards[slot]
            return shard.incarnation == incarnation and shard.state is ShardState.REJOINED

        self.until(rejoined)

    def close(self) -> None:
        self.controller.close()
        for actor in [*self.trainers, *(w for workers in self.shards.values() for w in workers)]:
            with contextlib.suppress(Exception):
                ray.kill(actor)


@pytest.fixture
def run_on_ray(cluster, tmp_path) -> Iterator[Callable[..., Run]]:
    runs: list[Run] = []

    def make(**options) -> Run:
        runs.append(Run(cluster, tmp_path / f"journal-{len(runs)}.jsonl", **options))
        return runs[-1]

    yield make
    for run in runs:
        run.close()
        verdict = conform(run.journal.read_text().splitlines())
        assert verdict.ok, f"line {verdict.first_bad_line}: {verdict.why}"


def test_a_killed_shard_leaves_and_its_replacement_comes_back(run_on_ray):
    """R1, M1, T4: the story of the demo, with the exact witness."""
    run = run_on_ray()
    run.controller.start()
    run.refit(1)
    run.refit(2)
    run.kill(1)
    assert run.refit(3).roster == Roster({0: 0, 2: 0})
    run.until_rejoined(1)
    assert run.controller.serving_shards() == (0, 2)
    run.refit(4)
    assert run.refit(5).communicators == ()
    assert list(run.controller.communicators) == [
        (1, Roster({0: 0, 1: 0, 2: 0})),
        (2, Roster({0: 0, 2: 0})),
        (3, Roster({0: 0, 1: 1, 2: 0})),
    ]


def test_a_shard_replaced_between_two_refits_is_taken_in_by_a_rebuild(run_on_ray):
    """M2: nothing is absent when the refit comes, and yet the communicator is not the right one. The engines here are
    asyncio actors."""
    run = run_on_ray(shards=2, asynchronous=True)
    run.controller.start()
    run.refit(1)
    run.kill(0)
    run.until_rejoined(0)
    assert run.refit(2).communicators == ((2, Roster({0: 1, 1: 0})),)


def test_a_death_in_the_middle_of_a_transfer_is_survived(run_on_ray, tmp_path):
    """R1, R3, M10: killed between two buckets; the survivors get everything again, in full."""
    gate = tmp_path / "gate"
    run = run_on_ray(shard_options={2: {"gate": str(gate)}})
    run.controller.start()
    run.refit(1)
    gate.touch()
    victim = run.pid(2)
    reached = Path(f"{gate}.reached")

    import threading

    def strike() -> None:
        end = time.monotonic() + 30
        while not reached.exists() and time.monotonic() < end:
            time.sleep(0.01)
        os.kill(victim, signal.SIGKILL)

    assassin = threading.Thread(target=strike)
    assassin.start()
    report = run.refit(2)
    assassin.join()
    assert int(reached.read_text()) == victim
    assert not psutil.pid_exists(victim)
    gate.unlink()
    assert report.communicators == ((2, Roster({0: 0, 1: 0})),)


def test_losing_one_of_two_workers_kills_the_other_and_replaces_the_shard(run_on_ray):
    """H7, M16: half a shard is none; two trainers keep their ranks."""
    run = run_on_ray(trainers=2, shards=2, workers=2)
    run.controller.start()
    run.refit(1)
    sibling = run.pid(1, 1)
    run.kill(1, 0)
    assert run.refit(2).roster == Roster({0: 0})
    run.until(lambda: not psutil.pid_exists(sibling))
    run.until_rejoined(1)
    assert run.refit(3).roster == Roster({0: 0, 1: 1})
    assert [shard.ranks for shard in run.controller.snapshot().shards] == [(2, 3), (4, 5)]


def test_a_stopped_process_is_fenced_and_the_run_goes_on(run_on_ray):
    """T3, R6: SIGSTOP, alive by every check; found by evidence, killed, confirmed dead, replaced."""
    from dataclasses import replace

    run = run_on_ray(config=replace(QUICK, on_frozen="fence"))
    run.controller.start()
    run.refit(1)
    frozen = run.pid(1)
    os.kill(frozen, signal.SIGSTOP)
    run.until(lambda: psutil.Process(frozen).status() == psutil.STATUS_STOPPED)
    assert run.refit(2).roster == Roster({0: 0, 2: 0})
    assert not psutil.pid_exists(frozen)
    run.until_rejoined(1)
    assert run.refit(3).roster == Roster({0: 0, 1: 1, 2: 0})


def test_an_engine_stuck_in_its_own_code_is_fenced_though_its_process_answers(run_on_ray, tmp_path):
    """Nothing but its own word can tell it from the others, who wait because of it."""
    from dataclasses import replace

    gate = tmp_path / "gate"
    run = run_on_ray(config=replace(QUICK, on_frozen="fence"), shard_options={2: {"gate": str(gate)}})
    run.controller.start()
    run.refit(1)
    stuck = run.pid(2)
    gate.touch()
    assert run.refit(2).roster == Roster({0: 0, 1: 0})
    assert int(Path(f"{gate}.reached").read_text()) == stuck
    assert not psutil.pid_exists(stuck)
    gate.unlink()
    run.until_rejoined(2)
    assert run.refit(3).roster == Roster({0: 0, 1: 0, 2: 1})


def test_an_actor_that_ray_restarted_in_place_is_not_taken_for_the_one_that_died(run_on_ray):
    """Behind the old handle is a new process with start-up weights: it must not serve them as the committed ones."""
    run = run_on_ray(restarted_in_place=1)
    run.controller.start()
    run.refit(1)
    same_handle = run.shards[1]
    run.kill(1)
    run.until(lambda: 1 not in run.controller.serving_shards())
    run.until_rejoined(1)
    assert run.shards[1] is not same_handle
    with pytest.raises(ray.exceptions.ActorDiedError):
        ray.get(same_handle[0].pid.remote(), timeout=ANSWER_S)
    assert run.refit(2).roster == Roster({0: 0, 1: 1, 2: 0})


def test_a_participant_with_another_tensor_list_is_named_with_every_difference(run_on_ray):
    """R12: names, shapes and types are compared before anything moves."""
    run = run_on_ray(shards=2, shard_options={1: {"width": 301}})
    with pytest.raises(RefitHalted) as halted:
        run.controller.start()
    assert halted.value.reason is HaltReason.MISMATCH
    assert "embed" in str(halted.value)
    assert "301" in str(halted.value)
    assert run.controller.snapshot().phase is Phase.HALTED


def test_a_worker_that_never_comes_up_is_bounded_and_named(run_on_ray):
    """F3, F7: its constructor hangs; nobody waits for ever, and the error says who."""
    run = run_on_ray(shards=2, shard_options={1: {"never_up": True}})
    began = time.monotonic()
    with pytest.raises(RefitHalted) as halted:
        run.controller.start()
    assert halted.value.reason is HaltReason.FROZEN_SHARDS
    assert "silent: shard 1 (incarnation 0)" in str(halted.value)
    assert time.monotonic() - began < QUICK.form_timeout_s + QUICK.settle_timeout_s + 20


def test_a_lost_trainer_halts(run_on_ray):
    """H9."""
    run = run_on_ray(trainers=2, shards=1)
    run.controller.start()
    run.refit(1)
    pid = ray.get(run.trainers[1].pid.remote(), timeout=ANSWER_S)
    os.kill(pid, signal.SIGKILL)
    run.until(lambda: run.controller.snapshot().phase is Phase.HALTED)
    with pytest.raises(RefitHalted, match="trainer rank 1 is gone"):
        run.controller.refit(2)


def test_actors_that_cannot_be_members_are_refused_when_the_controller_is_made(cluster, tmp_path):
    """Before anything is formed, by name."""
    trainer_class, shard_class, _ = cluster

    @ray.remote(num_cpus=0)
    class Stranger:
        pass

    trainer, shard, stranger = trainer_class.remote(), shard_class.remote(), Stranger.remote()
    for wrong, error, says in (
        ({"trainers": [trainer], "shards": [[stranger]]}, ValueError, "shard 0 worker 0 has no method 'reknit'"),
        ({"trainers": [trainer], "shards": [shard]}, TypeError, "shard 0 must be the list of its workers' actors"),
        ({"trainers": [], "shards": [[shard]]}, ValueError, "needs a trainer and a shard"),
        ({"trainers": [trainer], "shards": [[shard]], "backend": "mpi"}, ValueError, "gloo, nccl"),
    ):
        with pytest.raises(error, match=says):
            refit_controller(**wrong, host="127.0.0.1")
    for actor in (trainer, shard, stranger):
        ray.kill(actor)
