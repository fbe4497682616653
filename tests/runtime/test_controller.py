"""The controller itself: one event at a time, written down before it is acted on, and an end that is an end.

Mostly on the simulated fleet, whose seams are tapped where a test has to see what the controller does with them.
"""

from __future__ import annotations

import json
import logging
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from reknit.runtime import messages
from reknit.runtime.clock import MonotonicClock
from reknit.runtime.controller import RefitController
from reknit.runtime.errors import ControllerClosed, RefitHalted
from reknit.runtime.journal import MemoryJournal
from reknit.runtime.seams import Trainer, Worker
from reknit.runtime.simulated import SimulatedRun
from reknit.spec.config import RefitConfig
from reknit.spec.lifecycle import events as ev
from reknit.spec.lifecycle.errors import RunClosed, VersionNotNewer
from reknit.spec.lifecycle.state import HaltReason, Phase
from reknit.spec.roster import Roster, Topology
from reknit.statemachine.conform import conform

SEAMS = ("fleet", "transport", "clock", "journal")


def started(simulate, **options) -> SimulatedRun:
    """A run that has completed its first refit."""
    run = simulate(**options)
    run.controller.start()
    run.controller.refit(1)
    return run


def tap(owner, name, before=lambda *arguments: None):
    """Call `before` with the arguments of every call of this method, and then the method."""
    method = getattr(owner, name)

    def tapped(*arguments):
        before(*arguments)
        return method(*arguments)

    setattr(owner, name, tapped)


def once(action):
    """Only the first time."""
    waiting = [action]
    return lambda *arguments: waiting.pop()() if waiting else None


def lines(run, since=0):
    return [json.loads(line) for line in run.journal.lines[since:]]


def names(run, since=0):
    """What the journal tells, by the names of the events; its other lines by their kind."""
    return [line["event"]["type"] if "event" in line else line["kind"] for line in lines(run, since)]


# --- one event at a time -------------------------------------------------------------------------------------------


def test_nobody_can_get_between_while_an_event_is_applied(simulate):
    """R14: whoever brings it, a seam or the trainer, an event is applied under the one lock."""
    run = started(simulate)
    got_between = []

    def try_to_get_between(record):
        """From another thread, because the lock lets its own holder in again."""
        if other.submit(run.controller._lock.acquire, blocking=False).result():
            other.submit(run.controller._lock.release).result()
            got_between.append(record)

    with ThreadPoolExecutor(1) as other:
        tap(run.journal, "append", try_to_get_between)
        run.controller.feed(ev.ProbeFailed(1, 0))
        run.controller.report_success(1, kind="probe")
        run.controller.refit(2)
        run.controller.close()
    assert names(run)[-1] == "end"
    assert got_between == []


def test_what_seams_report_while_a_command_is_carried_out_is_applied_afterwards_in_their_order(simulate):
    """H3: a failure after a success begins a streak; the other way round, the streak is over."""
    run = simulate()
    seen = [ev.ProbeFailed(0, 0), ev.ProbeFailed(0, 0), ev.ProbeSucceeded(0, 0), ev.ProbeFailed(0, 0)]

    def report(*command):
        for event in seen:
            run.controller.feed(event)
        assert names(run) == ["header", "StartRequested"], "one of them was applied under the running dispatch"

    tap(run.transport, "form", report)
    run.controller.start()
    assert names(run)[1:6] == ["StartRequested", "ProbeFailed", "ProbeFailed", "ProbeSucceeded", "ProbeFailed"]
    assert run.controller._machine.state.shards[0].failed_probes == 1


def test_what_a_seam_reports_and_the_table_refuses_is_logged_and_raised_to_nobody(simulate, caplog):
    """H5: neither to the seam, nor to the trainer whose call was being dispatched."""
    run = simulate()
    tap(run.transport, "form", once(lambda: run.controller.feed(ev.ShardExited(7, 0))))
    run.controller.start()
    run.controller.feed(ev.ShardExited(8, 0))
    assert [line["error"] for line in lines(run) if line["kind"] == "refused"] == ["UnknownShard"] * 2
    assert [text for text in ("slot 7", "slot 8") if f"event=refused ShardExited({text}" in caplog.text]
    assert run.controller.metrics()["refit/refused"] == 2.0


def test_what_is_handed_in_while_another_event_is_refused_is_not_left_lying(simulate):
    """A journal that reports while it writes stands for whoever hears of a refusal and acts on it."""
    run = started(simulate)
    tap(run.journal, "append", once(lambda: run.controller.feed(ev.ProbeFailed(1, 0))))
    with pytest.raises(VersionNotNewer):
        run.controller.refit(1)
    assert names(run)[-2:] == ["RefitRequested", "ProbeFailed"]


def test_every_command_is_written_down_before_it_is_carried_out(simulate):
    """M8: the journal knows of everything that any member was ever told, in the order of the table."""
    run = simulate(config=RefitConfig(on_frozen="fence"))
    written, carried_out = [], []
    commands = {"Form", "Transfer", "Leave", "Fence", "Restart"}

    def write(record):
        written.extend(command["type"] for command in record.get("commands", ()) if command["type"] in commands)

    def carry_out(name):
        def note(*arguments):
            carried_out.append(name)
            assert written[: len(carried_out)] == carried_out, f"{name} was carried out and not written down"

        return note

    tap(run.journal, "append", write)
    for seam, methods in ((run.transport, ("form", "transfer", "leave")), (run.fleet, ("fence", "restart"))):
        for method in methods:
            tap(seam, method, carry_out(method.capitalize()))
    run.controller.start()
    run.fleet.freeze(Worker(1, 0, 0))
    run.controller.refit(1)
    run.clock.advance(20)
    run.controller.close()
    assert set(carried_out) == commands
    assert written == carried_out


# --- deadlines -----------------------------------------------------------------------------------------------------


def test_a_deadline_that_was_met_never_comes_up_again(simulate):
    """S11: neither that of a forming, nor that of progress, each time anew, nor that of the refit."""
    run = started(simulate)
    told = len(run.journal.lines)
    run.clock.advance(100_000)
    assert names(run, told) == []


def test_a_halt_leaves_no_deadline_behind(simulate):
    run = started(simulate)
    tap(run.transport, "transfer", lambda *command: run.fleet.kill(Trainer(0)))
    with pytest.raises(RefitHalted):
        run.controller.refit(2)
    run.clock.advance(1)
    told = len(run.journal.lines)
    run.clock.advance(100_000)
    assert names(run, told) == []


# --- what a call comes back with -----------------------------------------------------------------------------------


def test_a_halt_is_never_taken_for_success(simulate):
    """A halted communicator has settled, too; what was asked for was one that is live."""
    run = started(simulate)
    run.fleet.kill_shard(1)
    run.clock.advance(0.1)
    tap(run.transport, "form", lambda *command: run.fleet.kill(Trainer(0)))
    with pytest.raises(RefitHalted) as halted:
        run.controller.reconcile()
    assert halted.value.reason is HaltReason.TRAINER_LOST


def test_a_refit_that_completes_as_the_run_halts_says_that_the_run_must_stop(simulate):
    run = started(simulate)
    tap(run.transport, "receipts", lambda version: run.controller.feed(ev.TrainerLost(0)))
    with pytest.raises(RefitHalted, match="trainer rank 0 is gone"):
        run.controller.refit(2)
    assert run.controller.snapshot().committed == ev.Version(0, 2)


def test_a_report_is_about_its_own_refit_even_if_the_next_one_is_under_way(simulate):
    """Another thread may ask for a refit before the one that waited for this has woken up."""
    run = started(simulate)
    waited = run.clock.wait

    def slow_to_wake(ready, timeout_s):
        arrived = waited(ready, timeout_s)
        run.clock.wait = waited
        run.fleet.kill_shard(1)
        run.clock.advance(0.1)
        later.append(run.controller.refit(3))
        return arrived

    later: list[object] = []
    run.clock.wait = slow_to_wake
    report = run.controller.refit(2)
    assert (report.version.step, report.communicators, report.digest) == (2, (), "digest-0.2")
    assert (later[0].version.step, later[0].communicators) == (3, ((2, Roster({0: 0, 2: 0})),))


# --- the end -------------------------------------------------------------------------------------------------------


def closings(run):
    """The names of the seams as they are closed."""
    order: list[str] = []
    seams = {"fleet": run.fleet, "transport": run.transport, "clock": run.clock, "journal": run.journal}
    seams["rendezvous"] = run.transport._rendezvous
    for name, seam in seams.items():
        tap(seam, "close", lambda name=name: order.append(name))
    return order


def test_closing_leaves_nothing_open(simulate):
    """The members first, who use the store; the journal last, which tells of all."""
    run = started(simulate)
    order = closings(run)
    run.controller.close()
    run.controller.close()
    assert order == ["fleet", "transport", "rendezvous", "clock", "journal"]


@pytest.mark.parametrize("broken", SEAMS)
def test_what_cannot_be_closed_keeps_nothing_else_open_and_is_told(simulate, caplog, broken):
    run = started(simulate)
    order = closings(run)

    def fail():
        raise OSError(5, "Input/output error")

    tap(getattr(run, broken), "close", fail)
    run.controller.close()
    assert set(order) >= {*SEAMS} - {broken}
    assert "event=close_failed" in caplog.text
    assert "Input/output error" in caplog.text
    assert names(run)[-2:] == ["CloseRequested", "end"]


def test_a_journal_that_failed_is_closed_all_the_same(simulate):
    run = started(simulate)
    order = closings(run)

    def fail(record):
        raise OSError(28, "No space left on device")

    tap(run.journal, "append", fail)
    with pytest.raises(RefitHalted, match="No space left"):
        run.controller.refit(2)
    run.controller.close()
    assert order.count("journal") == 1


def test_the_last_line_is_the_end_even_if_a_seam_closes_from_inside_a_dispatch(simulate):
    run = started(simulate)
    order = closings(run)

    def close(*command):
        run.controller.close()
        run.controller.feed(ev.ProbeFailed(1, 0))
        assert order == [], "released under the feet of a running dispatch"

    tap(run.transport, "transfer", close)
    with pytest.raises(ControllerClosed):
        run.controller.refit(2)
    assert names(run)[-3:] == ["RefitRequested", "CloseRequested", "end"]
    assert order == ["fleet", "transport", "rendezvous", "clock", "journal"]


def test_the_last_line_is_the_end_even_if_a_handler_of_a_log_line_closes(simulate):
    """Here the line that tells of a shard which is lost for good: the first that some people want to stop at."""

    class CloseOnError(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            run.controller.close()

    run = started(simulate, config=RefitConfig(max_restart_attempts_per_shard=0))
    logger, handler = logging.getLogger("reknit.runtime.controller"), CloseOnError(logging.ERROR)
    logger.addHandler(handler)
    try:
        run.controller.record_exit(1)
    finally:
        logger.removeHandler(handler)
    assert names(run)[-3:] == ["ShardExited", "CloseRequested", "end"]


def test_a_close_from_inside_an_event_that_is_refused_closes(simulate):
    run = started(simulate)
    tap(run.journal, "append", once(run.controller.close))
    with pytest.raises(VersionNotNewer):
        run.controller.refit(1)
    assert names(run)[-3:] == ["RefitRequested", "CloseRequested", "end"]


def test_starting_after_the_end_watches_nobody(simulate):
    run = simulate()
    opened: list[object] = []
    tap(run.fleet, "open", opened.append)
    run.controller.close()
    with pytest.raises(RunClosed):
        run.controller.start()
    assert opened == []


def test_after_close_what_asks_is_refused_and_what_reports_is_ignored(simulate):
    """Threads that report in the background need not know that the run is over."""
    run = started(simulate)
    run.controller.close()
    before = run.controller.snapshot()
    told = len(run.journal.lines)
    for call in asking(run.controller):
        with pytest.raises(RunClosed):
            call()
    assert [call() for call in reporting(run.controller)] == [None] * 5
    assert run.controller.snapshot() == before
    assert len(run.journal.lines) == told


def test_after_a_halt_what_asks_raises_its_reason_and_what_reports_is_ignored(simulate):
    run = started(simulate)
    run.controller.feed(ev.TrainerLost(0))
    before = run.controller.snapshot()
    for call in asking(run.controller):
        with pytest.raises(RefitHalted, match="trainer_lost"):
            call()
    assert [call() for call in reporting(run.controller)] == [None] * 5
    run.controller.close()
    for call in asking(run.controller):
        with pytest.raises(RefitHalted, match="trainer_lost"):
            call()
    assert run.controller.snapshot() == before


def asking(controller):
    return (controller.start, lambda: controller.refit(9), controller.reconcile, lambda: controller.retire(1))


def reporting(controller):
    """For a slot that the fleet has, and for one that it has not: nobody looks any more."""
    return (
        lambda: controller.report_failure(1),
        lambda: controller.report_failure(1, kind="probe"),
        lambda: controller.report_success(1),
        lambda: controller.record_exit(1),
        lambda: controller.record_exit(7),
    )


# --- the end, under threads ----------------------------------------------------------------------------------------


class SilentFleet:
    """Members that answer nothing, and let go only when they are told to."""

    def __init__(self) -> None:
        self.closing, self.may_close = threading.Event(), threading.Event()

    def open(self, feed):
        self.feed = feed

    def close(self):
        self.closing.set()
        assert self.may_close.wait(10)


class SilentTransport:
    """Ranks that never answer."""

    def __init__(self) -> None:
        self.forming = threading.Event()

    def open(self, feed):
        pass

    def form(self, command, membership):
        self.forming.set()

    def leave(self, command, membership):
        pass

    def close(self):
        pass


@pytest.fixture
def silent():
    """A controller on the real clock, over members from which nothing will ever come."""
    fleet, transport, journal = SilentFleet(), SilentTransport(), MemoryJournal()
    controller = RefitController(
        Topology(train_world_size=1, dp_size=2),
        fleet=fleet,
        transport=transport,
        clock=MonotonicClock(),
        journal=journal,
    )
    with ThreadPoolExecutor(4) as threads:
        yield controller, fleet, transport, threads
        fleet.may_close.set()
        controller.close()
    assert conform(journal.lines).ok
    assert json.loads(journal.lines[-1])["kind"] == "end"


def test_who_waits_for_an_outcome_is_told_of_the_end_before_the_members_have_left(silent):
    controller, fleet, transport, threads = silent
    start = threads.submit(controller.start)
    assert transport.forming.wait(10)
    threads.submit(controller.close)
    with pytest.raises(ControllerClosed):
        start.result(10)
    assert not fleet.may_close.is_set()


def test_whoever_closes_comes_back_when_it_is_closed(silent):
    """Two threads close: the second must not go on as if the members had left."""
    controller, fleet, _, threads = silent
    first = threads.submit(controller.close)
    assert fleet.closing.wait(10)
    second = threads.submit(controller.close)
    controller.report_failure(1)  # who only reports waits for neither
    with pytest.raises(RunClosed):
        controller.refit(1)
    assert controller.snapshot().phase is Phase.CLOSED
    assert not first.done()
    assert not second.done()
    fleet.may_close.set()
    first.result(10)
    second.result(10)


def test_a_seam_that_closes_while_it_is_closed_is_not_made_to_wait_for_itself(simulate):
    run = started(simulate)
    tap(run.fleet, "close", run.controller.close)
    run.controller.close()
    assert names(run)[-2:] == ["CloseRequested", "end"]


def test_a_deadline_may_close_the_controller_from_the_thread_of_the_clock(silent):
    controller, fleet, _, _ = silent
    fleet.may_close.set()
    closed = threading.Event()
    controller._clock.call_later(0.0, lambda: (controller.close(), closed.set()))
    assert closed.wait(10)


def test_messages_of_the_end_reach_every_member(simulate):
    """Each is asked to leave what was broken off by the end."""
    run = started(simulate)
    run.fleet.calls.clear()
    run.controller.close()
    asked = {member: request for _, member, request in run.fleet.calls if isinstance(request, messages.Leave)}
    assert set(asked) == {Trainer(0), *(Worker(slot, 0, 0) for slot in range(3))}
