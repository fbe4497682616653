"""Simulated members behind the `Fleet` seam.

Each process answers the same requests as a real participant, and fails the way gloo was seen to fail: a collective
with a missing rank hangs until its own deadline; when a peer dies its neighbours fail at once and the others wait;
who has received everything reports success even if another has not.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from enum import Enum
from typing import Literal

from ...spec.lifecycle import events as ev
from ...spec.lifecycle.events import Cause, Progress, Stamp, Version
from ...spec.roster import Topology
from .. import messages
from ..seams import Feed, MeetingPoint, Member, Trainer, Worker
from .clock import VirtualClock

Restarted = Literal["loads", "fails", "never returns"]
Post = Callable[[Member, messages.Request | messages.Reply, float], Sequence[float]]
"""From or to whom, what, and after how many seconds it would arrive; says when it does arrive, if at all."""


class Health(Enum):
    """What is really the case; no controller can see it directly."""

    RUNNING = "running"
    FROZEN = "frozen"
    DEAD = "dead"


class ProcessGone(Exception):
    """What a call to a dead process fails with."""


class SimulationBroken(AssertionError):
    """Something happened that must never happen in a real fleet."""


@dataclass
class Process:
    """One process. weights: the version it holds whole, None for start-up weights, "mixed" for a mixture."""

    member: Member
    health: Health = Health.RUNNING
    weights: Version | Literal["mixed"] | None = None
    seat: Seat | None = None
    newest: Stamp = field(default_factory=lambda: Stamp(0, -1))
    busy: bool = False  # inside a call of the user's that does not return
    mailbox: list[tuple[messages.Request, Future[messages.Reply]]] = field(default_factory=list)


@dataclass
class Seat:
    """A place in one communicator, and what it is doing there."""

    join: messages.Join
    joined: bool = False
    entered: Stamp | None = None  # the newest transfer that it heard of
    progress: Progress = Progress.ENTERED
    operation: Operation | None = None
    pending: Future[messages.Reply] | None = None

    def progress_of(self, breaking: Stamp | None) -> Progress:
        """How far it got in the operation `breaking`, which it may never have heard of; None: in the newest one."""
        seen = breaking is None or breaking <= (self.entered or self.join.stamp)
        return self.progress if seen else Progress.NEVER_ENTERED


@dataclass
class Operation:
    """One collective under way: complete only when every rank has entered it."""

    key: tuple[object, ...]
    world_size: int
    entered: dict[int, Process] = field(default_factory=dict)
    began: float | None = None
    over: bool = False

    @property
    def is_transfer(self) -> bool:
        """Its key holds the nonce and the request; that of a join holds run, epoch and nonce."""
        return len(self.key) == 2


class Answer(Future[messages.Reply]):
    """An answer whose callbacks may not fail in silence, as those of a plain future do."""

    def __init__(self, failures: list[Exception]) -> None:
        super().__init__()
        self._failures = failures

    def add_done_callback(self, fn: Callable[[Future[messages.Reply]], object]) -> None:
        def call(answer: Future[messages.Reply]) -> None:
            try:
                fn(answer)
            except Exception as error:
                self._failures.append(error)
                raise

        super().add_done_callback(call)


class SimulatedRendezvous:
    """Meeting points that cost nothing and never repeat."""

    def __init__(self) -> None:
        self._drawn = 0

    def meeting_point(self) -> MeetingPoint:
        self._drawn += 1
        return MeetingPoint("simulated", 1, "run", f"nonce-{self._drawn}")

    def close(self) -> None:
        pass


class SimulatedFleet:
    """Processes in virtual time.

    latency_s: one way of a message. join_s, transfer_s: the collective, once everybody is in. notice_s: until a death
    is known. restart_s: until a replacement has loaded. on_delivery: called with every request as it reaches a running
    process, before the process acts on it: the place to inject a fault at an exact point. on_post: called with every
    message as it is sent, requests while the controller carries out a command; it decides when the message arrives:
    later, overtaken by others, or never.
    """

    def __init__(
        self,
        clock: VirtualClock,
        topology: Topology,
        *,
        seed: int = 0,
        latency_s: float = 0.001,
        join_s: float = 0.05,
        transfer_s: float = 0.05,
        notice_s: float = 0.011,
        restart_s: float = 5.0,
    ) -> None:
        self.clock = clock
        self.topology = topology
        self.random = random.Random(seed)
        self.latency_s = latency_s
        self.join_s = join_s
        self.transfer_s = transfer_s
        self.notice_s = notice_s
        self.restart_s = restart_s
        self.on_delivery: Callable[[Member, messages.Request], None] = lambda member, request: None
        self.on_post: Post = lambda member, message, usual_s: (usual_s,)
        self.refusals: dict[Member, str] = {}  # engines that raise when they are given weights, and their words
        self.wedged: set[Member] = set()  # members whose own callable does not return from the next transfer
        self.stumbles: dict[Member, Cause] = {}  # members whose next operation fails once, for this cause
        self.undead: set[Member] = set()  # processes whose death nobody can confirm when they are fenced
        self.restarts: list[Restarted] = []  # what the next restarts do; when empty they load
        self.calls: list[tuple[float, Member, messages.Request]] = []
        self.failures: list[Exception] = []  # of the callbacks that were told an answer
        self.processes: dict[Member, Process] = {}
        self._feed: Feed = lambda event: None
        self._operations: dict[tuple[object, ...], Operation] = {}
        for rank in range(topology.train_world_size):
            self._start(Trainer(rank))
        for slot in range(topology.dp_size):
            self._start_shard(slot, 0)

    # --- faults, for tests -----------------------------------------------------------------------------------------

    def kill(self, member: Member) -> None:
        """SIGKILL: gone at once; others learn of it after `notice_s`."""
        process = self.processes[member]
        if process.health is Health.DEAD:
            return
        process.health = Health.DEAD
        if process.seat is not None and process.seat.operation is not None:
            self._neighbours_fail(process.seat.operation, process.seat.join.rank)
        for _, answer in process.mailbox:
            self._later(self.notice_s, lambda a=answer: a.set_exception(ProcessGone(str(member))))  # type: ignore[misc]
        if process.seat is not None and process.seat.pending is not None:
            pending = process.seat.pending
            self._later(self.notice_s, lambda: self._fail(pending, ProcessGone(str(member))))
        process.mailbox.clear()
        self._later(self.notice_s, lambda: self._notice(member))

    def kill_shard(self, slot: int) -> None:
        """Every worker of the incarnation that fills the slot."""
        for member in self.workers(slot, self.incarnation(slot)):
            self.kill(member)

    def freeze(self, member: Member) -> None:
        """SIGSTOP: alive by every liveness check, and takes part in nothing."""
        if self.processes[member].health is Health.RUNNING:
            self.processes[member].health = Health.FROZEN

    def thaw(self, member: Member) -> None:
        """SIGCONT: it goes on as if nothing had happened, with everything that was sent to it meanwhile."""
        process = self.processes[member]
        if process.health is Health.FROZEN:
            process.health = Health.RUNNING
            waiting, process.mailbox = process.mailbox, []
            for request, answer in waiting:
                self._deliver(process, request, answer)

    def incarnation(self, slot: int) -> int:
        """The newest process of the slot."""
        return max(m.incarnation for m in self.processes if isinstance(m, Worker) and m.slot == slot)

    def workers(self, slot: int, incarnation: int) -> list[Member]:
        """The processes behind one shard."""
        return [Worker(slot, incarnation, worker) for worker in range(self.topology.workers_per_shard)]

    # --- the seam --------------------------------------------------------------------------------------------------

    def open(self, feed: Feed) -> None:
        self._feed = feed

    def call(self, member: Member, request: messages.Request) -> Future[messages.Reply]:
        answer = Answer(self.failures)
        self.calls.append((self.clock.now(), member, request))
        process = self.processes[member]
        usual_s = self.latency_s * (1 + self.random.random())
        self._post(member, request, usual_s, lambda: self._deliver(process, request, answer))
        return answer

    def restart(self, slot: int, incarnation: int) -> None:
        outcome = self.restarts.pop(0) if self.restarts else "loads"
        if outcome == "loads":
            self._later(self.restart_s, lambda: self._loaded(slot, incarnation))
        elif outcome == "fails":
            self._later(
                self.restart_s, lambda: self._feed(ev.RestartFailed(slot, incarnation, "the engine did not load"))
            )

    def fence(self, slot: int, incarnation: int) -> None:
        members = [m for m in self.workers(slot, incarnation) if m in self.processes]
        if self.undead.intersection(members):
            return
        for member in members:
            self.kill(member)
        if not members:
            self._later(self.notice_s, lambda: self._feed(ev.ShardExited(slot, incarnation)))

    def describe(self, member: Member) -> Mapping[str, str]:
        return {"host": "simulated"}

    def close(self) -> None:
        pass

    # --- processes -------------------------------------------------------------------------------------------------

    def _later(self, seconds: float, callback: Callable[[], None]) -> None:
        self.clock.call_later(seconds, callback)

    def _post(
        self, member: Member, message: messages.Request | messages.Reply, usual_s: float, deliver: Callable[[], None]
    ) -> None:
        for seconds in self.on_post(member, message, usual_s):
            self._later(seconds, deliver)

    def _start(self, member: Member) -> None:
        self.processes[member] = Process(member)

    def _start_shard(self, slot: int, incarnation: int) -> None:
        for member in self.workers(slot, incarnation):
            self._start(member)

    def _loaded(self, slot: int, incarnation: int) -> None:
        if Worker(slot, incarnation, 0) not in self.processes:
            self._start_shard(slot, incarnation)
        self._feed(ev.ReplacementLoaded(slot, incarnation))

    def _notice(self, member: Member) -> None:
        if isinstance(member, Trainer):
            self._feed(ev.TrainerLost(member.rank))
            return
        siblings = self.workers(member.slot, member.incarnation)
        if all(self.processes[sibling].health is Health.DEAD for sibling in siblings):
            self._feed(ev.ShardExited(member.slot, member.incarnation))
        else:
            self._feed(ev.WorkerExited(member.slot, member.incarnation, member.worker))

    def _deliver(self, process: Process, request: messages.Request, answer: Future[messages.Reply]) -> None:
        if process.health is Health.RUNNING:
            self.on_delivery(process.member, request)
        match process.health:
            case Health.DEAD:
                self._fail(answer, ProcessGone(str(process.member)))
            case Health.FROZEN:
                process.mailbox.append((request, answer))
            case Health.RUNNING:
                self._handle(process, request, answer)

    def _reply(self, process: Process, answer: Future[messages.Reply], reply: messages.Reply) -> None:
        def arrive() -> None:
            if not answer.done():
                answer.set_result(reply)

        self._post(process.member, reply, self.latency_s, arrive)

    def _fail(self, answer: Future[messages.Reply], error: Exception) -> None:
        if not answer.done():
            answer.set_exception(error)

    # --- what a participant does -----------------------------------------------------------------------------------

    def _handle(self, process: Process, request: messages.Request, answer: Future[messages.Reply]) -> None:
        stamp = getattr(request, "stamp", None)
        rank = process.seat.join.rank if process.seat else None
        if stamp is not None:
            if stamp < process.newest:
                text = f"asked for {stamp}, has seen {process.newest}"
                self._reply(process, answer, messages.Failed(stamp=stamp, rank=rank, cause=Cause.CLAIM, message=text))
                return
            process.newest = stamp
        match request:
            case messages.Join():
                process.seat = Seat(request, pending=answer)
                key = (request.run, request.stamp.epoch, request.nonce)
                self._enter(process, key, request.timeout_s)
            case messages.Transfer():
                if process.seat is None or not process.seat.joined:
                    text = "is in no communicator"
                    self._reply(
                        process,
                        answer,
                        messages.Failed(stamp=request.stamp, rank=rank, cause=Cause.CLAIM, message=text),
                    )
                    return
                process.seat.pending = answer
                process.seat.entered, process.seat.progress = request.stamp, Progress.ENTERED
                self._enter(process, (process.seat.join.nonce, request), request.timeout_s)
            case messages.Leave():
                self._leave(process, request, answer)
            case messages.Hello():
                self._reply(
                    process,
                    answer,
                    messages.HelloReply(identity="", pid=0, started=0.0, host="simulated", device="none"),
                )
            case messages.Status():
                self._reply(process, answer, self._status(process))
            case messages.Close():
                process.seat = None
                self._reply(process, answer, messages.Closed())
            case messages.Watch():
                pass

    def _enter(self, process: Process, key: tuple[object, ...], timeout_s: float) -> None:
        seat = process.seat
        assert seat is not None
        operation = self._operations.setdefault(key, Operation(key, seat.join.world_size))
        if seat.join.rank in operation.entered:
            raise SimulationBroken(f"two processes claim rank {seat.join.rank} in {key}")
        operation.entered[seat.join.rank] = process
        seat.operation = operation
        self._later(timeout_s, lambda: self._time_out(process, operation, timeout_s))
        if len(operation.entered) == operation.world_size:
            operation.began = self.clock.now()
            self._begin(operation)

    def _begin(self, operation: Operation) -> None:
        """Everybody is in: each rank completes at a time of its own, unless somebody stops taking part first."""
        for process in operation.entered.values():
            lasts = self.transfer_s if operation.is_transfer else self.join_s
            moment = lasts * (0.5 + self.random.random() / 2)
            self._later(moment / 2, lambda p=process: self._moves(p, operation))  # type: ignore[misc]
            self._later(moment, lambda p=process: self._completes(p, operation))  # type: ignore[misc]

    def _moves(self, process: Process, operation: Operation) -> None:
        """Half of the buckets have arrived."""
        seat = process.seat
        if seat is None or seat.operation is not operation or process.health is not Health.RUNNING:
            return
        process.busy = operation.is_transfer and process.member in self.wedged
        if operation.is_transfer and not operation.over and isinstance(process.member, Worker):
            seat.progress = Progress.PARTIAL
            process.weights = "mixed"

    def _completes(self, process: Process, operation: Operation) -> None:
        seat = process.seat
        if seat is None or seat.operation is not operation or process.health is not Health.RUNNING:
            return
        # Data that was sent before somebody stopped still arrives at some.
        if process.busy or operation.over or not (self._is_whole_or_done(operation) or self.random.random() < 0.3):
            return
        stamp = seat.join.stamp
        if cause := self.stumbles.pop(process.member, None):
            text = f"stumbles over {cause.value}"
            self._end(process, messages.Failed(stamp=process.newest, rank=seat.join.rank, cause=cause, message=text))
            return
        if operation.is_transfer:
            request = operation.key[1]
            assert isinstance(request, messages.Transfer)
            if process.member in self.refusals:
                text = self.refusals[process.member]
                failed = messages.Failed(stamp=request.stamp, rank=seat.join.rank, cause=Cause.REJECTED, message=text)
                self._end(process, failed)
                return
            seat.progress = Progress.COMPLETE
            process.weights = request.version
            reply: messages.Reply = messages.Transferred(
                stamp=request.stamp,
                rank=seat.join.rank,
                version=request.version,
                digest=f"digest-{request.version}",
                tensors=1,
                bytes=1,
                seconds=self.transfer_s,
            )
        else:
            seat.joined = True
            reply = messages.Joined(stamp=stamp, rank=seat.join.rank, digest=seat.join.charter)
        self._end(process, reply)

    def _is_whole_or_done(self, operation: Operation) -> bool:
        """Nobody in it has stopped before being done."""
        return all(
            (process.health is Health.RUNNING and not process.busy)
            or (process.seat is not None and process.seat.progress is Progress.COMPLETE)
            for process in operation.entered.values()
        )

    def _end(self, process: Process, reply: messages.Reply) -> None:
        seat = process.seat
        if seat is None or seat.pending is None:
            return
        pending, seat.pending, seat.operation = seat.pending, None, None
        self._reply(process, pending, reply)

    def _status(self, process: Process) -> messages.StatusReply:
        """How many hundredths of its transfer are over, while nobody in it has stopped."""
        operation = process.seat.operation if process.seat else None
        if operation is None or not operation.is_transfer:
            return messages.StatusReply(operation="idle" if operation is None else "join", stamp=process.newest)
        done = 0
        if operation.began is not None and self._is_whole_or_done(operation) and not operation.over:
            done = int(100 * (self.clock.now() - operation.began) / self.transfer_s)
        return messages.StatusReply(operation="transfer", stamp=process.newest, bucket=done, buckets=100)

    def _time_out(self, process: Process, operation: Operation, timeout_s: float) -> None:
        """A rank's own bound on one wait: it runs anew while the operation moves."""
        seat = process.seat
        if seat is None or seat.operation is not operation or process.health is not Health.RUNNING or process.busy:
            return
        if operation.began is not None and self._is_whole_or_done(operation) and not operation.over:
            self._later(timeout_s, lambda: self._time_out(process, operation, timeout_s))
            return
        missing = sorted(set(range(operation.world_size)) - set(operation.entered))
        text = f"waited in vain; never entered: {missing}"
        self._end(
            process, messages.Failed(stamp=process.newest, rank=seat.join.rank, cause=Cause.DEADLINE, message=text)
        )

    def _neighbours_fail(self, operation: Operation, rank: int) -> None:
        """A peer died: its neighbours see a closed connection, the others see nothing."""
        operation.over = True
        for neighbour in (rank - 1, rank + 1):
            process = operation.entered.get(neighbour)
            if process is not None:
                self._later(0.02, lambda p=process: self._peer_closed(p, operation, rank))  # type: ignore[misc]

    def _peer_closed(self, process: Process, operation: Operation, rank: int) -> None:
        seat = process.seat
        if seat is not None and seat.operation is operation and process.health is Health.RUNNING:
            text = f"connection closed by rank {rank}"
            self._end(
                process, messages.Failed(stamp=process.newest, rank=seat.join.rank, cause=Cause.PEER, message=text)
            )

    def _leave(self, process: Process, request: messages.Leave, answer: Future[messages.Reply]) -> None:
        seat = process.seat
        if seat is None or seat.join.stamp.epoch != request.stamp.epoch:
            reply = messages.Left(stamp=request.stamp, rank=None, progress=Progress.NEVER_ENTERED)
            self._reply(process, answer, reply)
            return
        if seat.operation is not None:
            seat.operation.over = True
        text = "left on request"
        self._end(
            process, messages.Failed(stamp=request.stamp, rank=seat.join.rank, cause=Cause.DEPARTURE, message=text)
        )
        process.seat = None
        progress, detail = seat.progress_of(request.breaking), ""
        if process.busy:
            progress, detail = Progress.STUCK, "still inside accept"
        left = messages.Left(stamp=request.stamp, rank=seat.join.rank, progress=progress, detail=detail)
        self._reply(process, answer, left)
