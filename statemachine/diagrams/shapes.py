"""How the parts of a DOT picture look: places, arrows, boxes, the legend, and the colours of what differs."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import graphviz

from ..compare import Mark, Marked
from ..export import ExportedPlace
from .content import Name, signed

GOOD, PLAIN, OVER, WAIT = "#d7efd9", "#ffffff", "#d9d9d9", "#c76a00"
RAISING, TAKING = "#eef3f7", "#f6f2e8"
FORWARD, BREAK, HALT, SIGNAL = "#22577a", "#c76a00", "#a4161a", "#6a4c93"
DARK, BORDER_GREY, SMALL_GREY = "#333333", "#888888", "#555555"
FONT = "Helvetica"

# Beside an older table colour says what differs, and nothing else: what a place means is left white.
INK = {Mark.SAME: "#8c8c8c", Mark.ADDED: "#1a7f37", Mark.REMOVED: "#c1121f", Mark.CHANGED: "#b26a00"}
FILL = {Mark.SAME: PLAIN, Mark.ADDED: "#d9f2df", Mark.REMOVED: "#fbdcda", Mark.CHANGED: "#ffedc2"}
DIFFERENCES = ((Mark.ADDED, "added"), (Mark.REMOVED, "removed"), (Mark.CHANGED, "changed"), (Mark.SAME, "as before"))


def canvas(title: str, **graph: str) -> graphviz.Digraph:
    """An empty picture that grows from left to right."""
    dot = graphviz.Digraph("lifecycle")
    dot.attr(
        rankdir="LR",
        label=title,
        labelloc="t",
        labeljust="l",
        fontname=FONT,
        fontsize="22",
        compound="true",
        nodesep="0.35",
        pad="0.3",
        **graph,
    )
    dot.attr(
        "node",
        shape="box",
        style="rounded,filled",
        fontname=FONT,
        fontsize="13",
        fillcolor=PLAIN,
        penwidth="1.2",
        margin="0.2,0.08",
    )
    dot.attr("edge", fontname=FONT, fontsize="10", color=FORWARD, fontcolor=FORWARD, arrowsize="0.8")
    return dot


def arrow_look(mark: Mark, color: str) -> dict[str, str]:
    """An arrow of this colour, or beside an older table of the colour of its mark."""
    if mark is Mark.ALONE:
        return {"color": color}
    look = {"color": INK[mark], "penwidth": "2.2" if mark.differs else "1"}
    return look | {"style": "dashed"} if mark is Mark.REMOVED else look


def label(names: Sequence[str], mark: Mark) -> str:
    """The names on an arrow, one below the other."""
    return "\\l".join(signed((name, mark)) for name in names) + "\\l"


def begin(dot: graphviz.Digraph, place: str) -> None:
    """The dot from which everything starts."""
    dot.node("start", "", shape="circle", style="filled", fillcolor=DARK, width="0.16", fixedsize="true")
    dot.edge("start", place, color=DARK)


def place(dot: graphviz.Digraph, shown: Marked[ExportedPlace], stays: Sequence[Name]) -> None:
    """A place with what it means, and below it in small what leaves the machine there."""
    name = shown.of.name
    text = (
        '<<TABLE BORDER="0" CELLBORDER="0" CELLSPACING="2">'
        f'<TR><TD COLSPAN="2"><B>{name}</B></TD></TR>'
        f'<TR><TD COLSPAN="2"><FONT POINT-SIZE="10"><I>{_wrapped(shown.of.meaning)}</I></FONT></TD></TR>'
        f"{_columns(stays)}</TABLE>>"
    )
    dot.node(name, text, **_place_look(shown))


def _place_look(shown: Marked[ExportedPlace]) -> dict[str, str]:
    if shown.mark is not Mark.ALONE:
        style = "rounded,filled" + (",dashed" if shown.mark is Mark.REMOVED else "")
        ink = INK[shown.mark] if shown.mark.differs else DARK
        return {"fillcolor": FILL[shown.mark], "color": ink, "penwidth": "1.2", "style": style}
    traits = shown.of.traits
    good, over, waits = "live" in traits or "serves" in traits, "terminal" in traits, "waits" in traits
    return {
        "fillcolor": OVER if over else GOOD if good else PLAIN,
        "color": WAIT if waits else DARK,
        "penwidth": "2.6" if waits else "1.2",
        "style": "rounded,filled" + (",bold" if over else ""),
    }


def _columns(names: Sequence[Name]) -> str:
    """Small lines under the name of a place; two columns when there are many."""
    if not names:
        return ""
    half = names if len(names) < 8 else names[: (len(names) + 1) // 2]
    rest = names[len(half) :]
    cells = "".join(
        f'<TD ALIGN="LEFT" BALIGN="LEFT" VALIGN="TOP"><FONT POINT-SIZE="9" COLOR="{SMALL_GREY}">'
        f"{'<BR/>'.join(map(coloured, part))}</FONT></TD>"
        for part in (half, rest)
        if part
    )
    return f'<TR><TD COLSPAN="2"><TABLE BORDER="0" CELLBORDER="0" CELLSPACING="0"><TR>{cells}</TR></TABLE></TD></TR>'


def coloured(name: Name) -> str:
    """A line of text within a place or a box."""
    text = escape(signed(name))
    return text if name[1] is Mark.ALONE else f'<FONT COLOR="{INK[name[1]]}">{text}</FONT>'


def _wrapped(text: str, width: int = 34) -> str:
    lines = [""]
    for word in text.split():
        if len(lines[-1]) + len(word) > width:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return "<BR/>".join(escape(line) for line in lines)


def box(dot: graphviz.Digraph, name: str, title: str, lines: Sequence[Name], fill: str) -> None:
    """A box with lines of text under a small title."""
    rows = "".join(f'<TR><TD ALIGN="LEFT">{coloured(line)}</TD></TR>' for line in lines)
    head = f'<TR><TD ALIGN="LEFT"><FONT COLOR="{SMALL_GREY}"><I>{title}</I></FONT></TD></TR>'
    text = f'<<TABLE BORDER="0" CELLBORDER="0" CELLSPACING="1" CELLPADDING="1">{head}{rows}</TABLE>>'
    dot.node(name, text, shape="box", style="filled", fillcolor=fill, color=BORDER_GREY)


def legend(dot: graphviz.Digraph, places: Sequence[tuple[str, str, str]], arrows: Sequence[tuple[str, str]]) -> None:
    """What fills, borders and arrows mean. places: fill, border, text. arrows: colour, text."""
    rows = "".join(
        f'<TR><TD BGCOLOR="{fill}" COLOR="{border}" BORDER="{3 if border == WAIT else 1}" WIDTH="28"> </TD>'
        f'<TD ALIGN="LEFT" BORDER="0">{text}</TD></TR>'
        for fill, border, text in places
    ) + "".join(
        f'<TR><TD BORDER="0"><FONT COLOR="{color}"><B>-&gt;</B></FONT></TD><TD ALIGN="LEFT" BORDER="0">{text}</TD></TR>'
        for color, text in arrows
    )
    if arrows:
        rows += '<TR><TD COLSPAN="2" ALIGN="LEFT" BORDER="0"><I>small grey: rows that stay in the place</I></TD></TR>'
    _note(dot, rows)


def legend_of_differences(dot: graphviz.Digraph) -> None:
    """What the colours mean beside an older table."""
    _note(
        dot,
        "".join(
            f'<TR><TD BGCOLOR="{FILL[mark]}" COLOR="{INK[mark]}" WIDTH="28"><FONT COLOR="{INK[mark]}">'
            f"<B>{mark.value}</B></FONT></TD>"
            f'<TD ALIGN="LEFT" BORDER="0"><FONT COLOR="{INK[mark]}">{text}</FONT></TD></TR>'
            for mark, text in DIFFERENCES
        ),
    )


def _note(dot: graphviz.Digraph, rows: str) -> None:
    dot.node(
        "legend",
        f'<<TABLE BORDER="0" CELLBORDER="1" CELLSPACING="4">{rows}</TABLE>>',
        shape="note",
        style="filled",
        fillcolor="#fbfbfb",
        fontsize="10",
    )
