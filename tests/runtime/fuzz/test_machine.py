"""The controller under random programs of calls and faults; and mistakes made on purpose, which must be found."""

from __future__ import annotations

import pytest
from hypothesis import Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from reknit.runtime import messages
from reknit.runtime.broadcast import BroadcastTransport
from reknit.runtime.fuzz import PROFILES, controller_machine
from reknit.runtime.fuzz.campaign import campaign, replay
from reknit.runtime.seams import Worker
from reknit.runtime.simulated import SimulatedFleet, SimulatedRendezvous, SimulatedRun
from reknit.spec.lifecycle.events import Progress, RankLeft
from reknit.statemachine.generated import ROWS

ControllerMachine = controller_machine()


def test_the_controller_keeps_its_promises_under_random_calls_and_faults():
    """M8, M10, M11, R1, R6, F12 and whatever has no name yet: in every order, and between any two messages."""
    run_state_machine_as_test(ControllerMachine, settings=settings(PROFILES["ci"], max_examples=150))
    tally = ControllerMachine.tally
    assert tally.steps > 20 * tally.examples
    assert len(tally.rows) > len(ROWS) / 3


class Forgetful(SimulatedFleet):
    """Shard 1 says that it holds the version, and has dropped it."""

    def _reply(self, process, answer, reply):
        if isinstance(reply, messages.Transferred) and isinstance(process.member, Worker) and process.member.slot == 1:
            process.weights = None
        super()._reply(process, answer, reply)


class Optimist(BroadcastTransport):
    """Who has left has surely got everything."""

    def _left(self, stamp, rank, answer):
        self._feed(RankLeft(stamp, rank, Progress.COMPLETE))


class Clumsy(BroadcastTransport):
    """Does not expect that a call fails."""

    def _transferred(self, stamp, rank, answer):
        answer.result(timeout=0)
        super()._transferred(stamp, rank, answer)


def over(transport):
    return lambda fleet, clock, config: transport(
        fleet=fleet, rendezvous=SimulatedRendezvous(), clock=clock, config=config
    )


def forgetful(**sizes):
    return SimulatedRun(fleet=Forgetful, **sizes)


def optimist(**sizes):
    return SimulatedRun(transport=over(Optimist), **sizes)


def test_rules_that_make_no_sense_for_a_fleet_can_be_left_out():
    machine = controller_machine(without={"wedge", "lose_message"})
    left = {rule.function.__name__ for rule in machine.setup_state().rules}
    every = {rule.function.__name__ for rule in ControllerMachine.setup_state().rules}
    assert every - left == {"wedge", "lose_message"}
    with pytest.raises(ValueError, match="wegde"):
        controller_machine(without={"wegde"})


def clumsy(**sizes):
    return SimulatedRun(transport=over(Clumsy), **sizes)


@pytest.mark.parametrize("run", [forgetful, optimist, clumsy])
def test_a_mistake_in_what_lies_behind_a_seam_is_found(run):
    machine = seed(1)(controller_machine(run))
    quick = settings(PROFILES["fuzz"], max_examples=300, phases=[Phase.generate], report_multiple_bugs=False)
    with pytest.raises(AssertionError, match=r"serves|known is|held by|callback of an answer failed: ProcessGone"):
        run_state_machine_as_test(machine, settings=quick)


def test_what_is_found_is_a_short_program_that_can_be_run_again():
    machine = controller_machine(forgetful)
    failure = campaign({"mine": machine}, seconds=60.0, seed=1, progress=lambda seconds: None)
    assert failure is not None
    assert failure.seed == 1
    assert "shard 1 (incarnation 0) worker 0 serves None, committed is 0." in failure.error
    called = [line.partition("(")[0] for line in failure.program.splitlines()]
    assert called[:2] == ["state = ControllerMachine", "state.begin"]
    assert len(called) <= 5
    assert failure.blob is not None
    again = replay("mine", machine, failure.blob)
    assert again is not None
    assert (again.error, again.program) == (failure.error, failure.program)
    assert replay("house", ControllerMachine, failure.blob) is None, "without the mistake the program is fine"
