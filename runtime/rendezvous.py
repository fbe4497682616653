"""Where ranks meet: one TCP store for the whole run, hosted by the controller's process.

Never on a member: a store behind a frozen process blocks its callers past every timeout. Every epoch gets a prefix
with a nonce that only the members of that epoch are told, so a process left over from an older epoch can neither
read stale keys nor take its old rank in a newer one.
"""

from __future__ import annotations

import secrets
from datetime import timedelta

from torch.distributed import TCPStore  # type: ignore[attr-defined]

from .seams import MeetingPoint


class StoreRendezvous:
    """Hosts the store on a free port of this machine.

    host: the address of this machine that every member can reach; the default is for members on this machine only.
    run: names the run in every prefix, so that two runs on one machine can never meet.
    """

    def __init__(self, *, host: str = "127.0.0.1", run: str | None = None) -> None:
        self.host = host
        self.run = run or secrets.token_hex(4)
        # Port 0: the system chooses, and the store keeps what it got; nothing is looked up, closed and handed on.
        self._store: TCPStore | None = TCPStore(
            host, 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=30)
        )
        self.port: int = self._store.port

    def meeting_point(self) -> MeetingPoint:
        """A fresh prefix for one epoch."""
        return MeetingPoint(self.host, self.port, self.run, secrets.token_hex(16))

    def close(self) -> None:
        """Stop the store; ranks that still wait at it fail at once."""
        self._store = None
