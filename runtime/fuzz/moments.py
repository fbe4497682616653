"""When a fault strikes: now, or in the middle of what the controller does next.

A call such as `refit` makes virtual time pass until it has its outcome, so whatever is to go wrong during it must be
armed before. Faults wait here for so many requests sent (while the controller carries out a command: between any two of
its messages), so many requests delivered, or so many milliseconds. Messages pass through here as well, and may be late
or lost.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from ...spec.lifecycle.errors import Refused
from .. import messages
from ..errors import RefitHalted
from ..seams import Member
from ..simulated import SimulatedFleet, VirtualClock

Of = Literal["requests", "deliveries", "milliseconds"]
Action = Callable[[], None]


@dataclass
class _Armed:
    left: int
    strike: Action


@dataclass
class _Parcel:
    """What becomes of a message that is still to be sent. late_s: None for lost."""

    left: int
    late_s: float | None


class Moments:
    """Everything that is to go wrong in one run, and when. Takes over the hooks of the fleet."""

    def __init__(self, fleet: SimulatedFleet, clock: VirtualClock, *, seed: int) -> None:
        self._clock = clock
        self._random = random.Random(seed)
        self._armed: dict[Of, list[_Armed]] = {"requests": [], "deliveries": []}
        self._parcels: list[_Parcel] = []
        self._calm = False
        self.jitter_s = 0.0
        fleet.on_post = self._post
        fleet.on_delivery = lambda member, request: self._tick("deliveries")

    def arm(self, after: int, of: Of, strike: Action) -> None:
        """after: 0 for now."""
        if after == 0:
            self._strike(strike)
        elif of == "milliseconds":
            self._clock.call_later(after / 1000, lambda: self._strike(strike))
        else:
            self._armed[of].append(_Armed(after, strike))

    def lose(self, after: int) -> None:
        """The message that is sent after so many others, a request or a reply, never arrives."""
        self._parcels.append(_Parcel(after, None))

    def delay(self, after: int, seconds: float) -> None:
        """It arrives that much later; what is sent after it may overtake it."""
        self._parcels.append(_Parcel(after, seconds))

    def stop(self) -> None:
        """Nothing goes wrong any more. What is under way stays late or lost."""
        self._calm = True
        self.jitter_s = 0.0
        self._parcels.clear()

    def _strike(self, strike: Action) -> None:
        """By the time of an action the run may be over, or the action not be allowed any more."""
        if not self._calm:
            with contextlib.suppress(Refused, RefitHalted):
                strike()

    def _tick(self, of: Of) -> None:
        for armed in self._armed[of]:
            armed.left -= 1
        due = [armed for armed in self._armed[of] if armed.left <= 0]
        self._armed[of] = [armed for armed in self._armed[of] if armed.left > 0]
        for armed in due:
            self._strike(armed.strike)

    def _post(self, member: Member, message: messages.Request | messages.Reply, usual_s: float) -> Sequence[float]:
        if isinstance(message, messages.Request):
            self._tick("requests")
        late_s = self._random.random() * self.jitter_s if self.jitter_s else 0.0
        for parcel in tuple(self._parcels):
            parcel.left -= 1
            if parcel.left < 0:
                self._parcels.remove(parcel)
                if parcel.late_s is None:
                    return ()
                late_s += parcel.late_s
        return (usual_s + late_s,)
