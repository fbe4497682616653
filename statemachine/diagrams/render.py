"""From DOT to SVG, by a program outside."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path


def fingerprint(dot_source: str) -> str:
    """The first line of an SVG: which DOT it was rendered from."""
    return f"<!-- sha256 of the DOT source: {hashlib.sha256(dot_source.encode()).hexdigest()} -->"


def render_svg(dot_source: str) -> str | None:
    """The picture, with its fingerprint in the first line; None when there is no renderer.

    Raises `RuntimeError` when the renderer fails, with its last words.
    """
    renderer = _renderer()
    if renderer is None:
        return None
    try:
        done = subprocess.run(
            [renderer, "-Tsvg"], input=dot_source, capture_output=True, text=True, encoding="utf-8", timeout=120
        )
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"{renderer} did not finish within 120 s") from None
    start = done.stdout.find("<svg")
    if done.returncode or start < 0:
        said = done.stderr.strip().splitlines() or ["it said nothing"]
        raise RuntimeError(f"{renderer} failed with exit code {done.returncode}: {said[-1]}")
    # Only the element: a comment may not stand before the XML declaration, and a page embeds it either way.
    return f"{fingerprint(dot_source)}\n{done.stdout[start:]}"


def _renderer() -> str | None:
    beside = Path(sys.executable).with_name("graphviz-pure")
    return str(beside) if beside.exists() else shutil.which("graphviz-pure") or shutil.which("dot")
