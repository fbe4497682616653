"""The broadcast transport: rank 0 sends every weight to every rank of one torch.distributed group.

It turns the three collective commands into requests to the members and their replies into events. The group itself
lives in the members (`member`); here is only who is asked what, under which stamp. The first build and every
rebuild go through the same `form`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from concurrent.futures import CancelledError, Future
from functools import partial

from ..spec.config import RefitConfig
from ..spec.lifecycle import events as ev
from ..spec.lifecycle.commands import Form, Leave, Transfer
from ..spec.lifecycle.events import Cause, Stamp, Version
from ..spec.membership import RefitMembership
from . import messages
from .seams import Clock, Feed, Fleet, Rendezvous, member_at

log = logging.getLogger(__name__)


BACKENDS = ("gloo", "nccl")


class BroadcastTransport:
    """Broadcast over gloo or nccl.

    backend: "gloo" is what the tests run on; "nccl" has not been run on hardware.
    verify: every rank digests every byte it sends or receives, and the digests are compared before success.
    """

    def __init__(
        self,
        *,
        fleet: Fleet,
        rendezvous: Rendezvous,
        clock: Clock,
        config: RefitConfig | None = None,
        backend: str = "gloo",
        verify: bool = True,
    ) -> None:
        if backend not in BACKENDS:
            raise ValueError(f"backend must be one of {', '.join(BACKENDS)}, got {backend!r}")
        self._fleet = fleet
        self._rendezvous = rendezvous
        self._clock = clock
        self._config = config or RefitConfig()
        self._backend = backend
        self._verify = verify
        self._feed: Feed = lambda event: None
        self._receipts: dict[int, messages.Transferred] = {}
        self._carrying: tuple[Stamp, Version] | None = None
        self._awaited: set[int] = set()
        self._reached: dict[int, int] = {}

    def open(self, feed: Feed) -> None:
        self._feed = feed

    def form(self, command: Form, membership: RefitMembership) -> None:
        point = self._rendezvous.meeting_point()
        for rank in range(membership.world_size):
            request = messages.Join(
                stamp=command.stamp,
                run=point.run,
                nonce=point.nonce,
                store_host=point.host,
                store_port=point.port,
                rank=rank,
                world_size=membership.world_size,
                train_world_size=membership.train_world_size,
                backend=self._backend,
                timeout_s=self._config.join_timeout_s,
            )
            answer = self._fleet.call(member_at(membership, command.roster, rank), request)
            answer.add_done_callback(partial(self._joined, command.stamp, rank, request.charter))

    def transfer(self, command: Transfer, membership: RefitMembership) -> None:
        self._receipts, self._carrying = {}, (command.stamp, command.version)
        self._awaited, self._reached = set(range(membership.world_size)), {}
        request = messages.Transfer(
            stamp=command.stamp,
            version=command.version,
            timeout_s=self._config.wait_timeout_s,
            verify=self._verify,
        )
        for rank in range(membership.world_size):
            answer = self._fleet.call(member_at(membership, command.roster, rank), request)
            answer.add_done_callback(partial(self._transferred, command.stamp, rank))
        self._ask_later(command, membership)

    def leave(self, command: Leave, membership: RefitMembership) -> None:
        self._awaited = set()
        request = messages.Leave(stamp=command.stamp, breaking=command.breaking)
        for rank in command.ranks:
            answer = self._fleet.call(member_at(membership, command.roster, rank), request)
            answer.add_done_callback(partial(self._left, command.stamp, rank))

    def receipts(self, version: Version) -> Mapping[int, messages.Transferred]:
        return dict(self._receipts) if self._carrying and self._carrying[1] == version else {}

    def close(self) -> None:
        self._rendezvous.close()

    # --- progress --------------------------------------------------------------------------------------------------

    def _ask_later(self, command: Transfer, membership: RefitMembership) -> None:
        """Three times within the progress deadline, ask the first rank that is not done how far it is.

        A broadcast moves for all or for none, so one rank is enough; a big refit that moves is then not a hang.
        """
        pause = self._config.progress_timeout_s / 3
        self._clock.call_later(pause, lambda: self._ask(command, membership))

    def _ask(self, command: Transfer, membership: RefitMembership) -> None:
        rank = min(self._awaited, default=None)
        if rank is None or self._carrying is None or self._carrying[0] != command.stamp:
            return
        answer = self._fleet.call(member_at(membership, command.roster, rank), messages.Status())
        answer.add_done_callback(partial(self._progressed, command.stamp, rank))
        self._ask_later(command, membership)

    def _progressed(self, stamp: Stamp, rank: int, answer: Future[messages.Reply]) -> None:
        match _outcome(answer):
            case messages.StatusReply(stamp=at, bucket=bucket) if at == stamp and bucket > self._reached.get(rank, 0):
                self._reached[rank] = bucket
                self._feed(ev.RankProgressed(stamp, rank))

    # --- replies ---------------------------------------------------------------------------------------------------

    def _joined(self, stamp: Stamp, rank: int, charter: str, answer: Future[messages.Reply]) -> None:
        match _outcome(answer):
            case messages.Joined(digest=digest) if digest == charter:
                self._feed(ev.RankJoined(stamp, rank))
            case messages.Joined(digest=digest):
                self._feed(ev.RankFailed(stamp, rank, Cause.CLAIM, f"shook hands on charter {digest[:12]}, not ours"))
            case other:
                self._feed(_failure(stamp, rank, other))

    def _transferred(self, stamp: Stamp, rank: int, answer: Future[messages.Reply]) -> None:
        match _outcome(answer):
            case messages.Transferred() as receipt:
                if self._carrying and stamp == self._carrying[0]:
                    self._receipts[rank] = receipt
                    self._awaited.discard(rank)
                self._feed(ev.RankTransferred(stamp, rank, receipt.version))
            case other:
                self._feed(_failure(stamp, rank, other))

    def _left(self, stamp: Stamp, rank: int, answer: Future[messages.Reply]) -> None:
        match _outcome(answer):
            case messages.Left(progress=progress, detail=detail):
                self._feed(ev.RankLeft(stamp, rank, progress, detail))
            case other:
                self._feed(_failure(stamp, rank, other))


def _outcome(answer: Future[messages.Reply]) -> messages.Reply | BaseException:
    try:
        return answer.result(timeout=0)
    except (Exception, CancelledError) as error:
        return error


def _failure(stamp: Stamp, rank: int, outcome: messages.Reply | BaseException) -> ev.RankFailed:
    match outcome:
        case messages.Failed(cause=cause, message=message):
            return ev.RankFailed(stamp, rank, cause, message)
        case BaseException():
            # The call itself failed: the process is gone or out of reach. Its own text travels with the event.
            return ev.RankFailed(stamp, rank, Cause.PEER, f"{type(outcome).__name__}: {outcome}"[:2000])
        case other:
            text = f"answered with {type(other).__name__}; does the actor's method return participant.handle(request)?"
            return ev.RankFailed(stamp, rank, Cause.CLAIM, text)
