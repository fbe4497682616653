"""What the Ray fleet does with its members' answers, without Ray: actors that a test answers for, by hand."""

from __future__ import annotations

import socket
import subprocess
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import psutil
import pytest
from ray.exceptions import ActorDiedError, ActorUnavailableError

from reknit.runtime import messages, ray_fleet
from reknit.runtime.ray_fleet import RayFleet
from reknit.runtime.seams import Trainer, Worker
from reknit.spec.lifecycle import events as ev

LIMIT_S = 10.0


class Actor:
    """Stands in for an actor's handle: every request is kept with the future that answers it."""

    def __init__(self, identity: str = "one", answers_hello: bool = True) -> None:
        self.identity = identity
        self.answers_hello = answers_hello
        self.asked: list[tuple[messages.Request, Future[Any]]] = []
        self.reknit = self

    def remote(self, request: messages.Request) -> Any:
        answer: Future[Any] = Future()
        self.asked.append((request, answer))
        if isinstance(request, messages.Hello) and self.answers_hello:
            answer.set_result(self.hello())
        return type("Reference", (), {"future": lambda _: answer})()

    def hello(self) -> messages.HelloReply:
        return messages.HelloReply(identity=self.identity, pid=2**30, started=0.0, host="elsewhere", device="cpu")

    def requests(self, kind: type[Any]) -> list[Any]:
        return [request for request, _ in self.asked if isinstance(request, kind)]

    def held(self, kind: type[Any]) -> Future[Any]:
        """The newest request of this kind that nobody has answered."""
        return [answer for request, answer in self.asked if isinstance(request, kind) and not answer.done()][-1]


class Fleet:
    """A fleet over such actors, with what it reported and whom it killed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, spawn: Any = None, workers: int = 1, shards: int = 2) -> None:
        self.trainer = Actor("trainer")
        self.shards = [[Actor(f"{slot}.{worker}") for worker in range(workers)] for slot in range(shards)]
        self.killed: list[Actor] = []
        self.heard: list[ev.Event] = []
        monkeypatch.setattr(ray_fleet.ray, "kill", lambda handle, no_restart: self.killed.append(handle))
        monkeypatch.setattr(ray_fleet, "_LOOK_AGAIN_S", 0.001)
        self.fleet = RayFleet(trainers=[self.trainer], shards=self.shards, spawn=spawn)  # type: ignore[list-item, arg-type]
        self.fleet.open(self.heard.append)

    def hears(self, *events: ev.Event) -> None:
        until(lambda: len(self.heard) >= len(events))
        assert self.heard == list(events)


def until(what: Callable[[], object]) -> None:
    end = time.monotonic() + LIMIT_S
    while not what():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.001)


def died() -> ActorDiedError:
    return ActorDiedError()


@pytest.fixture
def fleet_of(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Fleet]:
    return lambda **options: Fleet(monkeypatch, **options)


def test_every_process_is_watched_by_its_identity(fleet_of: Callable[..., Fleet]) -> None:
    run = fleet_of()
    assert run.trainer.requests(messages.Watch) == [messages.Watch(identity="trainer")]
    assert [workers[0].requests(messages.Watch)[0].identity for workers in run.shards] == ["0.0", "1.0"]


def test_a_death_is_reported_once_and_with_its_last_words(fleet_of: Callable[..., Fleet]) -> None:
    run = fleet_of()
    run.shards[1][0].held(messages.Watch).set_exception(died())
    (event,) = run.heard
    assert isinstance(event, ev.ShardExited)
    assert (event.slot, event.incarnation) == (1, 0)
    assert event.detail.startswith("ActorDiedError: ")
    run.trainer.held(messages.Watch).set_exception(died())
    assert run.heard[1:] == [ev.TrainerLost(0)]


def test_out_of_reach_is_not_dead_and_is_looked_at_again(fleet_of: Callable[..., Fleet]) -> None:
    run = fleet_of()
    actor = run.shards[0][0]
    actor.held(messages.Watch).set_exception(ActorUnavailableError("link down", None))
    until(lambda: len(actor.requests(messages.Watch)) == 2)
    assert run.heard == []
    assert run.killed == []


def test_a_process_restarted_in_place_is_reported_and_not_taken_for_the_old_one(fleet_of: Callable[..., Fleet]) -> None:
    """It answers like the old one, with start-up weights. It dies only when the table orders it."""
    run = fleet_of()
    actor = run.shards[1][0]
    actor.identity = "another"
    actor.held(messages.Watch).set_result(actor.hello())
    run.hears(ev.WorkerExited(1, 0, 0))
    assert run.killed == []
    run.fleet.fence(1, 0)
    until(lambda: run.killed == [actor])
    actor.held(messages.Watch).set_exception(died())
    assert [type(event) for event in run.heard] == [ev.WorkerExited, ev.ShardExited]


def test_a_process_that_has_the_number_of_a_dead_one_is_left_alone(fleet_of: Callable[..., Fleet]) -> None:
    """Process ids are used again: what is killed is the process that was met, or nobody."""
    bystander = subprocess.Popen(["sleep", "60"])
    try:
        run = fleet_of()
        met = replace(run.shards[0][0].hello(), pid=bystander.pid, host=socket.gethostname(), started=time.time() - 99)
        run.fleet._processes[Worker(0, 0, 0)] = met
        run.fleet.fence(0, 0)
        until(lambda: run.killed)
        assert bystander.poll() is None
        run.fleet._processes[Worker(0, 0, 0)] = replace(met, started=psutil.Process(bystander.pid).create_time())
        run.fleet.fence(0, 0)
        until(lambda: not psutil.pid_exists(bystander.pid))
    finally:
        bystander.kill()
        bystander.wait()


def test_a_trainer_restarted_in_place_is_a_lost_trainer(fleet_of: Callable[..., Fleet]) -> None:
    run = fleet_of()
    run.trainer.identity = "another"
    run.trainer.held(messages.Watch).set_result(run.trainer.hello())
    run.hears(ev.TrainerLost(0))


def test_the_last_of_several_workers_to_go_takes_the_shard_with_it(fleet_of: Callable[..., Fleet]) -> None:
    run = fleet_of(workers=2)
    run.shards[0][1].held(messages.Watch).set_exception(died())
    run.hears(ev.WorkerExited(0, 0, 1))
    run.shards[0][0].held(messages.Watch).set_exception(died())
    assert isinstance(run.heard[-1], ev.ShardExited)


# --- replacements ----------------------------------------------------------------------------------------------------


def test_a_replacement_is_loaded_when_every_worker_has_answered_and_not_before(fleet_of: Callable[..., Fleet]) -> None:
    fresh = [Actor("a", answers_hello=False), Actor("b", answers_hello=False)]
    run = fleet_of(workers=2, spawn=lambda slot, incarnation: fresh)
    run.fleet.restart(1, 1)
    until(lambda: fresh[1].asked)
    fresh[0].held(messages.Hello).set_result(fresh[0].hello())
    time.sleep(0.02)  # long enough for a fleet that does not wait for the second to report
    assert run.heard == []
    fresh[1].held(messages.Hello).set_result(fresh[1].hello())
    run.hears(ev.ReplacementLoaded(1, 1))
    until(lambda: fresh[1].requests(messages.Watch) == [messages.Watch(identity="b")])


def test_an_attempt_that_fails_leaves_none_of_its_actors_behind(fleet_of: Callable[..., Fleet]) -> None:
    fresh = [Actor("a"), Actor("b", answers_hello=False)]
    run = fleet_of(workers=2, spawn=lambda slot, incarnation: fresh)
    run.fleet.restart(1, 1)
    until(lambda: fresh[1].asked)
    fresh[1].held(messages.Hello).set_exception(died())
    until(lambda: run.heard)
    assert isinstance(run.heard[0], ev.RestartFailed)
    assert run.killed == fresh


def test_an_attempt_that_was_given_up_does_not_come_back(fleet_of: Callable[..., Fleet]) -> None:
    """H6: fenced while its spawn was still running, it is killed as soon as it is there."""
    fresh, go_on = [Actor("a")], threading.Event()

    def spawn(slot: int, incarnation: int) -> list[Actor]:
        assert go_on.wait(LIMIT_S)
        return fresh

    run = fleet_of(spawn=spawn)
    run.fleet.restart(1, 1)
    run.fleet.fence(1, 1)
    go_on.set()
    run.hears(ev.ShardExited(1, 1, "its attempt was given up"))
    assert run.killed == fresh
    assert fresh[0].requests(messages.Watch) == []


@pytest.mark.parametrize("error", [RuntimeError("no device left"), SystemExit(3), KeyboardInterrupt()])
def test_whatever_a_spawn_raises_is_a_failed_restart(fleet_of: Callable[..., Fleet], error: BaseException) -> None:
    def spawn(slot: int, incarnation: int) -> list[Actor]:
        raise error

    run = fleet_of(spawn=spawn)
    run.fleet.restart(0, 1)
    until(lambda: run.heard)
    assert isinstance(run.heard[0], ev.RestartFailed)
    assert type(error).__name__ in run.heard[0].detail


def test_without_a_spawn_a_lost_shard_stays_lost(fleet_of: Callable[..., Fleet]) -> None:
    run = fleet_of()
    run.fleet.restart(0, 1)
    run.hears(ev.RestartFailed(0, 1, "no spawn function was given"))


def test_an_actor_that_is_a_member_already_is_no_replacement_and_is_not_killed(fleet_of: Callable[..., Fleet]) -> None:
    run: Fleet = fleet_of(spawn=lambda slot, incarnation: run.shards[0])
    run.fleet.restart(1, 1)
    until(lambda: run.heard)
    assert isinstance(run.heard[0], ev.RestartFailed)
    assert "spawn(1, 1) returned an actor that is a member already" in run.heard[0].detail
    assert run.killed == []


def test_too_many_workers_are_no_replacement_and_all_of_them_are_killed(fleet_of: Callable[..., Fleet]) -> None:
    fresh = [Actor("a"), Actor("b")]
    run = fleet_of(spawn=lambda slot, incarnation: fresh)
    run.fleet.restart(1, 1)
    until(lambda: run.heard)
    assert "returned 2 workers, 1 expected" in run.heard[0].detail  # type: ignore[attr-defined]
    assert run.killed == fresh


def test_what_does_not_hand_requests_to_a_participant_is_no_replacement(fleet_of: Callable[..., Fleet]) -> None:
    fresh = Actor("a", answers_hello=False)
    run = fleet_of(spawn=lambda slot, incarnation: [fresh])
    run.fleet.restart(1, 1)
    until(lambda: fresh.asked)
    fresh.held(messages.Hello).set_result(None)
    until(lambda: run.heard)
    assert "shard 1 (incarnation 1) worker 0 answered with NoneType" in run.heard[0].detail  # type: ignore[attr-defined]
    assert run.killed == [fresh]


def test_one_actor_cannot_be_two_members() -> None:
    shared: Any = Actor()
    with pytest.raises(ValueError, match="every member needs an actor of its own"):
        RayFleet(trainers=[Actor()], shards=[[shared], [shared]])  # type: ignore[list-item]


# --- the end ---------------------------------------------------------------------------------------------------------


def test_closing_tells_everybody_who_is_there_and_hears_nobody_any_more(fleet_of: Callable[..., Fleet]) -> None:
    run = fleet_of()
    run.shards[0][0].held(messages.Watch).set_exception(died())
    heard = list(run.heard)
    closing = threading.Thread(target=run.fleet.close)
    closing.start()
    for actor in (run.trainer, run.shards[1][0]):
        until(lambda actor=actor: actor.requests(messages.Close))  # type: ignore[misc]
        actor.held(messages.Close).set_result(messages.Closed())
    closing.join(LIMIT_S)
    assert not closing.is_alive()
    assert run.shards[0][0].requests(messages.Close) == []
    run.shards[1][0].held(messages.Watch).set_exception(died())
    assert run.heard == heard
    assert run.killed == []


def test_a_call_to_a_process_known_to_be_dead_fails_like_any_other(fleet_of: Callable[..., Fleet]) -> None:
    run = fleet_of()

    def refuse(request: messages.Request) -> Any:
        raise died()

    run.trainer.remote = refuse  # type: ignore[method-assign]
    answer = run.fleet.call(Trainer(0), messages.Status())
    assert isinstance(answer.exception(timeout=0), ActorDiedError)
    assert run.fleet.describe(Worker(0, 0, 0)) == {"host": "elsewhere", "pid": str(2**30), "device": "cpu"}
