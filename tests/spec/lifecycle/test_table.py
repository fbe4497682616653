"""The table is total, unambiguous and complete to the eye; a table that is not is refused before anything runs."""

from __future__ import annotations

import inspect
from dataclasses import replace

import pytest

from reknit.spec.lifecycle import effects as do
from reknit.spec.lifecycle import errors, events, guards
from reknit.spec.lifecycle.entries import Entry, Ignore, Refuse, Row, row
from reknit.spec.lifecycle.events import Event, RankReply, ShardObservation, ShardSignal, Signal, StartRequested
from reknit.spec.lifecycle.interpret import CELLS, SHARD_CELLS, InvalidTable, index
from reknit.spec.lifecycle.state import TERMINAL, HaltReason, Phase, ShardState
from reknit.spec.lifecycle.table import COMMUNICATOR, SHARDS

ABSTRACT = {Event, RankReply, ShardObservation, Signal, ShardSignal}
EVENTS: list[type[Event]] = sorted(
    (
        kind
        for kind in vars(events).values()
        if inspect.isclass(kind) and issubclass(kind, Event) and kind not in ABSTRACT
    ),
    key=lambda kind: kind.__name__,
)


def row_of(entry_id: str) -> Row:
    """One row of the real table."""
    (found,) = [entry for entry in (*COMMUNICATOR, *SHARDS) if entry.id == entry_id]
    assert isinstance(found, Row)
    return found


# --- the real table ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("phase", Phase, ids=lambda phase: str(phase.value))
def test_every_event_is_classified_in_every_phase(phase: Phase) -> None:
    """Every cell is legal, ignored or refused on purpose; nothing is left to chance."""
    for event in EVENTS:
        if issubclass(event, ShardSignal):
            assert (event, phase) not in CELLS, "signals to shards pass the communicator by"
            continue
        falls_through_to_the_shard = issubclass(event, ShardObservation) and phase not in TERMINAL
        total = CELLS[event, phase][-1].guard is None
        assert total is not falls_through_to_the_shard, event.__name__


@pytest.mark.parametrize("place", ShardState, ids=lambda place: str(place.value))
def test_every_event_of_a_shard_is_classified_in_every_shard_state(place: ShardState) -> None:
    for event in EVENTS:
        for_shards = issubclass(event, ShardObservation | ShardSignal)
        assert ((event, place) in SHARD_CELLS) is for_shards, event.__name__
        assert not for_shards or SHARD_CELLS[event, place][-1].guard is None, event.__name__


def test_nothing_happens_any_more_in_a_terminal_phase() -> None:
    for phase in TERMINAL:
        entries = [entry for entry in COMMUNICATOR if entry.source is phase]
        assert entries
        assert not [entry.id for entry in entries if isinstance(entry, Row)]


def test_only_the_end_is_terminal() -> None:
    left = {entry.source for entry in COMMUNICATOR if isinstance(entry, Row) and entry.target is not entry.source}
    assert left == set(Phase) - TERMINAL


def test_every_halt_reason_has_a_row_that_leads_to_the_halt() -> None:
    named = {entry.effect.__name__ for entry in COMMUNICATOR if isinstance(entry, Row) and entry.target is Phase.HALTED}
    assert named == {f"halt_{reason.value}" for reason in HaltReason}


def test_a_retired_shard_never_leaves_its_state() -> None:
    """S14."""
    targets = {entry.target for entry in SHARDS if isinstance(entry, Row) and entry.source is ShardState.RETIRED}
    assert targets == {ShardState.RETIRED}


def test_only_taking_part_in_a_completed_refit_makes_a_shard_serve() -> None:
    """H1, S12: read off the table itself."""
    serving = {ShardState.SERVING, ShardState.SUSPECT}
    doors = {
        entry.event.__name__
        for entry in SHARDS
        if isinstance(entry, Row) and entry.target in serving and entry.source not in serving
    }
    assert doors == {"Promoted"}


def test_signals_that_cannot_come_here_say_so() -> None:
    """An impossible signal is a mistake of the table and never ignored in silence."""
    for entry in COMMUNICATOR:
        if isinstance(entry, Refuse) and issubclass(entry.event, Signal):
            assert entry.error is errors.ImpossibleHere


def test_every_name_in_the_table_is_explained() -> None:
    for entry in (*COMMUNICATOR, *SHARDS):
        assert entry.why == entry.why.strip() != ""
        for named in (entry.guard, getattr(entry, "effect", None), getattr(entry, "error", None), entry.event):
            assert named is None or (named.__doc__ or "").strip(), f"{entry.id}: {named} has no docstring"


def test_guards_that_are_shared_by_name_are_one_function() -> None:
    by_name: dict[str, set[object]] = {}
    for entry in (*COMMUNICATOR, *SHARDS):
        for used in (entry.guard, getattr(entry, "effect", None)):
            if used is not None:
                name = used.__name__
                by_name.setdefault(name, set()).add(used if not name.startswith("halt_") else name)
    assert [name for name, functions in by_name.items() if len(functions) > 1] == []


# --- tables that are wrong ------------------------------------------------------------------------------------------

ANY = row_of("start@unbuilt")
FREE = replace(ANY, guard=None)


def refusal(*entries: Entry) -> str:
    with pytest.raises(InvalidTable) as caught:
        index(entries)
    return str(caught.value)


def test_the_real_tables_are_valid() -> None:
    assert sum(map(len, index(COMMUNICATOR).values())) == len(COMMUNICATOR)
    assert sum(map(len, index(SHARDS).values())) == len(SHARDS)


def test_a_reused_id_is_refused() -> None:
    assert refusal(FREE, FREE) == "two entries share the id start@unbuilt"


def test_a_second_row_for_a_cell_that_is_taken_is_refused() -> None:
    """`transitions` lets the first win in silence."""
    hidden = replace(FREE, id="other@unbuilt", effect=do.stay)
    assert refusal(FREE, hidden) == "other@unbuilt stands behind start@unbuilt, which takes everything"


def test_a_guarded_row_behind_one_that_takes_everything_is_refused() -> None:
    hidden = replace(FREE, id="other@unbuilt", guard=guards.refit_is_open)
    assert "stands behind start@unbuilt" in refusal(FREE, hidden)


def test_a_cell_that_may_take_nothing_is_refused() -> None:
    """`transitions` returns False in silence when no condition holds."""
    partial = replace(FREE, guard=guards.refit_is_open)
    assert refusal(partial) == "StartRequested in unbuilt is not classified when start@unbuilt does not hold"


def test_a_partial_cell_of_a_shard_is_refused() -> None:
    partial = replace(row_of("exit@serving"), guard=guards.may_restart)
    assert "ShardExited in serving is not classified" in refusal(partial)


def test_observations_may_pass_the_communicator_by() -> None:
    passes = Ignore(
        id="x", event=events.ShardExited, source=Phase.BUILT, guard=guards.slot_is_unknown, why="for the shard"
    )
    assert index([passes])[events.ShardExited, Phase.BUILT] == (passes,)


@pytest.mark.parametrize("target", [ShardState.SERVING, "built", None])
def test_a_target_of_another_machine_is_refused(target: object) -> None:
    """`transitions` accepts any state name."""
    crossed = replace(FREE, target=target)  # type: ignore[arg-type]
    assert "of another machine" in refusal(crossed)


def test_an_entry_without_a_reason_is_refused() -> None:
    assert refusal(replace(FREE, why="")) == "start@unbuilt does not say why"


def test_the_same_cell_in_two_phases_is_no_conflict() -> None:
    both = row("start", StartRequested, [Phase.UNBUILT, Phase.STALE], None, do.stay, "a reason")
    cells = index(both)
    assert [cells[StartRequested, phase][0].id for phase in (Phase.UNBUILT, Phase.STALE)] == [
        "start@unbuilt",
        "start@stale",
    ]
    assert all(isinstance(entry, Row) and entry.target is entry.source for entry in both)


def test_an_index_cannot_be_changed() -> None:
    with pytest.raises(TypeError):
        CELLS[StartRequested, Phase.BUILT] = ()  # type: ignore[index]


def test_ids_name_the_place_where_the_entry_stands() -> None:
    for entry in (*COMMUNICATOR, *SHARDS):
        assert entry.id.endswith(f"@{entry.source.value}")
