"""What the controller tells its trainer: the report of one refit, and a snapshot of everything it knows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..spec.lifecycle.events import Version
from ..spec.lifecycle.state import LIVE, Halt, Phase, ShardState, State, serving_shards
from ..spec.roster import Roster


@dataclass(frozen=True, slots=True, kw_only=True)
class RefitReport:
    """One completed refit.

    communicators: every one formed on the way, as (epoch, roster), in order; empty on the quiet path.
    seconds: the whole call; forming_s: all rendezvous in it; transfer_s: the transfer that completed, slowest rank.
    digest: hex of all bytes as every rank saw them, None when the transport does not verify.
    """

    version: Version
    epoch: int
    roster: Roster
    world_size: int
    communicators: tuple[tuple[int, Roster], ...]
    seconds: float
    forming_s: float
    transfer_s: float
    tensors: int
    bytes: int
    digest: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardView:
    """One slot as the controller knows it. ranks: its ranks in the live communicator, None if it is in none."""

    slot: int
    incarnation: int
    state: ShardState
    version: Version | None
    serving: bool
    ranks: tuple[int, ...] | None
    restarts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Everything that the controller knows, at one moment."""

    phase: Phase
    epoch: int
    world_size: int
    committed: Version | None
    refitting: Version | None
    shards: tuple[ShardView, ...]
    halt: Halt | None


def snapshot_of(state: State) -> Snapshot:
    """The readable view of a state."""
    live = state.phase in LIVE
    serving = frozenset(serving_shards(state))
    seats: Mapping[int, tuple[int, ...]] = (
        {slot: tuple(state.membership.ranks_of(shard=slot)) for slot in state.roster} if live else {}
    )
    return Snapshot(
        phase=state.phase,
        epoch=state.epoch,
        world_size=state.membership.world_size if live else 0,
        committed=state.committed,
        refitting=state.refit.version if state.refit else None,
        shards=tuple(
            ShardView(
                slot=shard.slot,
                incarnation=shard.incarnation,
                state=shard.state,
                version=shard.version,
                serving=shard.slot in serving,
                ranks=seats.get(shard.slot) if live and state.roster.holds(shard.slot, shard.incarnation) else None,
                restarts=shard.restarts,
            )
            for shard in state.shards
        ),
        halt=state.halt,
    )
