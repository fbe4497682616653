"""What a person may ask of the demo, and what is refused. Standard library only: a refusal must not wait for Ray."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ...spec.roster import Roster

Faults = Literal["kill", "none"]
Communicators = list[tuple[int, Roster]]
"""(epoch, roster) of each communicator that was formed, in order."""

MAX_ACTORS = 64
STEPS_FOR_A_KILL = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOptions:
    """What the command line asks for. kill_at: the step before whose refit the victim is killed.

    Raises `ValueError`, which names the option, its value and what would do.
    """

    trainers: int = 1
    shards: int = 3
    workers_per_shard: int = 1
    steps: int = 16
    faults: Faults = "kill"
    kill_at: int = 5
    victim: int = 1
    journal: Path = Path("journal.jsonl")

    def __post_init__(self) -> None:
        for name in ("trainers", "shards", "workers_per_shard", "steps"):
            if getattr(self, name) < 1:
                raise ValueError(f"--{name.replace('_', '-')} must be at least 1, got {getattr(self, name)}")
        actors = self.trainers + self.shards * self.workers_per_shard
        if actors > MAX_ACTORS:
            raise ValueError(
                f"--trainers {self.trainers}, --shards {self.shards} and --workers-per-shard {self.workers_per_shard} "
                f"make {actors} processes; the demo starts at most {MAX_ACTORS} on one machine"
            )
        if self.faults == "kill":
            self._check_kill()

    def _check_kill(self) -> None:
        if self.shards < 2:
            raise ValueError(f"killing one shard needs at least 2, got --shards {self.shards}; or use --faults none")
        if self.steps < STEPS_FOR_A_KILL:
            raise ValueError(
                f"killing a shard and taking it back needs at least {STEPS_FOR_A_KILL} steps, "
                f"got --steps {self.steps}; or use --faults none"
            )
        if not 2 <= self.kill_at <= self.steps - 3:
            raise ValueError(
                f"--kill-at must leave a step before and three behind it: 2 to {self.steps - 3} "
                f"with --steps {self.steps}, got {self.kill_at}"
            )
        if not 0 <= self.victim < self.shards:
            raise ValueError(f"--victim must be one of shards 0 to {self.shards - 1}, got {self.victim}")

    @property
    def expected(self) -> Communicators:
        """The communicators that must be formed, in order."""
        everyone = {slot: 0 for slot in range(self.shards)}
        if self.faults == "none":
            return [(1, Roster(everyone))]
        survivors = {slot: 0 for slot in everyone if slot != self.victim}
        return [(1, Roster(everyone)), (2, Roster(survivors)), (3, Roster(survivors | {self.victim: 1}))]
