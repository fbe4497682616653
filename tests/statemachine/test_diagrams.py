"""The diagrams say what the table says, their bytes are stable, and those in the docs are current."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("graphviz")

from reknit.spec.config import RefitConfig
from reknit.spec.lifecycle import State, Step
from reknit.spec.lifecycle import events as ev
from reknit.spec.lifecycle.effects import Outcome
from reknit.spec.lifecycle.entries import Entry, Row
from reknit.spec.lifecycle.events import Event
from reknit.spec.lifecycle.interpret import drive, read_communicator, read_shard
from reknit.spec.lifecycle.shard_effects import ShardOutcome
from reknit.spec.lifecycle.state import LIVE, TERMINAL, Phase, Shard
from reknit.spec.lifecycle.table import COMMUNICATOR, SHARDS
from reknit.spec.roster import Topology
from reknit.statemachine import diagrams
from reknit.statemachine.compare import Mark, alone
from reknit.statemachine.coupling import RAISES
from reknit.statemachine.diagrams import render, shapes
from reknit.statemachine.diagrams.content import stays_of
from reknit.statemachine.environment import Bounds
from reknit.statemachine.explore import search
from reknit.statemachine.export import this_table

DOCS = Path(__file__).resolve().parents[2] / "docs" / "diagrams"
EVERY = [(what, form) for what in diagrams.DOT for form in ("dot", "mermaid")]
RENEW = "run `make diagrams`"


@pytest.mark.parametrize(("what", "form"), EVERY)
def test_the_same_table_gives_the_same_bytes(what: str, form: str) -> None:
    first = diagrams.draw(what, form)
    assert first == diagrams.draw(what, form)
    assert first.isascii()


@pytest.mark.parametrize("what", diagrams.DOT)
def test_the_diagrams_in_the_docs_are_current(what: str) -> None:
    source = diagrams.draw(what, "dot")
    assert (DOCS / f"{what}.dot").read_text(encoding="utf-8") == source, RENEW
    assert (DOCS / f"{what}.mmd").read_text(encoding="utf-8") == diagrams.draw(what, "mermaid"), RENEW
    svg = (DOCS / f"{what}.svg").read_text(encoding="utf-8")
    assert svg.splitlines()[0] == diagrams.fingerprint(source), RENEW


def test_the_docs_hold_no_other_diagrams() -> None:
    expected = {f"{what}.{suffix}" for what in diagrams.DOT for suffix in ("dot", "mmd", "svg")}
    assert {path.name for path in DOCS.iterdir()} == expected


def name_of(row: Row) -> str:
    return row.id.split("@")[0]


def arrows(dot: str) -> Iterator[tuple[str, str, list[str]]]:
    """Source, target and row names of every labelled arrow of a DOT source."""
    for source, target, attributes in re.findall(r"^\t+(\S+) -> (\S+) \[(.*)\]$", dot, flags=re.MULTILINE):
        label = re.search(r'label="([^"]*)"', attributes)
        if label:
            drawn = "every" if "ltail" in attributes else source
            yield drawn, target, [name for name in label.group(1).split("\\l") if name]


@pytest.mark.parametrize(
    ("what", "entries", "group"),
    [
        ("communicator", COMMUNICATOR, {phase.value for phase in Phase if phase not in TERMINAL}),
        ("shard", SHARDS, {"serving", "suspect", "torn", "rejoined"}),
    ],
)
def test_every_row_is_drawn_and_nothing_else(what: str, entries: tuple[Entry, ...], group: set[str]) -> None:
    drawn: set[tuple[str, str, str]] = set()
    for source, target, names in arrows(diagrams.draw(what, "dot")):
        for place in group if source == "every" else {source}:
            drawn |= {(name, place, target) for name in names}
    rows = [entry for entry in entries if isinstance(entry, Row)]
    assert drawn == {(name_of(row), row.source.value, row.target.value) for row in rows if row.target is not row.source}
    for row in rows:
        if row.target is row.source:
            assert (name_of(row), Mark.ALONE) in stays_of(alone(this_table()).of(what), row.source.value)


def test_every_signal_is_drawn_from_who_raises_it_to_who_takes_it() -> None:
    dot = diagrams.draw("joint", "dot")
    taken = {entry.event.__name__ for entry in (*COMMUNICATOR, *SHARDS) if issubclass(entry.event, ev.Signal)}
    raised = {signal.__name__ for signals in RAISES.values() for signal in signals}
    assert taken == raised
    for signal in taken:
        assert f"\t{signal} [" in dot
        assert re.search(
            rf'"(communicator|shard) raises [^"]*\b{signal}\b[^"]*" -> {signal}|{signal} -> "shard raises', dot
        )
        assert re.search(rf'{signal} -> "(communicator|shard) takes {signal}"|takes {signal}" -> {signal}', dot)


def test_the_listed_signals_are_exactly_those_that_a_search_sees() -> None:
    """The list is for people; this is what keeps it true, in both directions."""
    seen: dict[str, set[type[ev.Signal]]] = {}

    def note(entry: Entry, outcome: Outcome | ShardOutcome) -> None:
        if isinstance(entry, Row):
            seen.setdefault(entry.effect.__name__, set()).update(type(signal) for signal in outcome.signals)

    def communicator(state: State, event: Event) -> tuple[Entry, Outcome] | None:
        read = read_communicator(state, event)
        if read is not None:
            note(*read)
        return read

    def shard(record: Shard, event: Event, config: RefitConfig, epoch: int) -> tuple[Entry, ShardOutcome]:
        read = read_shard(record, event, config, epoch)
        note(*read)
        return read

    def stepper(state: State, event: Event) -> Step:
        return drive(state, event, communicator, shard)

    stop = RefitConfig(max_restart_attempts_per_shard=1, max_attempts_per_refit=2, unhealthy_threshold=1)
    fence = replace(stop, on_frozen="fence")
    losses = frozenset({ev.ShardExited})
    for shards, config, bounds in (
        (1, fence, Bounds(faults=2, refits=1)),
        (1, stop, Bounds(faults=1, refits=1, reports=1)),
        (2, stop, Bounds(faults=0, refits=1, operator=2)),
        (2, stop, Bounds(faults=1, refits=1, operator=1, kinds=losses)),
        (2, replace(stop, min_healthy_shards=2, max_restart_attempts_per_shard=0), Bounds(faults=1, kinds=losses)),
        (3, replace(stop, max_restart_attempts_per_shard=0), Bounds(faults=2, refits=1, kinds=losses)),
        (2, stop, Bounds(faults=2, refits=1, kinds=frozenset({ev.ProgressExpired, ev.SettleExpired}))),
    ):
        report = search(Topology(train_world_size=1, dp_size=shards), config, bounds, stepper=stepper)
        assert not report.violation, report.story()
    assert {effect: signals for effect, signals in seen.items() if signals} == {
        effect: set(signals) for effect, signals in RAISES.items()
    }


# --- rendering -----------------------------------------------------------------------------------------------------


def test_everything_is_written_in_every_form(tmp_path: Path) -> None:
    written = diagrams.write_all(tmp_path / "new")
    assert len(written) == (12 if diagrams.render_svg("digraph {}") else 8)
    for path in written:
        if path.suffix != ".svg":
            assert path.read_bytes() == (DOCS / path.name).read_bytes()


def test_a_picture_says_which_source_it_was_rendered_from() -> None:
    svg = diagrams.render_svg("digraph { a -> b }")
    if svg is None:
        pytest.skip("no renderer on this machine")
    assert svg.startswith(diagrams.fingerprint("digraph { a -> b }") + "\n<svg")
    assert svg.rstrip().endswith("</svg>")


def test_without_a_renderer_the_text_forms_remain(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(render, "_renderer", lambda: None)
    assert diagrams.render_svg("digraph {}") is None
    assert {path.suffix for path in diagrams.write_all(tmp_path)} == {".dot", ".mmd"}
    with pytest.raises(RuntimeError, match="graphviz-pure"):
        diagrams.draw("joint", "svg")


@pytest.mark.parametrize(
    ("program", "says"),
    [("echo bad line >&2; exit 3", "exit code 3: bad line"), ("exit 0", "exit code 0: it said nothing")],
)
def test_a_renderer_that_fails_is_named_with_its_last_words(
    program: str, says: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    renderer = tmp_path / "renderer"
    renderer.write_text(f"#!/bin/sh\ncat > {tmp_path}/in\n{program}\n")
    renderer.chmod(0o755)
    monkeypatch.setattr(render, "_renderer", lambda: str(renderer))
    with pytest.raises(RuntimeError, match=says):
        render.render_svg("digraph {}")


@pytest.mark.parametrize(("what", "form"), [("everything", "dot"), ("joint", "png")])
def test_an_unknown_diagram_is_refused(what: str, form: str) -> None:
    with pytest.raises(ValueError, match="communicator, shard, joint as dot, mermaid or svg"):
        diagrams.draw(what, form)


def test_the_colours_have_their_meaning() -> None:
    dot = diagrams.draw("communicator", "dot")
    for phase in Phase:
        (node,) = re.findall(rf"^\t+{phase.value} \[label=.*?\]$", dot, flags=re.MULTILINE | re.DOTALL)
        attributes = node[node.rindex(">") :]
        expected = shapes.OVER if phase in TERMINAL else shapes.GOOD if phase in LIVE else shapes.PLAIN
        assert f'fillcolor="{expected}"' in attributes
