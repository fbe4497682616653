"""What rows do to one shard, as named pure functions: the new record, the commands, the signals.

A shard effect sees its own record and nothing else. That is what keeps the two machines apart: whatever the
communicator must know of it is a signal.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..config import RefitConfig
from .commands import Arm, Command, Disarm, Fence, Restart
from .events import (
    BackoffElapsed,
    Carried,
    Departed,
    Event,
    FenceExpired,
    FenceUnconfirmed,
    Promoted,
    RestartExpired,
    Returned,
    ShardObservation,
    Signal,
    Timer,
    Torn,
)
from .state import Shard, evolve


@dataclass(frozen=True, slots=True)
class ShardOutcome:
    """What a shard row does."""

    shard: Shard
    commands: tuple[Command, ...] = ()
    signals: tuple[Signal, ...] = ()


ShardEffect = Callable[[Shard, Any, RefitConfig], ShardOutcome]


def keep(shard: Shard, event: Event, config: RefitConfig) -> ShardOutcome:
    """The table's target says it all."""
    return ShardOutcome(shard)


def _quiet(shard: Shard) -> tuple[Shard, tuple[Command, ...]]:
    if shard.timer is None:
        return shard, ()
    return evolve(shard, timer=None), (Disarm(shard.timer, shard.slot),)


def _pausing(shard: Shard, config: RefitConfig) -> tuple[Shard, tuple[Command, ...]]:
    """Gone for certain: wait a little before the next attempt, longer each time."""
    quiet, over = _quiet(evolve(shard, fencing=False, version=None))
    arm = Arm(
        Timer.BACKOFF,
        config.backoff_s(attempts=shard.restarts),
        BackoffElapsed(shard.slot, shard.incarnation),
        shard.slot,
    )
    return evolve(quiet, timer=Timer.BACKOFF), (*over, arm)


def _fencing(shard: Shard, config: RefitConfig) -> tuple[Shard, tuple[Command, ...]]:
    arm = Arm(Timer.FENCE, config.fence_timeout_s, FenceExpired(shard.slot, shard.incarnation), shard.slot)
    quiet, over = _quiet(shard)
    return evolve(quiet, fencing=True, timer=Timer.FENCE), (*over, arm, Fence(shard.slot, shard.incarnation))


def _departed(shard: Shard) -> Departed:
    return Departed(shard.slot, shard.incarnation)


def _remembering(shard: Shard, event: Event, config: RefitConfig) -> Shard:
    """A shard is replaced, retired, or the reason of a halt: its last words must not be lost."""
    match event:
        case RestartExpired():
            words = f"its restart did not finish within {config.restart_timeout_s} s"
        case FenceExpired():
            words = f"its death could not be confirmed within {config.fence_timeout_s} s"
            words = f"{shard.last_words}; {words}" if shard.last_words else words
        case _:
            words = getattr(event, "detail", "")
    return evolve(shard, last_words=words) if words else shard


def lose(shard: Shard, event: ShardObservation, config: RefitConfig) -> ShardOutcome:
    """Certainly dead: a replacement follows after a pause."""
    pausing, commands = _pausing(_remembering(shard, event, config), config)
    return ShardOutcome(pausing, commands, (_departed(shard),))


def lose_for_good(shard: Shard, event: ShardObservation, config: RefitConfig) -> ShardOutcome:
    """Certainly dead, and the restart budget is used up: the slot stays empty."""
    quiet, over = _quiet(evolve(_remembering(shard, event, config), fencing=False, version=None))
    return ShardOutcome(quiet, over, (_departed(shard),))


def give_up_unconfirmed(shard: Shard, event: FenceExpired, config: RefitConfig) -> ShardOutcome:
    """Nobody can say that it is dead, so nothing may take its place: it might still hold the device."""
    given_up = evolve(_remembering(shard, event, config), timer=None, version=None)
    return ShardOutcome(given_up, signals=(_departed(shard),))


def order_fence(shard: Shard, event: Event, config: RefitConfig) -> ShardOutcome:
    """Kill it; it stays what it was until its death is confirmed."""
    fencing, commands = _fencing(shard, config)
    return ShardOutcome(fencing, commands)


def condemn(shard: Shard, event: Event, config: RefitConfig) -> ShardOutcome:
    """Out of the desired roster at once, and killed; a replacement starts only when its death is confirmed."""
    fencing, commands = _fencing(shard, config)
    return ShardOutcome(evolve(fencing, version=None), commands, (_departed(shard),))


def abandon_attempt(shard: Shard, event: Event, config: RefitConfig) -> ShardOutcome:
    """The attempt is given up and killed; should it succeed late, it is refused."""
    fencing, commands = _fencing(_remembering(shard, event, config), config)
    return ShardOutcome(fencing, commands)


def retire_alive(shard: Shard, event: Event, config: RefitConfig) -> ShardOutcome:
    """Ordered out of the fleet: kill whatever runs."""
    fencing, commands = _fencing(shard, config)
    return ShardOutcome(evolve(fencing, version=None), commands, (_departed(shard),))


def retire_absent(shard: Shard, event: Event, config: RefitConfig) -> ShardOutcome:
    """Ordered out of the fleet; a fence that is under way goes on."""
    if shard.fencing:
        return ShardOutcome(shard, signals=(_departed(shard),))
    quiet, over = _quiet(shard)
    return ShardOutcome(quiet, over, (_departed(shard),))


def doubt_fence(shard: Shard, event: FenceExpired, config: RefitConfig) -> ShardOutcome:
    """The condemned process may be alive and inside: the communicator must know."""
    return ShardOutcome(evolve(shard, timer=None), signals=(FenceUnconfirmed(shard.slot, shard.incarnation),))


def stop_waiting(shard: Shard, event: FenceExpired, config: RefitConfig) -> ShardOutcome:
    """A retired process that will not die: nothing depends on it any more."""
    return ShardOutcome(evolve(shard, timer=None))


def start_replacement(shard: Shard, event: BackoffElapsed, config: RefitConfig) -> ShardOutcome:
    """A new incarnation, with a clean record and its own deadline."""
    fresh = Shard(
        slot=shard.slot,
        state=shard.state,
        incarnation=shard.incarnation + 1,
        restarts=shard.restarts + 1,
        timer=Timer.RESTART,
        last_words=shard.last_words,
    )
    arm = Arm(Timer.RESTART, config.restart_timeout_s, RestartExpired(fresh.slot, fresh.incarnation), fresh.slot)
    return ShardOutcome(fresh, (arm, Restart(fresh.slot, fresh.incarnation)))


def welcome(shard: Shard, event: ShardObservation, config: RefitConfig) -> ShardOutcome:
    """Loaded: wait for the first refit, which alone makes it serve."""
    quiet, over = _quiet(shard)
    return ShardOutcome(quiet, over, (Returned(shard.slot, shard.incarnation),))


def count_failed_probe(shard: Shard, event: Event, config: RefitConfig) -> ShardOutcome:
    """One more in the streak of probes."""
    return ShardOutcome(evolve(shard, failed_probes=shard.failed_probes + 1))


def count_failed_request(shard: Shard, event: Event, config: RefitConfig) -> ShardOutcome:
    """One more in the streak of requests."""
    return ShardOutcome(evolve(shard, failed_requests=shard.failed_requests + 1))


def clear_probes(shard: Shard, event: Event, config: RefitConfig) -> ShardOutcome:
    """An answered probe ends the streak of probes, and only that."""
    return ShardOutcome(evolve(shard, failed_probes=0))


def clear_requests(shard: Shard, event: Event, config: RefitConfig) -> ShardOutcome:
    """A served request ends the streak of requests, and only that."""
    return ShardOutcome(evolve(shard, failed_requests=0))


def hold_version(shard: Shard, event: Promoted | Carried, config: RefitConfig) -> ShardOutcome:
    """It holds this version whole."""
    return ShardOutcome(evolve(shard, version=event.version))


def tear(shard: Shard, event: Torn, config: RefitConfig) -> ShardOutcome:
    """Nobody can say what it holds."""
    return ShardOutcome(evolve(shard, version=None))
