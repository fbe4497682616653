"""A Hypothesis machine made from the table: one rule for each row, and stories of fleets too big to search.

The search visits every state of small fleets; this walks through fleets of up to 32 shards. A rule is named after its
row and sends an event that fires this row, whenever there is one. Beside them one rule sends what is late, foreign or
impossible, which must be refused or ignored and change nothing, and one lets everybody answer at once, for in a world
of a hundred ranks nothing would ever complete one reply at a time.

After every step the machine that the runtime steps must agree with the plain reading of the table, and every property
must hold. At the end of a story its journal must conform, and without further faults the run must come to rest. Needs
the extra `test`.
"""

from __future__ import annotations

import itertools
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, cast

from hypothesis import note
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from ..spec.config import OnFrozen, RefitConfig
from ..spec.lifecycle import events as ev
from ..spec.lifecycle.entries import Row
from ..spec.lifecycle.errors import Refused
from ..spec.lifecycle.interpret import Step, interpret
from ..spec.lifecycle.invariants import violations
from ..spec.lifecycle.state import TERMINAL, Phase, State
from ..spec.lifecycle.table import COMMUNICATOR, SHARDS
from ..spec.roster import Topology
from .conform import conform, end_record, header_record, refused_record, step_record, written
from .environment import about, bad_reports, deadlines, faults, next_version, noise, operator_actions, replies
from .machine import LifecycleMachine
from .progress import is_at_rest
from .symmetry import Orbits, orbits

ROWS: tuple[Row, ...] = tuple(entry for entry in (*COMMUNICATOR, *SHARDS) if isinstance(entry, Row))
ENDS = (ev.TrainerLost, ev.ControllerFailed, ev.CloseRequested)
# What keeps a run from going on; deadlines are among them.
TROUBLE = (
    *ENDS,
    ev.RetireRequested,
    ev.RankFailed,
    ev.ShardExited,
    ev.WorkerExited,
    ev.ProbeFailed,
    ev.RequestFailed,
    ev.RestartFailed,
    ev.FormExpired,
    ev.ProgressExpired,
    ev.SettleExpired,
    ev.RefitExpired,
    ev.RestartExpired,
    ev.FenceExpired,
)
MANY = 20_000  # steps in which the biggest fleet comes to rest, with room


class Stepper(Protocol):
    """What is held against the table: it has a state, and applies events to it."""

    state: State

    def step(self, event: ev.Event) -> Step:
        """Apply an event, or raise `Refused` and change nothing."""


@dataclass
class Tally:
    """What a generated machine has done so far. rows: how often each row of the table was fired."""

    examples: int = 0
    steps: int = 0
    rows: Counter[str] = field(default_factory=Counter)


def rule_name(row: Row) -> str:
    """A row as the name of a method: `exit@serving` becomes `exit_in_serving`."""
    return row.id.replace("@", "_in_")


class _Story(RuleBasedStateMachine):
    """One run of a fleet, told event by event. The rules for the rows are added by `table_machine`."""

    stepper: ClassVar[Callable[[State], Stepper]]
    tally: ClassVar[Tally]

    def __init__(self) -> None:
        super().__init__()
        self.told = False
        self._known: tuple[tuple[State, bool, bool], Mapping[str, frozenset[type[ev.Event]]]] | None = None

    @initialize(
        trainers=st.integers(1, 4),
        shards=st.integers(1, 4) | st.integers(1, 32),
        workers=st.just(1) | st.integers(1, 4),
        on_frozen=st.sampled_from(["fence", "stop"]),
        floor=st.integers(1, 3),
        threshold=st.integers(1, 3),
        restarts=st.integers(0, 3),
        attempts=st.sampled_from([4, 3, 2]),
        transients=st.integers(0, 2),
        calm=st.integers(0, 20),
        patience=st.sampled_from([200, 100, 40, 0]),
        started=st.booleans(),
    )
    def begin(
        self,
        trainers: int,
        shards: int,
        workers: int,
        on_frozen: OnFrozen,
        floor: int,
        threshold: int,
        restarts: int,
        attempts: int,
        transients: int,
        calm: int,
        patience: int,
        started: bool,
    ) -> None:
        """The sizes and budgets of the run, and how much happens in it.

        calm: events from one trouble to the next, or nothing would ever complete. patience: events before somebody may
        close the run, lose a trainer or fail the controller, or every story would be short.
        """
        topology = Topology(train_world_size=trainers, dp_size=shards, workers_per_shard=workers)
        config = RefitConfig(
            on_frozen=on_frozen,
            min_healthy_shards=min(floor, shards),
            unhealthy_threshold=threshold,
            max_restart_attempts_per_shard=restarts,
            max_attempts_per_refit=attempts,
            max_transient_retries=transients,
        )
        self.machine = type(self).stepper(State.initial(topology, config))
        self.lines = [written(header_record(run="generated", version="0", topology=topology, config=config))]
        self.calm, self.patience, self.since_trouble = calm, patience, calm
        self.told = True
        self.tally.examples += 1
        if started:
            self.send(ev.StartRequested())

    # --- the rules that no row has -------------------------------------------------------------------------------

    @rule(event=st.runner().flatmap(lambda story: st.sampled_from(story.in_vain())))
    def what_changes_nothing(self, event: ev.Event) -> None:
        """Late, doubled, foreign and impossible events; after the end, all of them."""
        before = self.machine.state
        step = self.send(event)
        assert step is None or not step.fired, f"{event} fired {step.fired}"
        assert self.machine.state is before, f"{event} changed the state"

    @precondition(lambda story: story.is_over or story.machine.state.inside)
    @rule(order=st.integers(0, 999), progress=st.sampled_from(ev.Progress))
    def everybody_answers(self, order: int, progress: ev.Progress) -> None:
        """All who are asked answer, in some order."""
        self._answer(order, progress, late=0)

    @precondition(lambda story: story.is_over or story.machine.state.inside)
    @rule(order=st.integers(0, 999), progress=st.sampled_from(ev.Progress), late=st.integers(1, 3))
    def almost_everybody_answers(self, order: int, progress: ev.Progress, late: int) -> None:
        """The same, except the last few."""
        self._answer(order, progress, late=late)

    def _answer(self, order: int, progress: ev.Progress, *, late: int) -> None:
        asked = self.machine.state.stamp
        ranks = sorted(self.machine.state.inside)
        random.Random(order).shuffle(ranks)
        for rank in ranks[: max(len(ranks) - late, 0)]:
            if self.machine.state.stamp != asked or rank not in self.machine.state.inside:
                return
            self.send(_good_reply(self.machine.state, rank, progress))

    # --- what a step must satisfy ----------------------------------------------------------------------------------

    def send(self, event: ev.Event) -> Step | None:
        """One event, both readings of the table, every property. None when it was refused."""
        before = self.machine.state
        number, now = len(self.lines), float(len(self.lines))
        self.tally.steps += 1
        self.since_trouble = 0 if isinstance(event, TROUBLE) else self.since_trouble + 1
        expected = _answer(lambda: interpret(before, event))
        found = _answer(lambda: self.machine.step(event))
        assert _same(found, expected), f"for {event} the machine says {found}, the table {expected}"
        if isinstance(expected, Refused):
            assert self.machine.state is before, f"{event} was refused and changed the state"
            self.lines.append(written(refused_record(number, now, event, expected)))
            return None
        assert self.machine.state == expected.state, f"{event} was not committed as the table says"
        broken = violations(before, event, expected)
        assert not broken, f"{event} breaks {'; '.join(broken)}"
        self.lines.append(written(step_record(number, now, event, expected)))
        self.tally.rows.update(expected.fired)
        return expected

    def teardown(self) -> None:
        """The end of a story that went well."""
        if not self.told or sys.exc_info()[0] is not None:
            return
        self._come_to_rest()
        self.lines.append(written(end_record(len(self.lines), float(len(self.lines)), self.machine.state)))
        verdict = conform(self.lines)
        assert verdict.ok, f"the journal of this story does not conform: line {verdict.first_bad_line}: {verdict.why}"

    def _come_to_rest(self) -> None:
        """P1, P3: with healthy answers, and deadlines where nobody is left to answer, whatever is awaited comes."""
        for _ in range(MANY):
            state = self.machine.state
            if is_at_rest(state):
                return
            some = orbits(state)
            awaited = itertools.chain(replies(state, some), deadlines(state, some, pauses=True))
            event = next((event for event in awaited if _fired(state, event)), None)
            assert event is not None, f"{state.phase.value} waits for something, and nothing can come"
            note(f"state.send({event})")
            self.send(event)
        raise AssertionError(f"healthy answers for {MANY} steps, and still {self.machine.state.phase.value}")

    # --- what can come next ----------------------------------------------------------------------------------------

    @property
    def is_over(self) -> bool:
        return self.machine.state.phase in TERMINAL

    @property
    def rows(self) -> Mapping[str, frozenset[type[ev.Event]]]:
        """Which kinds of events fire which rows from here; found by one event of each orbit, once for each state."""
        known = (self.machine.state, self._is_calm, self._is_early)
        if self._known is None or any(one is not other for one, other in zip(self._known[0], known, strict=True)):
            self._known = known, self._find_rows()
        return self._known[1]

    def _find_rows(self) -> dict[str, frozenset[type[ev.Event]]]:
        state = self.machine.state
        found: dict[str, frozenset[type[ev.Event]]] = {}
        for event in self._likely(orbits(state)):
            for fired in _fired(state, event):
                found[fired] = found.get(fired, frozenset()) | {type(event)}
        return found

    @property
    def _is_calm(self) -> bool:
        return self.since_trouble < self.calm

    @property
    def _is_early(self) -> bool:
        return len(self.lines) <= self.patience

    def _likely(self, some: Orbits) -> Iterator[ev.Event]:
        """What may come next among these slots and ranks."""
        state = self.machine.state
        if state.phase in TERMINAL:
            return
        yield from replies(state, some)
        if state.refit is None:
            yield ev.RefitRequested(next_version(state))
        if self._is_calm:
            return
        for event in (*operator_actions(state, some), *bad_reports(state, some), *faults(state, some)):
            if not (self._is_early and isinstance(event, ENDS)):
                yield event

    def firing(self, row: Row) -> list[ev.Event]:
        """Every event that fires this row now. After the end none does, and any other will do."""
        state, kinds = self.machine.state, self.rows.get(row.id, frozenset())
        everybody = orbits(state, symmetric=False)
        events = [event for event in self._likely(everybody) if type(event) in kinds and row.id in _fired(state, event)]
        return events or self.in_vain()

    def in_vain(self) -> list[ev.Event]:
        """Every event that must change nothing now."""
        state = self.machine.state
        events = list(noise(state, orbits(state, symmetric=False)))
        if state.phase in TERMINAL:
            events += [event for shard in state.shards for event in about(shard.slot, shard.incarnation)]
            events += [ev.RefitRequested(next_version(state)), ev.RetireRequested(0), *(end() for end in _ENDINGS)]
        return events


_ENDINGS: tuple[Callable[[], ev.Event], ...] = (lambda: ev.TrainerLost(0), ev.ControllerFailed, ev.CloseRequested)


def _answer(ask: Callable[[], Step]) -> Step | Refused:
    try:
        return ask()
    except Refused as refused:
        return refused


def _same(found: Step | Refused, expected: Step | Refused) -> bool:
    if isinstance(found, Refused) and isinstance(expected, Refused):
        return type(found) is type(expected) and (found.where, found.why) == (expected.where, expected.why)
    return found == expected


def _fired(state: State, event: ev.Event) -> tuple[str, ...]:
    answer = _answer(lambda: interpret(state, event))
    return () if isinstance(answer, Refused) else answer.fired


def _good_reply(state: State, rank: int, progress: ev.Progress) -> ev.Event:
    """What a healthy rank says to the command that is under way."""
    if state.phase is Phase.FORMING:
        return ev.RankJoined(state.stamp, rank)
    if state.phase is Phase.REFITTING and state.refit is not None:
        return ev.RankTransferred(state.stamp, rank, state.refit.version)
    return ev.RankLeft(state.stamp, rank, progress)


def _rule_for(row: Row) -> Any:
    """Send an event that fires this row. Enabled when there is one; after the end always, so that none is wasted."""

    def fire(story: _Story, event: ev.Event) -> None:
        fires = row.id in story.rows
        step = story.send(event)
        assert not fires or (step is not None and row.id in step.fired)

    fire.__name__, fire.__doc__ = rule_name(row), row.why
    events = st.runner().flatmap(lambda story: st.sampled_from(story.firing(row)))
    return precondition(lambda story: story.is_over or row.id in story.rows)(rule(event=events)(fire))


def table_machine(stepper: Callable[[State], Stepper] = LifecycleMachine) -> type[RuleBasedStateMachine]:
    """The machine as a class; its `TestCase` is a test, its `tally` counts. stepper: what is held against the table."""
    members = {rule_name(row): _rule_for(row) for row in ROWS}
    story = type("TableMachine", (_Story,), {"stepper": staticmethod(stepper), "tally": Tally(), **members})
    return cast(type[RuleBasedStateMachine], story)
