"""The controller under a trainer's threads: the real clock, the simulated members, everything at once."""

from __future__ import annotations

import random
import threading

from reknit.runtime.broadcast import BroadcastTransport
from reknit.runtime.clock import MonotonicClock
from reknit.runtime.controller import RefitController
from reknit.runtime.journal import MemoryJournal
from reknit.runtime.simulated import SimulatedFleet, SimulatedRendezvous
from reknit.spec.config import RefitConfig
from reknit.spec.lifecycle import events as ev
from reknit.spec.roster import Topology
from reknit.statemachine.conform import conform


def test_reports_from_many_threads_while_refits_run_keep_the_journal_a_possible_story():
    """R14, H5: no lock is left held, no event is lost or half applied, whichever thread brings it."""
    topology = Topology(train_world_size=1, dp_size=4)
    clock = MonotonicClock()
    fleet = SimulatedFleet(clock, topology, latency_s=1e-4, join_s=1e-3, transfer_s=1e-3, notice_s=1e-4, restart_s=1e-2)  # type: ignore[arg-type]
    journal = MemoryJournal()
    config = RefitConfig(
        restart_backoff_s=0.01, max_restart_attempts_per_shard=1000, max_attempts_per_refit=1000, unhealthy_threshold=2
    )
    transport = BroadcastTransport(fleet=fleet, rendezvous=SimulatedRendezvous(), clock=clock, config=config)
    controller = RefitController(
        topology, fleet=fleet, transport=transport, config=config, clock=clock, journal=journal
    )
    over = threading.Event()
    failures: list[BaseException] = []

    def report(seed: int) -> None:
        chance = random.Random(seed)
        try:
            while not over.wait(chance.random() * 0.004):
                shard = chance.randrange(4)
                if chance.random() < 0.15:
                    controller.report_failure(shard, kind=chance.choice(("request", "probe")))
                else:
                    controller.report_success(shard, kind=chance.choice(("request", "probe")))
                assert set(controller.serving_shards()) <= {0, 1, 2, 3}
                controller.metrics()
                controller.snapshot()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=report, args=(seed,)) for seed in range(4)]
    with controller:
        controller.start()
        for thread in threads:
            thread.start()
        try:
            for step in range(1, 41):
                assert controller.refit(step).version.step == step
        finally:
            over.set()
            for thread in threads:
                thread.join(timeout=10)
    assert not failures
    verdict = conform(journal.lines)
    assert verdict.ok, f"line {verdict.first_bad_line}: {verdict.why}"


def test_no_report_of_any_thread_is_lost(simulate):
    """R14: one line for each, whoever else was reporting at that moment."""
    run = simulate(shards=4)
    run.controller.start()
    run.controller.refit(1)
    before = len(run.journal.lines)

    def report(slot: int) -> None:
        for _ in range(100):
            run.controller.report_success(slot)
            run.controller.feed(ev.ProbeSucceeded(slot, 0))

    threads = [threading.Thread(target=report, args=(number % 4,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(run.journal.lines) == before + 8 * 200
