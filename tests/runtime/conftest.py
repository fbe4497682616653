"""Simulated runs for the stories: each one's journal is checked against the table when the test is over."""

from collections.abc import Callable, Iterator

import pytest

from reknit.runtime.simulated import SimulatedRun
from reknit.statemachine.conform import conform


@pytest.fixture
def simulate() -> Iterator[Callable[..., SimulatedRun]]:
    """Make a simulated run. Whatever the test did, its journal must tell a possible story."""
    runs: list[SimulatedRun] = []

    def make(**options: object) -> SimulatedRun:
        runs.append(SimulatedRun(**options))  # type: ignore[arg-type]
        return runs[-1]

    yield make
    for run in runs:
        run.controller.close()
        verdict = conform(run.journal.lines)
        assert verdict.ok, f"line {verdict.first_bad_line}: {verdict.why}"
