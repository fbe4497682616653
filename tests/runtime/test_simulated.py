"""The simulated fleet watches over whoever uses it: what must never happen in a real fleet stops the run there."""

from __future__ import annotations

import pytest

from reknit.runtime import messages
from reknit.runtime.errors import RefitHalted
from reknit.runtime.seams import Worker
from reknit.runtime.simulated import SimulatedRun
from reknit.runtime.simulated.fleet import SimulationBroken
from reknit.spec.lifecycle.events import Progress, Stamp, Version
from reknit.spec.lifecycle.state import ShardState


def serving(simulate, **options) -> SimulatedRun:
    """Everybody serves version 2."""
    run = simulate(**options)
    run.controller.start()
    run.controller.refit(1)
    run.controller.refit(2)
    return run


def something_happens(run) -> None:
    run.clock.call_later(0.0, lambda: None)
    run.clock.advance(0.0)


@pytest.mark.parametrize("weights", ["mixed", None, Version(0, 1)])
def test_a_shard_that_serves_anything_but_the_committed_version_whole_stops_the_run(simulate, weights):
    """H1, R1: at the next event, whatever it is, and naming the worker; every worker of a shard counts."""
    run = serving(simulate, workers=2)
    something_happens(run)
    run.fleet.processes[Worker(1, 0, 1)].weights = weights
    with pytest.raises(SimulationBroken, match=r"shard 1 \(incarnation 0\) worker 1 serves .*, committed is 0\.2"):
        something_happens(run)


def test_the_check_stands_while_a_communicator_forms_for_a_refit(simulate):
    """The trainer who waits is told: it is his call that makes time pass."""
    run = serving(simulate)
    run.fleet.kill_shard(0)
    run.clock.advance(0.1)
    run.fleet.on_delivery = lambda member, request: setattr(run.fleet.processes[Worker(2, 0, 0)], "weights", None)
    with pytest.raises(SimulationBroken, match="shard 2"):
        run.controller.refit(3)


def test_the_check_stands_after_a_halt(simulate):
    """Whoever drains its traffic after a halt still asks who serves."""
    run = serving(simulate)
    run.fleet.refusals[Worker(1, 0, 0)] = "out of memory"
    with pytest.raises(RefitHalted, match="weights_refused"):
        run.controller.refit(3)
    run.fleet.processes[Worker(0, 0, 0)].weights = Version(0, 3)
    assert run.controller.serving_shards() == ()
    something_happens(run)


def test_who_does_not_serve_may_hold_anything(simulate):
    run = serving(simulate)
    run.fleet.kill_shard(1)
    run.clock.advance(20)
    assert run.controller.snapshot().shards[1].state is ShardState.REJOINED
    run.fleet.processes[Worker(1, 0, 0)].weights = "mixed"
    run.fleet.processes[Worker(1, 1, 0)].weights = "mixed"
    something_happens(run)


@pytest.mark.parametrize(
    ("breaking", "progress"), [(Stamp(1, 2), Progress.COMPLETE), (Stamp(1, 3), Progress.NEVER_ENTERED)]
)
def test_how_far_a_member_got_is_said_of_the_operation_that_is_broken_off(simulate, breaking, progress):
    """R2, as a real participant: who never heard of a transfer has not completed it, whatever it did before."""
    run = serving(simulate)
    answer = run.fleet.call(Worker(0, 0, 0), messages.Leave(stamp=Stamp(1, 4), breaking=breaking))
    run.clock.advance(0.1)
    assert answer.result(timeout=0).progress is progress
