"""The short way in: a controller over a trainer's own Ray actors, with everything else chosen for it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import ray.util

from ..spec.config import RefitConfig
from .broadcast import BroadcastTransport
from .clock import MonotonicClock
from .controller import RefitController
from .journal import FileJournal
from .ray_fleet import Handle, RayFleet, Spawn
from .rendezvous import StoreRendezvous


def refit_controller(
    *,
    trainers: Sequence[Handle],
    shards: Sequence[Sequence[Handle]],
    spawn: Spawn | None = None,
    config: RefitConfig | None = None,
    journal: str | Path | None = None,
    backend: str = "gloo",
    verify: bool = True,
    trainer_incarnation: int = 0,
    host: str | None = None,
) -> RefitController:
    """A `RefitController` over Ray actors and torch.distributed; call `start` on it.

    trainers: one actor per trainer rank, rank 0 holding the weights that are sent. shards: for each slot the actors of
    its workers, in rank order. spawn: `spawn(slot, incarnation)` starts a replacement and returns its actors.
    journal: a file that must not exist yet. backend: "gloo", or "nccl" (not run on hardware). verify: digest and
    compare every byte. host: the address of this process that all actors can reach; Ray's own by default.

    Raises `ValueError` for shards of different widths, `FileExistsError` for a journal that is there already.
    """
    config = config or RefitConfig()
    fleet = RayFleet(trainers=trainers, shards=shards, spawn=spawn)
    keeper = FileJournal(Path(journal)) if journal is not None else None
    rendezvous = StoreRendezvous(host=host or str(ray.util.get_node_ip_address()))  # type: ignore[no-untyped-call]
    clock = MonotonicClock()
    transport = BroadcastTransport(
        fleet=fleet, rendezvous=rendezvous, clock=clock, config=config, backend=backend, verify=verify
    )
    return RefitController(
        fleet.topology,
        fleet=fleet,
        transport=transport,
        config=config,
        clock=clock,
        journal=keeper,
        trainer_incarnation=trainer_incarnation,
        run=rendezvous.run,
    )
