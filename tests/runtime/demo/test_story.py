"""The whole command over a simulated fleet: what goes wrong in it reaches the summary and the exit code.

The controller, its table, its journal and the command line are the real ones; the processes and their weights are not.
Every test would pass with exit code 0 if the demo looked away.
"""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import RayActorError

from reknit.runtime.cli import main
from reknit.runtime.controller import RefitController
from reknit.runtime.demo import story
from reknit.runtime.demo.workload import Proof
from reknit.runtime.journal import FileJournal
from reknit.runtime.seams import Trainer
from reknit.runtime.simulated import SimulatedRun

STEPS = 4


def method(answer: Callable[..., object]) -> SimpleNamespace:
    """A method of an actor, whose reference is its result."""
    return SimpleNamespace(remote=answer)


def one_bit_off(hexadecimal: str) -> str:
    return f"{int(hexadecimal, 16) ^ 1:0{len(hexadecimal)}x}"


class World:
    """Actors that all hold the weights of the last trained step, except where a test tampers."""

    def __init__(self) -> None:
        self.run: SimulatedRun | None = None
        self.step = 0
        self.at_step: dict[int, Callable[[], None]] = {}
        self.differs: dict[str, Callable[[Proof], Proof]] = {}
        self.trainers = 0
        self.after: Callable[[], None] = lambda: None

    def proof(self, name: str) -> Proof:
        truth = Proof(
            digest=f"{self.step + 16:032x}", heldout_loss_hex="40490fdb", heldout_loss=3.14, tensors=1, nbytes=4
        )
        return self.differs.get(name, lambda proof: proof)(truth)

    def train(self, step: int) -> float:
        self.step = step
        self.at_step.get(step, lambda: None)()
        return 1.0

    def trainer(self) -> SimpleNamespace:
        name, self.trainers = f"trainer {self.trainers}", self.trainers + 1
        return SimpleNamespace(proof=method(lambda: self.proof(name)), train_step=method(self.train))

    def shard(self, slot: int, incarnation: int, workers: int) -> list[SimpleNamespace]:
        def worker(number: int) -> SimpleNamespace:
            return SimpleNamespace(
                proof=method(lambda: self.proof(f"shard {slot} worker {number}")),
                pid=method(lambda: 0),
                generate=method(lambda prompt, n_bytes: "text"),
            )

        return [worker(number) for number in range(workers)]

    def controller(self, *, trainers: Any, shards: Any, journal: Path, **_: object) -> RefitController:
        self.run = SimulatedRun(trainers=len(trainers), shards=len(shards), workers=len(shards[0]))
        controller = RefitController(
            self.run.controller.topology,
            fleet=self.run.fleet,
            transport=self.run.transport,
            clock=self.run.clock,
            journal=FileJournal(journal),
        )
        self.run.controller = controller
        return controller

    @contextlib.contextmanager
    def ray(self) -> Iterator[None]:
        yield
        self.after()


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    world = World()
    monkeypatch.setattr(story, "TrainerActor", method(world.trainer))
    monkeypatch.setattr(story, "start_shard", world.shard)
    monkeypatch.setattr(story, "refit_controller", world.controller)
    monkeypatch.setattr(story, "local_ray", world.ray)
    monkeypatch.setattr(story, "ray", SimpleNamespace(get=lambda references, timeout: references))
    return world


@pytest.fixture
def demo(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[[], tuple[int, dict[str, str], str]]:
    """Run the command; its exit code, the rows of its summary, and everything that it said."""

    def run() -> tuple[int, dict[str, str], str]:
        shape = ["--trainers", "2", "--workers-per-shard", "2", "--steps", str(STEPS), "--faults", "none"]
        monkeypatch.setattr(sys, "argv", ["reknit", "demo", *shape, "--journal", str(tmp_path / "run.jsonl")])
        with pytest.raises(SystemExit) as ended:
            main()
        told = capsys.readouterr().out
        _, *rows = (line.removeprefix("summary  ") for line in told.splitlines() if line.startswith("summary  "))
        assert str(tmp_path / "run.jsonl") in told, "whatever happens, the path of the journal is told"
        assert "Traceback" not in told
        assert isinstance(ended.value.code, int)
        return ended.value.code, dict(row.split(": ", 1) for row in rows), told

    return run


def test_a_run_in_which_all_is_well_ends_with_0(demo: Callable[[], tuple[int, dict[str, str], str]]) -> None:
    code, rows, told = demo()
    assert (code, rows["proofs"]) == (0, "28 compared bit for bit, 0 failed"), told
    assert "summary  every proof held" in told
    assert "conforms: yes" in rows["journal"]


@pytest.mark.parametrize("holder", ["shard 2 worker 1", "trainer 1"])
@pytest.mark.parametrize("part", ["digest", "heldout_loss_hex"])
def test_one_bit_that_differs_from_the_trainer_fails_the_run(holder, part, demo, world: World) -> None:
    world.differs[holder] = lambda proof: dataclasses.replace(proof, **{part: one_bit_off(getattr(proof, part))})
    code, rows, told = demo()
    assert (code, rows["proofs"]) == (1, f"28 compared bit for bit, {STEPS} failed")
    assert told.count(f"FAILED proof: step {STEPS}: {holder} holds ") == 1
    assert "summary  FAILED\n" in told


def test_shards_that_agree_with_each_other_and_not_with_the_trainer_fail_the_run(demo, world: World) -> None:
    world.differs["trainer 0"] = lambda proof: dataclasses.replace(proof, digest=one_bit_off(proof.digest))
    code, rows, _ = demo()
    assert (code, rows["proofs"]) == (1, "28 compared bit for bit, 28 failed")


def test_a_communicator_that_nobody_expected_fails_the_run(demo, world: World) -> None:
    world.at_step[2] = lambda: world.run.fleet.kill_shard(1)
    code, rows, _ = demo()
    assert code == 1
    assert rows["FAILED communicators"].startswith("formed epoch 1 {0:0, 1:0, 2:0} -> epoch 2 {0:0, 2:0}")
    assert rows["proofs"].endswith("0 failed")


def test_a_journal_that_lacks_a_line_fails_the_run(demo, world: World, tmp_path: Path) -> None:
    def drop_a_line() -> None:
        path = tmp_path / "run.jsonl"
        lines = path.read_text().splitlines(keepends=True)
        path.write_text("".join(lines[:4] + lines[5:]))

    world.after = drop_a_line
    code, rows, _ = demo()
    assert (code, rows["FAILED journal"][:6]) == (1, "line 5")
    assert "conforms: NO" in rows["journal"]


def test_an_error_in_the_middle_ends_with_the_summary_as_far_as_it_got(demo, world: World) -> None:
    def fail() -> None:
        raise RuntimeError("out of\nmemory")

    world.at_step[3] = fail
    code, rows, _ = demo()
    assert (code, rows["FAILED run"]) == (1, "broke off: step 3: RuntimeError: out of memory")
    assert rows["proofs"] == "14 compared bit for bit, 0 failed"
    assert rows["communicators formed"] == "1: epoch 1 {0:0, 1:0, 2:0}"
    assert "conforms: yes" in rows["journal"]


def test_a_halt_is_told_by_its_reason(demo, world: World) -> None:
    world.at_step[3] = lambda: world.run.fleet.kill(Trainer(0))
    code, rows, _ = demo()
    assert code == 1
    assert rows["FAILED run"].startswith("broke off: step 3: RefitHalted: refit halted (trainer_lost)")


def test_a_halt_is_told_even_if_another_call_failed_because_of_it(demo, world: World) -> None:
    """The training step is the first to notice that its trainer was killed, and knows least about it."""

    def kill_and_fail() -> None:
        world.run.fleet.kill(Trainer(1))
        world.run.clock.advance(1.0)
        raise RuntimeError("The actor died unexpectedly")

    world.at_step[3] = kill_and_fail
    code, rows, _ = demo()
    assert code == 1
    assert rows["FAILED run"].startswith("broke off: step 3: RefitHalted: refit halted (trainer_lost)")


def test_a_halt_that_is_heard_of_after_the_call_failed_is_told_too(demo, world: World, monkeypatch) -> None:
    def kill_and_fail() -> None:
        world.run.fleet.kill(Trainer(1))
        raise RayActorError

    world.at_step[3] = kill_and_fail
    # What the controller would hear of in its own time, it hears of while it is waited for.
    monkeypatch.setattr(story.time, "sleep", lambda seconds: world.run.clock.advance(seconds))
    code, rows, _ = demo()
    assert code == 1
    assert rows["FAILED run"].startswith("broke off: step 3: RefitHalted: refit halted (trainer_lost)")


def test_a_ray_that_does_not_start_is_told_in_one_line(demo, monkeypatch: pytest.MonkeyPatch) -> None:
    @contextlib.contextmanager
    def broken() -> Iterator[None]:
        raise RuntimeError("no port is free")
        yield

    monkeypatch.setattr(story, "local_ray", broken)
    code, rows, _ = demo()
    assert (code, rows["FAILED run"]) == (1, "broke off: RuntimeError: no port is free")
    assert rows["journal"].endswith("(not written)")


def test_an_error_in_an_actor_is_told_as_what_was_raised_there() -> None:
    remote = RuntimeError("\x1b[36mray::TrainerActor.train_step()\x1b[39m\n  File ...\nValueError: no such step")
    remote.cause = ValueError("no such step")  # type: ignore[attr-defined]
    assert story.in_one_line(remote) == "ValueError: no such step"
    assert len(story.in_one_line(RuntimeError("word " * 1000))) <= story.REASON_CHARACTERS
