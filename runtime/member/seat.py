"""What a participant remembers: the operation under way, and its place in an epoch.

Records only, guarded by the participant's condition.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator

from ...spec.lifecycle.events import Progress, Stamp
from ..messages import Join
from .group import RefitGroup
from .manifest import BucketPlan
from .waits import Cancellation


class Operation:
    """One join or transfer under way in some thread of the actor."""

    def __init__(self, name: str, stamp: Stamp, changed: threading.Condition) -> None:
        self.name = name
        self.stamp = stamp
        self.cancellation = Cancellation(changed)
        self.bucket = 0
        self.buckets = 0
        self._calling: tuple[str, float] | None = None

    @contextlib.contextmanager
    def calling(self, name: str) -> Iterator[None]:
        """Around every call of the user's: one that does not return can be told from a rank that waits."""
        self._calling = (name, time.monotonic())
        try:
            yield
        finally:
            self._calling = None

    @property
    def inside(self) -> str | None:
        """Which of the user's callables it is in, and for how long; None when it is in none."""
        calling = self._calling
        return f"still inside {calling[0]}, called {time.monotonic() - calling[1]:.1f} s ago" if calling else None


class Seat:
    """The place in one epoch, kept as a record after it was left. Guarded by the participant's condition."""

    def __init__(self, join: Join) -> None:
        self.join = join
        self.rank = join.rank
        self.epoch = join.stamp.epoch
        self.group: RefitGroup | None = None
        self.plan: BucketPlan | None = None
        # The newest operation that this rank entered, and how far it got in that one.
        self.entered = join.stamp
        self.progress = Progress.ENTERED
        self.usable = False

    def progress_of(self, breaking: Stamp | None) -> Progress:
        """How far this rank got in the operation `breaking`; None: in the newest one."""
        seen = breaking is None or breaking <= self.entered
        return self.progress if seen else Progress.NEVER_ENTERED
