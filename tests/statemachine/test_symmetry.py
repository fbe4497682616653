"""The reductions of the search lose nothing: the same states are found, and equal keys mean equal behaviour."""

from __future__ import annotations

from dataclasses import fields

import pytest

from reknit.spec.config import RefitConfig
from reknit.spec.lifecycle import Refused, State, Step, interpret
from reknit.spec.lifecycle import events as ev
from reknit.spec.lifecycle.state import Refit, Shard
from reknit.spec.roster import Topology
from reknit.statemachine.environment import Bounds, Budget, moves
from reknit.statemachine.explore import search
from reknit.statemachine.symmetry import Key, Orbits, key, orbits

Successors = set[tuple[str, Key]]
CONFIG = RefitConfig(
    max_restart_attempts_per_shard=1, max_attempts_per_refit=2, max_transient_retries=1, on_frozen="fence"
)


def states_of(topology: Topology, bounds: Bounds, *, symmetric: bool) -> dict[Key, State]:
    """Every state that a search meets, by its symmetric key."""
    start = State.initial(topology, CONFIG)
    met = {key(start): start}
    report = search(
        topology,
        CONFIG,
        bounds,
        symmetric=symmetric,
        on_step=lambda before, event, step: met.setdefault(key(step.state), step.state),
    )
    assert report.complete
    assert not report.violation
    return met


@pytest.mark.parametrize(
    ("topology", "bounds"),
    [
        (Topology(train_world_size=1, dp_size=2), Bounds(faults=1, refits=1)),
        (Topology(train_world_size=2, dp_size=1, workers_per_shard=2), Bounds(faults=1, refits=1)),
        (Topology(train_world_size=1, dp_size=3), Bounds(faults=0, refits=2, operator=2)),
    ],
    ids=["shards", "trainers and workers", "operator"],
)
def test_one_of_all_renamings_finds_every_state_up_to_renaming(topology: Topology, bounds: Bounds) -> None:
    assert states_of(topology, bounds, symmetric=True).keys() == states_of(topology, bounds, symmetric=False).keys()


def successors(state: State) -> Successors:
    """What may happen next, up to renaming: the kind of event, and the key of what follows."""
    found: Successors = set()
    tried = Orbits(tuple(range(len(state.shards))), orbits(state, symmetric=False).ranks)
    for event, _ in moves(state, Budget(1, 1, 1, 1), tried, Bounds()):
        try:
            step = interpret(state, event)
        except Refused as refused:
            found.add((f"{type(event).__name__} {type(refused).__name__}", ()))
            continue
        name = type(event).__name__ + (f" {event.cause.value}" if isinstance(event, ev.RankFailed) else "")
        found.add((name, key(step.state)))
    return found


def test_states_with_one_key_behave_alike() -> None:
    """Every second state of one key must offer the same events and lead to the same keys as the first."""
    first: dict[Key, tuple[State, Successors]] = {}
    compared = 0

    def check(before: State, event: ev.Event, step: Step) -> None:
        nonlocal compared
        state = step.state
        met = key(state)
        if met not in first:
            first[met] = (state, successors(state))
        elif len(met) and state != first[met][0] and hash(state) % 5 == 0:
            compared += 1
            assert successors(state) == first[met][1]

    search(
        Topology(train_world_size=1, dp_size=2),
        CONFIG,
        Bounds(faults=2, refits=2, operator=1),
        symmetric=False,
        on_step=check,
        max_states=2500,
    )
    assert compared > 300


def test_every_field_of_a_state_is_in_the_key_or_left_out_on_purpose() -> None:
    """A new field must be thought about: in `symmetry`, and here."""
    in_the_key = {
        "phase",
        "started",
        "epoch",
        "roster",
        "inside",
        "carried",
        "broke_in",
        "cause",
        "holders",
        "untouched",
    }
    in_the_key |= {
        "never_entered",
        "stuck",
        "blamed",
        "refit",
        "committed",
        "tries",
        "transients",
        "queued",
        "timers",
        "halt",
    }
    in_the_key |= {"shards"}
    constant, told_only, relative = {"topology", "config"}, {"failures"}, {"attempt"}
    assert {field.name for field in fields(State)} == in_the_key | constant | told_only | relative
    assert {field.name for field in fields(Refit)} == {"version", "payload", "touched", "expired"}
    assert {field.name for field in fields(Shard)} == {
        *("slot", "state", "incarnation", "version", "fencing", "failed_probes", "failed_requests", "restarts"),
        *("timer", "last_words"),
    }


def test_what_cannot_be_told_apart_is_tried_once() -> None:
    state = State.initial(Topology(train_world_size=2, dp_size=3, workers_per_shard=2))
    assert orbits(state) == Orbits((0,), (0,))
    forming = interpret(state, ev.StartRequested()).state
    assert orbits(forming) == Orbits((0,), (0, 2))
    joined = interpret(forming, ev.RankJoined(forming.stamp, 4)).state
    assert orbits(joined) == Orbits((0, 1), (0, 2, 4, 5))
    assert orbits(joined, symmetric=False) == Orbits((0, 1, 2), tuple(range(8)))


def test_a_key_does_not_depend_on_who_it_was() -> None:
    state = interpret(State.initial(Topology(train_world_size=1, dp_size=3)), ev.StartRequested()).state
    keys = {key(interpret(state, ev.RankJoined(state.stamp, rank)).state) for rank in (1, 2, 3)}
    assert len(keys) == 1
    assert key(interpret(state, ev.RankJoined(state.stamp, 0)).state) not in keys
