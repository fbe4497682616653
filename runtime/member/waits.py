"""How an operation of a member waits, is broken off, and fails with a cause.

Knows no group and no store: only conditions, and what the texts of the library's errors mean.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

import torch.distributed as dist

from ...spec.lifecycle.events import Cause

log = logging.getLogger(__name__)


class OperationFailed(Exception):
    """An operation of this rank ended without success. `cause` is for deciding, the text for people."""

    def __init__(self, cause: Cause, message: str) -> None:
        super().__init__(message)
        self.cause = cause


class Cancelled(Exception):
    """The operation was broken off from outside."""


class Cancellation:
    """A switch that ends every wait of one operation for good. `changed` guards it and wakes the waits."""

    def __init__(self, changed: threading.Condition) -> None:
        self.changed = changed
        self._reason: str | None = None

    def cancel(self, reason: str) -> None:
        """Make every present and future wait raise `Cancelled`. The first reason stays."""
        with self.changed:
            self._reason = self._reason or reason
            self.changed.notify_all()

    def check(self) -> None:
        """Raise `Cancelled` if it was cancelled."""
        if self._reason is not None:
            raise Cancelled(self._reason)

    def wait(self, done: Callable[[], bool], *, timeout_s: float, poll_s: float | None = None) -> bool:
        """Sleep until `done()`, which is asked whenever `changed` is notified, or every `poll_s`.

        Returns False when `timeout_s` ran out. Raises `Cancelled`, even if it is done at the same moment.
        """
        ends = time.monotonic() + timeout_s
        with self.changed:
            while True:
                self.check()
                if done():
                    return True
                left = ends - time.monotonic()
                if left <= 0:
                    return False
                self.changed.wait(left if poll_s is None else min(left, poll_s))


def classify(error: RuntimeError, where: str) -> OperationFailed:
    """Name the cause of an error of the communication library; only its text tells. The text is kept."""
    text = str(error)
    lower = text.lower()
    if isinstance(error, dist.DistNetworkError) or "address already in use" in lower:
        cause = Cause.TRANSIENT
    elif "timed out" in lower or "timeout" in lower:
        cause = Cause.DEADLINE
    elif isinstance(error, dist.DistStoreError):
        cause = Cause.TRANSIENT
    else:
        cause = Cause.PEER
    return OperationFailed(cause, f"{where}: {text}")


def explain(error: Exception, cancellation: Cancellation | None) -> OperationFailed:
    """What ended an operation. Once it was broken off, that is the reason, whatever else came up on the way out."""
    if cancellation is not None:
        try:
            cancellation.check()
        except Cancelled as cancelled:
            error = cancelled
    match error:
        case Cancelled():
            return OperationFailed(Cause.DEPARTURE, str(error))
        case OperationFailed():
            return error
    log.error("unexpected error in an operation", exc_info=error)
    # The system may do better next time (a port, a descriptor); anything else would only fail again.
    cause = Cause.TRANSIENT if isinstance(error, OSError) else Cause.REJECTED
    return OperationFailed(cause, f"unexpected {type(error).__name__}: {error}")
