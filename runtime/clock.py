"""Real time: one daemon thread that fires the deadlines, one condition that wakes the waiters."""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
import time
from collections.abc import Callable

log = logging.getLogger(__name__)

_LONGEST_WAIT_S = 3600.0


class ArmedTimer:
    """A callback that has not fired. Cancelling forgets it; its entry in the queue is dropped when it comes up."""

    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self.callback = None


class MonotonicClock:
    """The `Clock` of a real run."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._timers: list[tuple[float, int, ArmedTimer]] = []
        self._order = itertools.count()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="reknit-clock", daemon=True)
        self._thread.start()

    def now(self) -> float:
        return time.monotonic()

    def call_later(self, seconds: float, callback: Callable[[], None]) -> ArmedTimer:
        timer = ArmedTimer(callback)
        with self._changed:
            heapq.heappush(self._timers, (self.now() + seconds, next(self._order), timer))
            self._changed.notify_all()
        return timer

    def wait(self, ready: Callable[[], bool], timeout_s: float) -> bool:
        with self._changed:
            return (
                self._changed.wait_for(lambda: self._closed or ready(), min(timeout_s, threading.TIMEOUT_MAX))
                and ready()
            )

    def wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._timers.clear()
            self._changed.notify_all()
        if self._thread is not threading.current_thread():
            self._thread.join(timeout=5.0)

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._closed and (not self._timers or self._timers[0][0] > self.now()):
                    # Cancelled timers are dropped here and not searched for when they are cancelled.
                    while self._timers and self._timers[0][2].callback is None:
                        heapq.heappop(self._timers)
                    if self._timers and self._timers[0][0] <= self.now():
                        break
                    # Capped: a condition refuses to wait longer than the platform can count, and looks again anyway.
                    pause = self._timers[0][0] - self.now() if self._timers else _LONGEST_WAIT_S
                    self._changed.wait(min(pause, _LONGEST_WAIT_S))
                if self._closed:
                    return
                callback = heapq.heappop(self._timers)[2].callback
            if callback is not None:
                try:
                    callback()
                except Exception:
                    log.exception("event=timer_failed")
