"""Random stories of fleets too big to search, made from the table; and steppers with a mistake, which must be found."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest
from hypothesis import Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from reknit.spec.lifecycle import Step
from reknit.spec.lifecycle.events import Event
from reknit.spec.lifecycle.state import evolve
from reknit.statemachine.generated import ROWS, rule_name, table_machine
from reknit.statemachine.machine import LifecycleMachine
from reknit.statemachine.profiles import PROFILES

TableMachine = table_machine()


def test_there_is_one_rule_for_each_row_named_after_it() -> None:
    named = {rule.function.__name__ for rule in TableMachine.setup_state().rules}
    rows = {rule_name(row) for row in ROWS}
    assert len(rows) == len(ROWS)
    assert named == rows | {"what_changes_nothing", "everybody_answers", "almost_everybody_answers"}
    assert "exit_in_serving" in named


def test_every_property_holds_in_random_stories_and_they_visit_much_of_the_table() -> None:
    """What they miss is the matter of the exhaustive search; a machine that only wanders would be worth nothing."""
    run_state_machine_as_test(TableMachine, settings=PROFILES["ci"])
    tally = TableMachine.tally  # type: ignore[attr-defined]
    assert tally.examples >= PROFILES["ci"].max_examples
    assert tally.steps > 20 * tally.examples
    assert len(tally.rows) > len(ROWS) / 3


class Impatient(LifecycleMachine):
    """Does not wait for the last to join."""

    def step(self, event: Event) -> Step:
        step = super().step(event)
        if "joined@forming" in step.fired:
            self.state = evolve(step.state, inside=frozenset())
        return step


class Deaf(LifecycleMachine):
    """Commits and says something else."""

    def step(self, event: Event) -> Step:
        step = super().step(event)
        return replace(step, commands=()) if step.fired == ("start@unbuilt", "form@unbuilt") else step


class Sticky(LifecycleMachine):
    """Leaves a trace of what it refuses."""

    def step(self, event: Event) -> Step:
        before = self.state
        try:
            return super().step(event)
        except Exception:
            self.state = evolve(before)
            raise


@pytest.mark.parametrize("stepper", [Impatient, Deaf, Sticky])
def test_a_stepper_with_a_mistake_is_found(stepper: type[LifecycleMachine]) -> None:
    machine = seed(1)(table_machine(stepper))
    quick = settings(PROFILES["fuzz"], phases=[Phase.generate], report_multiple_bugs=False)
    with pytest.raises(AssertionError, match=r"was not committed|the machine says|changed the state"):
        run_state_machine_as_test(machine, settings=quick)


def test_the_profiles_are_our_own_whatever_the_surroundings_load() -> None:
    """With CI set, Hypothesis loads a profile called ci by itself."""
    code = (
        "from reknit.statemachine.profiles import PROFILES as p; from hypothesis import settings;"
        "print(p['ci'].derandomize, p['ci'].database, p['dev'].derandomize, p['fuzz'].derandomize);"
        "print(p['ci'].max_examples);"
        "settings.load_profile('reknit-ci'); settings.load_profile('reknit-dev'); settings.load_profile('reknit-fuzz')"
    )
    for surroundings in ({}, {"CI": "true"}):
        ran = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
            env={**surroundings, "PYTHONPATH": ":".join(sys.path)},
        )
        assert ran.stdout.split() == ["True", "None", "False", "False", str(PROFILES["ci"].max_examples)]
