"""What must eventually happen when faults stop, on the graph of everything that may still happen then.

Two questions about a set of states. *Must it come to rest?* Whatever the ranks answer or fail to answer and in which
order deadlines fire, every run ends with no wait left: nothing runs in circles, and nothing waits for ever. *Can it
go on?* From wherever it may come to rest, calls of the trainer lead to a live communicator, or the run has ended.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from ..spec.lifecycle.errors import Refused
from ..spec.lifecycle.events import Event, ReconcileRequested, RefitRequested
from ..spec.lifecycle.interpret import interpret
from ..spec.lifecycle.state import LIVE, TERMINAL, State
from .environment import deadlines, next_version, replies
from .symmetry import Key, Orbits, key, orbits

Choices = Callable[[State, Orbits], Iterable[Event]]


def replies_and_deadlines(state: State, tried: Orbits) -> Iterable[Event]:
    """What may happen without a new fault: anybody answers, or does not and its deadline fires."""
    yield from replies(state, tried)
    yield from deadlines(state, tried, pauses=True)


def replies_and_calls(state: State, tried: Orbits) -> Iterable[Event]:
    """What may happen when everybody is well and the trainer asks."""
    yield from replies(state, tried)
    yield ReconcileRequested()
    yield RefitRequested(next_version(state))


def is_at_rest(state: State) -> bool:
    """Nothing is awaited: the run has ended, or no refit is open and nothing is under way."""
    if state.phase in TERMINAL:
        return True
    awaited = state.refit is not None or state.inside or state.timers or any(shard.timer for shard in state.shards)
    return not awaited


def is_live_or_over(state: State) -> bool:
    """There is a communicator, or there will never be one."""
    return state.phase in LIVE or state.phase in TERMINAL


N = TypeVar("N")


@dataclass(slots=True)
class Graph(Generic[N]):
    """States by number, and the numbers of the states that may follow each."""

    states: list[N]
    after: list[list[int]]

    def cannot_reach(self, goal: Callable[[N], bool], *, wanted: Callable[[list[int]], int]) -> list[N]:
        """The states that are not good, working backwards from the goal.

        wanted: how many of its successors must be good for a state to be good itself.
        """
        before: list[list[int]] = [[] for _ in self.states]
        for node, after in enumerate(self.after):
            for following in after:
                before[following].append(node)
        missing = [wanted(after) for after in self.after]
        good = [goal(state) for state in self.states]
        queue = deque(node for node, is_good in enumerate(good) if is_good)
        while queue:
            for node in before[queue.popleft()]:
                missing[node] -= 1
                if missing[node] <= 0 and not good[node]:
                    good[node] = True
                    queue.append(node)
        return [state for state, is_good in zip(self.states, good, strict=True) if not is_good]


def _graph(starts: Iterable[State], choices: Choices, goal: Callable[[State], bool]) -> Graph[State]:
    """Everything reachable from `starts`; what satisfies `goal` is not followed further."""
    number: dict[Key, int] = {}
    graph = Graph[State]([], [])

    def known(state: State) -> int:
        met = key(state)
        if met not in number:
            number[met] = len(graph.states)
            graph.states.append(state)
            graph.after.append([])
        return number[met]

    for start in starts:
        known(start)
    position = 0
    while position < len(graph.states):
        state = graph.states[position]
        if not goal(state):
            follows: set[int] = set()
            for event in choices(state, orbits(state)):
                try:
                    step = interpret(state, event)
                except Refused:
                    continue
                if step.fired:
                    follows.add(known(step.state))
            graph.after[position] = sorted(follows)
        position += 1
    return graph


def runs_that_never_rest(starts: Iterable[State]) -> tuple[list[State], int]:
    """States from which some run without new faults never comes to rest; and how many states were looked at.

    Backwards from rest: a state is good when it is at rest, or has a successor and all of them are good.
    """
    graph = _graph(starts, replies_and_deadlines, is_at_rest)
    return graph.cannot_reach(is_at_rest, wanted=len), len(graph.states)


def dead_ends(starts: Iterable[State]) -> tuple[list[State], int]:
    """States from which neither a live communicator nor an end can be reached; and how many were looked at.

    Backwards from there: a state is good when one of its successors is.
    """
    graph = _graph(starts, replies_and_calls, is_live_or_over)
    return graph.cannot_reach(is_live_or_over, wanted=lambda after: 1), len(graph.states)
