"""How a transport of your own is put under the same machine: five lines, at the end of this file."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from functools import partial

from hypothesis import settings

from reknit import Version, commands, events, messages
from reknit.runtime.fuzz import PROFILES, controller_machine
from reknit.runtime.seams import Feed, Fleet, member_at
from reknit.runtime.simulated import SimulatedRun
from reknit.spec.membership import RefitMembership


class SmallTransport:
    """Ask every rank, report every answer. It verifies nothing and measures nothing."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.epochs = 0

    def open(self, feed: Feed) -> None:
        self.feed = feed

    def form(self, command: commands.Form, membership: RefitMembership) -> None:
        self.epochs += 1
        for rank in range(membership.world_size):
            join = messages.Join(
                stamp=command.stamp,
                run="small",
                nonce=f"nonce-{self.epochs}",
                store_host="nowhere",
                store_port=1,
                rank=rank,
                world_size=membership.world_size,
                train_world_size=membership.train_world_size,
                timeout_s=45.0,
            )
            self.ask(command, membership, rank, join)

    def transfer(self, command: commands.Transfer, membership: RefitMembership) -> None:
        request = messages.Transfer(stamp=command.stamp, version=command.version, timeout_s=45.0)
        for rank in range(membership.world_size):
            self.ask(command, membership, rank, request)

    def leave(self, command: commands.Leave, membership: RefitMembership) -> None:
        for rank in command.ranks:
            self.ask(command, membership, rank, messages.Leave(stamp=command.stamp, breaking=command.breaking))

    def ask(
        self,
        command: commands.Form | commands.Transfer | commands.Leave,
        membership: RefitMembership,
        rank: int,
        request: messages.Request,
    ) -> None:
        answer = self.fleet.call(member_at(membership, command.roster, rank), request)
        answer.add_done_callback(partial(self.answered, command.stamp, rank))

    def answered(self, stamp: events.Stamp, rank: int, answer: Future[messages.Reply]) -> None:
        if error := answer.exception():
            self.feed(events.RankFailed(stamp, rank, events.Cause.PEER, str(error)))
            return
        match answer.result():
            case messages.Joined():
                self.feed(events.RankJoined(stamp, rank))
            case messages.Transferred(version=version):
                self.feed(events.RankTransferred(stamp, rank, version))
            case messages.Left(progress=progress, detail=detail):
                self.feed(events.RankLeft(stamp, rank, progress, detail))
            case messages.Failed(cause=cause, message=text):
                self.feed(events.RankFailed(stamp, rank, cause, text))

    def receipts(self, version: Version) -> Mapping[int, messages.Transferred]:
        return {}

    def close(self) -> None:
        pass


def small_run(**sizes) -> SimulatedRun:
    return SimulatedRun(transport=lambda fleet, clock, config: SmallTransport(fleet), **sizes)


TestSmallTransport = controller_machine(small_run).TestCase
TestSmallTransport.settings = settings(PROFILES["ci"], max_examples=30)
