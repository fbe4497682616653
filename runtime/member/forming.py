"""Forming: one attempt to take a place in the communicator of an epoch, and the handshake that ends it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch

from ...spec.lifecycle.events import Cause
from ..messages import Greeting, Join, Standing
from . import graveyard
from .group import RefitGroup, make_library
from .manifest import BucketPlan, Manifest
from .store import Store, StoreConnections, claim
from .waits import Cancellation, OperationFailed, classify

log = logging.getLogger(__name__)

# The share of a join's time for meeting. An inner wait ends before the outer one: it can name the culprit.
_MEET_SHARE = 0.9
_LONGEST_PAUSE_S = 0.02


class Forming:
    """One attempt to take a place in a communicator, in a thread of its own that can be abandoned.

    It meets the other members, learns what the root will send, and shakes hands: a group whose members have
    not all seen each other's payload is not formed. What becomes of it is decided once: it is adopted, or
    it is abandoned, and then a success that comes late goes to the graveyard instead of becoming current.
    """

    def __init__(
        self,
        join: Join,
        *,
        offers: BucketPlan | None,
        expects: Manifest | None,
        device: torch.device,
        connections: StoreConnections,
        cancellation: Cancellation,
        ends: float,
    ) -> None:
        """offers: what the root publishes. expects: what a receiver takes. ends: on the monotonic clock."""
        self.finished = False
        self.stage = "waiting to start"
        # What running out of time means at this stage.
        self.overdue = Cause.DEADLINE
        self._join = join
        self._offers = offers
        self._expects = expects
        self._device = device
        self._connections = connections
        self._cancellation = cancellation
        self._ends = ends
        self._outcome: tuple[RefitGroup, BucketPlan] | None = None
        self._error: Exception | None = None
        self._abandoned = False

    def stop(self, reason: str) -> None:
        """Break it off, wherever it can be."""
        self._cancellation.cancel(reason)

    def start(self) -> None:
        """Begin. `finished` turns true, under the condition of `cancellation`, when the outcome is known."""
        graveyard.attempt_began(self)
        name = f"reknit-join-{self._join.stamp.epoch}.{self._join.rank}"
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def adopt(self) -> tuple[RefitGroup, BucketPlan]:
        """The group and what travels in it. Raises what made the attempt fail. Under the condition."""
        if self._error is not None:
            raise self._error
        assert self._outcome is not None, "adopted before it finished"
        outcome, self._outcome = self._outcome, None
        return outcome

    def abandon(self) -> None:
        """Nobody waits for this attempt any more. Without effect on what was adopted."""
        with self._cancellation.changed:
            self._abandoned = True
            outcome, self._outcome = self._outcome, None
        if outcome is not None:
            outcome[0].bury("its join was abandoned")

    def _run(self) -> None:
        outcome: tuple[RefitGroup, BucketPlan] | None = None
        failure: Exception | None = None
        try:
            outcome = self._form()
        except Exception as error:  # raised again in the thread that waits
            failure = error
        with self._cancellation.changed:
            late = self._abandoned
            self._error = failure
            self._outcome = None if late else outcome
            self.finished = True
            self._cancellation.changed.notify_all()
        if late:
            words = str(failure or "").replace(self._join.nonce, "...")
            log.info("abandoned join ended epoch=%d rank=%d error=%r", *self._place(), words)
        if late and outcome is not None:
            outcome[0].bury("its join was abandoned before it succeeded")
        graveyard.attempt_ended(self)

    def _form(self) -> tuple[RefitGroup, BucketPlan]:
        join = self._join
        self.stage = f"connecting to the store at {join.store_host}:{join.store_port}"
        self.overdue = Cause.TRANSIENT
        client = self._connections.take(join)
        self.overdue = Cause.DEADLINE
        try:
            return self._form_with(client)
        finally:
            self._connections.put_back(join, client)

    def _form_with(self, client: Any) -> tuple[RefitGroup, BucketPlan]:
        join, begun = self._join, time.monotonic()
        where = f"rank {join.rank} in epoch {join.stamp.epoch}"
        try:
            store = claim(join, client)
            self.stage = "waiting for the other members"
            self._await_members(store)
        except RuntimeError as error:
            raise OperationFailed(Cause.TRANSIENT, f"{where}, at the store: {error}") from error
        if self._device.type == "cuda":
            torch.cuda.set_device(self._device)
        self.stage = "connecting to the other members"
        try:
            library = make_library(join, store, timedelta(seconds=self._remaining() * _MEET_SHARE))
        except RuntimeError as error:
            raise classify(error, f"{where}, connecting to {join.world_size - 1} others") from error
        met = time.monotonic()
        group = RefitGroup(library, join=join, device=self._device, changed=self._cancellation.changed)
        try:
            self.stage = "waiting for the root's tensor list"
            plan = self._learn_plan(store)
            self.stage = "shaking hands"
            self._shake_hands(group, plan, store)
        except BaseException:
            group.bury("its handshake failed")
            raise
        log.debug(
            "group formed epoch=%d rank=%d meet_s=%.3f handshake_s=%.3f",
            *(*self._place(), met - begun, time.monotonic() - met),
        )
        return group, plan

    def _await_members(self, store: Store) -> None:
        """Wait here until everybody has claimed a place, because here the wait can be broken off.

        The library would wait as well, but deaf. It is entered when nobody is missing, and then takes milliseconds.
        """
        claims = [f"claim/{rank}" for rank in range(self._join.world_size)]
        until = time.monotonic() + self._remaining() * _MEET_SHARE
        pause_s = 0.001
        while not store.check(claims):
            if store.check(["refused"]):
                raise OperationFailed(Cause.CLAIM, store.get("refused").decode())
            if time.monotonic() > until:
                absent = [rank for rank, claim in enumerate(claims) if not store.check([claim])]
                raise OperationFailed(
                    Cause.DEADLINE,
                    f"rank {self._join.rank} waited {self._join.timeout_s * _MEET_SHARE:.1f} s for the members of "
                    f"epoch {self._join.stamp.epoch}; never claimed their place: ranks {absent}",
                )
            self._cancellation.wait(lambda: False, timeout_s=pause_s)
            pause_s = min(1.5 * pause_s, _LONGEST_PAUSE_S)

    def _learn_plan(self, store: Store) -> BucketPlan:
        where = f"rank {self._join.rank} with the tensor list of epoch {self._join.stamp.epoch}"
        try:
            if self._offers is not None:
                store.set("plan", self._offers.to_bytes())
                return self._offers
            store.wait(["plan"], timedelta(seconds=self._remaining()))
            return BucketPlan.from_bytes(store.get("plan"))
        except RuntimeError as error:
            raise classify(error, where) from error

    def _shake_hands(self, group: RefitGroup, plan: BucketPlan, store: Store) -> None:
        differences: tuple[str, ...] = ()
        standing = Standing.UNSTATED
        if self._expects is not None:
            differences = self._expects.differences(plan.manifest)
            standing = Standing.DIFFERS if differences else Standing.AGREED
        if differences:
            # Whichever rank is heard first must be able to say what the matter is, not only that there is one.
            store.set(f"differs/{self._join.rank}", "; ".join(differences).encode())
        greeting = Greeting(charter=self._join.charter, rank=self._join.rank, standing=standing, plan=plan.digest)
        what = f"the handshake of epoch {self._join.stamp.epoch}"
        rows = group.exchange(
            greeting.encode(), cancellation=self._cancellation, timeout_s=self._remaining(), what=what
        )

        def told(rank: int) -> str:
            key = f"differs/{rank}"
            return store.get(key).decode() if store.check([key]) else "it read another list"

        check_greetings([Greeting.decode(row) for row in rows], mine=greeting, told=told)

    def _remaining(self) -> float:
        return max(self._ends - time.monotonic(), 0.001)

    def _place(self) -> tuple[int, int]:
        return self._join.stamp.epoch, self._join.rank


def check_greetings(greetings: list[Greeting], *, mine: Greeting, told: Callable[[int], str]) -> None:
    """Refuse a group whose members were told different things, on every rank alike.

    greetings: by the rank at which the group received them. told: what a rank has against the tensor list, in its
    own words. Raises `OperationFailed`: CLAIM for a foreign charter or a rank that is not there once,
    MANIFEST.
    """
    foreign = [rank for rank, greeting in enumerate(greetings) if greeting.charter != mine.charter]
    if foreign:
        raise OperationFailed(Cause.CLAIM, f"ranks {foreign} were told another run, epoch, nonce or world size")
    stated = [greeting.rank for greeting in greetings]
    if stated != list(range(len(greetings))):
        raise OperationFailed(Cause.CLAIM, f"every rank must be there once and in its place, but they say {stated}")
    differing = [greeting.rank for greeting in greetings if greeting.standing is Standing.DIFFERS]
    differing += [greeting.rank for greeting in greetings if greeting.plan != greetings[0].plan]
    if differing:
        rank = differing[0]
        others = f" (and ranks {differing[1:]} differ too)" if differing[1:] else ""
        raise OperationFailed(
            Cause.MANIFEST, f"rank {rank} expects other tensors than rank 0 offers{others}: {told(rank)}"
        )
