"""The lifecycle drawn from its table: the communicator, one shard, the signals between them, and an overview.

Nothing is drawn by hand: the same table gives the same bytes. Rows are drawn under their names; rows that differ in
their place only are one arrow. Beside an older table a picture shows in colour what was added, removed and changed.

`content` says what is in a picture, `dot` and `mermaid` how it is written, `render` makes the SVG. Needs the `graphviz`
package for DOT, and for SVG a renderer: the command `graphviz-pure` of the wheel of that name, or `dot`.
"""

from __future__ import annotations

from pathlib import Path

from ..compare import Comparison, alone
from ..export import this_table
from .dot import DOT
from .mermaid import MERMAID
from .render import fingerprint, render_svg

FORMS = ("dot", "mermaid", "svg")

__all__ = ["DOT", "FORMS", "MERMAID", "draw", "fingerprint", "render_svg", "write_all"]


def draw(what: str, form: str, shown: Comparison | None = None) -> str:
    """One diagram as text. what: overview, communicator, shard or joint. form: dot, mermaid or svg.

    shown: the table beside an older one; without it, the present table alone. Raises `ValueError` for another name,
    `RuntimeError` when SVG is wanted and nothing can render it.
    """
    if what not in DOT or form not in FORMS:
        raise ValueError(f"diagrams are {', '.join(DOT)} as dot, mermaid or svg; got {what!r} as {form!r}")
    shown = shown or alone(this_table())
    if form == "mermaid":
        return MERMAID[what](shown)
    source = DOT[what](shown)
    if form == "dot":
        return source
    svg = render_svg(source)
    if svg is None:
        raise RuntimeError("no renderer for SVG: install the wheel graphviz-pure, or graphviz with its command dot")
    return svg


def write_all(folder: Path) -> list[Path]:
    """Write every diagram in every form into `folder` and say which. SVG only where something can render it."""
    folder.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    for what in DOT:
        texts = {"dot": draw(what, "dot"), "mmd": draw(what, "mermaid")}
        if (svg := render_svg(texts["dot"])) is not None:
            texts["svg"] = svg
        for suffix, text in texts.items():
            path = folder / f"{what}.{suffix}"
            path.write_text(text, encoding="utf-8")
            written.append(path)
    return written
