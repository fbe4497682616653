"""The plain reading: one event, one step, nothing half done."""

from __future__ import annotations

import copy
import pickle

import pytest

from reknit.spec.lifecycle import Phase, Refused, ShardState, State, interpret
from reknit.spec.lifecycle import events as ev
from reknit.spec.lifecycle.errors import ImpossibleHere, RunClosed, UnknownShard, describe
from reknit.spec.lifecycle.state import evolve
from reknit.spec.roster import Roster, Topology

FLEET = Topology(train_world_size=1, dp_size=2)


def built() -> State:
    state = interpret(State.initial(FLEET), ev.StartRequested()).state
    state = interpret(state, ev.RefitRequested(ev.Version(0, 1))).state
    while state.inside:
        rank, stamp = min(state.inside), state.stamp
        forming = state.phase is Phase.FORMING
        reply = ev.RankJoined(stamp, rank) if forming else ev.RankTransferred(stamp, rank, ev.Version(0, 1))
        state = interpret(state, reply).state
    return state


def test_a_step_says_what_was_taken_in_the_order_it_was_taken() -> None:
    step = interpret(State.initial(FLEET), ev.StartRequested())
    assert step.fired == ("start@unbuilt", "form@unbuilt")
    assert step.ignored == ()
    assert (step.state.phase, step.state.epoch, step.state.roster) == (Phase.FORMING, 1, Roster({0: 0, 1: 0}))


def test_a_step_leaves_its_input_alone() -> None:
    state = built()
    kept = copy.deepcopy(state)
    interpret(state, ev.ShardExited(0, 0))
    assert state == kept


def test_an_ignored_event_gives_back_the_very_same_state() -> None:
    state = built()
    step = interpret(state, ev.ReconcileRequested())
    assert step.state is state
    assert (step.fired, step.commands) == ((), ())
    assert step.ignored == ("ignore_ReconcileRequested@built",)


def test_a_refusal_names_the_event_the_phase_and_the_epoch() -> None:
    with pytest.raises(UnknownShard) as caught:
        interpret(built(), ev.ShardExited(7, 0))
    error = caught.value
    assert (error.event, error.where, error.epoch) == (ev.ShardExited(7, 0), Phase.BUILT, 1)
    text = str(error)
    assert text.startswith("ShardExited(slot 7, incarnation 0")
    assert "refused while built in epoch 1: no slot has this number" in text
    assert "committed version 0.1, 2 of 2 shards live" in text


def test_a_refusal_survives_a_remote_call() -> None:
    """R5: an exception's type is lost across an RPC; everything that it says is data."""
    error = UnknownShard(ev.ShardExited(7, 0), Phase.BUILT, 1, "no slot has this number")
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is UnknownShard
    assert (again.event, again.where, again.epoch, again.why) == (error.event, error.where, error.epoch, error.why)
    assert str(again) == str(error)


@pytest.mark.parametrize(
    "signal", [ev.FormDue(), ev.Settled(), ev.Condemned((0,)), ev.Promoted((0,), ev.Version(0, 9)), ev.Departed(0, 0)]
)
def test_a_signal_from_outside_is_refused(signal: ev.Signal) -> None:
    """Signals couple the machines within a step; from outside they would be a door around the table."""
    with pytest.raises(ImpossibleHere, match="never sent from outside"):
        interpret(built(), signal)


def test_after_the_end_calls_are_refused_and_observations_ignored() -> None:
    closed = interpret(built(), ev.CloseRequested()).state
    for call in (
        ev.StartRequested(),
        ev.RefitRequested(ev.Version(0, 2)),
        ev.ReconcileRequested(),
        ev.RetireRequested(0),
    ):
        with pytest.raises(RunClosed):
            interpret(closed, call)
    for observation in (ev.ShardExited(0, 0), ev.TrainerLost(0), ev.CloseRequested(), ev.ProbeFailed(0, 0)):
        assert interpret(closed, observation).state is closed


def test_every_refusal_is_one_kind_of_error() -> None:
    with pytest.raises(Refused):
        interpret(State.initial(FLEET), ev.ReconcileRequested())


def test_events_are_told_in_words() -> None:
    event = ev.RankFailed(ev.Stamp(2, 1), 3, ev.Cause.PEER, "closed")
    assert describe(event) == "RankFailed(stamp 2.1, rank 3, cause peer, detail closed)"
    assert describe(ev.StartRequested()) == "StartRequested()"


def test_evolving_a_record_is_replacing_its_fields() -> None:
    state = built()
    changed = evolve(state, phase=Phase.STALE, tries=2)
    assert (changed.phase, changed.tries, changed.shards) == (Phase.STALE, 2, state.shards)
    assert state.phase is Phase.BUILT
    assert evolve(changed, phase=Phase.BUILT, tries=0) == state
    assert evolve(state.shards[0], state=ShardState.TORN).state is ShardState.TORN
