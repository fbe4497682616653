"""P1 and P3: when faults stop, everything comes to rest, and from everywhere the run can go on or has ended."""

from __future__ import annotations

from dataclasses import replace

import pytest

from reknit.spec.config import OnFrozen, RefitConfig
from reknit.spec.lifecycle import Phase, ShardState, State, interpret
from reknit.spec.lifecycle import events as ev
from reknit.spec.lifecycle.state import evolve
from reknit.spec.roster import Topology
from reknit.statemachine.environment import Bounds
from reknit.statemachine.explore import search
from reknit.statemachine.progress import dead_ends, is_at_rest, runs_that_never_rest
from reknit.statemachine.symmetry import key

CONFIG = RefitConfig(
    max_restart_attempts_per_shard=1, max_attempts_per_refit=2, max_transient_retries=1, unhealthy_threshold=2
)


def reachable(shards: int, config: RefitConfig, bounds: Bounds) -> list[State]:
    """Every state of a slice, up to renaming."""
    topology = Topology(train_world_size=1, dp_size=shards)
    start = State.initial(topology, config)
    met = {key(start): start}
    report = search(
        topology,
        config,
        bounds,
        on_step=lambda before, event, step: met.setdefault(key(step.state), step.state),
    )
    assert report.complete
    return list(met.values())


@pytest.mark.parametrize("policy", ["stop", "fence"])
def test_from_every_state_a_live_communicator_or_a_halt_can_be_reached_without_further_faults(policy: OnFrozen) -> None:
    """P3."""
    states = reachable(2, replace(CONFIG, on_frozen=policy), Bounds(faults=1, refits=2))
    found, looked_at = dead_ends(states)
    assert found == []
    assert looked_at >= len(states) > 2_000


@pytest.mark.parametrize("policy", ["stop", "fence"])
def test_without_further_faults_every_run_comes_to_rest_whoever_is_silent(policy: OnFrozen) -> None:
    """P1: a refit completes or the run halts. No fairness is assumed: replies may come or not, deadlines fire."""
    config = replace(CONFIG, on_frozen=policy, max_restart_attempts_per_shard=0)
    states = reachable(2, config, Bounds(faults=1, refits=1))
    found, looked_at = runs_that_never_rest(states)
    assert found == []
    assert looked_at > len(states) > 1_000


def test_restarts_end_too() -> None:
    """H6: nothing boots and dies for ever."""
    states = reachable(1, replace(CONFIG, max_restart_attempts_per_shard=2), Bounds(faults=1, refits=1))
    found, _ = runs_that_never_rest(states)
    assert found == []


def test_a_wait_that_nothing_ends_is_found() -> None:
    """The check can fail: a deadline that was forgotten."""
    state = interpret(State.initial(Topology(train_world_size=1, dp_size=1), CONFIG), ev.StartRequested()).state
    endless = evolve(state, inside=frozenset(), timers=frozenset({ev.Timer.REFIT}))
    found, _ = runs_that_never_rest([endless])
    assert found == [endless]


def test_a_dead_end_is_found() -> None:
    """The check can fail: nobody is inside, nobody is on the way, and no call is allowed."""
    state = interpret(State.initial(Topology(train_world_size=1, dp_size=1), CONFIG), ev.StartRequested()).state
    lost = evolve(state, inside=frozenset(), timers=frozenset())
    found, _ = dead_ends([lost])
    assert [(s.phase, s.shards[0].state) for s in found[:1]] == [(Phase.FORMING, ShardState.REJOINED)]


def test_rest_means_that_nothing_is_awaited() -> None:
    start = State.initial(Topology(train_world_size=1, dp_size=1), CONFIG)
    assert is_at_rest(start)
    forming = interpret(start, ev.StartRequested()).state
    assert not is_at_rest(forming)
    assert is_at_rest(interpret(forming, ev.CloseRequested()).state)
