"""The invariants along a run, asking only those that the last step can have broken.

They held before the step. One that looks at nothing that the step changed holds after it, and most steps change little:
a rank answers, and only who is inside is another set. Asking everything is half of the time that a journal takes to
check.

What each property looks at is written down here. Tests exchange parts of steps and hold the answers against those of
`violations`, which asks everything. A property that is not named here is always asked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache

from ..spec.lifecycle.commands import Command, Form, Leave, ReportCompleted, Transfer
from ..spec.lifecycle.events import Event
from ..spec.lifecycle.interpret import Step
from ..spec.lifecycle.invariants import INVARIANTS, StateProperty
from ..spec.lifecycle.state import State

Part = str | type[Command]

# By name of the property: the fields of the state whose change it can mind, and the commands that it is about.
LOOKS_AT: Mapping[str, frozenset[Part]] = {
    name: frozenset(what)
    for name, what in {
        "layout_is_exact": ("topology", "phase", "roster"),
        "root_is_a_trainer": ("topology", "phase", "roster"),
        "trainers_keep_their_ranks": ("topology", "phase", "roster"),
        "refit_starts_on_the_desired_roster": (Transfer,),
        "no_absentee_in_a_used_communicator": ("phase", "roster", "shards"),
        "nothing_runs_on_a_stale_communicator": ("phase", "inside"),
        "one_epoch_at_a_time": ("epoch", Form, Transfer, Leave),
        "nothing_forms_over_an_unsettled_one": (Form,),
        "no_retry_without_new_evidence": (Form,),
        "serving_shards_are_current": ("shards", "refit", "committed"),
        "delta_only_on_what_is_whole": (Transfer,),
        "success_means_everybody": (ReportCompleted,),
        "nobody_is_lost_without_evidence": ("shards",),
        "every_wait_is_bounded": ("phase", "shards", "inside", "refit", "timers"),
        "nobody_serves_unproven": ("shards", "refit"),
        "budgets_hold": ("config", "phase", "roster", "shards", "tries", "transients"),
        "retired_is_for_ever": ("shards",),
        "no_rebuild_for_nothing": (Form,),
    }.items()
}

Ask = Callable[[State, Event, Step], str | None]
_FIELDS = tuple(sorted({part for parts in LOOKS_AT.values() for part in parts if isinstance(part, str)}))


def new_violations(before: State, event: Event, step: Step) -> tuple[str, ...]:
    """What `violations` says of this step, if no property of `before` is broken already."""
    after = step.state
    changed: set[Part] = {name for name in _FIELDS if getattr(before, name) is not getattr(after, name)}
    changed.update(map(type, step.commands))
    return tuple(
        f"{name}: {broken}" for name, ask in _to_ask(frozenset(changed)) if (broken := ask(before, event, step))
    )


@cache
def _to_ask(changed: frozenset[Part]) -> tuple[tuple[str, Ask], ...]:
    """The properties that mind a change of these parts, with their ids, in the order of the invariants."""
    return tuple((name, ask) for name, ask, looks_at in _properties() if looks_at is None or looks_at & changed)


def _properties() -> Iterator[tuple[str, Ask, frozenset[Part] | None]]:
    """Each property as its id, how it is asked, and what it looks at (None: nobody wrote it down)."""
    for invariant in INVARIANTS:
        if invariant.of_state is not None:
            yield invariant.id, _of_the_state_after(invariant.of_state), LOOKS_AT.get(invariant.of_state.__name__)
        if invariant.of_step is not None:
            yield invariant.id, invariant.of_step, LOOKS_AT.get(invariant.of_step.__name__)


def _of_the_state_after(ask: StateProperty) -> Ask:
    return lambda before, event, step: ask(step.state)
