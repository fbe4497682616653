"""What is really the case with a fleet, which no controller can see: the other half of the exhaustive search.

A process runs, is frozen, is stuck in code of its own, or is dead before anybody has noticed. What a member did with
the command it was given, and what its weights are, is decided when somebody looks: the command may not have arrived,
may have been acted on in part, or in full with the answer still on its way. That one reduction stands for every delay
and every order of messages, and for every subset of ranks that a broken transfer has completed on. What is late,
doubled or from an older epoch is not carried along: that it changes nothing in any controller state is asked by the
search over free environments (`environment.noise`), which also has several workers and trainers. Here a shard has one
worker, and there is one trainer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import NamedTuple

from ..spec.lifecycle import commands as cmd
from ..spec.lifecycle import events as ev
from ..spec.lifecycle.events import Cause, Event, Progress, Timer
from ..spec.lifecycle.state import (
    TERMINAL,
    Phase,
    ShardState,
    State,
    serving_shards,
)


class Life(IntEnum):
    """What has become of the process that fills a slot, or sits at the trainer's rank."""

    RUNNING = 0
    OUTSIDE = 1  # frozen before it took up the command that is outstanding
    FROZEN = 2  # frozen inside it, or with none outstanding
    STUCK = 3  # answers, but a callable of its own does not return
    DEAD = 4  # and nobody knows yet
    NONE = 5  # nobody fills the slot
    LOADING = 6  # a replacement is being started
    NEVER = 7  # a replacement is being started, and this will never end


class Weights(IntEnum):
    """What a shard's process holds. It serves whatever this is, if traffic is given to it."""

    STARTUP = 0
    COMMITTED = 1
    NEW = 2  # the version of the refit that is open
    OLDER = 3
    MIXED = 4


class Begun(IntEnum):
    """Whether the collective that is outstanding has begun: it does so only when every rank is in it."""

    OPEN = 0
    YES = 1
    NEVER = 2  # somebody has said that it never entered, or died before it did


class Place(NamedTuple):
    """One slot of the world."""

    life: Life
    weights: Weights = Weights.STARTUP
    doomed: bool = False  # it was ordered killed
    in_group: bool = False  # it shook hands in the communicator that was formed last


class World(NamedTuple):
    """All slots, the trainer, the outstanding collective, and what the trainer and the operator may still ask for."""

    slots: tuple[Place, ...]
    trainer: Life
    begun: Begun
    refits: int
    operator: int


class Move(NamedTuple):
    """One thing that may happen. event: what the controller learns of it at once, if anything.

    world: before whatever the controller orders in answer. fault: whether it was paid for.
    """

    event: Event | None
    world: World
    says: str
    fault: bool = False


_ALIVE = (Life.RUNNING, Life.OUTSIDE, Life.FROZEN, Life.STUCK)
_RUNNING, _OUTSIDE, _FROZEN, _STUCK = Life.RUNNING, Life.OUTSIDE, Life.FROZEN, Life.STUCK
_NOT_IN = (Life.OUTSIDE, Life.STUCK)  # stuck since before the collective began
_HOLDS_UP = (Life.OUTSIDE, Life.FROZEN, Life.STUCK, Life.DEAD)


def initial(shards: int, *, refits: int, operator: int) -> World:
    """Every process runs, with start-up weights."""
    return World((Place(_RUNNING),) * shards, _RUNNING, Begun.OPEN, refits, operator)


class View:
    """What the world asks of one controller state, worked out once."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.over = state.phase in TERMINAL
        self.carrying = state.phase is Phase.REFITTING
        self.asked = state.phase in (Phase.FORMING, Phase.REFITTING)
        self.leaving = state.phase is Phase.ABORTED
        self.tore = state.broke_in is Phase.REFITTING
        self.stamp = state.stamp
        self.serving = serving_shards(state)
        self.version = state.refit.version if state.refit else ev.Version(0, 0)
        # The rank of each slot whose present process is a member of this epoch, and who is still awaited.
        self.rank: tuple[int | None, ...] = tuple(
            state.membership.ranks_of(shard=shard.slot).start
            if state.roster.holds(shard.slot, shard.incarnation)
            else None
            for shard in state.shards
        )
        self.awaits = tuple(rank is not None and rank in state.inside for rank in self.rank)
        self.awaits_trainer = 0 in state.inside
        self.holds = tuple(rank is not None and rank in state.holders for rank in self.rank)
        self.trainer_holds = 0 in state.holders

    @cached_property
    def done(self) -> tuple[Event | None, ...]:
        """The good answer of every rank, trainer first, then the slots."""
        return tuple(self._done(rank) for rank in (0, *self.rank))

    def _done(self, rank: int | None) -> Event | None:
        if rank is None:
            return None
        return ev.RankTransferred(self.stamp, rank, self.version) if self.carrying else ev.RankJoined(self.stamp, rank)

    def failed(self, rank: int, cause: Cause) -> Event:
        return ev.RankFailed(self.stamp, rank, cause)

    def left(self, rank: int, progress: Progress) -> Event:
        return ev.RankLeft(self.stamp, rank, progress)


def moves(view: View, world: World, *, faults: bool) -> Iterator[Move]:
    """Everything that may happen next, in a fixed order. faults: whether a fault may still happen.

    While several ranks are awaited by a break, they are looked at one after the other, trainer first: what a rank
    says, or fails to say, is kept with its rank until the last one is out, so that it commutes with whatever befalls
    others meanwhile. Of the last one every order is looked at, because its answer decides.
    """
    if view.over:
        return
    if view.leaving and len(view.state.inside) > 1 and (who := _next_to_leave(view, world)) is not None:
        yield from _leaves(view, world, who)
        yield from _calls(view, world)
        if faults:
            yield from _befalls(view, world, who)
        return
    if view.asked:
        yield from _answers(view, world, one_order=not faults)
    elif view.leaving:
        yield from _departures(view, world)
    yield from _consequences(view, world)
    yield from _calls(view, world)
    if faults:
        yield from _faults(view, world)


# --- an operation under way ------------------------------------------------------------------------------------------


def _may_begin(view: View, world: World) -> bool:
    """Whether every rank may have entered the outstanding collective by now."""
    if world.begun is not Begun.OPEN:
        return world.begun is Begun.YES
    if world.trainer in _NOT_IN:
        return False
    return not any(
        rank is not None and place.life in _NOT_IN for rank, place in zip(view.rank, world.slots, strict=True)
    )


def _is_held_up(view: View, world: World) -> bool:
    """Whether somebody does not take part who should: then others wait, fail, or run into a deadline."""
    if world.trainer in _HOLDS_UP or world.begun is Begun.NEVER:
        return True
    return any(
        place.life in _HOLDS_UP or place.doomed
        for rank, place in zip(view.rank, world.slots, strict=True)
        if rank is not None
    )


def _with(world: World, slot: int, **changes: object) -> World:
    slots = world.slots
    return world._replace(slots=(*slots[:slot], slots[slot]._replace(**changes), *slots[slot + 1 :]))  # type: ignore[arg-type]


def _answers(view: View, world: World, *, one_order: bool) -> Iterator[Move]:
    """Ranks complete, or fail because somebody is not with them; and the deadline, if it will never end by itself."""
    held_up = _is_held_up(view, world)
    one_order = one_order and not held_up
    begun = world._replace(begun=Begun.YES) if _may_begin(view, world) else None
    if view.awaits_trainer and world.trainer is _RUNNING:
        if begun is not None:
            yield Move(view.done[0], begun, "the trainer is done")
        if held_up:
            yield Move(view.failed(0, Cause.PEER), world, "the trainer sees a broken peer")
            yield Move(view.failed(0, Cause.DEADLINE), world, "the trainer's own wait runs out")
        if one_order:
            return
    for slot, place in enumerate(world.slots):
        rank = view.rank[slot]
        if not view.awaits[slot] or rank is None or place.life is not _RUNNING:
            continue
        if begun is not None:
            done = _with(begun, slot, weights=Weights.NEW) if view.carrying else begun
            yield Move(view.done[slot + 1], done, f"shard {slot} is done")
        if held_up:
            yield Move(view.failed(rank, Cause.PEER), world, f"shard {slot} sees a broken peer")
            yield Move(view.failed(rank, Cause.DEADLINE), world, f"the wait of shard {slot} runs out")
        if one_order:
            return
    if held_up:
        yield _expiry(view, world)


def _expiry(view: View, world: World) -> Move:
    expired = ev.ProgressExpired if view.carrying else ev.FormExpired
    return Move(expired(view.stamp), world, "nobody moved on in time")


# --- a break ---------------------------------------------------------------------------------------------------------


_TRAINER = -1


def _next_to_leave(view: View, world: World) -> int | None:
    """The first who will answer that it has left: a slot, or the trainer. The frozen and the dead will not."""
    if view.awaits_trainer and world.trainer in (_RUNNING, _STUCK):
        return _TRAINER
    for slot, place in enumerate(world.slots):
        if view.awaits[slot] and place.life in (_RUNNING, _STUCK):
            return slot
    return None


def _leaves(view: View, world: World, who: int) -> Iterator[Move]:
    return _trainer_leaves(view, world) if who == _TRAINER else _shard_leaves(view, world, who, world.slots[who])


def _departures(view: View, world: World) -> Iterator[Move]:
    """Ranks leave and say how far they got; what that was is decided now. Who is well leaves before the deadline."""
    who = _next_to_leave(view, world)
    if who is not None:
        yield from _leaves(view, world, who)
    elif view.state.inside and Timer.SETTLE in view.state.timers:
        yield Move(ev.SettleExpired(view.stamp), world, "not everybody left in time")


def _trainer_leaves(view: View, world: World) -> Iterator[Move]:
    if world.trainer is _STUCK:
        yield Move(view.left(0, Progress.STUCK), world, "the trainer leaves, stuck in code of its own")
        return
    if view.trainer_holds:
        yield Move(view.left(0, Progress.COMPLETE), world, "the trainer leaves; it had sent everything")
        return
    if world.begun is not Begun.YES:
        never = world._replace(begun=Begun.NEVER)
        yield Move(view.left(0, Progress.NEVER_ENTERED), never, "the trainer leaves; it had not begun")
    yield Move(view.left(0, Progress.ENTERED), world, "the trainer leaves")
    if view.tore and _may_begin(view, world):
        begun = world._replace(begun=Begun.YES)
        yield Move(view.left(0, Progress.COMPLETE), begun, "the trainer leaves; it had sent everything")


def _shard_leaves(view: View, world: World, slot: int, place: Place) -> Iterator[Move]:
    rank = view.rank[slot]
    assert rank is not None, "only members are awaited"
    if place.life is _STUCK:
        torn = _with(world, slot, weights=Weights.MIXED) if view.tore else world
        yield Move(view.left(rank, Progress.STUCK), torn, f"shard {slot} leaves, stuck in code of its own")
        return
    if view.holds[slot]:
        yield Move(view.left(rank, Progress.COMPLETE), world, f"shard {slot} leaves; it had everything")
        return
    if world.begun is not Begun.YES:
        never = world._replace(begun=Begun.NEVER)
        yield Move(view.left(rank, Progress.NEVER_ENTERED), never, f"shard {slot} leaves; it had not begun")
    yield Move(view.left(rank, Progress.ENTERED), world, f"shard {slot} leaves, untouched")
    if view.tore and _may_begin(view, world):
        begun = world._replace(begun=Begun.YES)
        torn = begun if place.weights is Weights.NEW else _with(begun, slot, weights=Weights.MIXED)
        yield Move(view.left(rank, Progress.PARTIAL), torn, f"shard {slot} leaves with a part of it")
        whole = _with(begun, slot, weights=Weights.NEW)
        yield Move(view.left(rank, Progress.COMPLETE), whole, f"shard {slot} leaves with all of it")


# --- what follows by itself ------------------------------------------------------------------------------------------


def _consequences(view: View, world: World) -> Iterator[Move]:
    """Deaths are noticed, the frozen thaw, replacements load, pauses end."""
    if world.trainer is Life.DEAD:
        yield Move(ev.TrainerLost(0), world._replace(trainer=Life.NONE), "the trainer's death is noticed")
    elif world.trainer in (_OUTSIDE, _FROZEN, _STUCK) and view.awaits_trainer:
        yield Move(None, world._replace(trainer=_RUNNING), "the trainer goes on")
    for slot, (place, shard) in enumerate(zip(world.slots, view.state.shards, strict=True)):
        who = (slot, shard.incarnation)
        if place.life is Life.DEAD or (place.doomed and place.life is not Life.NONE):
            yield Move(ev.ShardExited(*who), _with(world, slot, **_GONE), f"the death of shard {slot} is noticed")
        if place.life in (_OUTSIDE, _FROZEN, _STUCK) and view.awaits[slot]:
            yield Move(None, _with(world, slot, life=_RUNNING), f"shard {slot} goes on")
        if place.life is Life.LOADING and shard.state is ShardState.RESTARTING:
            loaded = _with(world, slot, life=_RUNNING, weights=Weights.STARTUP, in_group=False)
            yield Move(ev.ReplacementLoaded(*who), loaded, f"the replacement for shard {slot} has loaded")
        if place.life is Life.NEVER and shard.timer is Timer.FENCE:
            yield Move(ev.FenceExpired(*who), world, f"the restart of shard {slot} cannot be killed")
        if place.life is Life.NEVER and shard.timer is Timer.RESTART:
            yield Move(ev.RestartExpired(*who), world, f"the restart of shard {slot} takes too long")
        if shard.timer is Timer.BACKOFF:
            yield Move(ev.BackoffElapsed(*who), world, f"the pause before the restart of shard {slot} is over")


_GONE: dict[str, object] = {
    "life": Life.NONE,
    "weights": Weights.STARTUP,
    "doomed": False,
    "in_group": False,
}


CALLS = (ev.StartRequested, ev.RefitRequested, ev.ReconcileRequested, ev.CloseRequested, ev.RetireRequested)


def _calls(view: View, world: World) -> Iterator[Move]:
    state = view.state
    if state.phase is Phase.UNBUILT and not state.started:
        yield Move(ev.StartRequested(), world, "the trainer starts the run")
    if world.refits and state.refit is None and state.started:
        after = world._replace(refits=world.refits - 1)
        yield Move(ev.RefitRequested(_next(state)), after, "the trainer asks for a refit")
    if world.operator:
        after = world._replace(operator=world.operator - 1)
        yield Move(ev.ReconcileRequested(), after, "the trainer asks to reconcile")
        yield Move(ev.CloseRequested(), after, "the controller is closed")
        for slot in range(len(world.slots)):
            yield Move(ev.RetireRequested(slot), after, f"the operator retires shard {slot}")


def _next(state: State) -> ev.Version:
    return ev.Version(0, 1) if state.committed is None else ev.Version(0, state.committed.step + 1)


# --- what nobody asked for -------------------------------------------------------------------------------------------

_SPURIOUS = (Cause.PEER, Cause.DEADLINE, Cause.TRANSIENT, Cause.MANIFEST, Cause.REJECTED)


def _faults(view: View, world: World) -> Iterator[Move]:
    """Deaths, freezes, refusals and slowness: each has its price."""
    for move in _unpaid(view, world):
        yield move._replace(fault=True)


def _befalls(view: View, world: World, who: int) -> Iterator[Move]:
    """The faults of one process that is about to leave."""
    if who == _TRAINER:
        yield Move(None, world._replace(trainer=Life.DEAD), "the trainer is killed", fault=True)
        yield Move(None, world._replace(trainer=_FROZEN), "the trainer freezes", fault=True)
        return
    for move in _faults_of_a_shard(view, world, who, world.slots[who]):
        yield move._replace(fault=True)


def _unpaid(view: View, world: World) -> Iterator[Move]:
    state = view.state
    if not view.awaits_trainer:
        yield Move(ev.TrainerLost(0), world._replace(trainer=Life.NONE), "the trainer is killed")
    elif world.trainer is _RUNNING:
        killed = world._replace(trainer=Life.DEAD)
        yield Move(None, killed, "the trainer is killed")
        yield Move(None, world._replace(trainer=_FROZEN), "the trainer freezes")
        if view.asked:
            if world.begun is not Begun.YES:
                yield Move(None, killed._replace(begun=Begun.NEVER), "the trainer is killed before it begins")
                yield Move(None, world._replace(trainer=_OUTSIDE), "the trainer freezes before it begins")
                yield Move(None, world._replace(trainer=_STUCK), "the trainer is stuck in code of its own")
            if _may_begin(view, world):
                inside = world._replace(trainer=_STUCK, begun=Begun.YES)
                yield Move(None, inside, "the trainer is stuck in code of its own, in the middle")
    for slot, (place, shard) in enumerate(zip(world.slots, state.shards, strict=True)):
        yield from _faults_of_a_shard(view, world, slot, place)
        who = (slot, shard.incarnation)
        if place.life in _ALIVE and not place.doomed and shard.is_member:
            yield Move(ev.ProbeFailed(*who), world, f"a probe of shard {slot} fails")
        if shard.state is ShardState.RESTARTING and place.life is Life.LOADING:
            failed = _with(world, slot, **_GONE)
            yield Move(ev.RestartFailed(*who), failed, f"the restart of shard {slot} fails")
            yield Move(None, _with(world, slot, life=Life.NEVER), f"the restart of shard {slot} will never end")
            yield Move(ev.RestartExpired(*who), world, f"the restart of shard {slot} is slow")
        if shard.timer is Timer.FENCE:
            yield Move(ev.FenceExpired(*who), world, f"the death of shard {slot} cannot be confirmed")
    if view.asked and not _is_held_up(view, world):
        yield _expiry(view, world)._replace(says="everybody is slow")
        for rank, runs in ((0, world.trainer is _RUNNING), *zip(view.rank, _running(world), strict=True)):
            if rank is not None and runs and rank in state.inside:
                for cause in _SPURIOUS:
                    yield Move(view.failed(rank, cause), world, f"rank {rank} fails, {cause.value}")
    if view.asked and world.begun is Begun.OPEN:
        yield Move(None, world._replace(begun=Begun.NEVER), "a command is lost on its way")
    if state.refit is not None and Timer.REFIT in state.timers:
        yield Move(ev.RefitExpired(state.refit.version), world, "the refit runs out of time")
    yield Move(ev.ControllerFailed(), world, "the controller fails")


def _running(world: World) -> tuple[bool, ...]:
    return tuple(place.life is _RUNNING for place in world.slots)


def _faults_of_a_shard(view: View, world: World, slot: int, place: Place) -> Iterator[Move]:
    if place.life not in (_RUNNING, _FROZEN, _OUTSIDE, _STUCK) or place.doomed:
        return
    if not view.awaits[slot]:
        who = (slot, view.state.shards[slot].incarnation)
        yield Move(ev.ShardExited(*who), _with(world, slot, **_GONE), f"shard {slot} is killed")
        return
    busy = view.asked and place.life is _RUNNING
    killed = _with(world, slot, life=Life.DEAD)
    if busy and world.begun is not Begun.YES:
        yield Move(None, killed._replace(begun=Begun.NEVER), f"shard {slot} is killed before it begins")
    yield Move(None, killed, f"shard {slot} is killed")
    if place.life is not _RUNNING:
        return
    if busy:
        if world.begun is not Begun.YES:
            yield Move(None, _with(world, slot, life=_OUTSIDE), f"shard {slot} freezes before it begins")
        if view.carrying and _may_begin(view, world):
            begun = world._replace(begun=Begun.YES)
            yield Move(None, _with(begun, slot, life=_STUCK), f"shard {slot} is stuck in code of its own")
    yield Move(None, _with(world, slot, life=_FROZEN), f"shard {slot} freezes")


# --- what the controller orders --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Consequence:
    """The world after commands, and what is wrong with them: things only the world can tell."""

    world: World
    broken: tuple[str, ...] = ()


def obey(world: World, before: View, after: View, commands: tuple[cmd.Command, ...]) -> Consequence:
    """Let the commands take effect, and hold what the controller believes against what is the case."""
    broken: list[str] = []
    for command in commands:
        match command:
            case cmd.Leave():
                world = world._replace(slots=tuple(place._replace(in_group=False) for place in world.slots))
            case cmd.Form():
                world = _frozen_stay_outside(world, after)
            case cmd.Transfer():
                strangers = [
                    slot
                    for slot in command.roster
                    if world.slots[slot].life in _ALIVE and not world.slots[slot].in_group
                ]
                if strangers or before.leaving:
                    who = f"shards {strangers} never were in" if strangers else "nobody is in any more"
                    broken.append(f"W1: a transfer over a communicator that {who}: it can only hang")
                world = _frozen_stay_outside(world, after)
            case cmd.ReportFormed(roster=roster):
                if world.begun is not Begun.YES:
                    broken.append("W2: reported formed, but not every rank has entered")
                slots = tuple(
                    place._replace(in_group=slot in roster and after.rank[slot] is not None)
                    for slot, place in enumerate(world.slots)
                )
                world = world._replace(slots=slots, begun=Begun.OPEN)
            case cmd.ReportCompleted(roster=roster):
                for slot in roster:
                    place = world.slots[slot]
                    if place.life in _ALIVE and before.rank[slot] is not None and place.weights is not Weights.NEW:
                        broken.append(f"W3: reported complete, but shard {slot} holds {place.weights.name.lower()}")
                world = world._replace(slots=tuple(_committed(place) for place in world.slots), begun=Begun.OPEN)
            case cmd.Fence(slot=slot):
                world = _with(world, slot, doomed=True)
            case cmd.Restart(slot=slot):
                if world.slots[slot].life is not Life.NONE:
                    life = world.slots[slot].life.name.lower()
                    broken.append(f"W4: shard {slot} is replaced while its process is {life}")
                world = _with(world, slot, **{**_GONE, "life": Life.LOADING})
    if not (after.asked or (after.leaving and after.tore and after.state.inside)):
        world = world._replace(begun=Begun.OPEN)
    for slot in after.serving:
        place = world.slots[slot]
        if place.life in _ALIVE and place.weights is not Weights.COMMITTED:
            broken.append(f"W5: shard {slot} may be given traffic and holds {place.weights.name.lower()} weights")
    return Consequence(world, tuple(broken))


def _frozen_stay_outside(world: World, after: View) -> World:
    """A new command is outstanding: who is frozen or stuck has not taken it up."""

    def outside(life: Life) -> Life:
        return _OUTSIDE if life is _FROZEN else life

    slots = tuple(place._replace(life=outside(place.life)) for place in world.slots)
    dead = world.trainer is Life.DEAD or any(
        place.life is Life.DEAD and after.rank[slot] is not None for slot, place in enumerate(slots)
    )
    begun = Begun.NEVER if dead else Begun.OPEN
    return world._replace(slots=slots, trainer=outside(world.trainer), begun=begun)


def _committed(place: Place) -> Place:
    """The new version is the committed one now."""
    if place.weights is Weights.NEW:
        return place._replace(weights=Weights.COMMITTED)
    if place.weights is Weights.COMMITTED:
        return place._replace(weights=Weights.OLDER)
    return place
