"""The refit controller: what a trainer embeds.

It owns the machine, writes the journal, executes commands over the seams and feeds their outcomes back as events. It
decides nothing: there is no question here of who is absent or what to do about it. Every event goes through `_apply`,
one at a time, whichever thread it comes from; the order there is the whole story of a run:

    step (the table) -> journal -> dispatch -> the next event
"""

from __future__ import annotations

import contextlib
import logging
import operator
import secrets
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal, TypeVar

from .. import __version__
from ..spec.config import RefitConfig
from ..spec.lifecycle import commands as cmd
from ..spec.lifecycle import events as ev
from ..spec.lifecycle.errors import Refused, RunHalted
from ..spec.lifecycle.explain import evidence
from ..spec.lifecycle.guards import has_settled
from ..spec.lifecycle.interpret import Step
from ..spec.lifecycle.state import LIVE, TERMINAL, Phase, ShardState, State, layout, live_count, serving_shards
from ..spec.roster import Roster, Topology
from ..statemachine.conform import end_record, header_record, refused_record, step_record
from ..statemachine.machine import LifecycleMachine
from .clock import MonotonicClock
from .errors import ControllerClosed, ControllerStuck, RefitHalted
from .journal import NoJournal
from .report import RefitReport, Snapshot, snapshot_of
from .seams import Cancel, Clock, Fleet, Journal, Transport, Worker

log = logging.getLogger(__name__)

Kind = Literal["request", "probe"]


T = TypeVar("T")


def _chosen(kind: str, *, request: T, probe: T) -> T:
    if kind not in ("request", "probe"):
        raise ValueError(f"kind must be 'request' or 'probe', got {kind!r}")
    return request if kind == "request" else probe


def _count(what: str, number: object) -> int:
    """A whole number from 0 that fits 63 bits, as a plain int: numbers of other libraries are welcome."""
    if isinstance(number, bool) or not hasattr(number, "__index__"):
        raise TypeError(f"{what} must be a whole number, got {number!r}")
    count = operator.index(number)
    if not 0 <= count < 2**63:
        raise ValueError(f"{what} must lie between 0 and 2**63 - 1, got {count}")
    return count


def _attempt(close: Callable[[], None]) -> None:
    """One part of closing. What cannot be closed must not keep the rest open, nor hide why a run ended."""
    try:
        close()
    except Exception:
        log.exception("event=close_failed what=%s", close)


@dataclass(frozen=True, slots=True)
class _Opening:
    """Where things stood when a refit was opened; its report tells the difference."""

    at: float
    formed: int
    forming_s: float


class RefitController:
    """Keeps the weights of a generation fleet in step with its trainers, whoever dies.

    topology: the sizes of the run. fleet, transport: the seams to the members. config: deadlines and budgets.
    journal: where every event is written first; none by default. trainer_incarnation: how often the trainer was
    restarted; it makes the versions of a restarted trainer newer than those of its predecessor.

    Safe to call from several threads. Use as a context manager, or call `close`. Once the run is over, what asks for
    something raises (`RefitHalted` after a halt, `RunClosed` after `close`); reports of what happened are ignored, so
    that threads which report in the background need not know that it ended; questions are answered as ever.
    """

    def __init__(
        self,
        topology: Topology,
        *,
        fleet: Fleet,
        transport: Transport,
        config: RefitConfig | None = None,
        clock: Clock | None = None,
        journal: Journal | None = None,
        trainer_incarnation: int = 0,
        run: str | None = None,
    ) -> None:
        self.topology = topology
        self.config = config or RefitConfig()
        self.run = run or secrets.token_hex(4)
        self._fleet = fleet
        self._transport = transport
        self._clock = clock or MonotonicClock()
        self._journal: Journal = journal or NoJournal()
        self._trainer_incarnation = trainer_incarnation
        self._machine = LifecycleMachine(State.initial(topology, self.config))
        self._lock = threading.RLock()
        self._inbox: deque[ev.Event] = deque()
        self._draining = False
        self._seq = 0
        self._timers: dict[tuple[ev.Timer, int | None], Cancel] = {}
        self._opened = False
        self._ended = False
        self._releasing = threading.RLock()
        self._released = False
        # What reports and metrics are made of.
        self._formed: list[tuple[int, Roster]] = []
        self._opening = _Opening(0.0, 0, 0.0)
        self._completed: dict[ev.Version, RefitReport] = {}
        self._forming_since = 0.0
        self._forming_s = 0.0
        self._counts: Counter[str] = Counter()
        self._last: RefitReport | None = None
        self._journal.append(header_record(run=self.run, version=__version__, topology=topology, config=self.config))

    # --- the trainer's calls ---------------------------------------------------------------------------------------

    def start(self) -> None:
        """Form the first communicator over every shard; returns when one is live. Losses on the way are survived as
        in a refit; when fewer than `min_healthy_shards` are left, it waits for their replacements.

        Raises `RefitHalted` when that is impossible (see its reason), `AlreadyStarted`, `RunClosed`.
        """
        with self._lock:
            # Opening twice would watch every member twice, and nobody is watched after the end.
            if not (self._opened or self._ended):
                self._opened = True
                self._fleet.open(self.feed)
                self._transport.open(self.feed)
        self._request(ev.StartRequested())
        self._await(lambda: self._machine.state.phase in LIVE)

    def refit(self, version: int | ev.Version) -> RefitReport:
        """Carry the trainer's current weights to every shard that can take part; returns when all of them hold them.

        version: the training step (or a whole `Version`); must be newer than the committed one. Losses on the way are
        survived: the refit is repeated in full over the rest. Raises `VersionNotNewer`, `RefitUnderWay`, `RunClosed`
        (nothing changed), `RefitHalted` (the run must stop; no shard serves half a version).
        """
        wanted = self._version(version)
        self._request(ev.RefitRequested(wanted))
        self._await(lambda: wanted in self._completed)
        return self._completed.pop(wanted)

    def reconcile(self) -> bool:
        """Bring the communicator in line with who is there; says whether one was formed. Quiet means quiet: when
        nothing changed, nothing happens. Raises `NotStarted`, `RunClosed`, `RefitHalted`; `ControllerClosed` when it is
        closed meanwhile."""
        formed = len(self._formed)
        self._request(ev.ReconcileRequested())
        self._await(self._is_settled)
        return len(self._formed) > formed

    def report_failure(self, shard: int, *, kind: Kind = "request", incarnation: int | None = None) -> None:
        """A generation request failed, or a probe was not answered. Streaks of the two are counted apart; one as long
        as `unhealthy_threshold` condemns the shard. Ignored once the run is over. Raises `UnknownShard`."""
        event = _chosen(kind, request=ev.RequestFailed, probe=ev.ProbeFailed)
        self._request(event(*self._process(shard, incarnation)))

    def report_success(self, shard: int, *, kind: Kind = "request", incarnation: int | None = None) -> None:
        """A generation request was served, or a probe answered: ends the streak of its own kind.

        Ignored once the run is over. Raises `UnknownShard`."""
        event = _chosen(kind, request=ev.RequestSucceeded, probe=ev.ProbeSucceeded)
        self._request(event(*self._process(shard, incarnation)))

    def record_exit(self, shard: int, *, incarnation: int | None = None) -> None:
        """The shard's process is certainly gone, as the caller knows from elsewhere. Ignored once the run is over.

        Raises `UnknownShard`."""
        self._request(ev.ShardExited(*self._process(shard, incarnation)))

    def retire(self, shard: int) -> None:
        """Take a slot out of the fleet for good: now, or when the running operation is over. Raises `UnknownShard`,
        `FloorReached`, `RunClosed`, `RefitHalted`."""
        self._request(ev.RetireRequested(_count("shard", shard)))

    # --- what the trainer may ask ----------------------------------------------------------------------------------

    def serving_shards(self) -> tuple[int, ...]:
        """The slots that may be given traffic now: they hold the committed version, whole."""
        return serving_shards(self._machine.state)

    def snapshot(self) -> Snapshot:
        """Everything that is known, at this moment."""
        return snapshot_of(self._machine.state)

    @property
    def communicators(self) -> tuple[tuple[int, Roster], ...]:
        """Every communicator that was formed in this run, as (epoch, roster), in order."""
        return tuple(self._formed)

    def metrics(self) -> dict[str, float]:
        """Flat figures for a trainer's logger."""
        state = self._machine.state
        last = self._last
        return {
            "refit/completed": float(self._counts["completed"]),
            "refit/communicators_formed": float(len(self._formed)),
            "refit/aborted": float(self._counts["aborted"]),
            "refit/late_or_ignored": float(self._counts["ignored"]),
            "refit/refused": float(self._counts["refused"]),
            "refit/restarts": float(sum(shard.restarts for shard in state.shards)),
            "refit/epoch": float(state.epoch),
            "refit/shards_retired": float(sum(shard.state is ShardState.RETIRED for shard in state.shards)),
            "refit/shards_live": float(live_count(state)),
            "refit/shards_serving": float(len(serving_shards(state))),
            "refit/last_s": last.seconds if last else 0.0,
            "refit/last_forming_s": last.forming_s if last else 0.0,
            "refit/last_transfer_s": last.transfer_s if last else 0.0,
            "refit/last_bytes": float(last.bytes) if last else 0.0,
        }

    # --- the end ---------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Let every member go and release what the controller holds. Bounded, idempotent, never raises for a member.

        Returns when it is closed, whichever thread began to close it. From inside a dispatch (a seam calls it, or a
        handler of a log line) it returns at once; the call that dispatches then closes before it returns.
        """
        with self._lock:
            inside = self._draining
            if not self._ended:
                self._ended = True
                self._enter(ev.CloseRequested())
        if not inside:
            self._release()

    def _release(self) -> None:
        """Close every seam, once. Whoever else closes waits here, so that closed means closed for everybody."""
        with self._releasing, contextlib.ExitStack() as last_first:
            if self._released:
                return
            self._released = True
            self._clock.wake()  # who waits for an outcome need not wait for the members as well
            last_first.callback(self._end_journal)
            for close in (self._clock.close, self._transport.close, self._fleet.close):
                last_first.callback(_attempt, close)

    def _end_journal(self) -> None:
        """The last line. Calls that come after it are refused, and no part of the story."""
        with self._lock:
            journal, self._journal = self._journal, NoJournal()
            end = end_record(self._seq + 1, self._clock.now(), self._machine.state)
            _attempt(lambda: journal.append(end))
            _attempt(journal.close)

    def __enter__(self) -> RefitController:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    # --- events ----------------------------------------------------------------------------------------------------

    def feed(self, event: ev.Event) -> None:
        """Hand in an observation, from any thread. An event that the table refuses is logged and changes nothing."""
        try:
            with self._turn():
                if not self._ended:
                    self._enter(event)
        except Refused as refused:
            log.warning("event=refused %s", refused)
        self._clock.wake()

    def _request(self, event: ev.Event) -> None:
        """A call of the trainer: a refusal is raised to it; after a halt, always with the reason of the halt."""
        try:
            with self._turn():
                self._enter(event)
        except RunHalted:
            halt = self._machine.state.halt
            assert halt is not None, "a halted state holds its halt"
            raise RefitHalted(halt) from None
        self._clock.wake()

    @contextlib.contextmanager
    def _turn(self) -> Iterator[None]:
        """The right to apply events, for one thread at a time.

        Who closes from inside a turn cannot release there: other threads that wait for their turn are among what is
        released. It is done on the way out.
        """
        closed_inside = False
        try:
            with self._lock:
                ended = self._ended
                try:
                    yield
                finally:
                    closed_inside = self._ended and not ended
        finally:
            if closed_inside:
                self._release()

    def _enter(self, event: ev.Event) -> None:
        """Apply an event, and then whatever was handed in meanwhile, even if the event itself is refused."""
        if self._draining:
            self._inbox.append(event)
            return
        self._draining = True
        try:
            self._apply(event)
        finally:
            try:
                self._drain()
            finally:
                self._draining = False

    def _drain(self) -> None:
        """What the seams reported while commands were dispatched, in their order."""
        while self._inbox:
            try:
                self._apply(self._inbox.popleft())
            except Refused as refused:
                log.warning("event=refused %s", refused)

    def _apply(self, event: ev.Event) -> None:
        now = self._clock.now()
        before = self._machine.state
        try:
            step = self._machine.peek(event)
        except Refused as error:
            refused = error
            self._counts["refused"] += 1
            self._record(event, lambda: refused_record(self._seq + 1, now, event, refused))
            raise
        if not self._record(event, lambda: step_record(self._seq + 1, now, event, step)):
            return
        self._machine.commit(step)
        self._counts["ignored"] += not step.fired
        self._counts["aborted"] += step.state.phase is Phase.ABORTED and before.phase is not Phase.ABORTED
        log.debug("event=step seq=%d what=%s fired=%s phase=%s", self._seq, event, step.fired, step.state.phase.value)
        self._tell_of_retired(before, step.state)
        if before.refit is None and step.state.refit is not None:
            self._opening = _Opening(now, len(self._formed), self._forming_s)
        for command in step.commands:
            try:
                self._dispatch(command, event, step)
            except Exception as error:
                log.exception("event=dispatch_failed what=%s", command)
                what = type(command).__name__
                self._apply(ev.ControllerFailed(f"carrying out {what}: {type(error).__name__}: {error}"))
                return

    def _record(self, event: ev.Event, record: Callable[[], dict[str, Any]]) -> bool:
        """Write it down before anything is dispatched. What cannot be written must not happen: the run halts."""
        try:
            self._journal.append(record())
        except Exception as error:
            log.exception("event=journal_failed what=%s", event)
            broken, self._journal = self._journal, NoJournal()
            _attempt(broken.close)
            self._apply(ev.ControllerFailed(f"writing the journal: {type(error).__name__}: {error}"))
            return False
        self._seq += 1
        return True

    # --- commands --------------------------------------------------------------------------------------------------

    def _dispatch(self, command: cmd.Command, event: ev.Event, step: Step) -> None:
        match command:
            case cmd.Arm(timer=timer, slot=slot, seconds=seconds, expiry=expiry):
                self._disarm((timer, slot))
                self._timers[(timer, slot)] = self._clock.call_later(seconds, self._expire(expiry))
            case cmd.Disarm(timer=timer, slot=slot):
                self._disarm((timer, slot))
            case cmd.DisarmAll():
                for key in tuple(self._timers):
                    self._disarm(key)
            case cmd.Form(roster=roster):
                self._forming_since = self._clock.now()
                self._transport.form(command, layout(self.topology, roster))
            case cmd.Transfer(roster=roster):
                self._transport.transfer(command, layout(self.topology, roster))
            case cmd.Leave(roster=roster):
                self._transport.leave(command, layout(self.topology, roster))
            case cmd.Fence(slot=slot, incarnation=incarnation):
                because = evidence(step.state, slot) if step.state.phase is Phase.ABORTED else type(event).__name__
                log.warning("event=fence shard=%d incarnation=%d because=%r", slot, incarnation, because)
                self._fleet.fence(slot, incarnation)
            case cmd.Restart(slot=slot, incarnation=incarnation):
                log.info("event=restart shard=%d incarnation=%d", slot, incarnation)
                self._fleet.restart(slot, incarnation)
            case cmd.ReportFormed(epoch=epoch, roster=roster):
                self._forming_s += self._clock.now() - self._forming_since
                self._formed.append((epoch, roster))
                self._log_layout(epoch, roster)
            case cmd.ReportCompleted(version=version, epoch=epoch, roster=roster):
                self._counts["completed"] += 1
                self._last = self._completed[version] = self._report(command)
                log.info("event=refit_completed version=%s epoch=%d roster=%s", version, epoch, roster)
            case cmd.ReportHalted(halt=halt):
                log.error("event=halted reason=%s detail=%r", halt.reason.value, halt.detail)

    def _report(self, done: cmd.ReportCompleted) -> RefitReport:
        """Made in the step that completes the refit: when its caller wakes, the next one may be under way."""
        receipts = self._transport.receipts(done.version)
        root = receipts.get(0)
        return RefitReport(
            version=done.version,
            epoch=done.epoch,
            roster=done.roster,
            world_size=layout(self.topology, done.roster).world_size,
            communicators=tuple(self._formed[self._opening.formed :]),
            seconds=self._clock.now() - self._opening.at,
            forming_s=self._forming_s - self._opening.forming_s,
            transfer_s=max((receipt.seconds for receipt in receipts.values()), default=0.0),
            tensors=root.tensors if root else 0,
            bytes=root.bytes if root else 0,
            digest=root.digest if root else None,
        )

    def _tell_of_retired(self, before: State, after: State) -> None:
        if before.shards is after.shards:
            return
        for old, new in zip(before.shards, after.shards, strict=True):
            if new.state is ShardState.RETIRED and old.state is not ShardState.RETIRED:
                text = "event=retired shard=%d restarts=%d of %d last_words=%r: it stays out for the rest of the run"
                log.error(text, new.slot, new.restarts, self.config.max_restart_attempts_per_shard, new.last_words)

    def _expire(self, expiry: ev.Event) -> Callable[[], None]:
        return lambda: self.feed(expiry)

    def _disarm(self, key: tuple[ev.Timer, int | None]) -> None:
        if armed := self._timers.pop(key, None):
            armed.cancel()

    def _log_layout(self, epoch: int, roster: Roster) -> None:
        membership = layout(self.topology, roster)
        seats = []
        for slot, incarnation in roster.items():
            ranks = membership.ranks_of(shard=slot)
            place = self._fleet.describe(Worker(slot, incarnation, 0))
            where = ",".join(f"{key}={value}" for key, value in place.items())
            seats.append(f"shard={slot}.{incarnation}:ranks={ranks.start}-{ranks.stop - 1}:{where}")
        log.info("event=formed epoch=%d world_size=%d %s", epoch, membership.world_size, " ".join(seats))

    # --- waiting ---------------------------------------------------------------------------------------------------

    def _is_settled(self) -> bool:
        """Nothing is under way that the controller itself will finish. A run that is over has not settled: it ended."""
        state = self._machine.state
        return state.phase not in TERMINAL and has_settled(state, None)

    def _await(self, ready: Callable[[], bool]) -> None:
        """Wait for an outcome. The bound is above every deadline in the table, so that it never decides anything."""
        config = self.config
        attempt_s = config.restart_timeout_s + config.restart_backoff_max_s + config.fence_timeout_s
        epoch_s = config.form_timeout_s + config.progress_timeout_s + config.settle_timeout_s + config.fence_timeout_s
        bound = 2.0 * (
            config.refit_timeout_s
            + config.max_restart_attempts_per_shard * attempt_s
            + config.max_attempts_per_refit * epoch_s
        )
        arrived = self._clock.wait(lambda: ready() or self._machine.state.phase in TERMINAL, bound)
        state = self._machine.state
        if ready() and state.phase is not Phase.HALTED:
            return
        if state.halt is not None:
            raise RefitHalted(state.halt)
        if state.phase is Phase.CLOSED:
            raise ControllerClosed("the controller was closed while this call waited")
        assert not arrived, "an outcome that is neither success, halt nor close"
        raise ControllerStuck(
            f"no outcome after {bound} s in {state.phase.value}, epoch {state.epoch}; see the journal"
        )

    def _version(self, version: int | ev.Version) -> ev.Version:
        """A step of this trainer, or a whole version. Raises `TypeError` for what is neither, `ValueError` below 0."""
        pair = version if isinstance(version, ev.Version) else (self._trainer_incarnation, version)
        return ev.Version(
            *(_count(f"weight version {name}", n) for name, n in zip(ev.Version._fields, pair, strict=True))
        )

    def _process(self, shard: int, incarnation: int | None) -> tuple[int, int]:
        """Slot and incarnation. Without a given one, the report is about the process that fills the slot now."""
        slot = _count("shard", shard)
        if incarnation is not None:
            return slot, _count("incarnation", incarnation)
        shards = self._machine.state.shards
        return slot, shards[slot].incarnation if slot < len(shards) else 0
