"""The machine that the runtime steps does what the plain reading of the same table says, in every state."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from reknit.spec.config import RefitConfig
from reknit.spec.lifecycle import Phase, Refused, State, Step, interpret, violations
from reknit.spec.lifecycle import events as ev
from reknit.spec.lifecycle.errors import ImpossibleHere, describe
from reknit.spec.lifecycle.events import Event
from reknit.spec.lifecycle.state import evolve
from reknit.spec.roster import Topology
from reknit.statemachine.environment import Bounds, Budget, about, moves, noise
from reknit.statemachine.explore import search
from reknit.statemachine.machine import LifecycleMachine
from reknit.statemachine.symmetry import orbits

EVERYTHING = Budget(9, 9, 9, 9)


def agree(machine: LifecycleMachine, event: Event) -> Step | Refused:
    """Both readings of one event; they must say the same, errors included."""
    before = machine.state
    try:
        expected: Step | Refused = interpret(before, event)
    except Refused as refused:
        expected = refused
    if isinstance(expected, Step):
        step = machine.step(event)
        assert step == expected
        assert machine.state is step.state
        return step
    with pytest.raises(Refused) as caught:
        machine.step(event)
    found = caught.value
    assert machine.state is before, "a refusal changes nothing"
    assert type(found) is type(expected)
    assert (found.event, found.where, found.epoch, found.why) == (event, expected.where, before.epoch, expected.why)
    assert describe(event) in str(found)
    assert f"while {found.where.value} in epoch {before.epoch}" in str(found)
    return found


def test_the_machine_agrees_with_the_plain_reading_on_every_step_of_a_searched_graph() -> None:
    """Every state of a small slice, and in it every event, legal or not."""
    machine = LifecycleMachine(State.initial(Topology(train_world_size=1, dp_size=2)))
    compared: set[str] = set()

    def check(before: State, event: Event, step: Step) -> None:
        machine.state = before
        agree(machine, event)
        compared.update((*step.fired, *step.ignored))

    report = search(
        Topology(train_world_size=1, dp_size=2),
        RefitConfig(max_restart_attempts_per_shard=1, unhealthy_threshold=1, on_frozen="fence"),
        Bounds(faults=1, refits=2, reports=1, operator=1),
        on_step=check,
        max_states=1500,
    )
    assert not report.violation
    assert len(compared) > 80


def test_the_machine_agrees_on_what_must_be_refused_or_change_nothing() -> None:
    machine = LifecycleMachine(State.initial(Topology(train_world_size=1, dp_size=2)))
    kinds: set[str] = set()

    def check(before: State, event: Event, step: Step) -> None:
        for late in noise(step.state, orbits(step.state)):
            machine.state = step.state
            answer = agree(machine, late)
            kinds.add(type(answer).__name__)

    search(
        Topology(train_world_size=1, dp_size=2),
        RefitConfig(),
        Bounds(faults=1, refits=1, operator=1),
        on_step=check,
        max_states=150,
    )
    assert {"Step", "UnknownShard", "AlreadyStarted", "RefitUnderWay", "DeltaNotAllowed", "RunClosed"} <= kinds


def anything(topology: Topology) -> st.SearchStrategy[Event]:
    """Events without any regard to the state: mostly late, foreign or impossible."""
    ranks, slots = st.integers(0, 5), st.integers(-1, topology.dp_size)
    stamps = st.builds(ev.Stamp, st.integers(0, 4), st.integers(0, 4))
    versions = st.builds(ev.Version, st.integers(0, 1), st.integers(0, 4))
    observed = st.tuples(slots, st.integers(0, 2)).flatmap(lambda pair: st.sampled_from(about(*pair)))
    return st.one_of(
        observed,
        st.builds(ev.RankJoined, stamps, ranks),
        st.builds(ev.RankTransferred, stamps, ranks, versions),
        st.builds(ev.RankProgressed, stamps, ranks),
        st.builds(ev.RankFailed, stamps, ranks, st.sampled_from(ev.Cause)),
        st.builds(ev.RankLeft, stamps, ranks, st.sampled_from(ev.Progress)),
        st.builds(ev.FormExpired, stamps),
        st.builds(ev.ProgressExpired, stamps),
        st.builds(ev.SettleExpired, stamps),
        st.builds(ev.RefitExpired, versions),
        st.builds(ev.RefitRequested, versions, st.sampled_from(ev.Payload)),
        st.builds(ev.RetireRequested, slots),
        st.sampled_from([ev.StartRequested(), ev.ReconcileRequested(), ev.FormDue(), ev.Settled()]),
    )


def likely(state: State) -> list[Event]:
    """What may really come next, ends of the run left out so that stories become long."""
    possible: Iterable[tuple[Event, Budget]] = moves(state, EVERYTHING, orbits(state, symmetric=False), Bounds())
    return [event for event, _ in possible if not isinstance(event, ev.TrainerLost | ev.CloseRequested)]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(data=st.data())
def test_the_machine_agrees_and_every_property_holds_on_long_random_stories(data: st.DataObject) -> None:
    """Bigger fleets than the exhaustive search visits, with a foreign event between the likely ones."""
    topology = Topology(
        train_world_size=data.draw(st.integers(1, 2), "trainers"),
        dp_size=data.draw(st.integers(1, 4), "shards"),
        workers_per_shard=data.draw(st.integers(1, 2), "workers"),
    )
    config = RefitConfig(on_frozen=data.draw(st.sampled_from(["stop", "fence"]), "policy"), unhealthy_threshold=2)
    machine = LifecycleMachine(State.initial(topology, config))
    foreign = anything(topology)
    for _ in range(data.draw(st.integers(1, 40), "length")):
        before = machine.state
        choices = likely(before)
        usual = bool(choices) and data.draw(st.integers(0, 3), "kind") > 0
        event = data.draw(st.sampled_from(choices) if usual else foreign, "event")
        answer = agree(machine, event)
        if isinstance(answer, Step):
            assert violations(before, event, answer) == ()
        if isinstance(answer, ImpossibleHere):
            assert isinstance(event, ev.Signal), f"the table lets {answer} happen"


def test_a_row_that_raises_has_changed_nothing() -> None:
    """Compute first, commit once: an effect that raises leaves the machine where it was, and able to go on."""

    class Broken:
        min_healthy_shards = 1

        @property
        def form_timeout_s(self) -> float:
            raise RuntimeError("no such budget")

    machine = LifecycleMachine(State.initial(Topology(train_world_size=1, dp_size=1)))
    whole = machine.state
    broken = machine.state = evolve(whole, config=Broken())
    with pytest.raises(RuntimeError, match="no such budget"):
        machine.step(ev.StartRequested())
    assert machine.state is broken
    machine.state = whole
    assert machine.step(ev.StartRequested()).state.phase is Phase.FORMING


def test_one_machine_serves_any_number_of_steps_without_memory() -> None:
    """Nothing of one step is left for the next: the same state and event give the same step."""
    machine = LifecycleMachine(State.initial(Topology(train_world_size=1, dp_size=2)))
    start = machine.state
    first = machine.step(ev.StartRequested())
    machine.step(ev.ShardExited(1, 0))
    machine.state = start
    assert machine.step(ev.StartRequested()) == first
