"""Every ordering of events of a small fleet and its controller together.

`world` says what may happen to the fleet and what orders do to it, the table what the controller makes of it. After
every single step the invariants of the table are checked, and what the controller believes is held against what is
the case (W1 to W5, in `world`). When everything was visited, `Graph` says what must come of it when faults stop. What
is found comes with a way to it that takes the fewest faults, and of those the fewest steps.
"""

from __future__ import annotations

import re
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from ..spec.config import RefitConfig
from ..spec.lifecycle.interpret import interpret
from ..spec.lifecycle.state import HaltReason, State
from ..spec.roster import Topology
from .abstract import Book, Stepper
from .progress import Graph
from .world import CALLS, Move, View, World, initial, moves, obey

Node = tuple[int, int]
Start = Callable[[Topology, RefitConfig], State]
_OVER = -1  # the world of a run that has ended: nothing can happen in it
_NOWHERE, _NOT_YET = -1, -2  # the parent of the start, and of what was seen and not visited
_VIEWS = 50_000  # so many views are kept: like steps, most are asked for soon, or never


class Told(NamedTuple):
    """One line of a story. choice: which of the moves that were possible there it was; says: in the names of slots."""

    choice: int
    says: str


class Followed(NamedTuple):
    """A way that was taken: its lines, what the controller knew at the start and after each step, what broke at last.

    The states are those that stand for all of their renamings: their slots need not be the ones of the lines, and
    their numbers are small. There is none after a step that broke something.
    """

    told: tuple[Told, ...]
    states: tuple[State, ...]
    broken: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Violation:
    """What is wrong, as `id: sentence`, the story that leads there, and the rows that the last step fired."""

    says: str
    told: tuple[Told, ...]
    faults: int
    fired: tuple[str, ...] = ()

    @property
    def id(self) -> str:
        """The id of what does not hold."""
        return self.says.partition(":")[0]

    @property
    def story(self) -> tuple[str, ...]:
        """One line for each thing that happened."""
        return tuple(line.says for line in self.told)


@dataclass(slots=True)
class Coupled:
    """What a search saw. States are those of controller and fleet together, distinct up to renaming of slots.

    depth: the most steps that a shortest story with the fewest faults takes to anywhere.
    """

    states: int = 0
    transitions: int = 0
    depth: int = 0
    seconds: float = 0.0
    fired: set[str] = field(default_factory=set)
    halts: set[HaltReason] = field(default_factory=set)
    violations: list[Violation] = field(default_factory=list)


class Search:
    """One search over a small fleet.

    Nodes are visited in the order of faults spent, and of steps among those: each is met first with the most faults
    left, and whatever can happen with fewer left can happen then, so nothing is visited twice.
    """

    def __init__(
        self,
        topology: Topology,
        config: RefitConfig,
        *,
        faults: int,
        refits: int,
        operator: int = 0,
        stepper: Stepper = interpret,
        start: Start = State.initial,
    ) -> None:
        self.book = Book(stepper)
        self.faults = faults
        self.report = Coupled()
        self._views: dict[int, View] = {}
        self._worlds: list[World] = []
        self._world_numbers: dict[World, int] = {}
        self._nodes: dict[Node, int] = {}
        self.order: list[Node] = []
        self.parents = array("l")
        self._spent = array("b")
        first = self.book.number(start(topology, config))
        self._start = self._canonical(first, initial(topology.dp_size, refits=refits, operator=operator))

    def view(self, number: int) -> View:
        known = self._views.get(number)
        if known is None:
            if len(self._views) >= _VIEWS:
                self._views.clear()
            known = self._views[number] = View(self.book.states[number])
        return known

    def _order(self, state: int, world: World) -> tuple[int, ...]:
        """The slots in the order that stands for all of their orders: equal ones are alike in everything."""
        kinds = self.book.kinds[state]
        return tuple(sorted(range(len(kinds)), key=lambda slot: (kinds[slot], world.slots[slot])))

    def _canonical(self, state: int, world: World | None) -> Node:
        if world is None:
            return state, _OVER
        order = self._order(state, world)
        if any(place != slot for place, slot in enumerate(order)):
            state = self.book.permuted(state, order)
            world = world._replace(slots=tuple(world.slots[slot] for slot in order))
        number = self._world_numbers.get(world)
        if number is None:
            number = self._world_numbers[world] = len(self._worlds)
            self._worlds.append(world)
        return state, number

    def _number(self, node: Node) -> int:
        """The number of a node, met just now or before."""
        known = self._nodes.get(node)
        if known is None:
            known = self._nodes[node] = len(self.order)
            self.order.append(node)
            self.parents.append(_NOT_YET)
            self._spent.append(0)
        return known

    def run(self, *, enough: Callable[[Sequence[Violation]], bool] = bool) -> Coupled:
        """Visit everything; give up once `enough` violations were found, which is one unless told otherwise."""
        began = time.monotonic()
        waiting: _Waiting = {0: [(self._number(self._start), _NOWHERE)]}
        for spent in range(self.faults + 1):
            waiting = self._exhaust(waiting, spent, enough)
        self.report.seconds = time.monotonic() - began
        return self.report

    def _exhaust(self, waiting: _Waiting, spent: int, enough: Callable[[Sequence[Violation]], bool]) -> _Waiting:
        """Everything that is reached without another fault, nearest first; returns what one more fault leads to."""
        report = self.report
        faulty: _Waiting = {}
        depth = min(waiting, default=0)
        while waiting:
            for here, parent in waiting.pop(depth, ()):
                if self.parents[here] != _NOT_YET:
                    continue
                if enough(report.violations):
                    return {}
                self.parents[here] = parent
                self._spent[here] = spent
                report.states += 1
                report.depth = max(report.depth, depth)
                number, world_number = self.order[here]
                if world_number == _OVER:
                    continue
                view, world = self.view(number), self._worlds[world_number]
                for choice, move in enumerate(moves(view, world, faults=spent < self.faults)):
                    report.transitions += 1
                    arrived, broken, fired = self._take(number, view, move)
                    if broken:
                        report.violations.append(self._violation(here, choice, move, broken[0], fired))
                    elif arrived is not None:
                        there = self._number(self._canonical(*arrived))
                        if self.parents[there] == _NOT_YET:
                            (faulty if move.fault else waiting).setdefault(depth + 1, []).append((there, here))
            depth += 1
        return faulty

    def _take(
        self, number: int, view: View, move: Move
    ) -> tuple[tuple[int, World | None] | None, tuple[str, ...], tuple[str, ...]]:
        """Where a move leads, what is wrong with it, and what it fired.

        None: nowhere new; no world: the run is over.
        """
        if move.event is None:
            return (number, move.world), (), ()
        outcome = self.book.step(number, move.event)
        if outcome.broken:
            return None, outcome.broken, outcome.fired
        if outcome.state is None:
            return None, (), ()
        self.report.fired.update(outcome.fired)
        after = self.view(outcome.state)
        told = obey(move.world, view, after, outcome.commands)
        if told.broken:
            return None, told.broken, outcome.fired
        if after.over:
            if after.state.halt is not None:
                self.report.halts.add(after.state.halt.reason)
            return (outcome.state, None), (), outcome.fired
        return (outcome.state, told.world), (), outcome.fired

    # --- what must come of it ----------------------------------------------------------------------------------------

    def graph(self) -> Graph[int]:
        """What may follow each visited node by itself: no further fault happens, and nobody asks for anything."""
        graph = Graph[int](list(range(len(self.order))), [])
        for node in graph.states:
            graph.after.append(sorted({*self._following(node)} - {node}))
        return graph

    def _following(self, node: int) -> Iterator[int]:
        number, world_number = self.order[node]
        if world_number == _OVER:
            return
        view = self.view(number)
        for move in moves(view, self._worlds[world_number], faults=False):
            if not isinstance(move.event, CALLS):
                arrived, _, _ = self._take(number, view, move)
                if arrived is not None:
                    yield self._number(self._canonical(*arrived))

    def state(self, node: int) -> State:
        """What the controller knows there."""
        return self.book.states[self.order[node][0]]

    # --- stories -----------------------------------------------------------------------------------------------------

    def _violation(self, node: int, choice: int, last: Move, says: str, fired: tuple[str, ...]) -> Violation:
        """What is wrong after the last move, and the way there. The slots keep the names that they had at the start."""
        told, names = self._way(node)
        return Violation(
            _named(says, names),
            (*told, Told(choice, _named(last.says, names))),
            self._spent[node] + last.fault,
            fired,
        )

    def stuck(self, node: int, says: str) -> Violation:
        """A node that breaks a promise about what comes after it, with the way there."""
        told, _ = self._way(node)
        return Violation(says, told, self._spent[node])

    def follow(self, choices: Sequence[int]) -> Followed:
        """Take these moves from the start.

        Raises `ValueError` when there is no such move, or when something breaks before the last.
        """
        told: list[Told] = []
        states = [self.book.states[self._start[0]]]
        node, spent = self._start, 0
        names: list[int] = list(range(len(self._worlds[node[1]].slots)))
        for step, choice in enumerate(choices, start=1):
            number, world_number = node
            view = self.view(number)
            world = None if world_number == _OVER else self._worlds[world_number]
            possible = list(moves(view, world, faults=spent < self.faults)) if world is not None else []
            if not 0 <= choice < len(possible):
                raise ValueError(f"step {step} is move {choice} of {len(possible)} that are possible there")
            move = possible[choice]
            told.append(Told(choice, _named(move.says, names)))
            arrived, broken, _ = self._take(number, view, move)
            if broken:
                if step < len(choices):
                    raise ValueError(f"step {step} of {len(choices)} breaks a property already: {broken[0]}")
                return Followed(tuple(told), tuple(states), tuple(_named(each, names) for each in broken))
            if arrived is None:
                raise ValueError(f"step {step}, {told[-1].says}, is refused")
            spent += move.fault
            node = self._canonical(*arrived)
            states.append(self.book.states[arrived[0]])
            if arrived[1] is not None:
                names = [names[slot] for slot in self._order(arrived[0], arrived[1])]
        return Followed(tuple(told), tuple(states), ())

    def _way(self, node: int) -> tuple[tuple[Told, ...], list[int]]:
        """The story that leads to a node, and which slot each of its slots was at the start."""
        told: list[Told] = []
        way = [node]
        while self.parents[way[-1]] >= 0:
            way.append(self.parents[way[-1]])
        names: list[int] = list(range(len(self._worlds[self._start[1]].slots)))
        for here, there in pairwise(reversed(way)):
            number, world_number = self.order[here]
            view = self.view(number)
            paid = self._spent[there] > self._spent[here]
            for choice, move in enumerate(
                moves(view, self._worlds[world_number], faults=self._spent[here] < self.faults)
            ):
                arrived, _, _ = self._take(number, view, move)
                if arrived is None or move.fault != paid or self._canonical(*arrived) != self.order[there]:
                    continue
                told.append(Told(choice, _named(move.says, names)))
                if arrived[1] is not None:
                    names = [names[slot] for slot in self._order(arrived[0], arrived[1])]
                break
        return tuple(told), names


_Waiting = dict[int, list[tuple[int, int]]]  # by depth: what may be visited there, and from where


def _named(says: str, names: Sequence[int]) -> str:
    """The same sentence in the names of the start; rosters without incarnations, which count no further than to 1."""

    def roster(found: re.Match[str]) -> str:
        return "shards " + ", ".join(sorted(str(names[int(slot)]) for slot in re.findall(r"(\d+):", found[0])))

    says = re.sub(r"shard (\d+)", lambda found: f"shard {names[int(found[1])]}", says)
    return re.sub(r"\{\d+:\d+(, \d+:\d+)*\}", roster, says)
