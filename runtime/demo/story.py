"""The main job: train, refit, lose a shard, rebuild over the rest, take its replacement back, prove every step.

Everything is real: a process is killed from outside, a group is formed anew, and every shard proves after every refit
that its weights are the trainer's, bit for bit. The story fails unless the communicators formed are exactly those that
it expects, in that order.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import ray
from ray.exceptions import RayActorError

from ...spec.config import RefitConfig
from ...spec.lifecycle.state import Halt, ShardState
from ...statemachine.conform import Verdict, conform
from ..controller import RefitController
from ..embed import refit_controller
from ..errors import RefitHalted
from .actors import TrainerActor, start_shard
from .cluster import local_ray
from .options import DemoOptions
from .verdict import Ledger, failures, summary
from .view import ShardRow, View
from .workload import PROMPT

log = logging.getLogger(__name__)

LOAD_S = 120.0
ANSWER_S = 60.0
HEARD_S = 3.0
REASON_CHARACTERS = 800


def tell(options: DemoOptions, view: View) -> bool:
    """Run the demo and show its summary, however it ends. True when there is nothing that speaks against the run."""
    ledger = Ledger()
    try:
        with local_ray():
            Story(options, view, ledger).run()
    except Exception as error:
        log.exception("event=demo_broke_off step=%d", ledger.step)
        ledger.broke = f"step {ledger.step}: {in_one_line(error)}" if ledger.step else in_one_line(error)
    told = replay(options.journal)
    view.summary(*summary(options, ledger, told))
    return not failures(options, ledger, told)


def in_one_line(error: BaseException) -> str:
    """What went wrong, without frames; those are in the log. For an error in an actor, what was raised there."""
    cause = getattr(error, "cause", None) or error
    return textwrap.shorten(f"{type(cause).__name__}: {cause}", REASON_CHARACTERS, placeholder=" ...")


def replay(journal: Path) -> Verdict | None:
    """What the check of the journal finds; None when the run did not get as far as writing one."""
    if not journal.exists():
        return None
    with journal.open(encoding="utf-8", errors="replace") as lines:
        return conform(lines)


class Story:
    """One run of the demo over actors of its own. Needs Ray to be up."""

    def __init__(self, options: DemoOptions, view: View, ledger: Ledger) -> None:
        self.options = options
        self.view = view
        self.ledger = ledger
        make: Any = TrainerActor
        self.trainers = [make.remote() for _ in range(options.trainers)]
        self.shards = {slot: start_shard(slot, 0, options.workers_per_shard) for slot in range(options.shards)}

    def run(self) -> None:
        """Let it happen, and write down in the ledger what was seen."""
        options, view = self.options, self.view
        view.note(f"loading {options.trainers} trainer(s) and {options.shards} shards of {options.workers_per_shard}")
        ray.get([t.proof.remote() for t in self.trainers], timeout=LOAD_S)
        ray.get([w.pid.remote() for workers in self.shards.values() for w in workers], timeout=LOAD_S)
        controller = refit_controller(
            trainers=self.trainers,
            shards=[self.shards[slot] for slot in range(options.shards)],
            spawn=self._spawn,
            config=RefitConfig(restart_backoff_s=0.5),
            journal=options.journal,
            host="127.0.0.1",
        )
        with controller, self._shown(controller), self._recorded(controller):
            controller.start()
            view.note(f"epoch 1 formed: {controller.snapshot().world_size} ranks have shaken hands")
            for step in range(1, options.steps + 1):
                self._step(controller, step)

    @contextlib.contextmanager
    def _recorded(self, controller: RefitController) -> Iterator[None]:
        """However it ends, what was formed is known, and a halt tells more than the call that failed because of it."""
        try:
            yield
        except Exception as error:
            # The call may fail a moment before the controller hears of the same death.
            halt = _halt_within(HEARD_S if isinstance(error, RayActorError) else 0.0, controller)
            if halt is None:
                raise
            raise RefitHalted(halt) from error
        finally:
            self.ledger.formed = list(controller.communicators)

    @contextlib.contextmanager
    def _shown(self, controller: RefitController) -> Iterator[None]:
        """Keep a live picture true while the controller works; plain lines are told at the end of each step."""
        over = threading.Event()

        def look() -> None:
            while not over.wait(0.1):
                self._show(controller)

        if not self.view.is_live:
            yield
            return
        looker = threading.Thread(target=look, name="demo-view", daemon=True)
        looker.start()
        try:
            yield
        finally:
            over.set()
            looker.join()

    def _spawn(self, slot: int, incarnation: int) -> list[Any]:
        self.view.note(f"shard {slot}: starting incarnation {incarnation}")
        self.shards[slot] = start_shard(slot, incarnation, self.options.workers_per_shard)
        return self.shards[slot]

    def _step(self, controller: RefitController, step: int) -> None:
        options, ledger = self.options, self.ledger
        began = time.monotonic()
        ledger.step = step
        losses = ray.get([t.train_step.remote(step) for t in self.trainers], timeout=ANSWER_S)
        if options.faults == "kill" and step == options.kill_at:
            self._kill(controller)
        if options.faults == "kill" and step == options.steps - 1:
            self._await_rejoin(controller)
        report = controller.refit(step)
        ledger.reports.append(report)
        for epoch, roster in report.communicators:
            self.view.note(f"step {step}: epoch {epoch} formed over {roster} in {report.forming_s * 1000:.0f} ms")
        self._prove(controller)
        self._show(controller)
        self.view.step(step=step, steps=self.options.steps, loss=losses[0], seconds=time.monotonic() - began)

    def _kill(self, controller: RefitController) -> None:
        """SIGKILL from outside; nothing on the actor knows how to die."""
        victim = self.options.victim
        pid = ray.get(self.shards[victim][0].pid.remote(), timeout=ANSWER_S)
        process = psutil.Process(pid)
        os.kill(pid, signal.SIGKILL)
        self.ledger.killed_at = time.monotonic()
        process.wait(timeout=10)
        self.view.note(f"shard {victim}: process {pid} killed with SIGKILL")

    def _await_rejoin(self, controller: RefitController) -> None:
        """The story ends with the shard serving again; on a slow machine its replacement needs a moment to load."""
        waiting = time.monotonic()
        while time.monotonic() - waiting < LOAD_S:
            snapshot = controller.snapshot()
            shard = snapshot.shards[self.options.victim]
            is_back = shard.incarnation > 0 and shard.state in (ShardState.REJOINED, ShardState.SERVING)
            if is_back or snapshot.halt is not None:  # the next refit raises the halt
                return
            if time.monotonic() - waiting > 1.0:
                self.view.note(f"shard {shard.slot}: waiting for incarnation {shard.incarnation} to load")
            time.sleep(1.0)

    def _prove(self, controller: RefitController) -> None:
        """Every worker of every serving shard, and every other trainer, holds the root's weights, bit for bit."""
        ledger = self.ledger
        serving = controller.serving_shards()
        root, *others = self.trainers
        holders = [(f"shard {slot} worker {n}", w) for slot in serving for n, w in enumerate(self.shards[slot])]
        holders += [(f"trainer {rank}", trainer) for rank, trainer in enumerate(others, start=1)]
        truth, *proofs = ray.get(
            [root.proof.remote(), *(actor.proof.remote() for _, actor in holders)], timeout=ANSWER_S
        )
        ledger.compare_proofs(truth, [(name, proof) for (name, _), proof in zip(holders, proofs, strict=True)])
        ledger.compare_serving(serving, tuple(ledger.reports[-1].roster))
        if serving:
            speaker = serving[ledger.step % len(serving)]
            text = ray.get(self.shards[speaker][0].generate.remote(PROMPT, 64), timeout=ANSWER_S)
            self.view.note(f"step {ledger.step}: shard {speaker} writes {text!r}")
        self._time_recovery(serving)

    def _time_recovery(self, serving: tuple[int, ...]) -> None:
        ledger = self.ledger
        if ledger.killed_at is None:
            return
        if ledger.rebuilt_after is None:
            ledger.rebuilt_after = time.monotonic() - ledger.killed_at
        if ledger.serving_after is None and self.options.victim in serving:
            ledger.serving_after = time.monotonic() - ledger.killed_at

    def _show(self, controller: RefitController) -> None:
        snapshot = controller.snapshot()
        self.view.communicator(phase=snapshot.phase.value, epoch=snapshot.epoch, world_size=snapshot.world_size)
        self.view.shards(
            [
                ShardRow(
                    slot=shard.slot,
                    incarnation=shard.incarnation,
                    state=shard.state.value,
                    version=f"step {shard.version.step}" if shard.version else "-",
                    ranks="-" if shard.ranks is None else ",".join(map(str, shard.ranks)),
                )
                for shard in snapshot.shards
            ]
        )


def _halt_within(seconds: float, controller: RefitController) -> Halt | None:
    """The halt of the controller, which may still be on its way; None if it does not come."""
    deadline = time.monotonic() + seconds
    while (halt := controller.snapshot().halt) is None and time.monotonic() < deadline:
        time.sleep(0.05)
    return halt
