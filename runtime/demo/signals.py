"""How a run is ended from outside: the signals that ask for it interrupt it where that is safe, and nowhere else."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType, TracebackType
from typing import Any, Self

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class HeldSignals:
    """Holds `ENDING` back while it is entered. They interrupt inside `let_through` only, as `KeyboardInterrupt`, once.

    So what is built before `let_through` and taken down after it is never left half done. A signal that was switched
    off for this process (by nohup, or by a shell for its background jobs) stays off.
    """

    def __init__(self) -> None:
        self._noted = False
        self._interrupts = False
        self._previous: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        for signum in ENDING:
            if signal.getsignal(signum) is not signal.SIG_IGN:
                self._previous[signum] = signal.signal(signum, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for signum, handler in self._previous.items():
            signal.signal(signum, handler)

    @contextlib.contextmanager
    def let_through(self) -> Iterator[None]:
        """Interrupt in here: at once for a signal that was noted, else when one comes."""
        self._interrupts = True
        try:
            self.raise_noted()
            yield
        finally:
            self._interrupts = False

    def raise_noted(self) -> None:
        """Interrupt if a signal was noted."""
        if self._noted:
            raise KeyboardInterrupt

    def _note(self, signum: int, frame: FrameType | None) -> None:
        self._noted = True
        if self._interrupts:
            # Once: a second signal must not interrupt the cleaning up after the first.
            self._interrupts = False
            raise KeyboardInterrupt


@contextlib.contextmanager
def keeping_handlers() -> Iterator[None]:
    """For the start of Ray: the handlers stay ours, and what is started is deaf to SIGHUP.

    Ray sets a handler for SIGTERM that ends this process on the spot, and behind Python's back another one that aborts
    it. A closed terminal sends SIGHUP to all that was started from it; Ray would be gone before we could stop it.
    """
    own = signal.signal
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})

    def refuse(signum: int, handler: object) -> Any:
        return signal.getsignal(signum)

    signal.signal = refuse  # type: ignore[assignment]
    try:
        yield
    finally:
        signal.signal = own
        for signum in ENDING:
            signal.signal(signum, signal.getsignal(signum))
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
