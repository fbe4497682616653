"""Where groups go that were given up, and how a process with stuck threads comes to its end.

An undertaker, a thread that nobody waits for, releases a group when its last collective has run into its own
limit. Owns the sets of what is alive, buried and forming in this process. It knows groups and attempts only by
what it asks of them: they register here.
"""

from __future__ import annotations

import atexit
import threading
import weakref
from typing import Protocol

_EXIT_PATIENCE_S = 2.0


class Group(Protocol):
    """What can be buried."""

    def bury(self, reason: str) -> None: ...

    def has_ended(self) -> bool: ...

    def await_end(self) -> None: ...

    def release(self) -> None: ...


class Attempt(Protocol):
    """What may make a group, in a thread of its own."""

    def stop(self, reason: str) -> None: ...


_ending = threading.Condition()
_live: weakref.WeakSet[Group] = weakref.WeakSet()
_graveyard: set[Group] = set()
_forming: set[Attempt] = set()
_exiting = False


def group_made(group: Group) -> None:
    """It is to be buried when the process ends, unless it is gone by then."""
    _live.add(group)


def attempt_began(attempt: Attempt) -> None:
    """It is to be stopped when the process ends, which then waits for `attempt_ended` a moment."""
    with _ending:
        _forming.add(attempt)


def attempt_ended(attempt: Attempt) -> None:
    """Its thread is about to return."""
    with _ending:
        _forming.discard(attempt)
        _ending.notify_all()


def keep(group: Group) -> None:
    """Hold a group that was given up, with its collectives and their memory, until `undertake` has released it."""
    with _ending:
        _graveyard.add(group)


def undertake(group: Group, *, name: str) -> None:
    """Release a group that is kept here, in a thread of that name that nobody waits for. Returns at once."""
    threading.Thread(target=_undertake, args=(group,), name=name, daemon=True).start()


def buried_groups() -> int:
    """How many groups of this process were given up and are not released yet."""
    with _ending:
        return len(_graveyard)


def _undertake(group: Group) -> None:
    group.await_end()
    with _ending:
        if _exiting:
            return
    group.release()
    with _ending:
        _graveyard.discard(group)
        _ending.notify_all()


def _settle_at_exit() -> None:
    """Before the interpreter shuts down: end what ends at once, and leave alone for ever what is stuck.

    A thread that comes back from the library into an interpreter that is shutting down aborts the process.
    """
    global _exiting
    for attempt in tuple(_forming):
        attempt.stop("the process ends")
    for group in tuple(_live):
        group.bury("the process ends")
    with _ending:
        _ending.wait_for(
            lambda: not _forming and not any(group.has_ended() for group in _graveyard), timeout=_EXIT_PATIENCE_S
        )
        _exiting = True


atexit.register(_settle_at_exit)
