"""Controller states as a search counts them: by what they mean, and each step worked out once.

States that differ by numbers only (epoch 7 or 8, incarnation 1 or 2, version 5 or 6) behave alike, so one of them
stands for all; `symmetry` says what counts. The search meets the same controller state with thousands of different
worlds around it: what the table does with an event there, and whether the invariants hold of that, is looked up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..spec.lifecycle.commands import Command
from ..spec.lifecycle.errors import ImpossibleHere, Refused
from ..spec.lifecycle.events import Event, Version
from ..spec.lifecycle.interpret import Step
from ..spec.lifecycle.invariants import INVARIANTS
from ..spec.lifecycle.state import TERMINAL, Refit, Shard, State, evolve
from ..spec.roster import Roster
from .symmetry import local_kinds, shared_kind

Stepper = Callable[[State, Event], Step]

_OLDER, _COMMITTED, _NEW = Version(0, 1), Version(0, 2), Version(0, 3)
_EPOCH, _ATTEMPT, _INCARNATION = 2, 1, 1

_NOBODY: frozenset[int] = frozenset()

_OF_STATE = tuple((i.id, i.of_state) for i in INVARIANTS if i.of_state)
_OF_STEP = tuple((i.id, i.of_step) for i in INVARIANTS if i.of_step)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one event does to one controller state. broken: `id: sentence` of every property that it breaks.

    state: the number of the state after it; None when the event was refused, or changed and ordered nothing.
    """

    state: int | None
    commands: tuple[Command, ...] = ()
    fired: tuple[str, ...] = ()
    broken: tuple[str, ...] = ()


REFUSED = Outcome(None)
_STATES_WITH_STEPS = 50_000  # of so many states the steps are kept: a search asks for most of them soon, or never


class Book:
    """Every controller state that was met, by number, and the steps between them that were asked for of late."""

    def __init__(self, stepper: Stepper) -> None:
        self.states: list[State] = []
        self.kinds: list[tuple[int, ...]] = []
        self.broken: list[tuple[str, ...]] = []
        self._stepper = stepper
        self._numbers: dict[tuple[int, ...], int] = {}
        self._kind_numbers: dict[object, int] = {}
        self._steps: dict[int, dict[Event, Outcome]] = {}
        self._permuted: dict[tuple[int, tuple[int, ...]], int] = {}
        self._parts: dict[Any, Any] = {}

    def number(self, state: State) -> int:
        """The number of what this state means. Its slots keep their places."""
        if state.phase in TERMINAL:
            # Nothing follows, whoever did what before.
            state = evolve(State.initial(state.topology, state.config), phase=state.phase, halt=state.halt)
        trainers, slots = local_kinds(state)
        if recorded := remembered(state):
            slots = [(*kind, slot in recorded) for slot, kind in enumerate(slots)]  # type: ignore[misc]
        numbers = self._kind_numbers
        key = tuple([numbers.setdefault(kind, len(numbers)) for kind in ((shared_kind(state), *trainers), *slots)])
        known = self._numbers.get(key)
        if known is None:
            known = self._numbers[key] = len(self.states)
            plain = self._shared(with_small_numbers(state))
            self.states.append(plain)
            self.kinds.append(key[1:])
            self.broken.append(_broken_in(plain))
        return known

    def _shared(self, state: State) -> State:
        """The same state made of parts that it shares with others: there are many states and few different parts."""
        part = self._parts.setdefault
        sets = ("inside", "holders", "untouched", "never_entered", "stuck", "blamed", "queued", "timers")
        return evolve(
            state,
            shards=tuple([part(shard, shard) for shard in state.shards]),
            roster=part(state.roster, state.roster),
            refit=part(state.refit, state.refit),
            **{name: part(value, value) for name in sets for value in (getattr(state, name),)},
        )

    def step(self, number: int, event: Event) -> Outcome:
        """What the event does there, invariants included."""
        steps = self._steps.get(number)
        if steps is None:
            if len(self._steps) >= _STATES_WITH_STEPS:
                self._steps.clear()
            steps = self._steps[number] = {}
        known = steps.get(event)
        if known is None:
            known = steps[event] = self._work_out(self.states[number], event)
        return known

    def permuted(self, number: int, order: tuple[int, ...]) -> int:
        """The same state with its slots in another order: slot `order[i]` becomes slot i."""
        known = self._permuted.get((number, order))
        if known is None:
            known = self._permuted[(number, order)] = self.number(reordered(self.states[number], order))
        return known

    def _work_out(self, state: State, event: Event) -> Outcome:
        try:
            step = self._stepper(state, event)
        except ImpossibleHere as error:
            return Outcome(None, broken=(f"table: {error}",))
        except Refused:
            return REFUSED
        if step.state is state and not step.commands:
            return REFUSED
        broken = tuple(f"{id_}: {said}" for id_, holds in _OF_STEP if (said := holds(state, event, step)))
        after = self.number(step.state)
        if step.state.phase in TERMINAL:
            broken = (*broken, *_broken_in(step.state))
        return Outcome(after, step.commands, step.fired, (*broken, *self.broken[after]))


def _broken_in(state: State) -> tuple[str, ...]:
    return tuple(f"{id_}: {said}" for id_, holds in _OF_STATE if (said := holds(state)))


def remembered(state: State) -> frozenset[int]:
    """Slots that a variant of the rules has written down besides what the table knows (`published`)."""
    return getattr(state, "recorded", _NOBODY)


def with_small_numbers(state: State) -> State:
    """The same state with the smallest numbers that keep every comparison that a row makes."""
    refit, committed = state.refit, state.committed

    def version(old: Version | None) -> Version | None:
        if old is None:
            return None
        if refit is not None and old == refit.version:
            return _NEW
        return _COMMITTED if old == committed else _OLDER

    def shard(old: Shard) -> Shard:
        return evolve(old, incarnation=_INCARNATION, version=version(old.version), last_words="")

    return evolve(
        state,
        shards=tuple(shard(old) for old in state.shards),
        epoch=_EPOCH if state.epoch else 0,
        attempt=_ATTEMPT,
        roster=Roster(
            (slot, _INCARNATION - (incarnation != state.shards[slot].incarnation))
            for slot, incarnation in state.roster.items()
        ),
        refit=refit and evolve(refit, version=_NEW),
        committed=committed and _COMMITTED,
        failures=(),
    )


def reordered(state: State, order: Sequence[int]) -> State:
    """The same state with other numbers for its slots: slot `order[i]` becomes slot i."""
    place = {old: new for new, old in enumerate(order)}
    roster = Roster((place[slot], incarnation) for slot, incarnation in state.roster.items())
    after = evolve(
        state,
        shards=tuple(evolve(state.shards[old], slot=new) for new, old in enumerate(order)),
        roster=roster,
        blamed=frozenset(place[slot] for slot in state.blamed),
        queued=frozenset(place[slot] for slot in state.queued),
        refit=state.refit and _retouched(state.refit, place),
    )
    if recorded := remembered(state):
        after = evolve(after, recorded=frozenset(place[slot] for slot in recorded))
    if not state.roster:
        return after
    seats = {rank: rank for rank in range(state.topology.train_world_size)}
    for slot in state.roster:
        seats.update(
            zip(state.membership.ranks_of(shard=slot), after.membership.ranks_of(shard=place[slot]), strict=True)
        )

    def seated(ranks: frozenset[int]) -> frozenset[int]:
        return frozenset(seats[rank] for rank in ranks)

    return evolve(
        after,
        inside=seated(state.inside),
        holders=seated(state.holders),
        untouched=seated(state.untouched),
        never_entered=seated(state.never_entered),
        stuck=seated(state.stuck),
    )


def _retouched(refit: Refit, place: dict[int, int]) -> Refit:
    return evolve(refit, touched=frozenset(place[slot] for slot in refit.touched))
