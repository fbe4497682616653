"""When a fault strikes, and what becomes of messages: exact to the message."""

from __future__ import annotations

import pytest

from reknit.runtime import messages
from reknit.runtime.errors import RefitHalted
from reknit.runtime.fuzz.moments import Moments
from reknit.runtime.seams import Trainer, Worker
from reknit.runtime.simulated import SimulatedRun
from reknit.spec.config import RefitConfig
from reknit.spec.lifecycle.events import Cause, Version
from reknit.spec.lifecycle.state import HaltReason, ShardState
from reknit.spec.roster import Roster


@pytest.fixture
def run() -> SimulatedRun:
    """Three shards that serve version 1; who freezes is fenced."""
    run = SimulatedRun(config=RefitConfig(on_frozen="fence"))
    run.controller.start()
    run.controller.refit(1)
    return run


@pytest.mark.parametrize(("of", "asked"), [("requests", 2), ("deliveries", 4)])
def test_a_fault_strikes_between_two_messages_of_one_command(run, of, asked):
    """When the second of four is sent, or has arrived, when all were sent before."""
    moments = Moments(run.fleet, run.clock, seed=0)
    run.fleet.calls.clear()
    seen = []
    moments.arm(2, of, lambda: seen.append(len(run.fleet.calls)))
    run.controller.refit(2)
    assert seen == [asked]


def test_a_fault_may_strike_now_or_after_some_time(run):
    moments = Moments(run.fleet, run.clock, seed=0)
    seen = []
    moments.arm(0, "requests", lambda: seen.append(run.clock.now()))
    moments.arm(250, "milliseconds", lambda: seen.append(run.clock.now()))
    run.clock.advance(1.0)
    assert seen[1] - seen[0] == pytest.approx(0.25)


def test_after_the_faults_have_stopped_nothing_strikes(run):
    moments = Moments(run.fleet, run.clock, seed=0)
    for of in ("requests", "deliveries", "milliseconds"):
        moments.arm(1, of, lambda: run.fleet.kill_shard(0))
    moments.lose(0)
    moments.stop()
    assert run.controller.refit(2).communicators == ()


def test_a_lost_request_names_the_member_that_never_heard_of_the_transfer(run):
    """R6: it took part in the refit before, which says nothing of this one."""
    moments = Moments(run.fleet, run.clock, seed=0)
    moments.lose(2)  # trainer, shard 0, shard 1
    assert run.controller.refit(2).roster == Roster({0: 0, 2: 0})
    assert run.fleet.processes[Worker(1, 0, 0)].weights == Version(0, 1)


def test_a_message_that_is_late_is_overtaken_and_ignored(run):
    """The answer to the transfer arrives when a newer communicator has long carried it."""
    moments = Moments(run.fleet, run.clock, seed=0)
    moments.delay(4, 200.0)  # the first answer of four
    report = run.controller.refit(2)
    ignored = run.controller.metrics()["refit/late_or_ignored"]
    run.clock.advance(300.0)
    assert run.controller.metrics()["refit/late_or_ignored"] > ignored
    assert run.controller.serving_shards() == tuple(report.roster)


def test_a_stumble_is_over_after_one_operation(run):
    run.fleet.stumbles[Worker(1, 0, 0)] = Cause.TRANSIENT
    assert run.controller.refit(2).communicators == ((2, Roster({0: 0, 1: 0, 2: 0})),)
    assert run.controller.refit(3).communicators == ()


def test_a_fence_that_nobody_confirms_halts_while_the_process_may_be_inside(run):
    run.fleet.undead.add(Worker(1, 0, 0))
    run.fleet.freeze(Worker(1, 0, 0))
    with pytest.raises(RefitHalted) as halted:
        run.controller.refit(2)
    assert halted.value.reason is HaltReason.FENCE_UNCONFIRMED
    assert run.controller.snapshot().shards[1].state is not ShardState.ABSENT


def test_every_message_passes_the_post_in_both_directions(run):
    seen = []

    def post(member, message, usual_s):
        seen.append((member, type(message)))
        return (usual_s,)

    run.fleet.on_post = post
    run.controller.refit(2)
    for member in (Trainer(0), Worker(0, 0, 0), Worker(1, 0, 0), Worker(2, 0, 0)):
        assert [kind for who, kind in seen if who == member] == [messages.Transfer, messages.Transferred]
