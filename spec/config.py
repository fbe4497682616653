"""The budgets of a run: how long each wait may take, how often each thing may be tried.

One object for the whole path. Inner deadlines must end before the outer ones that contain them; this is checked
when the configuration is made, with the numbers in the error.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

OnFrozen = Literal["stop", "fence"]
MOST = 2**31 - 1  # of anything that is counted: above it a product of budgets may no longer be a number of seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class RefitConfig:
    """Deadlines in seconds, kept as floats; budgets as counts. Raises `ValueError`, naming the knob and its value.

    refit_timeout_s: one refit with all its recoveries, outermost.
    form_timeout_s: every rank has joined and shaken hands. join_timeout_s: one rank's own bound on joining.
    progress_timeout_s: some rank moved on inside the transfer. wait_timeout_s: one rank's own bound on one wait.
    settle_timeout_s: every rank confirmed that it left a broken communicator.
    fence_timeout_s: the death of a killed process is confirmed.
    restart_timeout_s: one restart attempt. restart_backoff_s: the pause before the first attempt, doubled for each
    further one. restart_backoff_max_s: the longest such pause.
    unhealthy_threshold: failed probes, or failed requests, in a row that condemn a shard.
    max_restart_attempts_per_shard: over the whole run; a shard that boots and dies for ever is retired.
    min_healthy_shards: the floor of shards that a communicator must span.
    max_attempts_per_refit: communicators that may be formed for one refit, the first included.
    max_transient_retries: repeats over the same roster, for a cause that names a transient.
    on_frozen: what to do with a shard that evidence singles out as frozen. "stop" halts and names it; "fence" kills
    it, confirms its death, and goes on.
    """

    refit_timeout_s: float = 600.0
    form_timeout_s: float = 60.0
    join_timeout_s: float = 45.0
    progress_timeout_s: float = 60.0
    wait_timeout_s: float = 45.0
    settle_timeout_s: float = 60.0
    fence_timeout_s: float = 20.0
    restart_timeout_s: float = 300.0
    restart_backoff_s: float = 1.0
    restart_backoff_max_s: float = 60.0
    unhealthy_threshold: int = 3
    max_restart_attempts_per_shard: int = 3
    min_healthy_shards: int = 1
    max_attempts_per_refit: int = 4
    max_transient_retries: int = 2
    on_frozen: OnFrozen = "stop"

    def __post_init__(self) -> None:
        for knob in (
            "refit_timeout_s",
            "form_timeout_s",
            "join_timeout_s",
            "progress_timeout_s",
            "wait_timeout_s",
            "settle_timeout_s",
            "fence_timeout_s",
            "restart_timeout_s",
        ):
            seconds = self._take_seconds(knob)
            if not 0 < seconds < float("inf"):
                raise ValueError(f"{knob} must be a finite number of seconds above 0, got {seconds!r}")
        for knob, least in (
            ("unhealthy_threshold", 1),
            ("max_restart_attempts_per_shard", 0),
            ("min_healthy_shards", 1),
            ("max_attempts_per_refit", 2),
            ("max_transient_retries", 0),
        ):
            if type(getattr(self, knob)) is not int:
                raise ValueError(f"{knob} must be a whole number, got {getattr(self, knob)!r}")
            if getattr(self, knob) < least:
                raise ValueError(f"{knob} must be at least {least}, got {getattr(self, knob)}")
            if getattr(self, knob) > MOST:
                raise ValueError(f"{knob} must be at most {MOST}, got {getattr(self, knob)}")
        pause, longest = self._take_seconds("restart_backoff_s"), self._take_seconds("restart_backoff_max_s")
        if not 0 <= pause <= longest < float("inf"):
            raise ValueError(
                f"restart_backoff_s ({self.restart_backoff_s}) must lie between 0 and "
                f"restart_backoff_max_s ({self.restart_backoff_max_s})"
            )
        if self.on_frozen not in ("stop", "fence"):
            raise ValueError(f"on_frozen must be 'stop' or 'fence', got {self.on_frozen!r}")
        for inner, outer in (
            ("join_timeout_s", "form_timeout_s"),
            ("wait_timeout_s", "progress_timeout_s"),
            ("wait_timeout_s", "settle_timeout_s"),
        ):
            if getattr(self, inner) >= getattr(self, outer):
                raise ValueError(
                    f"{inner} ({getattr(self, inner)}) must end before {outer} ({getattr(self, outer)}), "
                    f"or the outer deadline hides what the inner one would name"
                )
        recovery = self.progress_timeout_s + self.settle_timeout_s + self.fence_timeout_s + self.form_timeout_s
        if recovery >= self.refit_timeout_s:
            raise ValueError(
                f"refit_timeout_s ({self.refit_timeout_s}) must leave room for one recovery: progress_timeout_s + "
                f"settle_timeout_s + fence_timeout_s + form_timeout_s = {recovery}"
            )

    def _take_seconds(self, knob: str) -> float:
        """The knob as a float, and kept as one: 5 and 5.0 are one configuration, and one text in a journal."""
        given = getattr(self, knob)
        try:
            if isinstance(given, bool) or not isinstance(given, int | float):
                raise TypeError
            seconds = float(given)
        except (TypeError, OverflowError):
            raise ValueError(f"{knob} must be a finite number of seconds, got {given!r}") from None
        object.__setattr__(self, knob, seconds)
        return seconds

    def backoff_s(self, *, attempts: int) -> float:
        """Seconds to wait before the next restart of a shard that was restarted `attempts` times already."""
        return min(self.restart_backoff_s * 2.0 ** min(attempts, 60), self.restart_backoff_max_s)
