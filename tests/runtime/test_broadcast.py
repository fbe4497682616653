"""The broadcast transport: who is asked what, and which event an answer becomes.

Its members are futures that the test answers, so that nothing but the transport itself is between the two.
"""

from __future__ import annotations

from concurrent.futures import Future

import pytest

from reknit.runtime import messages
from reknit.runtime.broadcast import BroadcastTransport
from reknit.runtime.seams import Trainer, Worker
from reknit.runtime.simulated import SimulatedRendezvous, VirtualClock
from reknit.spec.config import RefitConfig
from reknit.spec.lifecycle import commands as cmd
from reknit.spec.lifecycle import events as ev
from reknit.spec.lifecycle.events import Cause, Progress, Stamp, Version
from reknit.spec.roster import Roster, Topology

TOPOLOGY = Topology(train_world_size=1, dp_size=3)
ROSTER = Roster({0: 0, 2: 4})  # slot 1 is absent, slot 2 was replaced four times
MEMBERSHIP = TOPOLOGY.membership(ROSTER)
MEMBERS = (Trainer(0), Worker(0, 0, 0), Worker(2, 4, 0))
FIRST, SECOND = Stamp(3, 1), Stamp(3, 2)
V1, V2 = Version(0, 1), Version(0, 2)


class Members:
    """Whoever is asked answers when the test says so."""

    def __init__(self) -> None:
        self.asked: list[tuple[object, messages.Request, Future]] = []

    def call(self, member, request):
        self.asked.append((member, request, Future()))
        return self.asked[-1][2]

    def requests(self, kind):
        return [(member, request) for member, request, _ in self.asked if isinstance(request, kind)]

    def answers(self, kind):
        return [answer for _, request, answer in self.asked if isinstance(request, kind)]


class Setting:
    def __init__(self) -> None:
        self.members, self.clock, self.rendezvous = Members(), VirtualClock(), SimulatedRendezvous()
        self.transport = BroadcastTransport(
            fleet=self.members, rendezvous=self.rendezvous, clock=self.clock, config=RefitConfig()
        )
        self.heard: list[ev.Event] = []
        self.transport.open(self.heard.append)

    def transfer(self, stamp, version):
        self.transport.transfer(cmd.Transfer(stamp, ROSTER, version, ev.Payload.FULL), MEMBERSHIP)

    def leave(self, stamp, breaking):
        self.transport.leave(cmd.Leave(stamp, breaking, ROSTER, (0, 1, 2)), MEMBERSHIP)


@pytest.fixture
def setting() -> Setting:
    return Setting()


def receipt(stamp, rank, version, digest="digest"):
    return messages.Transferred(stamp=stamp, rank=rank, version=version, digest=digest, tensors=1, bytes=8, seconds=0.5)


# --- forming -------------------------------------------------------------------------------------------------------


def test_every_rank_is_told_the_same_charter_and_its_own_seat(setting):
    setting.transport.form(cmd.Form(FIRST, ROSTER), MEMBERSHIP)
    joins = setting.members.requests(messages.Join)
    assert [member for member, _ in joins] == [*MEMBERS]
    assert [join.rank for _, join in joins] == [0, 1, 2]
    assert len({join.charter for _, join in joins}) == 1


def test_only_who_shook_hands_on_this_charter_has_joined(setting):
    """F6: a process that met others, or met under another epoch's word, is in another communicator."""
    setting.transport.form(cmd.Form(FIRST, ROSTER), MEMBERSHIP)
    (_, join), *_ = setting.members.requests(messages.Join)
    ours, other, _ = setting.members.answers(messages.Join)
    ours.set_result(messages.Joined(stamp=FIRST, rank=0, digest=join.charter))
    other.set_result(messages.Joined(stamp=FIRST, rank=1, digest="f" * 64))
    assert setting.heard == [
        ev.RankJoined(FIRST, 0),
        ev.RankFailed(FIRST, 1, Cause.CLAIM, "shook hands on charter ffffffffffff, not ours"),
    ]


def test_each_epoch_meets_at_a_place_of_its_own(setting):
    for stamp in (Stamp(1, 0), Stamp(2, 0)):
        setting.transport.form(cmd.Form(stamp, ROSTER), MEMBERSHIP)
    assert len({join.nonce for _, join in setting.members.requests(messages.Join)}) == 2


# --- transferring --------------------------------------------------------------------------------------------------


def test_what_a_rank_says_that_it_carried_is_what_the_table_hears(setting):
    """H10: whether that is what was asked for, the table decides."""
    setting.transfer(FIRST, V2)
    right, wrong, _ = setting.members.answers(messages.Transfer)
    right.set_result(receipt(FIRST, 0, V2))
    wrong.set_result(receipt(FIRST, 1, V1))
    assert setting.heard == [ev.RankTransferred(FIRST, 0, V2), ev.RankTransferred(FIRST, 1, V1)]


def test_a_receipt_of_an_older_transfer_is_none_of_the_newer_one(setting):
    """It is told under its own stamp, and neither reported nor taken for progress of what runs now."""
    setting.transfer(FIRST, V1)
    old = setting.members.answers(messages.Transfer)
    old[0].set_result(receipt(FIRST, 0, V1, digest="old"))
    setting.transfer(SECOND, V2)
    new = setting.members.answers(messages.Transfer)[3:]
    old[1].set_result(receipt(FIRST, 1, V1, digest="old"))
    assert setting.transport.receipts(V2) == {}
    new[0].set_result(receipt(SECOND, 0, V2, digest="new"))
    assert {rank: said.digest for rank, said in setting.transport.receipts(V2).items()} == {0: "new"}
    assert setting.transport.receipts(V1) == {}
    assert [event.stamp for event in setting.heard] == [FIRST, FIRST, SECOND]
    setting.clock.advance(RefitConfig().progress_timeout_s / 2)
    assert [member for member, _ in setting.members.requests(messages.Status)] == [MEMBERS[1]]


def test_the_first_rank_that_is_not_done_is_asked_how_far_it_is(setting):
    """R7: and only a step forward is progress."""
    setting.transfer(FIRST, V1)
    setting.members.answers(messages.Transfer)[0].set_result(receipt(FIRST, 0, V1))
    setting.heard.clear()
    for stamp, bucket in ((FIRST, 3), (FIRST, 3), (SECOND, 4), (FIRST, 5)):
        setting.clock.advance(RefitConfig().progress_timeout_s / 3)
        setting.members.answers(messages.Status)[-1].set_result(
            messages.StatusReply(operation="transfer", stamp=stamp, bucket=bucket, buckets=9)
        )
    assert {member for member, _ in setting.members.requests(messages.Status)} == {MEMBERS[1]}
    assert setting.heard == [ev.RankProgressed(FIRST, 1)] * 2


@pytest.mark.parametrize("how", ["everybody is done", "it was broken off"])
def test_when_a_transfer_is_over_nobody_is_asked_any_more(setting, how):
    setting.transfer(FIRST, V1)
    if how == "everybody is done":
        for rank, answer in enumerate(setting.members.answers(messages.Transfer)):
            answer.set_result(receipt(FIRST, rank, V1))
    else:
        setting.leave(SECOND, FIRST)
    setting.clock.advance(100 * RefitConfig().progress_timeout_s)
    assert setting.members.requests(messages.Status) == []


def test_the_questions_of_an_older_transfer_end_with_it(setting):
    """Otherwise each transfer that is broken off would add its own for ever."""
    for attempt in range(1, 6):
        setting.transfer(Stamp(3, attempt), V1)
    setting.clock.advance(RefitConfig().progress_timeout_s + 1)
    assert len(setting.members.requests(messages.Status)) == 3


# --- leaving and failing -------------------------------------------------------------------------------------------


def test_who_is_asked_to_leave_is_told_which_operation_is_broken_off(setting):
    """Without it a rank would answer for an earlier transfer of the same epoch, and hold a version it does not."""
    setting.leave(SECOND, FIRST)
    leaves = setting.members.requests(messages.Leave)
    assert leaves == [(member, messages.Leave(stamp=SECOND, breaking=FIRST)) for member in MEMBERS]


def test_how_far_a_rank_got_is_told_in_its_own_words(setting):
    setting.leave(SECOND, FIRST)
    for rank, progress in enumerate((Progress.COMPLETE, Progress.PARTIAL, Progress.NEVER_ENTERED)):
        setting.members.answers(messages.Leave)[rank].set_result(
            messages.Left(stamp=SECOND, rank=rank, progress=progress)
        )
    assert [event.progress for event in setting.heard] == [
        Progress.COMPLETE,
        Progress.PARTIAL,
        Progress.NEVER_ENTERED,
    ]


def test_a_rank_that_fails_says_why_and_one_that_is_gone_is_a_closed_connection(setting):
    setting.transfer(FIRST, V1)
    refused, gone, confused = setting.members.answers(messages.Transfer)
    refused.set_result(messages.Failed(stamp=FIRST, rank=0, cause=Cause.REJECTED, message="out of memory"))
    gone.set_exception(ConnectionError("the process is gone"))
    confused.set_result(messages.Closed())
    assert [(event.rank, event.cause) for event in setting.heard] == [
        (0, Cause.REJECTED),
        (1, Cause.PEER),
        (2, Cause.CLAIM),
    ]
    assert [event.detail for event in setting.heard][:2] == ["out of memory", "ConnectionError: the process is gone"]
    assert "participant.handle(request)" in setting.heard[2].detail


def test_a_call_that_is_cancelled_is_a_rank_that_is_gone(setting):
    setting.transfer(FIRST, V1)
    setting.members.answers(messages.Transfer)[2].cancel()
    assert [(event.rank, event.cause) for event in setting.heard] == [(2, Cause.PEER)]


def test_closing_the_transport_closes_the_place_where_ranks_meet(setting):
    closed = []
    setting.rendezvous.close = lambda: closed.append(True)
    setting.transport.close()
    assert closed == [True]
