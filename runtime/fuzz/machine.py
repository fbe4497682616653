"""A Hypothesis machine around the real controller: random programs of calls and faults, in virtual time.

The rules are what a trainer asks for and what goes wrong: processes that die, freeze (alive, and taking part in
nothing) and thaw, engines that refuse or never return, restarts that fail, fences that nobody confirms, reports of
failures, orders of an operator, messages that are late, overtaken, lost or doubled. A fault strikes at once or between
any two messages of what comes next.

Held against the ground truth of the fleet: after every event, whoever may serve holds the committed version whole; a
call has its outcome within its bound, a report or one named reason; a report names exactly the members that hold the
version. And when the faults stop: everybody who was not given up serves after two more refits, the next one forms
nothing, and the journal of it all conforms, so every property of the lifecycle held on the way.

The controller lives as long as the run here: a successor that takes over from the journal of a crashed one is not yet
something that the runtime can do, so no rule crashes it. Requests are never doubled, for a remote call is carried out
at most once; events are.
"""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable, Collection, Iterator
from typing import Any, ClassVar, Literal, cast

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from ...spec.config import OnFrozen, RefitConfig
from ...spec.lifecycle import events as ev
from ...spec.lifecycle.errors import AlreadyStarted, NotStarted, Refused, RunClosed, UnknownShard, VersionNotNewer
from ...spec.lifecycle.events import Cause, Version
from ...spec.lifecycle.state import MEMBERS, HaltReason, ShardState
from ...statemachine.codec import decode_event
from ...statemachine.conform import conform
from ...statemachine.generated import Tally
from ..errors import ControllerClosed, RefitHalted
from ..report import RefitReport
from ..seams import Member, Trainer, Worker
from ..simulated import SimulatedRun
from ..simulated.fleet import Health, Restarted
from .moments import Moments, Of

Fault = Literal["kill", "freeze", "refuse", "wedge"]
# What was observed once is true for ever, and may be heard again.
HEARD_AGAIN = (ev.RankReply, ev.ShardExited, ev.WorkerExited, ev.ReplacementLoaded, ev.RestartFailed)


def _runner(choose: Callable[[Any], st.SearchStrategy[int]]) -> st.SearchStrategy[int]:
    return st.runner().flatmap(choose)


SLOT = _runner(lambda story: st.integers(0, story.shards - 1))
WORKER = _runner(lambda story: st.integers(0, story.workers - 1))
RANK = _runner(lambda story: st.integers(0, story.trainers - 1))
AFTER = st.integers(0, 40)
OF = st.sampled_from(["requests", "deliveries", "milliseconds"])


def _always(story: Any) -> bool:
    return True


def _step(if_: Callable[[Any], bool] = _always, **arguments: st.SearchStrategy[Any]) -> Callable[[Any], Any]:
    """A rule. After the end of a run it is enabled too, and asks in vain: a program without a legal step is wasted."""

    def decorate(body: Callable[..., None]) -> Any:
        @functools.wraps(body)
        def take(story: _Story, **values: Any) -> None:
            if story.is_over:
                story.ask_after_the_end()
            else:
                story.steps += 1
                story.since_trouble += 1
                body(story, **values)
                story.notice_the_end()
                story.hold_what_is_known_to_the_truth()

        return precondition(lambda story: story.is_over or if_(story))(cast(Any, rule)(**arguments)(take))

    return decorate


def _trouble(if_: Callable[[Any], bool] = _always, **arguments: st.SearchStrategy[Any]) -> Callable[[Any], Any]:
    """A rule after which there is calm for a while, or hardly any refit would ever complete."""

    def decorate(body: Callable[..., None]) -> Any:
        @functools.wraps(body)
        def take(story: _Story, **values: Any) -> None:
            story.since_trouble = 0
            body(story, **values)

        return _step(lambda story: story.since_trouble >= story.calm and if_(story), **arguments)(take)

    return decorate


class _Story(RuleBasedStateMachine):
    """One run, from its first call to its end."""

    make: ClassVar[Callable[..., SimulatedRun]]
    tally: ClassVar[Tally]

    def __init__(self) -> None:
        super().__init__()
        self.run: SimulatedRun | None = None
        self.is_over = self.started = self.closing = False
        self.steps = 0

    @initialize(
        trainers=st.integers(1, 3),
        shards=st.integers(1, 6),
        workers=st.integers(1, 2),
        on_frozen=st.sampled_from(["fence", "stop"]),
        floor=st.integers(1, 2),
        restarts=st.integers(0, 3),
        calm=st.integers(0, 6),
        patience=st.sampled_from([200, 20, 0]),
        seed=st.integers(0, 9999),
    )
    def begin(
        self,
        trainers: int,
        shards: int,
        workers: int,
        on_frozen: OnFrozen,
        floor: int,
        restarts: int,
        calm: int,
        patience: int,
        seed: int,
    ) -> None:
        """calm: steps from one trouble to the next. patience: steps before a trainer may be lost or the run closed."""
        self.trainers, self.shards, self.workers = trainers, shards, workers
        self.config = RefitConfig(
            on_frozen=on_frozen, min_healthy_shards=min(floor, shards), max_restart_attempts_per_shard=restarts
        )
        self.run = run = type(self).make(
            trainers=trainers, shards=shards, workers=workers, config=self.config, seed=seed
        )
        self.controller, self.fleet, self.clock = run.controller, run.fleet, run.clock
        self.moments = Moments(self.fleet, self.clock, seed=seed)
        self.calm, self.patience, self.since_trouble = calm, patience, calm
        self.version = 0
        self.tally.examples += 1

    # --- what the trainer asks for ---------------------------------------------------------------------------------

    @_step(lambda story: not story.started)
    def start(self) -> None:
        self.started = True
        self._outcome(self.controller.start)

    @_step(lambda story: story.started, steps=st.integers(1, 3))
    def refit(self, steps: int) -> None:
        self.version += steps
        began = self.clock.now()
        report = self._outcome(lambda: self.controller.refit(self.version))
        took = self.clock.now() - began
        assert took <= self._bound, f"refit {self.version} took {took} s, its bound is {self._bound} s"
        if report is not None:
            self._hold_to_the_truth(report)

    @_step(lambda story: story.started)
    def reconcile(self) -> None:
        self._outcome(self.controller.reconcile)

    @_step(milliseconds=st.sampled_from([10, 100, 1000, 6000, 60_000, 400_000]))
    def wait(self, milliseconds: int) -> None:
        self.clock.advance(milliseconds / 1000)

    @_step(slot=SLOT, kind=st.sampled_from(["request", "probe"]))
    def report_success(self, slot: int, kind: Literal["request", "probe"]) -> None:
        self.controller.report_success(slot, kind=kind)

    @_step()
    def ask_in_vain(self) -> None:
        """What is not allowed is refused by name, at once, and changes nothing."""
        before, now = self.controller.snapshot(), self.clock.now()
        self._refused(UnknownShard, lambda: self.controller.retire(self.shards))
        if self.started:
            self._refused(AlreadyStarted, self.controller.start)
        else:
            self._refused(NotStarted, lambda: self.controller.refit(self.version + 1))
        if before.committed is not None and before.refitting is None:
            self._refused(VersionNotNewer, lambda: self.controller.refit(before.committed or 0))
        assert self.controller.snapshot() == before
        assert self.clock.now() == now

    # --- what goes wrong with processes ----------------------------------------------------------------------------

    @_trouble(slot=SLOT, worker=WORKER, after=AFTER, of=OF)
    def kill(self, slot: int, worker: int, after: int, of: Of) -> None:
        self._strike(after, of, lambda: self.fleet.kill(self._worker(slot, worker)))

    @_trouble(slot=SLOT, after=AFTER, of=OF)
    def kill_shard(self, slot: int, after: int, of: Of) -> None:
        self._strike(after, of, lambda: self.fleet.kill_shard(slot))

    @_trouble(slot=SLOT, worker=WORKER, after=AFTER, of=OF)
    def freeze(self, slot: int, worker: int, after: int, of: Of) -> None:
        self._strike(after, of, lambda: self.fleet.freeze(self._worker(slot, worker)))

    @_step(slot=SLOT, worker=WORKER, after=AFTER, of=OF)
    def thaw(self, slot: int, worker: int, after: int, of: Of) -> None:
        self._strike(after, of, lambda: self.fleet.thaw(self._worker(slot, worker)))

    @_trouble(slot=SLOT, worker=WORKER)
    def wedge(self, slot: int, worker: int) -> None:
        """Its engine takes the next weights and never returns."""
        self.fleet.wedged.add(self._worker(slot, worker))

    @_trouble(slot=SLOT, worker=WORKER)
    def refuse(self, slot: int, worker: int) -> None:
        """Its engine raises when it is given weights."""
        self.fleet.refusals[self._worker(slot, worker)] = "out of memory"

    @_trouble(slot=SLOT, worker=WORKER, cause=st.sampled_from([Cause.TRANSIENT, Cause.PEER, Cause.MANIFEST]))
    def stumble(self, slot: int, worker: int, cause: Cause) -> None:
        """Its next operation fails once."""
        self.fleet.stumbles[self._worker(slot, worker)] = cause

    @_trouble(slot=SLOT)
    def no_fence_is_confirmed(self, slot: int) -> None:
        self.fleet.undead.update(self.fleet.workers(slot, self.fleet.incarnation(slot)))

    @_trouble(outcome=st.sampled_from(["fails", "never returns"]))
    def next_restart(self, outcome: Restarted) -> None:
        self.fleet.restarts.append(outcome)

    @_trouble(seconds=st.sampled_from([0.5, 20.0, 200.0]))
    def slow_transfers(self, seconds: float) -> None:
        """A big model: longer than every deadline but the outermost, and moving."""
        self.fleet.transfer_s = seconds

    @_trouble(
        lambda story: story.steps >= story.patience,
        rank=RANK,
        fault=st.sampled_from(["kill", "freeze", "refuse", "wedge"]),
        after=AFTER,
        of=OF,
    )
    def lose_trainer(self, rank: int, fault: Fault, after: int, of: Of) -> None:
        trainer = Trainer(rank)
        faults: dict[str, Callable[[], None]] = {
            "kill": lambda: self.fleet.kill(trainer),
            "freeze": lambda: self.fleet.freeze(trainer),
            "refuse": lambda: self.fleet.refusals.update({trainer: "cannot gather layer 7"}),
            "wedge": lambda: self.fleet.wedged.add(trainer),
        }
        self._strike(after, of, faults[fault])

    # --- what goes wrong with messages -----------------------------------------------------------------------------

    @_trouble(after=st.integers(0, 60))
    def lose_message(self, after: int) -> None:
        self.moments.lose(after)

    @_trouble(after=st.integers(0, 60), milliseconds=st.sampled_from([5, 50, 500, 50_000, 100_000]))
    def delay_message(self, after: int, milliseconds: int) -> None:
        self.moments.delay(after, milliseconds / 1000)

    @_trouble(milliseconds=st.sampled_from([0, 5, 50, 500]))
    def jitter(self, milliseconds: int) -> None:
        """From now on every message is late by up to this much, and any may overtake any other."""
        self.moments.jitter_s = milliseconds / 1000

    @_step(lambda story: story.run.journal.lines[1:], back=st.integers(0, 200))
    def hear_again(self, back: int) -> None:
        """An event that reached the controller before arrives once more, and changes nothing."""
        lines = self._journal.lines[1:]
        event = decode_event(json.loads(lines[-1 - back % len(lines)])["event"])
        if isinstance(event, HEARD_AGAIN) and not isinstance(event, ev.RankProgressed):
            before = self.controller.snapshot()
            self.controller.feed(event)
            assert self.controller.snapshot() == before, f"{event} was heard again and changed something"

    # --- what is reported and ordered ------------------------------------------------------------------------------

    @_trouble(slot=SLOT, kind=st.sampled_from(["request", "probe"]), times=st.integers(1, 3), after=AFTER, of=OF)
    def report_failures(self, slot: int, kind: Literal["request", "probe"], times: int, after: int, of: Of) -> None:
        def report() -> None:
            for _ in range(times):
                self.controller.report_failure(slot, kind=kind)

        self._strike(after, of, report)

    @_trouble(slot=SLOT, after=AFTER, of=OF)
    def retire(self, slot: int, after: int, of: Of) -> None:
        self._strike(after, of, lambda: self.controller.retire(slot))

    @_trouble(lambda story: story.steps >= story.patience, after=AFTER, of=OF)
    def close(self, after: int, of: Of) -> None:
        def close() -> None:
            self.closing = True
            self.controller.close()

        self._strike(after, of, close)

    # --- the end ---------------------------------------------------------------------------------------------------

    def ask_after_the_end(self) -> None:
        """Whatever is asked after a halt is answered with its reason, and nobody serves because of it."""
        before = self.controller.snapshot()
        self._refused(RunClosed, lambda: self.controller.refit(10**6))
        assert self.controller.snapshot() == before

    def teardown(self) -> None:
        """The end of a run that went well: faults stop, everything heals, and the journal tells it all."""
        if self.run is None or sys.exc_info()[0] is not None:
            return
        if not self.is_over:
            self._faults_stop()
            self._everything_heals()
        self.controller.close()
        lines = self._journal.lines
        verdict = conform(lines)
        assert verdict.ok, f"the journal does not conform: line {verdict.first_bad_line}: {verdict.why}"
        self.tally.steps += verdict.events
        for line in lines:
            self.tally.rows.update(json.loads(line).get("fired", ()))

    def _faults_stop(self) -> None:
        self.moments.stop()
        fleet = self.fleet
        for faults in (fleet.refusals, fleet.stumbles, fleet.undead, fleet.wedged, fleet.restarts):
            faults.clear()
        fleet.transfer_s = 0.05
        for member, process in tuple(fleet.processes.items()):
            if process.health is Health.FROZEN:
                fleet.thaw(member)

    def _everything_heals(self) -> None:
        """P1, P2, P4. A run that cannot go on says so on the way."""
        if not self.started:
            self.start()
        config = self.config
        attempt_s = config.restart_timeout_s + config.restart_backoff_max_s + config.fence_timeout_s
        for _ in range(2):
            if not self.is_over:
                self.refit(steps=1)
            self.clock.advance((config.max_restart_attempts_per_shard + 1) * attempt_s)
            self.notice_the_end()
        if self.is_over:
            return
        self.refit(steps=1)
        kept = {shard.slot for shard in self.controller.snapshot().shards if shard.state is not ShardState.RETIRED}
        if self.is_over:
            return
        assert set(self.controller.serving_shards()) == kept, f"{kept} should serve when faults have stopped"
        formed = self.controller.communicators
        self.refit(steps=1)
        assert self.controller.communicators == formed, "nothing happened, and a communicator was formed"

    # --- helpers ---------------------------------------------------------------------------------------------------

    @property
    def _journal(self) -> Any:
        assert self.run is not None
        return self.run.journal

    @property
    def _bound(self) -> float:
        """Of one refit: the outermost deadline, then leaving in order, and a fence that is under way."""
        return self.config.refit_timeout_s + self.config.settle_timeout_s + self.config.fence_timeout_s + 1.0

    def _worker(self, slot: int, worker: int) -> Member:
        return Worker(slot, self.fleet.incarnation(slot), worker)

    def hold_what_is_known_to_the_truth(self) -> None:
        """What the controller believes that a shard holds, it holds; of older versions it may not know yet that a
        refit under way has overwritten them."""
        snapshot = self.controller.snapshot()
        for shard in snapshot.shards:
            if shard.version is None or shard.state not in MEMBERS or snapshot.refitting not in (None, shard.version):
                continue
            for member in self.fleet.workers(shard.slot, shard.incarnation):
                weights = self.fleet.processes[member].weights
                assert weights == shard.version, f"{member} holds {weights}, known is {shard.version}"

    def _strike(self, after: int, of: Of, strike: Callable[[], None]) -> None:
        self.moments.arm(after, of, strike)

    def _outcome(self, ask: Callable[[], Any]) -> Any:
        """What a call returns; None when the run ended instead, for a reason of its own."""
        halt = None
        try:
            return ask()
        except RefitHalted as halted:
            halt = halted.halt
        except (ControllerClosed, RunClosed):
            pass
        self.is_over = True
        assert halt is not None or self.closing, "closed by nobody"
        assert halt is None or halt.reason is not HaltReason.CONTROLLER_FAILED, halt.detail
        assert halt is None or halt.detail, f"{halt.reason} without a word of why"
        return None

    def _refused(self, error: type[Exception], ask: Callable[[], Any]) -> None:
        """A call that is not allowed; after a halt each is refused with the reason of the halt."""
        expected = RefitHalted if self.controller.snapshot().halt is not None else error
        found = None
        try:
            ask()
        except (Refused, RefitHalted) as refused:
            found = refused
        assert isinstance(found, expected), f"expected {expected.__name__}, found {found!r}"

    def notice_the_end(self) -> None:
        """A run may also end while nobody asks for anything."""
        halt = self.controller.snapshot().halt
        assert halt is None or halt.reason is not HaltReason.CONTROLLER_FAILED, halt
        self.is_over = self.is_over or self.closing or halt is not None

    def _hold_to_the_truth(self, report: RefitReport) -> None:
        """A report of success names exactly those who hold the version, and all of them serve, if they are left."""
        assert report.version.step == self.version
        named, holders = set(report.roster.items()), set(self._holders(report.version))
        alive = {shard for shard in holders if self._is_alive(*shard)}  # who got everything and died is not named
        assert alive <= named <= holders, f"{report.version} is reported over {named}, held by {holders}"
        for shard in self.controller.snapshot().shards:
            if report.roster.holds(shard.slot, shard.incarnation):
                waits = shard.state in (ShardState.TORN, ShardState.REJOINED)
                assert not waits, f"{shard} took part in the refit that completed"

    def _holders(self, version: Version) -> Iterator[tuple[int, int]]:
        """Every incarnation, dead ones included, all of whose workers hold this version whole."""
        shards = {(member.slot, member.incarnation) for member in self.fleet.processes if isinstance(member, Worker)}
        for slot, incarnation in sorted(shards):
            processes = [self.fleet.processes[member] for member in self.fleet.workers(slot, incarnation)]
            if all(process.weights == version for process in processes):
                yield slot, incarnation

    def _is_alive(self, slot: int, incarnation: int) -> bool:
        """Whether no worker of it is dead."""
        workers = self.fleet.workers(slot, incarnation)
        return all(self.fleet.processes[member].health is not Health.DEAD for member in workers)


def controller_machine(
    run: Callable[..., SimulatedRun] = SimulatedRun, *, without: Collection[str] = ()
) -> type[RuleBasedStateMachine]:
    """The machine as a class; its `TestCase` is a test, its `tally` counts.

    run: called with `trainers`, `shards`, `workers`, `config` and `seed`, makes the run that is put to the test: a
    `SimulatedRun` with a transport or fleet of your own. without: names of rules that make no sense for it. Raises
    `ValueError` for a name that no rule has.
    """
    if unknown := sorted({*without} - {each.function.__name__ for each in _Story.setup_state().rules}):
        raise ValueError(f"no rule has the name {', '.join(unknown)}")
    absent = dict.fromkeys(without)
    story = type("ControllerMachine", (_Story,), {"make": staticmethod(run), "tally": Tally(), **absent})
    return cast(type[RuleBasedStateMachine], story)
