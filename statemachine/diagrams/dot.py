"""The pictures as DOT."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import graphviz

from ..compare import Comparison
from .content import BORDER, group_of, moves_between, raisers, signals_of, stays_of, takers
from .shapes import (
    BORDER_GREY,
    BREAK,
    DARK,
    FORWARD,
    GOOD,
    HALT,
    INK,
    OVER,
    PLAIN,
    RAISING,
    SIGNAL,
    TAKING,
    WAIT,
    arrow_look,
    begin,
    box,
    canvas,
    label,
    legend,
    legend_of_differences,
    place,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layout:
    """How one machine is laid out.

    frame: what is written on the frame around a group of places. anchor: the place from which arrows start that leave
    all of the group. backwards: arrows that point against the reading direction. colors: of arrows, by target.
    """

    title: str
    frame: str
    start: str
    anchor: str
    colors: Mapping[str, str]
    backwards: frozenset[tuple[str, str]]
    places: Sequence[tuple[str, str, str]]
    arrows: Sequence[tuple[str, str]]


_LAYOUTS = {
    "communicator": _Layout(
        title="The refit communicator: its phases, and the rows of the table that lead between them",
        frame="the run goes on",
        start="unbuilt",
        anchor="aborted",
        colors={"halted": HALT, "aborted": BREAK},
        backwards=frozenset({("aborted", "forming")}),
        places=(
            (GOOD, DARK, "live"),
            (PLAIN, DARK, "not live"),
            (PLAIN, WAIT, "waits, with a deadline armed"),
            (OVER, DARK, "terminal"),
        ),
        arrows=(
            (FORWARD, "goes on"),
            (BREAK, "breaks"),
            (HALT, "halts, with a named reason"),
            (DARK, "thick, from the frame: from every phase in it"),
        ),
    ),
    "shard": _Layout(
        title="One shard: its states, and the rows of the table that lead between them",
        frame="members",
        start="rejoined",
        anchor="suspect",
        colors={"retired": HALT, "absent": BREAK, "torn": BREAK},
        backwards=frozenset(
            {
                ("restarting", "rejoined"),
                ("restarting", "absent"),
                ("suspect", "serving"),
                ("serving", "torn"),
                ("suspect", "torn"),
                ("rejoined", "torn"),
            }
        ),
        places=(
            (GOOD, DARK, "gets traffic"),
            (PLAIN, DARK, "a member without traffic"),
            (PLAIN, WAIT, "away, with a deadline armed"),
            (OVER, DARK, "for ever"),
        ),
        arrows=(
            (FORWARD, "comes back"),
            (BREAK, "is lost, or its weights are"),
            (HALT, "never returns"),
            (DARK, "thick, from the frame: from every member"),
        ),
    ),
}


def _machine(shown: Comparison, machine: str) -> str:
    """The places of one machine and the rows that lead between them."""
    layout = _LAYOUTS[machine]
    dot = canvas(_titled(layout.title, shown), ranksep="0.55")
    group = group_of(shown.places(machine), machine=machine)
    with dot.subgraph(name="cluster_group") as inside:
        inside.attr(label=layout.frame, style="dashed,rounded", color=BORDER_GREY, fontsize="12", labeljust="l")
        begin(inside, layout.start)
        for each in shown.places(machine):
            name = each.of.name
            place(inside if name in group else dot, each, stays_of(shown.of(machine), name))
    for (source, target, mark), names in moves_between(shown.of(machine), group).items():
        look = arrow_look(mark, layout.colors.get(target, FORWARD))
        look["fontcolor"] = look["color"]
        if source == BORDER:
            source = layout.anchor
            look |= {"ltail": "cluster_group", "penwidth": "2", "minlen": "2"}
        if (source, target) in layout.backwards:
            look["constraint"] = "false"
        dot.edge(source, target, label(names, mark), **look)
    if shown.compared:
        legend_of_differences(dot)
    else:
        legend(dot, layout.places, layout.arrows)
    return str(dot.source)


def _overview(shown: Comparison) -> str:
    """Phases, and whether any row leads from one to another: what fits on the first page."""
    dot = canvas("", ranksep="0.3")
    group = group_of(shown.phases, machine="communicator")
    with dot.subgraph(name="cluster_group") as inside:
        inside.attr(style="dashed,rounded", color=BORDER_GREY)
        for each in shown.phases:
            place(inside if each.of.name in group else dot, each, ())
    for source, target, mark in moves_between(shown.of("communicator"), group):
        if source == BORDER:
            dot.edge("aborted", target, ltail="cluster_group", **({"penwidth": "2"} | arrow_look(mark, DARK)))
        elif target in group or mark.differs:
            look = arrow_look(mark, BREAK if target == "aborted" else FORWARD)
            against = (source, target) == ("aborted", "forming")
            dot.edge(source, target, **look, constraint="false" if against else "true")
    dot.edge("built", "halted", style="invis")
    if shown.compared:
        legend_of_differences(dot)
    return str(dot.source)


def _joint(shown: Comparison) -> str:
    """The signals: which rows raise them, and which rows take them."""
    title = "The coupling: signals (dashed) that rows raise and other rows take in the same step"
    dot = canvas(_titled(title, shown), ranksep="0.8")
    dot.attr("node", fontsize="10", margin="0.12,0.08")
    dot.attr("edge", style="dashed", color=SIGNAL)
    signals = signals_of(shown)
    taken = {machine: takers(shown.of(machine), signals) for machine in _LAYOUTS}
    raised = {machine: raisers(shown.of(machine)) for machine in _LAYOUTS}
    with dot.subgraph(name="cluster_communicator") as left, dot.subgraph(name="cluster_shard") as right:
        for cluster, machine, title in (
            (left, "communicator", "rows of the communicator"),
            (right, "shard", "rows of a shard"),
        ):
            cluster.attr(label=title, style="rounded", color=BORDER_GREY, fontsize="14", labeljust="l")
            for told, names in raised[machine].items():
                box(cluster, _raiser(machine, told), "raised by", names, RAISING)
            for signal, lines in taken[machine].items():
                box(cluster, f"{machine} takes {signal}", "taken by", lines, TAKING)
    for signal in sorted({*taken["communicator"], *taken["shard"]}):
        ink = INK[signals[signal]] if signals[signal].differs else SIGNAL
        dot.node(signal, signal, shape="ellipse", style="filled", fillcolor="#ece6f2", color=ink, fontsize="12")
    for machine in ("communicator", "shard"):
        for told in raised[machine]:
            for signal in told:
                _dashed(dot, _raiser(machine, told), signal, back=machine == "shard")
    for machine, other in (("communicator", "shard"), ("shard", "communicator")):
        for signal in taken[machine]:
            from_there = any(signal in told for told in raised[other])
            _dashed(dot, signal, f"{machine} takes {signal}", back=from_there and machine == "communicator")
    if shown.compared:
        legend_of_differences(dot)
    else:
        meant = ((RAISING, "rows that raise"), (TAKING, "rows that take, and where they lead"))
        legend(dot, [(fill, BORDER_GREY, text) for fill, text in meant], [])
    return str(dot.source)


def _titled(title: str, shown: Comparison) -> str:
    return f"{title}; what changed" if shown.compared else title


def _raiser(machine: str, signals: Sequence[str]) -> str:
    return f"{machine} raises {' '.join(signals)}"


def _dashed(dot: graphviz.Digraph, source: str, target: str, *, back: bool) -> None:
    """A dashed arrow; `back` lets it point to the left in a picture that grows to the right."""
    if back:
        dot.edge(target, source, dir="back")
    else:
        dot.edge(source, target)


DOT: dict[str, Callable[[Comparison], str]] = {
    "overview": _overview,
    "communicator": lambda shown: _machine(shown, "communicator"),
    "shard": lambda shown: _machine(shown, "shard"),
    "joint": _joint,
}
