"""Everything that is searched for one answer: does the table keep its promises, and is no part of it dead?

`explore` runs three kinds of searches and adds up what they saw. The fleet that was asked for, with controller and
world together (`coupled`), under both policies for the frozen, and what must come of each of its states
(`promises`). The slices, which make every row fire and feed late and foreign events (`slices`, `explore`). And the
goals. They are independent of each other, so they share the processors of the machine.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Literal

from ..spec.config import RefitConfig
from ..spec.lifecycle.errors import describe
from ..spec.lifecycle.interpret import interpret
from ..spec.lifecycle.state import State
from . import explore as free
from .coupled import Search, Told, Violation
from .promises import broken_promises
from .published import HOLES, Recording, published
from .slices import FENCE, GOALS, SLICES, SMALL, fleet

Rule = Literal["ours", "published"]
RULES: tuple[Rule, ...] = ("ours", "published")


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One coupled search: everything that it depends on besides the code."""

    shards: int
    faults: int
    refits: int
    operator: int = 0
    policy: Literal["stop", "fence"] = "stop"
    rule: Rule = "ours"

    @property
    def config(self) -> RefitConfig:
        return FENCE if self.policy == "fence" else SMALL

    def __str__(self) -> str:
        counted = [
            f"{count} {name}{'' if count == 1 else 's'}"
            for count, name in ((self.shards, "shard"), (self.faults, "fault"), (self.refits, "refit"))
        ]
        called = [f"{self.operator} call{'' if self.operator == 1 else 's'} of the operator"] if self.operator else []
        return ", ".join([*counted, *called, self.policy if self.rule == "ours" else "the published rule"])

    def search(self) -> Search:
        """The search, not yet run. Raises `ValueError` when the fleet has no shard."""
        ours = self.rule == "ours"
        return Search(
            fleet(self.shards),
            self.config,
            faults=self.faults,
            refits=self.refits,
            operator=self.operator,
            stepper=interpret if ours else published,
            start=State.initial if ours else Recording.initial,
        )


@dataclass(frozen=True, slots=True)
class Found:
    """A property that does not hold. trace: one line for each thing that happened, in order.

    choices: the numbers of the moves that were taken, by which `scenario.replay` finds the way again; none for what
    the free search found. rule: the row of the published rule that led there, if it was one.
    """

    property: str
    says: str
    trace: tuple[str, ...]
    faults: int = 0
    asked: Asked | None = None
    choices: tuple[int, ...] = ()
    hole: str | None = None


@dataclass(slots=True)
class Searched:
    """What one search saw."""

    name: str
    states: int = 0
    transitions: int = 0
    depth: int = 0
    seconds: float = 0.0
    fired: frozenset[str] = frozenset()
    found: list[Found] = field(default_factory=list)
    reached: bool = True


@dataclass(slots=True)
class Exploration:
    """The sum. `rows_never_fired` and `goals_not_reached` are only asked of a rule that is meant to be whole: ours."""

    rule: Rule
    searches: list[Searched] = field(default_factory=list)
    seconds: float = 0.0
    rows_never_fired: tuple[str, ...] = ()
    goals_not_reached: tuple[str, ...] = ()

    @property
    def states(self) -> int:
        return sum(each.states for each in self.searches)

    @property
    def transitions(self) -> int:
        return sum(each.transitions for each in self.searches)

    @property
    def depth(self) -> int:
        return max((each.depth for each in self.searches), default=0)

    @property
    def violations(self) -> list[Found]:
        return [found for each in self.searches for found in each.found]

    @property
    def holds(self) -> bool:
        return not (self.violations or self.rows_never_fired or self.goals_not_reached)

    def as_json(self) -> dict[str, object]:
        """Plain data, the same keys always."""
        return {
            "rule": self.rule,
            "states": self.states,
            "transitions": self.transitions,
            "depth": self.depth,
            "seconds": round(self.seconds, 3),
            "violations": [
                {
                    "property": found.property,
                    "says": found.says,
                    "faults": found.faults,
                    "hole": found.hole,
                    "trace": list(found.trace),
                }
                for found in self.violations
            ],
            "rows_never_fired": list(self.rows_never_fired),
            "goals_not_reached": list(self.goals_not_reached),
            "searches": [
                {
                    "name": each.name,
                    "states": each.states,
                    "transitions": each.transitions,
                    "depth": each.depth,
                    "seconds": round(each.seconds, 3),
                }
                for each in self.searches
            ],
        }


def plan(shards: int, faults: int, rule: Rule = "ours") -> tuple[Asked, ...]:
    """The coupled searches behind one answer.

    One refit begins in every state of a fleet that has not served yet, with all of the faults; with a second one
    there are shards that serve while it breaks, and one fault is left out. The last has an operator who interferes.
    """
    if rule == "published":
        return (Asked(shards=shards, faults=faults, refits=2, rule=rule),)
    wanted = [Asked(shards=shards, faults=faults, refits=1, policy=policy) for policy in ("fence", "stop")]
    wanted += [replace(each, faults=max(faults - 1, 0), refits=2) for each in wanted]
    return (*wanted, Asked(shards=min(shards, 2), faults=min(faults, 1), refits=1, operator=1))


def explore(
    shards: int,
    faults: int,
    rule: Rule = "ours",
    *,
    processes: int | None = None,
    on_searched: Callable[[Searched], object] = lambda searched: None,
) -> Exploration:
    """Search everything behind one answer. processes: how many at a time; None for one on each processor.

    Raises `ValueError` for a fleet without shards or a negative number of faults.
    """
    if shards < 1 or faults < 0:
        raise ValueError(f"a search needs at least 1 shard and 0 faults, got {shards} and {faults}")
    began = time.monotonic()
    result = Exploration(rule)
    jobs: list[tuple[Callable[..., Searched], object]] = [(look_at, asked) for asked in plan(shards, faults, rule)]
    if rule == "ours":
        jobs += [(look_at_slice, name) for name in SLICES]
        jobs += [(look_for_goal, name) for name in GOALS]
    for searched in _all_of(jobs, processes or os.cpu_count() or 1):
        on_searched(searched)
        result.searches.append(searched)
    if rule == "ours":
        fired = frozenset[str]().union(*(each.fired for each in result.searches))
        result.rows_never_fired = tuple(sorted(free.row_ids() - fired))
        result.goals_not_reached = tuple(each.name for each in result.searches if not each.reached)
    result.seconds = time.monotonic() - began
    return result


def _all_of(jobs: Sequence[tuple[Callable[..., Searched], object]], processes: int) -> Iterable[Searched]:
    """The results in this order; the long searches stand first and begin first."""
    if processes == 1:
        for job, about in jobs:
            yield job(about)
        return
    # Not forked: whoever calls this may have threads.
    with ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("spawn")) as pool:
        for under_way in [pool.submit(job, about) for job, about in jobs]:
            yield under_way.result()


# --- one search each, by what can be sent to another process ---------------------------------------------------------


def look_at(asked: Asked) -> Searched:
    """One coupled search, and what must come of each of its states."""
    search = asked.search()
    if asked.rule == "published":
        report = search.run(enough=lambda violations: len(_holes(violations)) == len(_HOLE_NAMES))
        violations = list(_holes(report.violations).values())
    else:
        report = search.run()
        violations = list(report.violations) or list(broken_promises(search))
    return Searched(
        str(asked),
        report.states,
        report.transitions,
        report.depth,
        report.seconds,
        frozenset(report.fired),
        [_found(asked, violation) for violation in violations],
    )


def look_at_slice(name: str) -> Searched:
    """One slice with the free environment."""
    began = time.monotonic()
    report = free.search(*SLICES[name])
    found = [
        Found(said.partition(":")[0], said, tuple(describe(event) for event in report.trace))
        for said in report.violation[:1]
    ]
    return Searched(
        name,
        report.states,
        report.transitions,
        report.depth,
        time.monotonic() - began,
        frozenset(report.fired),
        found,
    )


def look_for_goal(name: str) -> Searched:
    """One goal. What it fires on the way is not counted: goals are not there for cover."""
    began = time.monotonic()
    goal = GOALS[name]
    report = free.reach(*goal.slice, goal.legs)
    return Searched(
        f"{name}: {goal.says}",
        report.states,
        report.transitions,
        len(report.trace),
        time.monotonic() - began,
        reached=report.reached is not None,
    )


_HOLE_NAMES = tuple(dict.fromkeys(hole.id.partition("@")[0] for hole in HOLES if "transfer" not in hole.id))


def _holes(violations: Iterable[Violation]) -> dict[str, Violation]:
    """The first, which is a shortest, for each of the published rows that led to it."""
    first: dict[str, Violation] = {}
    for violation in violations:
        for hole in _HOLE_NAMES:
            if any(row.startswith(f"{hole}@") for row in violation.fired):
                first.setdefault(hole, violation)
    return first


def _found(asked: Asked, violation: Violation) -> Found:
    holes = [hole for hole in _HOLE_NAMES if any(row.startswith(f"{hole}@") for row in violation.fired)]
    told: tuple[Told, ...] = violation.told
    return Found(
        violation.id,
        violation.says,
        violation.story,
        violation.faults,
        asked,
        tuple(line.choice for line in told),
        holes[0] if holes else None,
    )
