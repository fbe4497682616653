"""Every ordering of events that a small fleet can meet, searched breadth-first over the table.

Nearest first, so that what is found comes with a shortest way to it. A state is visited once for all its renamings
(`symmetry`), and once for every budget that allows more than those before it: a run with less left of its bounds can
do nothing that a run with more left cannot. `environment` says what may happen, the table what comes of it, and the
invariants what must hold of that.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ..spec.config import RefitConfig
from ..spec.lifecycle.entries import Row
from ..spec.lifecycle.errors import ImpossibleHere, Refused, describe
from ..spec.lifecycle.events import Event
from ..spec.lifecycle.interpret import Step, interpret
from ..spec.lifecycle.invariants import INVARIANTS
from ..spec.lifecycle.state import TERMINAL, HaltReason, State
from ..spec.lifecycle.table import COMMUNICATOR, SHARDS
from ..spec.roster import Topology
from .environment import Bounds, Budget, moves, noise
from .symmetry import Key, key, orbits

Stepper = Callable[[State, Event], Step]

_OF_STATE = tuple((i.id, i.of_state) for i in INVARIANTS if i.of_state)
_OF_STEP = tuple((i.id, i.of_step) for i in INVARIANTS if i.of_step)


@dataclass(slots=True)
class Report:
    """What a search saw.

    states: distinct up to renaming. transitions: events tried, refused ones included. complete: nothing within the
    bounds was left out. violation: what broke, at the end of `trace`; empty when all held. reached: the state at
    the end of `trace` that a goal asked for.
    """

    start: State
    states: int = 0
    transitions: int = 0
    depth: int = 0
    complete: bool = True
    fired: set[str] = field(default_factory=set)
    halts: set[HaltReason] = field(default_factory=set)
    violation: tuple[str, ...] = ()
    trace: tuple[Event, ...] = ()
    reached: State | None = None
    stepper: Stepper = interpret

    def rows_never_fired(self) -> tuple[str, ...]:
        return tuple(sorted(row_ids() - self.fired))

    def story(self) -> str:
        """The trace as numbered lines that can be read, and what is wrong at its end."""
        lines = [_scene(self.start)]
        state = self.start
        for number, event in enumerate(self.trace, start=1):
            try:
                step = self.stepper(state, event)
            except Refused as error:
                lines.append(f"{number:3}. {describe(event)} -> {type(error).__name__}")
                continue
            state = step.state
            taken = ", ".join((*step.fired, *(f"({entry})" for entry in step.ignored)))
            orders = ", ".join(type(command).__name__ for command in step.commands)
            lines.append(f"{number:3}. {describe(event)}  [{taken}]" + (f"  orders {orders}" if orders else ""))
            lines.append(f"     {_scene(state)}")
        lines.extend(f"  => {broken}" for broken in self.violation)
        return "\n".join(lines)


def _scene(state: State) -> str:
    shards = " ".join(f"{s.slot}:{s.incarnation}={s.state.value}" + "*" * s.fencing for s in state.shards)
    inside = f" inside {sorted(state.inside)}" if state.inside else ""
    return f"{state.phase.value} epoch {state.epoch} over {state.roster}{inside} | {shards}"


def row_ids() -> frozenset[str]:
    """The id of every row of both machines."""
    return frozenset(entry.id for entry in (*COMMUNICATOR, *SHARDS) if isinstance(entry, Row))


class _Seen:
    """Which states were met, each with the budgets that none of the others covers."""

    def __init__(self) -> None:
        self.budgets: dict[Key, list[Budget]] = {}

    def add(self, met: Key, budget: Budget) -> tuple[bool, bool]:
        """Whether the state is new, and whether it has to be visited with this budget."""
        budgets = self.budgets.get(met)
        if budgets is None:
            self.budgets[met] = [budget]
            return True, True
        if any(known.covers(budget) for known in budgets):
            return False, False
        budgets.append(budget)
        return False, True


def search(
    topology: Topology,
    config: RefitConfig,
    bounds: Bounds | None = None,
    *,
    stepper: Stepper = interpret,
    max_states: int | None = None,
    on_step: Callable[[State, Event, Step], object] | None = None,
    start: State | None = None,
    goal: Callable[[State], bool] | None = None,
    with_noise: bool = False,
    symmetric: bool = True,
) -> Report:
    """Visit every reachable state, nearest first. Stops at the first violation, with a shortest trace to it.

    A refusal is legal (and changes nothing); a signal that arrives where the table says it cannot is a violation.
    start: where to begin instead of the initial state. goal: stop at the first state of which it holds. with_noise:
    also feed, in every state, what must change nothing there. symmetric: visit one of all renamings only.
    """
    limits = bounds or Bounds()
    first = start or State.initial(topology, config)
    report = Report(first, stepper=stepper)
    seen = _Seen()
    seen.add(key(first, symmetric=symmetric), limits.budget)
    parents: list[tuple[int, Event] | None] = [None]
    frontier: deque[tuple[int, State, Budget, int]] = deque(((0, first, limits.budget, 0),))
    report.states = 1

    def stop(found: tuple[str, ...], node: int, *last: Event) -> Report:
        report.violation, report.trace = found, (*_way(parents, node), *last)
        return report

    if goal is not None and goal(first):
        report.reached = first
        return report
    while frontier:
        node, state, budget, depth = frontier.popleft()
        report.depth = depth
        tried = orbits(state, symmetric=symmetric)
        if with_noise:
            for event in noise(state, tried):
                report.transitions += 1
                if changed := _disturbed(stepper, state, event):
                    return stop((changed,), node, event)
        for event, left in moves(state, budget, tried, limits):
            report.transitions += 1
            try:
                step = stepper(state, event)
            except ImpossibleHere as error:
                return stop((f"table: {error}",), node, event)
            except Refused:
                continue
            report.fired.update(step.fired)
            if on_step is not None:
                on_step(state, event, step)
            after = step.state
            if after is state and not step.commands:
                continue
            if broken := [f"{id_}: {said}" for id_, holds in _OF_STEP if (said := holds(state, event, step))]:
                return stop(tuple(broken), node, event)
            new, visit = seen.add(key(after, symmetric=symmetric), left)
            if not visit:
                continue
            if new:
                report.states += 1
                if broken := [f"{id_}: {said}" for id_, holds in _OF_STATE if (said := holds(after))]:
                    return stop(tuple(broken), node, event)
                if after.halt is not None:
                    report.halts.add(after.halt.reason)
                if goal is not None and goal(after):
                    report.reached = after
                    return stop((), node, event)
            if after.phase not in TERMINAL:
                frontier.append((len(parents), after, left, depth + 1))
                parents.append((node, event))
            if max_states is not None and report.states >= max_states:
                report.complete = False
                return report
    return report


def reach(
    topology: Topology,
    config: RefitConfig,
    bounds: Bounds,
    goals: Sequence[Callable[[State], bool]],
) -> Report:
    """One goal after the other, each from where the one before was reached, each with the whole of `bounds`.

    `reached` is None when a goal cannot be reached; the trace leads to the last one that can.
    """
    whole = Report(State.initial(topology, config), reached=State.initial(topology, config))
    for goal in goals:
        leg = search(topology, config, bounds, start=whole.reached, goal=goal)
        whole.trace += leg.trace
        whole.states += leg.states
        whole.transitions += leg.transitions
        whole.violation = leg.violation
        whole.reached = leg.reached
        if whole.reached is None:
            break
    return whole


def _disturbed(stepper: Stepper, state: State, event: Event) -> str | None:
    """What is wrong when an event that should be refused, or change nothing, does something."""
    try:
        step = stepper(state, event)
    except ImpossibleHere as error:
        return f"table: {error}"
    except Refused:
        return None
    if step.state == state and not step.commands and not step.fired:
        return None
    return f"noise: {describe(event)} should change nothing, it fired {', '.join(step.fired) or 'no row'}"


def _way(parents: list[tuple[int, Event] | None], node: int) -> tuple[Event, ...]:
    events: list[Event] = []
    while (step := parents[node]) is not None:
        node, event = step
        events.append(event)
    return tuple(reversed(events))
