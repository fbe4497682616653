"""Members that are Ray actors.

The trainer hands in the handles of its own actors and says how to start a replacement. Each actor holds a
`Participant` and exposes one method that passes requests to it, in a concurrency group of its own:

    @ray.remote(concurrency_groups={"reknit": 4})
    class MyEngine:
        @ray.method(concurrency_group="reknit")
        def reknit(self, request):
            return self.participant.handle(request)

Four threads: one call is held for as long as the process lives (its failing is the notice of death, within
milliseconds and without polling), one may be blocked in a collective, and leaving must still get through.
"""

from __future__ import annotations

import contextlib
import logging
import re
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from functools import partial
from typing import Any, cast

import psutil
import ray
from ray.actor import ActorHandle
from ray.exceptions import ActorDiedError, RayActorError

from ..spec.lifecycle import events as ev
from ..spec.roster import Topology
from . import messages
from .seams import Feed, Member, Trainer, Worker

log = logging.getLogger(__name__)

Handle = ActorHandle[Any]
Spawn = Callable[[int, int], Sequence[Handle]]
"""`spawn(slot, incarnation)`: start a replacement, return the handles of its workers in rank order. May block."""

METHOD = "reknit"
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_CLOSE_S = 5.0
_SECOND_CALL_S = 10.0
_LOOK_AGAIN_S = 0.5
_SAME_START_S = 2.0  # the kernel's own clock is read in whole seconds


class RayFleet:
    """The members of a run on Ray.

    trainers: one handle per trainer rank. shards: for each slot the handles of its workers, in rank order.
    spawn: starts a replacement; called from a thread of its own. Without one, a lost shard stays lost.
    Raises `ValueError` when there is no trainer or no shard, when the shards do not all have the same number of
    workers, or when an actor has no method `reknit`; `TypeError` when a shard is not a sequence of actors.
    """

    def __init__(
        self,
        *,
        trainers: Sequence[Handle],
        shards: Sequence[Sequence[Handle]],
        spawn: Spawn | None = None,
    ) -> None:
        if not trainers or not shards:
            raise ValueError(f"a run needs a trainer and a shard, got {len(trainers)} trainers, {len(shards)} shards")
        shards = [_workers(workers, f"shard {slot}") for slot, workers in enumerate(shards)]
        for rank, handle in enumerate(trainers):
            _check_method(handle, f"trainer {rank}")
        widths = sorted({len(workers) for workers in shards})
        if len(widths) != 1:
            raise ValueError(f"every shard needs the same number of workers, got {[len(w) for w in shards]}")
        for place, handle in enumerate(known := [*trainers, *(handle for workers in shards for handle in workers)]):
            if handle in known[:place]:
                raise ValueError(f"every member needs an actor of its own, this one is given twice: {handle!r}")
        self.topology = Topology(train_world_size=len(trainers), dp_size=len(shards), workers_per_shard=widths[0])
        self._spawn = spawn
        self._lock = threading.Lock()
        self._handles: dict[Member, Handle] = {Trainer(rank): handle for rank, handle in enumerate(trainers)}
        for slot, workers in enumerate(shards):
            self._handles.update({Worker(slot, 0, index): handle for index, handle in enumerate(workers)})
        self._gone: set[Member] = set()
        self._processes: dict[Member, messages.HelloReply] = {}
        self._doomed: set[tuple[int, int]] = set()
        self._closing = threading.Event()
        self._feed: Feed = lambda event: None

    # --- the seam --------------------------------------------------------------------------------------------------

    def open(self, feed: Feed) -> None:
        self._feed = feed
        for member in tuple(self._handles):
            self._meet(member)

    def call(self, member: Member, request: messages.Request) -> Future[messages.Reply]:
        try:
            reference = getattr(self._handles[member], METHOD).remote(request)
            return cast("Future[messages.Reply]", reference.future())
        except Exception as error:
            # Ray may already know at submission that the actor is dead; the caller gets it the same way as later.
            failed: Future[messages.Reply] = Future()
            failed.set_exception(error)
            return failed

    def restart(self, slot: int, incarnation: int) -> None:
        self._thread(f"restart-{slot}.{incarnation}", self._start_replacement, slot, incarnation)

    def fence(self, slot: int, incarnation: int) -> None:
        with self._lock:
            self._doomed.add((slot, incarnation))
            started = [
                m for m in self._handles if isinstance(m, Worker) and (m.slot, m.incarnation) == (slot, incarnation)
            ]
        if started:
            self._thread(f"fence-{slot}.{incarnation}", self._kill, started)
        # Otherwise an attempt is still being started: whoever starts it finds it doomed, kills it and reports its exit.

    def describe(self, member: Member) -> Mapping[str, str]:
        process = self._processes.get(member)
        return {"host": process.host, "pid": str(process.pid), "device": process.device} if process else {}

    def close(self) -> None:
        self._closing.set()
        with self._lock:
            members = [member for member in self._handles if member not in self._gone]
        answers = [self.call(member, messages.Close()) for member in members]
        deadline = time.monotonic() + _CLOSE_S
        for answer in answers:
            with contextlib.suppress(Exception):
                answer.result(timeout=max(deadline - time.monotonic(), 0.0))

    # --- watching --------------------------------------------------------------------------------------------------

    def _meet(self, member: Member) -> None:
        """Find out which process is behind the handle, then watch that one."""
        self.call(member, messages.Hello()).add_done_callback(partial(self._met, member))

    def _watch(self, member: Member) -> None:
        request = messages.Watch(identity=self._processes[member].identity)
        self.call(member, request).add_done_callback(partial(self._watch_ended, member))
        self._check_threads(member)

    def _check_threads(self, member: Member) -> None:
        """While one call is held open, another must get through, or everything that follows looks like a freeze."""
        second = self.call(member, messages.Hello())

        def complain() -> None:
            if not second.done() and not self._closing.is_set() and member not in self._gone:
                log.error(
                    "event=no_second_thread member=%r: a call to its method %s waits behind the one that is held open; "
                    "give the method a concurrency group of its own with 4 threads, and in an asyncio actor run it "
                    "with asyncio.to_thread (docs/embedding.md)",
                    *(str(member), METHOD),
                )

        timer = _later(_SECOND_CALL_S, complain)
        second.add_done_callback(lambda _: timer.cancel())

    def _met(self, member: Member, answer: Future[messages.Reply]) -> None:
        match _outcome(answer):
            case messages.HelloReply() as process:
                self._processes[member] = process
                self._watch(member)
            case other:
                self._lost_sight(member, other, again=self._meet)

    def _watch_ended(self, member: Member, answer: Future[messages.Reply]) -> None:
        match _outcome(answer):
            case messages.HelloReply() as stranger:
                self._restarted_in_place(member, stranger)
            case messages.Closed():
                pass  # whoever owns the actor has closed its participant: it takes part in nothing any more
            case other:
                self._lost_sight(member, other, again=self._watch)

    def _lost_sight(self, member: Member, outcome: object, *, again: Callable[[Member], None]) -> None:
        if self._closing.is_set():
            return
        if isinstance(outcome, ActorDiedError):
            self._report_exit(member, _last_words(outcome))
        elif isinstance(outcome, RayActorError):
            # Out of reach is not dead. The deadlines of whoever waits for it bound this; look again meanwhile.
            log.warning("event=unreachable member=%r error=%r", str(member), str(outcome))
            _later(_LOOK_AGAIN_S, again, member)
        else:
            log.error("event=watch_failed member=%r error=%r: its exit will not be noticed", str(member), str(outcome))

    def _restarted_in_place(self, member: Member, stranger: messages.HelloReply) -> None:
        """Ray started the actor anew (max_restarts): behind the old handle are start-up weights that nobody asked for.

        The process that was meant is gone. The new one fills its place and must go before a replacement comes, so it
        is reported as what is left of a broken shard, and watched to its end.
        """
        text = (
            "event=restarted_in_place member=%r pid=%d: reknit replaces shards itself, start actors with max_restarts=0"
        )
        log.error(text, str(member), stranger.pid)
        self._processes[member] = stranger
        self._watch(member)
        match member:
            case Trainer(rank=rank):
                self._feed(ev.TrainerLost(rank))
            case Worker():
                self._feed(ev.WorkerExited(member.slot, member.incarnation, member.worker))

    def _report_exit(self, member: Member, words: str) -> None:
        with self._lock:
            if member in self._gone:
                return
            self._gone.add(member)
            siblings = [m for m in self._handles if m not in self._gone and _same_shard(m, member)]
        log.warning("event=exit member=%r error=%r", str(member), words)
        match member:
            case Trainer(rank=rank):
                self._feed(ev.TrainerLost(rank))
            case Worker() if siblings:
                self._feed(ev.WorkerExited(member.slot, member.incarnation, member.worker))
            case Worker():
                self._feed(ev.ShardExited(member.slot, member.incarnation, words))

    # --- killing and replacing -------------------------------------------------------------------------------------

    def _thread(self, name: str, target: Callable[..., None], *arguments: object) -> None:
        threading.Thread(target=target, args=arguments, name=f"reknit-{name}", daemon=True).start()

    def _kill(self, members: Sequence[Member]) -> None:
        """Kill each process and its children. Their watch reports the exits, when Ray is certain of them."""
        for member in members:
            self._kill_tree(member)
            with contextlib.suppress(Exception):
                ray.kill(self._handles[member], no_restart=True)

    def _kill_tree(self, member: Member) -> None:
        """On this machine at once and with everything it started: children keep its memory and its connections."""
        process = self._processes.get(member)
        if process is None or process.host != socket.gethostname():
            return
        with contextlib.suppress(psutil.Error):
            root = psutil.Process(process.pid)
            if abs(root.create_time() - process.started) > _SAME_START_S:
                return  # gone long ago, and its number went to somebody else
            family = [*root.children(recursive=True), root]
            for relative in family:
                with contextlib.suppress(psutil.Error):
                    relative.kill()
            psutil.wait_procs(family, timeout=_CLOSE_S)

    def _start_replacement(self, slot: int, incarnation: int) -> None:
        if self._spawn is None:
            self._feed(ev.RestartFailed(slot, incarnation, "no spawn function was given"))
            return
        members: list[Member] = []
        try:
            handles = _workers(self._spawn(slot, incarnation), f"what spawn({slot}, {incarnation}) returned")
            members = self._enlist(slot, incarnation, handles)
            self._await_loaded(members)
        except BaseException as error:  # a thread of ours runs the user's code: it must always come to an outcome
            words = _last_words(error)
            log.warning("event=restart_failed shard=%d incarnation=%d error=%r", slot, incarnation, words)
            self._discard(members)
            outcome: ev.Event = ev.RestartFailed(slot, incarnation, words)
        else:
            outcome = ev.ReplacementLoaded(slot, incarnation)
        with self._lock:
            doomed = (slot, incarnation) in self._doomed
        if self._closing.is_set() or doomed:
            self._discard(members)
            outcome = ev.ShardExited(slot, incarnation, "its attempt was given up")
        elif isinstance(outcome, ev.ReplacementLoaded):
            for member in members:
                self._watch(member)
        if not self._closing.is_set():
            self._feed(outcome)

    def _enlist(self, slot: int, incarnation: int, handles: Sequence[Handle]) -> list[Member]:
        """Make the actors of an attempt members. What is wrong with them is found when they are known: to be killed."""
        with self._lock:
            known = list(self._handles.values())
            fresh = [handle for place, handle in enumerate(handles) if handle not in [*known, *handles[:place]]]
            members: list[Member] = [Worker(slot, incarnation, index) for index in range(len(fresh))]
            self._handles.update(zip(members, fresh, strict=True))
        wrong = ""
        if len(fresh) != len(handles):
            wrong = "an actor that is a member already, or the same one twice"
        elif len(handles) != self.topology.workers_per_shard:
            wrong = f"{len(handles)} workers, {self.topology.workers_per_shard} expected"
        if wrong:
            self._discard(members)
            raise ValueError(f"spawn({slot}, {incarnation}) returned {wrong}")
        return members

    def _await_loaded(self, members: Sequence[Member]) -> None:
        """An actor answers only when its constructor is done. The restart deadline of the table bounds this wait from
        outside, by fencing the attempt, which makes the call fail."""
        answers = [self.call(member, messages.Hello()) for member in members]
        for member, answer in zip(members, answers, strict=True):
            reply = answer.result()
            if not isinstance(reply, messages.HelloReply):
                raise ValueError(f"the method {METHOD} of {member} answered with {type(reply).__name__}")
            self._processes[member] = reply

    def _discard(self, members: Sequence[Member]) -> None:
        self._kill(members)
        with self._lock:
            self._gone.update(members)


def _later(seconds: float, call: Callable[..., None], *arguments: object) -> threading.Timer:
    timer = threading.Timer(seconds, call, arguments)
    timer.daemon = True
    timer.start()
    return timer


def _outcome(answer: Future[messages.Reply]) -> object:
    try:
        return answer.result(timeout=0)
    except (Exception, CancelledError) as error:
        return error


def _workers(workers: Sequence[Handle], what: str) -> list[Handle]:
    if isinstance(workers, ActorHandle) or not isinstance(workers, Sequence):
        raise TypeError(f"{what} must be the list of its workers' actors in rank order, got {type(workers).__name__}")
    for worker, handle in enumerate(workers):
        _check_method(handle, f"{what} worker {worker}")
    return list(workers)


def _check_method(handle: Handle, what: str) -> None:
    if not hasattr(handle, METHOD):
        raise ValueError(
            f"{what} has no method {METHOD!r}: its actor must hand requests to its participant there "
            f"(docs/embedding.md), got {handle!r}"
        )


def _last_words(error: BaseException) -> str:
    """What it died of, as one line: the remote exception where there was one, without Ray's colours and frames."""
    # Ray ends with guesses that fit every death alike.
    text = _COLOURS.sub("", str(error)).partition("Some common causes include")[0]
    lines = [line.strip(" ^~") for line in text.splitlines()]
    lines = [line for line in lines if line] or [repr(error)]
    # Ray's text begins with what happened and ends with the remote exception.
    return f"{type(error).__name__}: {lines[0]}"[:300] + (f" ... {lines[-1]}"[:300] if len(lines) > 1 else "")


def _same_shard(one: Member, other: Member) -> bool:
    return (
        isinstance(one, Worker)
        and isinstance(other, Worker)
        and (one.slot, one.incarnation) == (other.slot, other.incarnation)
    )
