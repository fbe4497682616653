"""One simulated run: the real controller and transport over a simulated fleet, checked after every single event."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType

from ...spec.config import RefitConfig
from ...spec.roster import Roster, Topology
from ..broadcast import BroadcastTransport
from ..controller import RefitController
from ..journal import MemoryJournal
from ..seams import Transport
from .clock import VirtualClock
from .fleet import SimulatedFleet, SimulatedRendezvous, SimulationBroken


def broadcast(fleet: SimulatedFleet, clock: VirtualClock, config: RefitConfig) -> BroadcastTransport:
    """The real transport, over simulated members."""
    return BroadcastTransport(fleet=fleet, rendezvous=SimulatedRendezvous(), clock=clock, config=config)


class SimulatedRun:
    """A controller with everything it needs. After each event, what it believes is held against what is the case.

    transport: makes another transport than the broadcast, over the same fleet. fleet: makes another fleet, for example
    one of a class derived from `SimulatedFleet`.

    Raises `SimulationBroken` from whatever call made time pass when a shard that may serve does not hold the
    committed version on every worker.
    """

    def __init__(
        self,
        *,
        trainers: int = 1,
        shards: int = 3,
        workers: int = 1,
        config: RefitConfig | None = None,
        seed: int = 0,
        fleet: Callable[..., SimulatedFleet] = SimulatedFleet,
        transport: Callable[[SimulatedFleet, VirtualClock, RefitConfig], Transport] | None = None,
    ) -> None:
        topology = Topology(train_world_size=trainers, dp_size=shards, workers_per_shard=workers)
        self.clock = VirtualClock()
        self.fleet = fleet(self.clock, topology, seed=seed)
        self.journal = MemoryJournal()
        self.transport = (transport or broadcast)(self.fleet, self.clock, config or RefitConfig())
        self.controller = RefitController(
            topology,
            fleet=self.fleet,
            transport=self.transport,
            config=config,
            clock=self.clock,
            journal=self.journal,
            run="simulated",
        )
        self.clock.after_each = self.check

    def check(self) -> None:
        """Nobody who may be given traffic holds anything but the committed version, whole; and no answer was lost in
        a callback that failed."""
        for failure in self.fleet.failures:
            raise SimulationBroken(
                f"the callback of an answer failed: {type(failure).__name__}: {failure}"
            ) from failure
        snapshot = self.controller.snapshot()
        for shard in snapshot.shards:
            if not shard.serving:
                continue
            for member in self.fleet.workers(shard.slot, shard.incarnation):
                weights = self.fleet.processes[member].weights
                if weights == "mixed" or weights is None or (snapshot.committed and weights < snapshot.committed):
                    raise SimulationBroken(f"{member} serves {weights}, committed is {snapshot.committed}")

    @property
    def communicators(self) -> list[tuple[int, Roster]]:
        """Every communicator that was formed, in order: the healing witness."""
        return list(self.controller.communicators)

    def __enter__(self) -> SimulatedRun:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.controller.close()
