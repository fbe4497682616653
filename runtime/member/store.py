"""The controller's store, as one member sees it: connections to it, a place claimed in it, the way to it.

Here is also the handle to the part of torch that it exports without types.
"""

from __future__ import annotations

import importlib
import logging
import socket
import threading
from datetime import timedelta
from typing import Any, Protocol

from ...spec.lifecycle.events import Cause
from ..messages import Join
from .waits import OperationFailed

log = logging.getLogger(__name__)

# The share of a join's time for connecting. An inner wait ends before the outer one: it can name the culprit.
_CONNECT_SHARE = 0.5

# Where torch keeps the groups, stores and options that it exports only in part, or without their types.
c10d: Any = importlib.import_module("torch._C._distributed_c10d")


class Store(Protocol):
    """The part of torch's stores that forming needs."""

    def set(self, key: str, value: bytes) -> None: ...

    def get(self, key: str) -> bytes: ...

    def add(self, key: str, amount: int) -> int: ...

    def check(self, keys: list[str]) -> bool: ...

    def wait(self, keys: list[str], timeout: timedelta) -> None: ...

    def compare_set(self, key: str, expected: str, desired: str) -> bytes: ...


class StoreConnections:
    """The idle connections of one participant to the controller's store; kept from one epoch to the next.

    A new connection may cost seconds, for everybody: torch looks up the peer's name when it connects, the store
    does so in the one thread that serves all members, and a resolver may be slow. A connection is in the hands of
    one attempt at a time, since an attempt that was abandoned blocks inside it until its own time has passed.
    """

    def __init__(self) -> None:
        self._idle: list[tuple[tuple[str, int], Any]] = []
        self._lock = threading.Lock()
        self._closed = False

    def take(self, join: Join) -> Any:
        """A connection that works. Blocks. Raises `OperationFailed` with TRANSIENT."""
        place = (join.store_host, join.store_port)
        timeout = timedelta(seconds=join.timeout_s * _CONNECT_SHARE)
        while (client := self._take_idle(place)) is not None:
            try:
                client.set_timeout(timeout)
                client.check(["charter"])
                return client
            except RuntimeError as error:
                log.info("store connection lost store=%s:%d error=%r", *place, str(error))
        try:
            return c10d.TCPStore(*place, is_master=False, timeout=timeout, wait_for_workers=False)
        except RuntimeError as error:
            raise OperationFailed(
                Cause.TRANSIENT, f"rank {join.rank} could not reach the store at {place[0]}:{place[1]}: {error}"
            ) from error

    def put_back(self, join: Join, client: Any) -> None:
        """Whoever took it is done with it, in whatever way."""
        with self._lock:
            if not self._closed:
                self._idle.append(((join.store_host, join.store_port), client))

    def close(self) -> None:
        """Keep none any more."""
        with self._lock:
            self._closed = True
            self._idle.clear()

    def _take_idle(self, place: tuple[str, int]) -> Any:
        with self._lock:
            for index, (where, client) in enumerate(self._idle):
                if where == place:
                    del self._idle[index]
                    return client
        return None


def claim(join: Join, client: Any) -> Store:
    """Take the place in the store first: two processes with one rank would end as a missing *other* rank.

    Returns the store under the prefix of this epoch. The nonce in it keeps a process out that was not asked: it
    cannot know where the members meet. Raises `OperationFailed` with CLAIM, here and on whoever is still waiting.
    """
    store: Store = c10d.PrefixStore(f"{join.run}/{join.stamp.epoch}/{join.nonce}", client)
    refusal = ""
    if store.compare_set("charter", "", join.charter).decode() != join.charter:
        refusal = (
            f"rank {join.rank} was told world_size={join.world_size} train_world_size={join.train_world_size} "
            f"for epoch {join.stamp.epoch}, and another member something else"
        )
    elif (claims := store.add(f"claim/{join.rank}", 1)) > 1:
        refusal = f"rank {join.rank} of epoch {join.stamp.epoch} is taken: {claims} processes claim it"
    if refusal:
        store.set("refused", refusal.encode())
        raise OperationFailed(Cause.CLAIM, refusal)
    return store


def own_address(host: str, port: int) -> str:
    """The address of this process from which it reaches the store. Raises `OperationFailed` with TRANSIENT."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(address)  # a datagram socket: nothing is sent
            return str(probe.getsockname()[0])
    except OSError as error:
        raise OperationFailed(Cause.TRANSIENT, f"no route from here to the store at {host}:{port}: {error}") from error
