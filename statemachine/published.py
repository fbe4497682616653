"""The rule that is in use elsewhere, put in place of ours: what the search must find a way to break.

The published functions compare *layouts*: which slots, how wide. What a slot holds now, why the last communicator is
gone and whether it was ever finished is not in a layout, and from each of the three follows a hole
(`spec.membership.should_rebuild`, and the design, "Where the published rule is not enough"). Here the rule is three
rows in front of those that would decide otherwise, so that everything around it is the same. It also remembers what
ours has no use for: the layout that was recorded when a communicator was last finished.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial

from ..spec.lifecycle import effects as do
from ..spec.lifecycle.effects import Outcome
from ..spec.lifecycle.entries import SAME, Entry, Row, row
from ..spec.lifecycle.events import Event, RankReply, RefitRequested, Settled, TransferDue
from ..spec.lifecycle.guards import refit_is_open
from ..spec.lifecycle.interpret import Step, drive, index, read_communicator, read_shard
from ..spec.lifecycle.state import Phase, State, desired_roster, evolve
from ..spec.lifecycle.table import COMMUNICATOR
from ..spec.membership import NoSurvivingShards, RefitMembership, desired_membership, should_rebuild


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording(State):
    """A state with the slots of the communicator that was finished last, whatever has become of it."""

    recorded: frozenset[int] = frozenset()


# The published inputs: the layout wanted, the layout recorded, who is absent, and whether the communicator is gone.


def _absent(state: State) -> list[int]:
    return [shard.slot for shard in state.shards if not shard.is_member]


def _layout(state: State, absent: Iterable[int]) -> RefitMembership | None:
    topology = state.topology
    try:
        return desired_membership(
            absent_shards=absent,
            dp_size=topology.dp_size,
            total_gen_workers=topology.dp_size * topology.workers_per_shard,
            train_world_size=topology.train_world_size,
        )
    except NoSurvivingShards:
        return None


def _rebuilds(state: State, *, force: bool) -> bool:
    assert isinstance(state, Recording), "the published rule runs on states that record layouts"
    desired = _layout(state, _absent(state))
    recorded = {shard.slot for shard in state.shards} - state.recorded
    built = _layout(state, recorded)
    return desired is None or should_rebuild(desired=desired, built=built, absent_shards=_absent(state), force=force)


def looks_the_same(state: State, event: object) -> bool:
    """The layout is the recorded one: no rebuild."""
    return not _rebuilds(state, force=False)


def looks_the_same_and_refit_is_open(state: State, event: object) -> bool:
    """The attempt to form has failed, and by now the layout is again the one recorded before it."""
    return refit_is_open(state, event) and state.broke_in is Phase.FORMING and not _rebuilds(state, force=False)


def something_is_absent(state: State, event: object) -> bool:
    """A transfer broke, so the communicator is gone, and some shard is absent: rebuild, whoever is silent now."""
    return state.broke_in is Phase.REFITTING and _rebuilds(state, force=True)


def record_and_complete_forming(state: State, event: RankReply) -> Outcome:
    """As ours, and the layout is recorded."""
    outcome = do.complete_forming(state, event)
    return replace(outcome, state=evolve(outcome.state, recorded=frozenset(state.roster)))


def transfer_over_the_layout(state: State, event: Event) -> Outcome:
    """Carry the weights over whoever fills the slots of the layout."""
    return do.begin_transfer(evolve(state, roster=desired_roster(state)), event)


def transfer_at_once(state: State, event: Event) -> Outcome:
    """Nothing is rebuilt: go on with what is believed to be there."""
    return Outcome(state, signals=(TransferDue(),))


# fmt: off
HOLES = [
    *row("published_same_layout", RefitRequested, [Phase.STALE], SAME, do.open_refit_and_transfer,
         "the same slots in the same places: nothing to rebuild", if_=looks_the_same),
    *row("published_old_absence", Settled, [Phase.ABORTED], SAME, do.rebuild_over_the_rest,
         "forced, and something is absent: rebuild over the rest", if_=something_is_absent),
    *row("published_failed_rebuild", Settled, [Phase.ABORTED], SAME, transfer_at_once,
         "wanted is what was recorded last: nothing to rebuild", if_=looks_the_same_and_refit_is_open),
    *row("published_transfer", TransferDue, [Phase.STALE, Phase.ABORTED], Phase.REFITTING, transfer_over_the_layout,
         "nothing was rebuilt, so this is the communicator"),
]
# fmt: on


def _published() -> list[Entry]:
    """Our table with the published rule in front of the rows that it overrules."""
    table: list[Entry] = []
    replaced = {(entry.event, entry.source) for entry in HOLES if entry.event is TransferDue}
    for entry in COMMUNICATOR:
        if (entry.event, entry.source) in replaced:
            continue
        if isinstance(entry, Row) and entry.effect is do.complete_forming:
            entry = replace(entry, effect=record_and_complete_forming)
        here = [hole for hole in HOLES if (hole.event, hole.source) == (entry.event, entry.source)]
        # After what ours refuses, or takes as done: those are not decided by comparing layouts.
        overruled = entry.id in ("refit_needs_communicator@stale", "trainer_silent@aborted")
        table += [*here, entry] if overruled else [entry]
    return [*table, *(hole for hole in HOLES if hole.event is TransferDue)]


_CELLS = index(_published())


def published(state: State, event: Event) -> Step:
    """What the table with the published rule says about this event in this state. Raises `Refused`."""
    return drive(state, event, partial(read_communicator, cells=_CELLS), read_shard)
