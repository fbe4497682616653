"""Virtual time: whoever waits makes it pass, one callback after the other."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable

from ..clock import ArmedTimer


class VirtualClock:
    """The `Clock` of a simulated run. Single-threaded.

    after_each: called after every callback; a check that raises there stops the run at the very event that broke it.
    """

    def __init__(self) -> None:
        self._now = 0.0
        self._queue: list[tuple[float, int, ArmedTimer]] = []
        self._order = itertools.count()
        self.after_each: Callable[[], None] = lambda: None

    def now(self) -> float:
        return self._now

    def call_later(self, seconds: float, callback: Callable[[], None]) -> ArmedTimer:
        timer = ArmedTimer(callback)
        heapq.heappush(self._queue, (self._now + max(seconds, 0.0), next(self._order), timer))
        return timer

    def wait(self, ready: Callable[[], bool], timeout_s: float) -> bool:
        end = self._now + timeout_s
        while not ready():
            if not self._step(end):
                self._now = end
                break
        return ready()

    def advance(self, seconds: float) -> None:
        """Let this much time pass."""
        self.wait(lambda: False, seconds)

    def wake(self) -> None:
        pass

    def close(self) -> None:
        self._queue.clear()

    def _step(self, end: float) -> bool:
        while self._queue and self._queue[0][0] <= end:
            self._now, _, timer = heapq.heappop(self._queue)
            if timer.callback is not None:
                timer.callback()
                self.after_each()
                return True
        return False
