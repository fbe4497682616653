"""The budgets of a run are checked when they are made, with the numbers in the message."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import pytest

from reknit.spec.config import MOST, RefitConfig

SECONDS = [
    "refit_timeout_s",
    "form_timeout_s",
    "join_timeout_s",
    "progress_timeout_s",
    "wait_timeout_s",
    "settle_timeout_s",
    "fence_timeout_s",
    "restart_timeout_s",
]


def refusal(**knobs: Any) -> str:
    with pytest.raises(ValueError, match=r".") as caught:
        RefitConfig(**knobs)
    return str(caught.value)


def test_the_defaults_are_a_valid_configuration() -> None:
    assert dataclasses.replace(RefitConfig()) == RefitConfig()


@pytest.mark.parametrize("knob", SECONDS)
@pytest.mark.parametrize("value", [0.0, -1.0, float("inf"), float("nan")])
def test_a_deadline_must_be_finite_and_above_zero(knob: str, value: float) -> None:
    """R7: every wait has a bound."""
    assert refusal(**{knob: value}) == f"{knob} must be a finite number of seconds above 0, got {value}"


@pytest.mark.parametrize(
    ("knob", "least"),
    [
        ("unhealthy_threshold", 1),
        ("max_restart_attempts_per_shard", 0),
        ("min_healthy_shards", 1),
        ("max_attempts_per_refit", 2),
        ("max_transient_retries", 0),
    ],
)
def test_a_budget_has_a_least_value(knob: str, least: int) -> None:
    allowed: Any = {knob: least}
    RefitConfig(**allowed)
    assert refusal(**{knob: least - 1}) == f"{knob} must be at least {least}, got {least - 1}"


@pytest.mark.parametrize(
    ("inner", "outer"),
    [
        ("join_timeout_s", "form_timeout_s"),
        ("wait_timeout_s", "progress_timeout_s"),
        ("wait_timeout_s", "settle_timeout_s"),
    ],
)
def test_an_inner_deadline_must_end_before_the_outer_one(inner: str, outer: str) -> None:
    """R7: nested deadlines that do not nest hide what the inner one would have named."""
    message = refusal(**{"progress_timeout_s": 90.0, inner: 60.0, outer: 60.0})
    assert f"{inner} (60.0) must end before {outer} (60.0)" in message


def test_the_outermost_deadline_must_leave_room_for_one_recovery() -> None:
    """R7: a deadline longer than the detector, so that it never fires."""
    message = refusal(refit_timeout_s=200.0)
    assert "refit_timeout_s (200.0) must leave room for one recovery" in message
    assert "= 200.0" in message
    RefitConfig(refit_timeout_s=200.1)


@pytest.mark.parametrize(
    "pauses", [(-1.0, 60.0), (2.0, 1.0), (1.0, float("inf"))], ids=["negative", "above its maximum", "endless"]
)
def test_the_pause_before_a_restart_is_bounded(pauses: tuple[float, float]) -> None:
    message = refusal(restart_backoff_s=pauses[0], restart_backoff_max_s=pauses[1])
    assert re.search(rf"restart_backoff_s \({pauses[0]}\).*restart_backoff_max_s \({pauses[1]}\)", message)


def test_an_unknown_policy_is_named() -> None:
    assert refusal(on_frozen="wait") == "on_frozen must be 'stop' or 'fence', got 'wait'"


def test_the_pause_doubles_up_to_its_maximum() -> None:
    """H6: five attempts burnt in seconds on one cause."""
    config = RefitConfig(restart_backoff_s=1.0, restart_backoff_max_s=10.0)
    assert [config.backoff_s(attempts=n) for n in range(6)] == [1.0, 2.0, 4.0, 8.0, 10.0, 10.0]
    assert config.backoff_s(attempts=10_000) == 10.0
    assert RefitConfig(restart_backoff_s=0.0).backoff_s(attempts=3) == 0.0


def test_a_configuration_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        RefitConfig().on_frozen = "fence"  # type: ignore[misc]


@pytest.mark.parametrize("knob", ["refit_timeout_s", "settle_timeout_s", "restart_backoff_s"])
@pytest.mark.parametrize("value", ["60", None, True, float("nan"), 10**400])
def test_seconds_that_are_no_number_are_refused_by_name(knob: str, value: object) -> None:
    with pytest.raises(ValueError, match=knob):
        RefitConfig(**{knob: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("knob", ["unhealthy_threshold", "max_restart_attempts_per_shard", "max_attempts_per_refit"])
@pytest.mark.parametrize("value", [MOST + 1, 10**400])
def test_a_budget_has_a_greatest_value(knob: str, value: int) -> None:
    """Budgets are multiplied with seconds, and a product that is no float would end the wait for a refit."""
    assert refusal(**{knob: value}) == f"{knob} must be at most {MOST}, got {value}"
    assert getattr(RefitConfig(**{knob: MOST}), knob) == MOST


def test_seconds_are_kept_as_floats_so_that_one_configuration_has_one_text() -> None:
    config = RefitConfig(refit_timeout_s=700, restart_backoff_s=2)
    assert config == RefitConfig(refit_timeout_s=700.0, restart_backoff_s=2.0)
    assert [repr(config.refit_timeout_s), repr(config.restart_backoff_s)] == ["700.0", "2.0"]
