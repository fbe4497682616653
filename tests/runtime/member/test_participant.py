"""The participant, over real gloo groups: in threads of this process, and in processes that are killed and
stopped.

Every wait is bounded. `LIMIT_S` bounds what must not happen slowly, `AT_ONCE_S` what must not wait at all;
both are generous for a busy machine and far below the time limits that are given to the operations they are
compared with.
"""

from __future__ import annotations

import asyncio
import importlib.util
import itertools
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Protocol

import pytest
import torch
import torch.distributed as dist
import xxhash
from torch import Tensor

from reknit.runtime.member import Participant, forming
from reknit.runtime.member.forming import Forming, check_greetings
from reknit.runtime.member.graveyard import buried_groups
from reknit.runtime.member.group import RefitGroup
from reknit.runtime.member.manifest import Manifest
from reknit.runtime.member.passage import Passage
from reknit.runtime.member.waits import Cancelled, OperationFailed
from reknit.runtime.messages import (
    Close,
    Closed,
    Failed,
    Greeting,
    Hello,
    HelloReply,
    Join,
    Joined,
    Leave,
    Left,
    Standing,
    StatusReply,
    Transfer,
    Transferred,
    Watch,
    charter_digest,
)
from reknit.spec.lifecycle.events import Cause, Progress, Stamp, Version

LIMIT_S = 30.0
AT_ONCE_S = 1.5
NamedTensors = Iterable[tuple[str, Tensor]]

_HERE = Path(__file__).with_name("participant_member.py")
_spec = importlib.util.spec_from_file_location("participant_member", _HERE)
assert _spec is not None
assert _spec.loader is not None
participant_member = importlib.util.module_from_spec(_spec)
sys.modules["participant_member"] = participant_member
_spec.loader.exec_module(participant_member)
Command, Plan = participant_member.Command, participant_member.Plan


# --- members, in this process and in others -----------------------------------------------------------------


class Member(Protocol):
    def send(self, request: Any) -> Future[Any]: ...


class Local:
    """A participant in this process. Every request has a thread of its own, as in an actor."""

    def __init__(self, participant: Participant) -> None:
        self.participant = participant

    def send(self, request: Any) -> Future[Any]:
        answer: Future[Any] = Future()

        def run() -> None:
            try:
                answer.set_result(self.participant.handle(request))
            except BaseException as error:
                answer.set_exception(error)

        threading.Thread(target=run, daemon=True).start()
        return answer


class Remote:
    """A participant in a process of its own, which can be killed and stopped."""

    def __init__(self, pid: int, connection: Connection, plan: Any) -> None:
        self.pid = pid
        self._connection = connection
        self._numbers = itertools.count()
        self._answers: dict[int, Future[Any]] = {}
        self._events: list[tuple[str, int]] = []
        self._changed = threading.Condition()
        self.gone = threading.Event()
        connection.send(plan)
        threading.Thread(target=self._read, daemon=True).start()

    def send(self, request: Any) -> Future[Any]:
        number = next(self._numbers)
        answer = self._answers[number] = Future()
        self._connection.send((number, request))
        return answer

    def ask(self, name: str, value: Any = None) -> Any:
        return self.send(Command(name=name, value=value)).result(LIMIT_S)

    def wait_for(self, event: tuple[str, int]) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: event in self._events, LIMIT_S), f"{event} never came"

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def end(self) -> None:
        if not self.gone.is_set():
            os.kill(self.pid, signal.SIGKILL)
            assert self.gone.wait(LIMIT_S)

    def _read(self) -> None:
        try:
            while True:
                key, value = self._connection.recv()
                if isinstance(key, int):
                    self._answers[key].set_result(value)
                else:
                    with self._changed:
                        self._events.append((key, value))
                        self._changed.notify_all()
        except (EOFError, OSError):
            self.gone.set()


class Crew:
    """Members in rank order, and the controller's part of the conversation."""

    def __init__(self, store: Any, members: Sequence[Member], *, run: str, trainers: int = 1) -> None:
        self.members = list(members)
        self._store = store
        self._run = run
        self._trainers = trainers

    def join_request(self, seat: int, *, epoch: int = 1, world_size: int | None = None, **changes: Any) -> Join:
        fields: dict[str, Any] = {
            "stamp": Stamp(epoch, 1),
            "run": self._run,
            "nonce": f"secret-{epoch}",
            "store_host": "127.0.0.1",
            "store_port": self._store.port,
            "rank": seat,
            "world_size": len(self.members) if world_size is None else world_size,
            "train_world_size": self._trainers,
            "timeout_s": LIMIT_S,
        }
        return Join(**(fields | changes))

    def join(self, *, epoch: int = 1, **changes: Any) -> list[Any]:
        requests = [self.join_request(rank, epoch=epoch, **changes) for rank in range(len(self.members))]
        return answers(m.send(r) for m, r in zip(self.members, requests, strict=True))

    def form(self, *, epoch: int = 1, **changes: Any) -> None:
        """Join, and succeed."""
        joined = self.join(epoch=epoch, **changes)
        assert all(isinstance(reply, Joined) for reply in joined), joined

    def begin(self, epoch: int = 1, attempt: int = 2, **changes: Any) -> list[Future[Any]]:
        """Start a transfer and do not wait."""
        request = transfer_request(epoch, attempt, **changes)
        return [member.send(request) for member in self.members]

    def transfer(self, epoch: int = 1, attempt: int = 2, **changes: Any) -> list[Any]:
        return answers(self.begin(epoch, attempt, **changes))

    def leave(self, epoch: int = 1, attempt: int = 9, breaking: Stamp | None = None) -> list[Any]:
        return answers(member.send(Leave(stamp=Stamp(epoch, attempt), breaking=breaking)) for member in self.members)


def transfer_request(epoch: int = 1, attempt: int = 2, **changes: Any) -> Transfer:
    fields: dict[str, Any] = {"version": Version(0, attempt), "timeout_s": LIMIT_S, "verify": True}
    return Transfer(stamp=Stamp(epoch, attempt), **(fields | changes))


def answers(futures: Iterable[Future[Any]]) -> list[Any]:
    return [future.result(LIMIT_S) for future in list(futures)]


def causes(replies: Iterable[Any]) -> list[Any]:
    return [reply.cause if isinstance(reply, Failed) else reply for reply in replies]


def progress(replies: Iterable[Any]) -> list[Progress]:
    return [reply.progress for reply in replies]


def elapsed(since: float) -> float:
    return time.monotonic() - since


class Engine:
    """A receiver that keeps what it gets, and can be told to stop inside a call, or to refuse one."""

    def __init__(self, *, hold_at: int | None = None, refuse_at: int | None = None) -> None:
        self.weights: dict[str, Tensor] = {}
        self.calls = 0
        self.inside = threading.Event()
        self.go_on = threading.Event()
        self._hold_at = hold_at
        self._refuse_at = refuse_at

    def accept(self, tensors: Sequence[tuple[str, Tensor]]) -> None:
        self.calls += 1
        if self.calls == self._refuse_at:
            raise RuntimeError("no kernel for this shape")
        if self.calls == self._hold_at:
            self.inside.set()
            assert self.go_on.wait(LIMIT_S)
        for name, tensor in tensors:
            assert name not in self.weights or self.weights[name].shape == tensor.shape
            self.weights[name] = tensor.clone()


@pytest.fixture(scope="module")
def store() -> Iterator[Any]:
    """The store that a controller hosts."""
    # torch looks up the name of every peer, in the store's only thread; a resolver that drops packets must
    # not decide how long this module takes.
    before = os.environ.get("RES_OPTIONS")
    os.environ["RES_OPTIONS"] = "timeout:1 attempts:1"
    yield dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # type: ignore[attr-defined]
    if before is None:
        del os.environ["RES_OPTIONS"]
    else:
        os.environ["RES_OPTIONS"] = before


_runs = itertools.count()


@pytest.fixture
def run() -> str:
    return f"run-{next(_runs)}"


@pytest.fixture
def crew_of(store: Any, run: str) -> Iterator[Callable[..., Crew]]:
    """Crews of this process. They are closed at the end, and nothing of them may stay in the graveyard."""
    participants: list[Participant] = []

    def make(*members: Participant, trainers: int = 1) -> Crew:
        participants.extend(members)
        return Crew(store, [Local(member) for member in members], run=run, trainers=trainers)

    yield make
    for participant in participants:
        participant.close()


def some_weights(count: int = 6, size: int = 3000) -> dict[str, Tensor]:
    weights: dict[str, Tensor] = participant_member.fill([size] * count, 7)
    return weights


def trainer_of(weights: dict[str, Tensor], *, bucket_bytes: int = 4096) -> Participant:
    return Participant.trainer(weights.items, bucket_bytes=bucket_bytes)


def digest_of(weights: dict[str, Tensor]) -> str:
    digest: str = participant_member.digest(weights)
    return digest


# --- what arrives -------------------------------------------------------------------------------------------


def odd_weights() -> dict[str, Tensor]:
    torch.manual_seed(3)
    wide = torch.randint(0, 256, (64, 33), dtype=torch.uint8)
    return {
        "embedding": torch.randn(17, 31),
        "norm": torch.randn(31, dtype=torch.bfloat16),
        "scale": torch.tensor(0.125, dtype=torch.float16),
        "steps": torch.tensor(12345678901, dtype=torch.int64),
        "none": torch.empty(0, 5),
        "mask": torch.tensor([True, False, True]),
        "quantized": wide.view(torch.float8_e4m3fn),
        "transposed": torch.randn(40, 7).T,
        "strided": torch.arange(100, dtype=torch.int32)[::3],
        "larger than a bucket": torch.randn(33, 101, dtype=torch.float64),
        "complex": torch.randn(5, dtype=torch.complex64).conj(),
        "gradient": torch.randn(3, requires_grad=True),
    }


def bits(tensor: Tensor) -> bytes:
    return bytes(tensor.detach().resolve_conj().contiguous().reshape(-1).view(torch.uint8).tolist())


def test_every_bit_of_odd_shapes_and_dtypes_arrives_over_several_buckets(crew_of: Callable[..., Crew]) -> None:
    """R12: names, bytes and digest are counted on both sides."""
    weights = odd_weights()
    weights["tied"] = weights["embedding"]
    engines = [Engine(), Engine()]
    crew = crew_of(
        trainer_of(weights, bucket_bytes=1000),
        *(Participant.shard(engine.accept, expects=weights.items) for engine in engines),
    )
    crew.form()
    replies = crew.transfer()
    hasher = xxhash.xxh3_128()
    for tensor in weights.values():
        hasher.update(bits(tensor))
    assert {(reply.digest, reply.tensors, reply.bytes) for reply in replies} == {
        (hasher.hexdigest(), len(weights), sum(len(bits(t)) for t in weights.values()))
    }
    for engine in engines:
        assert engine.calls > 5
        assert engine.weights.keys() == weights.keys()
        for name, tensor in weights.items():
            assert engine.weights[name].shape == tensor.shape
            assert engine.weights[name].dtype == tensor.dtype
            assert bits(engine.weights[name]) == bits(tensor), name


def test_further_trainer_ranks_take_part_and_discard(crew_of: Callable[..., Crew]) -> None:
    def never() -> NamedTensors:
        raise AssertionError("only the root's tensors are asked for")

    weights, engine = some_weights(), Engine()
    crew = crew_of(trainer_of(weights), Participant.trainer(never), Participant.shard(engine.accept), trainers=2)
    crew.form()
    replies = crew.transfer()
    assert [reply.digest for reply in replies] == [digest_of(weights)] * 3
    assert digest_of(engine.weights) == digest_of(weights)


def test_a_group_carries_one_version_after_the_other(crew_of: Callable[..., Crew]) -> None:
    weights, engine = some_weights(), Engine()
    crew = crew_of(trainer_of(weights), Participant.shard(engine.accept))
    crew.form()
    for attempt in (2, 3, 4):
        for tensor in weights.values():
            tensor.random_(0, 256)
        replies = crew.transfer(attempt=attempt, verify=attempt != 3)
        assert [reply.version for reply in replies] == [Version(0, attempt)] * 2
        assert [reply.digest is None for reply in replies] == [attempt == 3] * 2
        assert digest_of(engine.weights) == digest_of(weights)


def test_a_transfer_of_nothing_completes(crew_of: Callable[..., Crew]) -> None:
    engine = Engine()
    crew = crew_of(Participant.trainer(lambda: []), Participant.shard(engine.accept))
    crew.form()
    assert [(reply.tensors, reply.bytes) for reply in crew.transfer()] == [(0, 0), (0, 0)]
    assert engine.calls == 0
    assert progress(crew.leave()) == [Progress.COMPLETE] * 2


def test_bytes_that_change_on_the_way_are_never_reported_as_success(
    crew_of: Callable[..., Crew], monkeypatch: pytest.MonkeyPatch
) -> None:
    """R9, R12: every rank hears of it; only the rank that holds other bytes is torn."""
    weights = some_weights()
    start = RefitGroup.start_broadcast

    def flip_for_the_second_shard(self: Any, flat: Tensor, **limits: Any) -> Any:
        pending = start(self, flat, **limits)
        if self.rank == 2:
            pending.future.wait()
            flat[7] ^= 1
        return pending

    monkeypatch.setattr(RefitGroup, "start_broadcast", flip_for_the_second_shard)
    crew = crew_of(trainer_of(weights), Participant.shard(Engine().accept), Participant.shard(Engine().accept))
    crew.form()
    replies = crew.transfer()
    assert causes(replies) == [Cause.PEER] * 3
    assert all("rank 2" in reply.message for reply in replies)
    assert progress(crew.leave()) == [Progress.COMPLETE, Progress.COMPLETE, Progress.PARTIAL]


def test_the_progress_of_a_transfer_can_be_watched(crew_of: Callable[..., Crew]) -> None:
    """R7: a big refit that moves is not a hang."""
    engine = Engine(hold_at=2)
    receiver = Participant.shard(engine.accept)
    crew = crew_of(trainer_of(some_weights(4)), receiver)
    assert receiver.status == StatusReply(operation="idle")
    crew.form()
    running = crew.begin()
    assert engine.inside.wait(LIMIT_S)
    assert receiver.status == StatusReply(operation="transfer", stamp=Stamp(1, 2), bucket=2, buckets=4)
    engine.go_on.set()
    assert all(isinstance(reply, Transferred) for reply in answers(running))
    assert receiver.status == StatusReply(operation="idle")


# --- forming ------------------------------------------------------------------------------------------------


def test_everybody_states_the_same_charter(crew_of: Callable[..., Crew], run: str) -> None:
    """F5: formed means that a payload of every member went through the group."""
    crew = crew_of(trainer_of(some_weights()), Participant.shard(Engine().accept))
    replies = crew.join()
    charter = charter_digest(run=run, epoch=1, nonce="secret-1", world_size=2, train_world_size=1)
    assert replies == [Joined(stamp=Stamp(1, 1), rank=rank, digest=charter) for rank in range(2)]


def test_a_shard_that_expects_other_tensors_makes_every_rank_fail_at_once(crew_of: Callable[..., Crew]) -> None:
    """R13: every rank names the one that differs, and lists the differences."""
    expected = Manifest.from_tensors([("layer.0", torch.empty(3000, dtype=torch.int8)), ("adapter", torch.empty(1))])
    crew = crew_of(
        trainer_of(some_weights(2)),
        Participant.shard(Engine().accept),
        Participant.shard(Engine().accept, expects=expected),
    )
    begun = time.monotonic()
    replies = crew.join()
    assert elapsed(begun) < LIMIT_S / 3
    assert causes(replies) == [Cause.MANIFEST] * 3
    for reply in replies:
        assert isinstance(reply, Failed)
        assert "rank 2 expects other tensors" in reply.message
        assert "1 missing of 2: adapter" in reply.message
        assert "layer.0 int8 -> uint8" in reply.message
    assert progress(crew.leave()) == [Progress.ENTERED] * 3


def test_what_a_shard_expects_may_be_in_another_order(crew_of: Callable[..., Crew]) -> None:
    weights = some_weights(3)
    expected = Manifest.from_tensors(reversed(weights.items()))
    crew = crew_of(trainer_of(weights), Participant.shard(Engine().accept, expects=expected))
    crew.form()


def test_two_processes_that_claim_one_rank_are_told_so_at_once(crew_of: Callable[..., Crew]) -> None:
    """M18: without a check everybody would wait for the rank that is missing instead."""
    crew = crew_of(trainer_of(some_weights()), *(Participant.shard(Engine().accept) for _ in range(2)))
    begun = time.monotonic()
    seats = [0, 1, 1]
    replies = answers(m.send(crew.join_request(seat)) for m, seat in zip(crew.members, seats, strict=True))
    assert elapsed(begun) < LIMIT_S / 3
    assert causes(replies) == [Cause.CLAIM] * 3
    assert all("rank 1 of epoch 1 is taken: 2 processes claim it" in reply.message for reply in replies)


def test_members_that_were_told_different_world_sizes_do_not_wait_for_each_other(
    crew_of: Callable[..., Crew],
) -> None:
    """M17."""
    crew = crew_of(trainer_of(some_weights()), Participant.shard(Engine().accept))
    begun = time.monotonic()
    replies = answers(crew.members[rank].send(crew.join_request(rank, world_size=2 + rank)) for rank in (0, 1))
    assert elapsed(begun) < LIMIT_S / 3
    assert causes(replies) == [Cause.CLAIM] * 2
    assert all("was told world_size=" in reply.message for reply in replies)


def greeting(rank: int, *, charter: str = "aa" * 32, standing: Standing = Standing.AGREED) -> Greeting:
    return Greeting(charter=charter, rank=rank, standing=standing, plan="cc" * 32)


def test_greetings_that_do_not_fit_are_refused_on_every_rank() -> None:
    """F5, M18: what the store cannot show, the handshake does."""
    mine = greeting(0)
    check_greetings([mine, greeting(1), greeting(2)], mine=mine, told=str)
    for others, said in (
        ([greeting(1), greeting(2, charter="bb" * 32)], r"ranks \[2\] were told another run"),
        ([greeting(1), greeting(1)], r"they say \[0, 1, 1\]"),
        ([greeting(2), greeting(1)], r"they say \[0, 2, 1\]"),
    ):
        with pytest.raises(OperationFailed, match=said) as caught:
            check_greetings([mine, *others], mine=mine, told=str)
        assert caught.value.cause is Cause.CLAIM


@pytest.mark.parametrize(
    ("rank", "changes", "said"),
    [
        (1, {"rank": 0}, "participant of a shard"),
        (0, {"rank": 1}, "participant of a trainer"),
        (1, {"rank": 2}, "impossible place"),
        (0, {"rank": -1}, "impossible place"),
        (0, {"train_world_size": 0}, "impossible place"),
        (1, {"backend": "nccl"}, "nccl with cuda"),
        (1, {"backend": "mpi"}, "'mpi'"),
    ],
)
def test_an_impossible_place_is_refused_before_anybody_waits(
    crew_of: Callable[..., Crew], rank: int, changes: dict[str, Any], said: str
) -> None:
    """H9, M17: a trainer's place is never a shard's."""
    crew = crew_of(trainer_of(some_weights()), Participant.shard(Engine().accept))
    reply = crew.members[rank].send(crew.join_request(rank, **changes)).result(LIMIT_S)
    assert (reply.cause, said in reply.message) == (Cause.CLAIM, True), reply


def test_a_rank_that_never_comes_is_named(crew_of: Callable[..., Crew]) -> None:
    """F3, F7: joining has a bound of its own, and says whom it waited for."""
    crew = crew_of(trainer_of(some_weights()), Participant.shard(Engine().accept), Participant.shard(Engine().accept))
    crew.form()
    begun = time.monotonic()
    replies = answers(crew.members[rank].send(crew.join_request(rank, epoch=2, timeout_s=1.0)) for rank in (0, 1))
    assert elapsed(begun) < 5
    assert causes(replies) == [Cause.DEADLINE] * 2
    assert all("never claimed their place: ranks [2]" in reply.message for reply in replies), replies


def test_a_store_that_cannot_be_reached_is_a_transient(crew_of: Callable[..., Crew]) -> None:
    """F3, F13: and the error names its address."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
    crew = crew_of(trainer_of(some_weights()))
    reply = crew.members[0].send(crew.join_request(0, store_port=port, timeout_s=1.0)).result(LIMIT_S)
    assert (reply.cause, f"127.0.0.1:{port}" in reply.message) == (Cause.TRANSIENT, True), reply


def test_a_member_that_joins_the_next_epoch_is_not_inside_two(crew_of: Callable[..., Crew]) -> None:
    """F9, S5: the older group is left before the new one forms, even without having been told."""
    weights, engine = some_weights(), Engine(hold_at=1)
    crew = crew_of(trainer_of(weights), Participant.shard(engine.accept))
    crew.form(epoch=1)
    running = crew.begin(1, 2)
    assert engine.inside.wait(LIMIT_S)
    joining = [member.send(crew.join_request(rank, epoch=2)) for rank, member in enumerate(crew.members)]
    assert running[0].result(LIMIT_S).cause is Cause.DEPARTURE
    assert not joining[1].done(), "the older call is still inside the engine"
    engine.go_on.set()
    assert all(isinstance(reply, Joined) for reply in answers(joining))
    assert running[1].result(LIMIT_S).cause is Cause.DEPARTURE
    assert crew.transfer(1, 3)[1].cause is Cause.CLAIM
    assert [type(reply) for reply in crew.transfer(2, 2)] == [Transferred] * 2
    assert digest_of(engine.weights) == digest_of(weights)


def test_an_engine_that_never_returns_keeps_its_member_out_of_the_next_epoch(crew_of: Callable[..., Crew]) -> None:
    """R14, S6: it could write old weights over new ones. The wait is bounded and says what it waited for."""
    engine = Engine(hold_at=1)
    crew = crew_of(trainer_of(some_weights()), Participant.shard(engine.accept))
    crew.form()
    running = crew.begin()
    assert engine.inside.wait(LIMIT_S)
    crew.leave()
    reply = crew.members[1].send(crew.join_request(1, epoch=2, timeout_s=0.2)).result(LIMIT_S)
    assert (reply.cause, "transfer of stamp 1.2 is still inside" in reply.message) == (Cause.DEADLINE, True), reply
    again = crew.members[1].send(crew.join_request(1, epoch=3, timeout_s=0.2)).result(LIMIT_S)
    assert (again.cause, "transfer of stamp 1.2 is still inside" in again.message) == (Cause.DEADLINE, True), again
    engine.go_on.set()
    answers(running)


def test_a_join_that_succeeds_too_late_never_becomes_current(
    crew_of: Callable[..., Crew], monkeypatch: pytest.MonkeyPatch
) -> None:
    """F4: the thread that was abandoned finishes, and what it made goes to the graveyard."""
    made, open_door = threading.Event(), threading.Event()
    make = forming.make_library

    def stuck(*args: Any) -> object:
        library = make(*args)
        made.set()
        assert open_door.wait(LIMIT_S)
        return library

    monkeypatch.setattr(forming, "make_library", stuck)
    crew = crew_of(trainer_of(some_weights(2)))
    joining = crew.members[0].send(crew.join_request(0))
    assert made.wait(LIMIT_S)
    begun = time.monotonic()
    assert progress(crew.leave(attempt=2)) == [Progress.ENTERED]
    assert joining.result(LIMIT_S).cause is Cause.DEPARTURE
    assert elapsed(begun) < AT_ONCE_S
    open_door.set()
    wait_until(lambda: not threads_named("reknit-"))
    assert buried_groups() == 0
    assert causes(crew.transfer(attempt=3)) == [Cause.CLAIM]
    monkeypatch.undo()
    crew.form(epoch=2)
    assert [type(reply) for reply in crew.transfer(2, 2)] == [Transferred]


def test_a_join_that_is_abandoned_after_its_handshake_is_buried(
    crew_of: Callable[..., Crew], monkeypatch: pytest.MonkeyPatch
) -> None:
    """F4: even a whole success goes to the graveyard when nobody waits for it any more."""
    shaken, open_door, reasons = threading.Event(), threading.Event(), list[str]()
    shake, bury = Forming._shake_hands, RefitGroup.bury

    def shake_and_stall(self: Any, *args: Any) -> None:
        shake(self, *args)
        shaken.set()
        assert open_door.wait(LIMIT_S)

    def note(self: Any, reason: str) -> None:
        reasons.append(reason)
        bury(self, reason)

    monkeypatch.setattr(Forming, "_shake_hands", shake_and_stall)
    monkeypatch.setattr(RefitGroup, "bury", note)
    crew = crew_of(trainer_of(some_weights(2)))
    joining = crew.members[0].send(crew.join_request(0))
    assert shaken.wait(LIMIT_S)
    crew.leave(attempt=2)
    assert joining.result(LIMIT_S).cause is Cause.DEPARTURE
    open_door.set()
    wait_until(lambda: not threads_named("reknit-"))
    assert reasons == ["its join was abandoned before it succeeded"]
    assert causes(crew.transfer(attempt=3)) == [Cause.CLAIM]


def threads_named(start: str) -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith(start)]


def wait_until(true: Callable[[], bool]) -> None:
    """For what ends by itself and rings no bell."""
    ends = time.monotonic() + LIMIT_S
    while not true():
        assert time.monotonic() < ends
        time.sleep(0.01)


def test_a_process_with_an_old_nonce_gets_no_place_in_the_new_group(crew_of: Callable[..., Crew]) -> None:
    """F12: it may guess the run, the epoch and its old rank, and still it meets nobody."""
    weights, engine = some_weights(), Engine()
    zombie_engine = Engine()
    crew = crew_of(trainer_of(weights), Participant.shard(engine.accept), Participant.shard(zombie_engine.accept))
    crew.form()
    zombie = crew.members.pop()
    dead_hand = zombie.send(crew.join_request(1, epoch=2, nonce="secret-1", timeout_s=2.0))
    crew.form(epoch=2)
    assert [type(reply) for reply in crew.transfer(2, 2)] == [Transferred] * 2
    assert dead_hand.result(LIMIT_S).cause is Cause.DEADLINE
    assert zombie_engine.calls == 0


def test_the_default_group_of_the_process_is_left_alone(crew_of: Callable[..., Crew]) -> None:
    """F10."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
    try:
        default = dist.group.WORLD
        crew = crew_of(trainer_of(some_weights()), Participant.shard(Engine().accept))
        crew.form()
        crew.transfer()
        crew.leave()
        for member in crew.members:
            member.send(Close()).result(LIMIT_S)
        assert dist.group.WORLD is default
        assert dist.get_world_size() == 1
        one = torch.ones(1)
        dist.all_reduce(one)
        assert one.item() == 1.0
    finally:
        dist.destroy_process_group()


# --- stamps -------------------------------------------------------------------------------------------------


def test_what_is_older_than_the_newest_stamp_is_refused_and_changes_nothing(crew_of: Callable[..., Crew]) -> None:
    """Stamps: a late message of an older epoch or attempt cannot touch a newer one."""
    weights, engine = some_weights(), Engine()
    crew = crew_of(trainer_of(weights), Participant.shard(engine.accept))
    crew.form(epoch=4, stamp=Stamp(4, 2))
    for late in (
        crew.join_request(1, epoch=3),
        crew.join_request(1, stamp=Stamp(4, 1)),
        transfer_request(3, 9),
        transfer_request(4, 1),
    ):
        reply = crew.members[1].send(late).result(LIMIT_S)
        assert reply.cause is Cause.CLAIM
        assert f"stamp {late.stamp} " in reply.message
        assert "4.2, seen already" in reply.message
    assert isinstance(crew.members[1].send(Leave(stamp=Stamp(3, 9))).result(LIMIT_S), Left)
    assert [type(reply) for reply in crew.transfer(4, 3)] == [Transferred] * 2
    late_leave = crew.members[1].send(Leave(stamp=Stamp(4, 2))).result(LIMIT_S)
    assert (late_leave.cause, "nothing was left" in late_leave.message) == (Cause.CLAIM, True)
    assert [type(reply) for reply in crew.transfer(4, 4)] == [Transferred] * 2


def test_a_message_that_comes_twice_is_handled_once(crew_of: Callable[..., Crew]) -> None:
    engine = Engine()
    crew = crew_of(trainer_of(some_weights()), Participant.shard(engine.accept))
    crew.form()
    crew.transfer()
    calls = engine.calls
    assert causes(crew.join()) == [Cause.CLAIM] * 2
    assert causes(crew.transfer()) == [Cause.CLAIM] * 2
    assert engine.calls == calls
    assert [type(reply) for reply in crew.transfer(attempt=3)] == [Transferred] * 2


def test_a_join_that_comes_after_its_leave_is_refused(crew_of: Callable[..., Crew]) -> None:
    """F4, F6."""
    crew = crew_of(trainer_of(some_weights()), Participant.shard(Engine().accept))
    assert progress(crew.leave(epoch=1, attempt=2)) == [Progress.NEVER_ENTERED] * 2
    assert causes(crew.join(epoch=1)) == [Cause.CLAIM] * 2


def test_a_member_of_one_run_joins_no_other(crew_of: Callable[..., Crew]) -> None:
    """F1."""
    crew = crew_of(trainer_of(some_weights()), Participant.shard(Engine().accept))
    crew.form()
    assert causes(crew.join(epoch=2, run="another")) == [Cause.CLAIM] * 2
    assert [type(reply) for reply in crew.transfer()] == [Transferred] * 2


def test_an_older_version_is_refused_and_an_equal_one_repeated(crew_of: Callable[..., Crew]) -> None:
    """H10: versions are ordered by the trainer's incarnation first."""
    crew = crew_of(trainer_of(some_weights()), Participant.shard(Engine().accept))
    crew.form()
    for attempt, version, accepted in (
        (2, Version(0, 900), True),
        (3, Version(0, 899), False),
        (4, Version(0, 900), True),
        (5, Version(1, 1), True),
        (6, Version(0, 901), False),
    ):
        replies = crew.transfer(attempt=attempt, version=version)
        expected = [version] * 2 if accepted else [Cause.CLAIM] * 2
        assert [r.version if isinstance(r, Transferred) else r.cause for r in replies] == expected


def test_requests_and_replies_pickle() -> None:
    for message in (
        Hello(),
        Watch(identity="one"),
        Close(),
        Closed(),
        HelloReply(identity="one", pid=1, started=1.0, host="a", device="cpu"),
        transfer_request(),
        Leave(stamp=Stamp(1, 2), breaking=Stamp(1, 1)),
        Left(stamp=Stamp(1, 2), rank=0, progress=Progress.PARTIAL),
        Failed(stamp=Stamp(1, 2), rank=None, cause=Cause.PEER, message="x"),
    ):
        assert pickle.loads(pickle.dumps(message)) == message


# --- leaving ------------------------------------------------------------------------------------------------


def test_leaving_ends_a_join_at_once(crew_of: Callable[..., Crew]) -> None:
    """F6: a member that died while forming must not hold the others in a fixed snapshot."""
    crew = crew_of(trainer_of(some_weights()), Participant.shard(Engine().accept), Participant.shard(Engine().accept))
    joining = [crew.members[rank].send(crew.join_request(rank)) for rank in (0, 1)]
    wait_until(lambda: len(threads_named("reknit-join-1.")) == 2)
    begun = time.monotonic()
    left = crew.leave(attempt=2)
    replies = answers(joining)
    assert elapsed(begun) < AT_ONCE_S
    assert progress(left) == [Progress.ENTERED, Progress.ENTERED, Progress.NEVER_ENTERED]
    assert causes(replies) == [Cause.DEPARTURE] * 2
    assert all("left epoch 1" in reply.message for reply in replies)


def test_leaving_at_the_gate_tears_nobody(crew_of: Callable[..., Crew]) -> None:
    """R1, R2: nothing moves before every rank has entered."""
    engine = Engine()
    crew = crew_of(trainer_of(some_weights()), Participant.shard(engine.accept), Participant.shard(engine.accept))
    crew.form()
    waiting = [member.send(transfer_request()) for member in crew.members[:2]]
    wait_until(lambda: all(m.participant.status.operation == "transfer" for m in crew.members[:2]))  # type: ignore[attr-defined]
    begun = time.monotonic()
    left = crew.leave(attempt=3, breaking=Stamp(1, 2))
    replies = answers(waiting)
    assert elapsed(begun) < AT_ONCE_S
    assert progress(left) == [Progress.ENTERED, Progress.ENTERED, Progress.NEVER_ENTERED]
    assert causes(replies) == [Cause.DEPARTURE] * 2
    assert engine.calls == 0


def test_after_a_departure_nothing_more_reaches_the_engine(crew_of: Callable[..., Crew]) -> None:
    """R4: the code behind an aborted wait does not go on to the next bucket."""
    engine = Engine(hold_at=2)
    crew = crew_of(trainer_of(some_weights(8)), Participant.shard(engine.accept))
    crew.form()
    running = crew.begin()
    assert engine.inside.wait(LIMIT_S)
    begun = time.monotonic()
    left = crew.leave(attempt=3)
    assert elapsed(begun) < AT_ONCE_S
    assert progress(left) == [Progress.ENTERED, Progress.STUCK]
    assert "still inside accept, called 0." in left[1].detail
    assert running[0].result(LIMIT_S).cause is Cause.DEPARTURE
    engine.go_on.set()
    assert running[1].result(LIMIT_S).cause is Cause.DEPARTURE
    assert engine.calls == 2


def test_a_departure_between_the_arrival_of_a_bucket_and_its_use_keeps_the_engine_untouched(
    crew_of: Callable[..., Crew], monkeypatch: pytest.MonkeyPatch
) -> None:
    """R4: what was answered to the departure, that nothing had changed, stays true."""
    arrived, go_on = threading.Event(), threading.Event()
    count = Passage._count

    def count_and_stall(self: Any, *args: Any) -> None:
        count(self, *args)
        if self._seat.rank == 1:
            arrived.set()
            assert go_on.wait(LIMIT_S)

    monkeypatch.setattr(Passage, "_count", count_and_stall)
    engine = Engine()
    crew = crew_of(trainer_of(some_weights(), bucket_bytes=1 << 20), Participant.shard(engine.accept))
    crew.form()
    running = crew.begin()
    assert arrived.wait(LIMIT_S)
    left = crew.leave(attempt=3)
    go_on.set()
    assert left[1].progress is Progress.ENTERED
    assert running[1].result(LIMIT_S).cause is Cause.DEPARTURE
    assert engine.calls == 0


def test_a_group_that_was_left_is_released_whoever_still_holds_it(crew_of: Callable[..., Crew]) -> None:
    """F8, F11."""
    crew = crew_of(trainer_of(some_weights()), Participant.shard(Engine().accept))
    crew.form()
    crew.transfer()
    group = crew.members[1].participant._admission._seat.group  # type: ignore[attr-defined]
    assert group._library is not None
    crew.leave()
    wait_until(lambda: group._library is None)
    with pytest.raises(Cancelled):
        group.start_broadcast(torch.zeros(1, dtype=torch.uint8), timeout_s=1.0)


def test_leaving_says_complete_after_a_complete_transfer(crew_of: Callable[..., Crew]) -> None:
    """R2: a death after everything moved does not tear the survivors."""
    crew = crew_of(trainer_of(some_weights()), Participant.shard(Engine().accept))
    crew.form()
    crew.transfer()
    assert progress(crew.leave(attempt=4, breaking=Stamp(1, 2))) == [Progress.COMPLETE] * 2


def test_progress_is_that_of_the_operation_that_is_broken_off(crew_of: Callable[..., Crew]) -> None:
    """R2, R3: the version before is no answer to the question how far this one got."""
    crew = crew_of(trainer_of(some_weights()), Participant.shard(Engine().accept))
    crew.form()
    crew.transfer()
    assert progress(crew.leave(attempt=4, breaking=Stamp(1, 3))) == [Progress.NEVER_ENTERED] * 2


def test_leaving_again_gives_the_same_answer_and_touches_no_newer_epoch(crew_of: Callable[..., Crew]) -> None:
    crew = crew_of(trainer_of(some_weights()), Participant.shard(Engine().accept))
    crew.form()
    crew.transfer()
    first = crew.leave()
    assert crew.leave() == first
    crew.form(epoch=2)
    assert crew.leave() == first
    assert [type(reply) for reply in crew.transfer(2, 2)] == [Transferred] * 2


def test_a_wait_ends_by_its_own_deadline_and_says_what_for(crew_of: Callable[..., Crew]) -> None:
    """F7, R7, R13: nobody told it to leave."""
    crew = crew_of(trainer_of(some_weights()), Participant.shard(Engine().accept))
    crew.form()
    begun = time.monotonic()
    reply = crew.members[0].send(transfer_request(timeout_s=0.5)).result(LIMIT_S)
    assert 0.4 < elapsed(begun) < 3
    assert reply.cause is Cause.DEADLINE
    assert "rank 0 waited 0.5 s for the gate of version 0.2" in reply.message
    again = crew.members[0].send(transfer_request(attempt=3)).result(LIMIT_S)
    assert (again.cause, "broken" in again.message) == (Cause.CLAIM, True)
    assert progress(crew.leave()) == [Progress.ENTERED, Progress.ENTERED]


# --- what users' code does ----------------------------------------------------------------------------------


def test_an_engine_that_refuses_the_weights_is_heard_in_its_own_words(crew_of: Callable[..., Crew]) -> None:
    """R5, R13: the cause travels as data, the reason as text."""
    refusing, other = Engine(refuse_at=2), Engine()
    crew = crew_of(trainer_of(some_weights()), Participant.shard(refusing.accept), Participant.shard(other.accept))
    crew.form()
    running = crew.begin()
    reply = running[1].result(LIMIT_S)
    assert reply.cause is Cause.REJECTED
    assert "RuntimeError: no kernel for this shape" in reply.message
    left = crew.leave()
    assert left[1].progress is Progress.PARTIAL
    assert not any(isinstance(each, Transferred) for each in answers(running[:2]))
    crew.form(epoch=2)
    assert [type(each) for each in crew.transfer(2, 2)] == [Transferred] * 3


def test_a_trainer_whose_list_changed_is_stopped_at_the_gate(crew_of: Callable[..., Crew]) -> None:
    """M6, R12: names are compared before anything moves, so nobody is torn."""
    weights, engine = some_weights(3), Engine()
    crew = crew_of(trainer_of(weights), Participant.shard(engine.accept))
    crew.form()
    weights["late"] = torch.zeros(1)
    replies = crew.transfer()
    assert causes(replies) == [Cause.MANIFEST] * 2
    assert "1 unexpected of 4: late" in replies[0].message
    assert progress(crew.leave()) == [Progress.ENTERED] * 2
    assert engine.calls == 0
    crew.form(epoch=2)
    assert [reply.tensors for reply in crew.transfer(2, 2)] == [4, 4]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda weights: weights.pop("layer.4"), "named_tensors yields the end of named_tensors"),
        (lambda weights: weights.update(late=torch.zeros(1)), "yields 'late' after all 5 published tensors"),
        (
            lambda weights: weights.update({"layer.2": torch.zeros(1)}),
            "yields layer.2 [1] float32, but layer.2 [3000] uint8",
        ),
    ],
    ids=["one fewer", "one more", "another shape"],
)
def test_a_trainer_that_yields_other_than_it_stated_completes_nowhere(
    crew_of: Callable[..., Crew], change: Callable[[dict[str, Tensor]], object], said: str
) -> None:
    """R9, R12: with a manifest given in advance the bytes are still counted against it."""
    weights, engine = some_weights(5), Engine()
    manifest = Manifest.from_tensors(weights.items())
    trainer = Participant.trainer(weights.items, manifest=manifest, bucket_bytes=4096)
    crew = crew_of(trainer, Participant.shard(engine.accept))
    crew.form()
    change(weights)
    running = crew.begin(verify=False)
    reply = running[0].result(LIMIT_S)
    assert (reply.cause, said in reply.message) == (Cause.MANIFEST, True), reply
    assert crew.leave()[1].progress in (Progress.ENTERED, Progress.PARTIAL)
    assert running[1].result(LIMIT_S).cause in (Cause.DEPARTURE, Cause.PEER)


def test_a_manifest_given_in_advance_saves_the_walks(crew_of: Callable[..., Crew]) -> None:
    weights, walks = some_weights(), [0]

    def costly() -> NamedTensors:
        walks[0] += 1
        return iter(weights.items())

    stated = Participant.trainer(costly, manifest=Manifest.from_tensors(weights.items()))
    crew = crew_of(stated, Participant.shard(Engine().accept))
    crew.form()
    assert walks == [0]
    crew.transfer()
    assert walks == [1]


def test_what_goes_wrong_in_the_trainers_callable_is_heard(crew_of: Callable[..., Crew]) -> None:
    """R13."""

    def gather() -> NamedTensors:
        yield "a", torch.zeros(1)
        raise KeyError("layer.7")

    crew = crew_of(Participant.trainer(gather))
    reply = crew.join()[0]
    assert (reply.cause, reply.message) == (Cause.REJECTED, "named_tensors raised KeyError: 'layer.7'")


def test_a_callable_that_does_not_return_is_told_from_a_rank_that_waits(crew_of: Callable[..., Crew]) -> None:
    """The process answers, the collective is over, and yet weights may still be changing."""
    engine, waiting = Engine(hold_at=1), Engine()
    crew = crew_of(trainer_of(some_weights(8)), Participant.shard(engine.accept), Participant.shard(waiting.accept))
    crew.form()
    running = crew.begin()
    assert engine.inside.wait(LIMIT_S)
    left = crew.leave(attempt=3)
    assert left[1].progress is Progress.STUCK
    assert left[2].progress in (Progress.ENTERED, Progress.PARTIAL)
    assert crew.leave(epoch=2)[1].progress is Progress.STUCK
    engine.go_on.set()
    answers(running)
    assert crew.leave(epoch=2)[1].progress is Progress.NEVER_ENTERED


def test_a_trainer_stuck_in_its_own_tensors_says_so(crew_of: Callable[..., Crew]) -> None:
    inside, go_on = threading.Event(), threading.Event()

    def gather() -> NamedTensors:
        inside.set()
        assert go_on.wait(LIMIT_S)
        yield "a", torch.zeros(1)

    crew = crew_of(Participant.trainer(gather), Participant.shard(Engine().accept))
    joining = crew.members[0].send(crew.join_request(0))
    assert inside.wait(LIMIT_S)
    left = crew.members[0].send(Leave(stamp=Stamp(1, 2))).result(LIMIT_S)
    assert (left.progress, "still inside named_tensors" in left.detail) == (Progress.STUCK, True)
    go_on.set()
    assert joining.result(LIMIT_S).cause is Cause.DEPARTURE


@pytest.mark.parametrize("yielded", [torch.zeros(2), ("a",), (1, torch.zeros(1)), ("a", torch.zeros(1), 3), "ab"])
def test_what_is_no_pair_of_name_and_tensor_is_the_trainers_own_fault(
    crew_of: Callable[..., Crew], yielded: object
) -> None:
    reply = crew_of(Participant.trainer(lambda: [yielded])).join()[0]  # type: ignore[list-item, return-value]
    assert reply.cause is Cause.REJECTED
    assert "named_tensors must yield pairs (name, tensor), it yielded" in reply.message


@pytest.mark.parametrize(
    ("error", "cause"), [(OSError(24, "too many files"), Cause.TRANSIENT), (ZeroDivisionError("x"), Cause.REJECTED)]
)
def test_only_what_the_system_refused_may_pass_by_itself(
    crew_of: Callable[..., Crew], monkeypatch: pytest.MonkeyPatch, error: Exception, cause: Cause
) -> None:
    """R8: an error that nobody foresaw would only come again."""

    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(Passage, "enter", fail)
    crew = crew_of(trainer_of(some_weights()), Participant.shard(Engine().accept))
    crew.form()
    assert causes(crew.transfer()) == [cause] * 2


def test_no_text_says_where_the_members_meet(crew_of: Callable[..., Crew], monkeypatch: pytest.MonkeyPatch) -> None:
    """The store's errors name their keys, and the nonce is in them."""

    def fail(self: Forming, store: Any) -> None:
        raise RuntimeError(f"wait timeout, keys: /{self._join.run}/1/{self._join.nonce}/claim")

    monkeypatch.setattr(Forming, "_await_members", fail)
    crew = crew_of(trainer_of(some_weights()))
    reply = crew.join()[0]
    assert reply.message.endswith("/1/.../claim")
    assert crew.join_request(0).nonce not in reply.message


def test_an_event_loop_is_not_blocked_but_told(crew_of: Callable[..., Crew]) -> None:
    participant = Participant.shard(Engine().accept)

    async def actor_method() -> object:
        return participant.handle(Hello())

    with pytest.raises(RuntimeError, match=r"asyncio\.to_thread\(self\.participant\.handle, request\)"):
        asyncio.run(actor_method())


# --- closing ------------------------------------------------------------------------------------------------


def test_a_watch_is_held_until_the_participant_is_closed(crew_of: Callable[..., Crew]) -> None:
    crew = crew_of(trainer_of(some_weights()), Participant.shard(Engine().accept))
    crew.form()
    shard = crew.members[1]
    known = shard.send(Hello()).result(LIMIT_S)
    assert (known.pid, known.host, known.device) == (os.getpid(), socket.gethostname(), "cpu")
    assert shard.send(Hello()).result(LIMIT_S) == known
    watch = shard.send(Watch(identity=known.identity))
    waiting = crew.members[0].send(transfer_request())
    assert not watch.done()
    for member in (shard, shard, crew.members[0]):
        begun = time.monotonic()
        assert member.send(Close()).result(LIMIT_S) == Closed()
        assert elapsed(begun) < AT_ONCE_S
    assert watch.result(LIMIT_S) == Closed()
    assert waiting.result(LIMIT_S).cause in (Cause.DEPARTURE, Cause.PEER)
    assert causes(crew.join(epoch=2)) == [Cause.DEPARTURE] * 2
    assert crew.leave()[1].rank == 1


def test_a_watch_for_another_participant_is_answered_at_once_by_whoever_is_there() -> None:
    """A process that was started anew in the same place is not the one that was meant."""
    participant = Participant.shard(Engine().accept)
    other = Participant.shard(Engine().accept).handle(Hello())
    assert isinstance(other, HelloReply)
    here = participant.handle(Watch(identity=other.identity))
    assert isinstance(here, HelloReply)
    assert here == participant.handle(Hello())
    assert here.identity != other.identity


def test_what_is_not_a_request_is_refused_loudly() -> None:
    participant = Participant.shard(Engine().accept)
    with pytest.raises(TypeError, match="not a request to a participant"):
        participant.handle("join")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="bucket_bytes must be positive, got -1"):
        Participant.trainer(dict[str, Tensor]().items, bucket_bytes=-1)


# --- processes ----------------------------------------------------------------------------------------------


class Nursery:
    """Starts member processes in milliseconds, and ends all of them."""

    def __init__(self) -> None:
        self._control, other = socket.socketpair()
        self.members: list[Remote] = []
        self._process = subprocess.Popen([sys.executable, str(_HERE), str(other.fileno())], pass_fds=[other.fileno()])
        other.close()
        self._control.settimeout(LIMIT_S)

    def start(self, plan: Any) -> Remote:
        near, far = socket.socketpair()
        socket.send_fds(self._control, [b"x"], [far.fileno()])
        far.close()
        pid = int.from_bytes(self._control.recv(8), "little")
        member = Remote(pid, Connection(near.detach()), plan)
        self.members.append(member)
        return member

    def clear(self) -> None:
        for member in self.members:
            member.end()
        self.members.clear()

    def end(self) -> None:
        self._control.close()
        self._process.kill()
        self._process.wait(LIMIT_S)


@pytest.fixture(scope="module")
def nursery(store: Any) -> Iterator[Nursery]:
    nursery = Nursery()
    try:
        yield nursery
    finally:
        try:
            nursery.clear()
        finally:
            nursery.end()


SIZES = (2_000_000,) * 16


@pytest.fixture
def fleet_of(store: Any, run: str, nursery: Nursery) -> Iterator[Callable[..., Crew]]:
    def make(*, shards: int = 3, hold_at: dict[int, int] | None = None, **changes: Any) -> Crew:
        plans = [Plan(trainer=True, sizes=SIZES, **changes)]
        plans += [
            Plan(trainer=False, sizes=SIZES, hold_at=(hold_at or {}).get(rank), **changes)
            for rank in range(1, shards + 1)
        ]
        members = [nursery.start(plan) for plan in plans]
        members[0].ask("fill", 1)
        return Crew(store, members, run=run)

    try:
        yield make
    finally:
        nursery.clear()


def survivors_complete_the_next_epoch(crew: Crew, victim: int, *, epoch: int = 2) -> None:
    """The rest forms anew, under another nonce, and every shard of it then holds the same bytes."""
    crew.members.pop(victim)
    expected = crew.members[0].ask("fill", epoch)  # type: ignore[attr-defined]
    crew.form(epoch=epoch)
    replies = crew.transfer(epoch, 2, version=Version(0, 100))
    assert [reply.digest for reply in replies] == [expected] * len(crew.members)
    assert [m.ask("digest") for m in crew.members[1:]] == [expected] * (len(crew.members) - 1)  # type: ignore[attr-defined]


def stuck(members: Sequence[Any]) -> bool:
    """Nobody has moved on for a while: the collective waits for the frozen one, in the library and in us."""
    before = [member.ask("progress") for member in members]
    time.sleep(0.3)
    return [member.ask("progress") for member in members] == before


def left_at_once(crew: Crew, ranks: Sequence[int], *, epoch: int = 1) -> list[Progress]:
    begun = time.monotonic()
    futures = [crew.members[rank].send(Leave(stamp=Stamp(epoch, 9), breaking=Stamp(epoch, 2))) for rank in ranks]
    replies = answers(futures)
    assert elapsed(begun) < AT_ONCE_S
    return progress(replies)


def test_survivors_of_a_receiver_killed_in_mid_transfer_carry_on(fleet_of: Callable[..., Crew]) -> None:
    """R1, R3, T2: the victim is inside its third bucket when it dies."""
    crew = fleet_of(hold_at={2: 3})
    victim: Any = crew.members[2]
    crew.form()
    running = crew.begin()
    victim.wait_for(("accepted", 3))
    victim.signal(signal.SIGKILL)
    assert victim.gone.wait(LIMIT_S)
    begun = time.monotonic()
    left = left_at_once(crew, (0, 1, 3))
    replies = answers(running[rank] for rank in (0, 1, 3))
    assert elapsed(begun) < AT_ONCE_S
    assert left[0] is Progress.ENTERED
    assert set(left[1:]) <= {Progress.ENTERED, Progress.PARTIAL, Progress.STUCK}
    assert set(causes(replies)) <= {Cause.DEPARTURE, Cause.PEER}
    survivors_complete_the_next_epoch(crew, 2)


def test_survivors_of_a_receiver_killed_before_the_gate_are_not_torn(fleet_of: Callable[..., Crew]) -> None:
    """M10, R2: a death between forming and the transfer."""
    crew = fleet_of()
    crew.form()
    victim: Any = crew.members[3]
    victim.signal(signal.SIGKILL)
    assert victim.gone.wait(LIMIT_S)
    running = [crew.members[rank].send(transfer_request(timeout_s=2.0)) for rank in (0, 1, 2)]
    replies = answers(running)
    assert set(causes(replies)) <= {Cause.PEER, Cause.DEADLINE}
    assert left_at_once(crew, (0, 1, 2)) == [Progress.ENTERED] * 3
    survivors_complete_the_next_epoch(crew, 3)


def test_a_stopped_receiver_costs_the_others_their_deadline_at_most(fleet_of: Callable[..., Crew]) -> None:
    """R6, T3: no exception, no progress; the root's wait ends by itself, within its own bound."""
    crew = fleet_of(hold_at={1: 2})
    frozen: Any = crew.members[1]
    crew.form()
    running = crew.begin(timeout_s=2.0)
    frozen.wait_for(("accepted", 2))
    frozen.signal(signal.SIGSTOP)
    begun = time.monotonic()
    reply = running[0].result(LIMIT_S)
    assert elapsed(begun) < 5
    assert reply.cause is Cause.DEADLINE
    assert "waited 2.0 s for bucket" in reply.message
    left_at_once(crew, (0, 2, 3))
    answers(running[rank] for rank in (2, 3))
    survivors_complete_the_next_epoch(crew, 1)


def test_others_leave_a_stopped_receiver_at_once_and_it_cannot_come_back(fleet_of: Callable[..., Crew]) -> None:
    """F8, F12, T3: what is stuck in the old group is set aside and released later; a woken zombie meets
    nobody.
    """
    crew = fleet_of(hold_at={3: 2})
    frozen: Any = crew.members[3]
    crew.form()
    running = crew.begin(timeout_s=3.0)
    frozen.wait_for(("accepted", 2))
    frozen.signal(signal.SIGSTOP)
    others: Any = crew.members[:3]
    wait_until(lambda: stuck(others))
    left = left_at_once(crew, (0, 1, 2))
    assert left[0] is Progress.ENTERED
    begun = time.monotonic()
    assert set(causes(answers(running[rank] for rank in (0, 1, 2)))) <= {Cause.DEPARTURE, Cause.PEER}
    assert elapsed(begun) < AT_ONCE_S
    assert sum(member.ask("buried") for member in others) > 0
    zombie_request = crew.join_request(3, epoch=2, nonce="secret-1", timeout_s=2.0)
    survivors_complete_the_next_epoch(crew, 3)
    frozen.signal(signal.SIGCONT)
    frozen.ask("release")
    assert frozen.send(zombie_request).result(LIMIT_S).cause in (Cause.DEADLINE, Cause.CLAIM, Cause.PEER)
    assert [type(reply) for reply in crew.transfer(2, 3, version=Version(0, 101))] == [Transferred] * 3
    wait_until(lambda: [member.ask("buried") for member in others] == [0, 0, 0])


def test_closing_never_waits_for_a_stopped_peer(fleet_of: Callable[..., Crew]) -> None:
    """F8: neither the answer nor the end of the process waits for what is stuck."""
    crew = fleet_of(shards=2, hold_at={2: 1})
    frozen: Any = crew.members[2]
    root: Any = crew.members[0]
    crew.form()
    running = crew.begin(timeout_s=20.0)
    frozen.wait_for(("accepted", 1))
    frozen.signal(signal.SIGSTOP)
    begun = time.monotonic()
    assert root.send(Close()).result(LIMIT_S) == Closed()
    assert running[0].result(LIMIT_S).cause is Cause.DEPARTURE
    assert elapsed(begun) < AT_ONCE_S
    root.send(Command(name="exit"))
    wait_until(lambda: not Path(f"/proc/{root.pid}").exists())
    assert elapsed(begun) < 10


def test_epochs_leave_nothing_behind(fleet_of: Callable[..., Crew]) -> None:
    """F11: neither descriptors nor threads nor groups pile up with the recoveries."""
    crew = fleet_of(shards=1)
    members: Any = crew.members

    def count() -> list[tuple[int, int, int]]:
        return [(m.ask("buried"), m.ask("fds"), m.ask("tasks")) for m in members]

    def live_through(epoch: int) -> None:
        crew.form(epoch=epoch)
        assert [type(reply) for reply in crew.transfer(epoch, 2)] == [Transferred] * 2
        crew.leave(epoch=epoch)

    live_through(1)
    wait_until(lambda: [buried for buried, _, _ in count()] == [0, 0])
    first = count()
    for epoch in range(2, 16):
        live_through(epoch)
    wait_until(lambda: all(now <= then for now, then in zip(count(), first, strict=True)))


def test_no_rank_holds_more_than_two_buckets(fleet_of: Callable[..., Crew]) -> None:
    """The peak of resident memory during a transfer of many buckets, as the kernel counts it."""
    bucket = 8 << 20
    crew = fleet_of(shards=2, bucket_bytes=bucket, discard=True, tied=40)
    crew.form()
    crew.transfer(attempt=2)
    members: Any = crew.members
    before = [member.ask("reset_peak") for member in members]
    replies = crew.transfer(attempt=3)
    assert {reply.bytes for reply in replies} == {40 * sum(SIZES)}
    grown = [member.ask("peak") - least for member, least in zip(members, before, strict=True)]
    assert max(grown) < 2 * bucket + (4 << 20), grown
