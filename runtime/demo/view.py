"""What `reknit demo` shows: the steps, the shards, the communicator and the latest events, while they happen.

Owns the screen and nothing else: it is told facts and shows them. In a terminal a live picture, anywhere else one
plain line for each fact, without control codes. Knows neither torch nor Ray.
"""

from __future__ import annotations

import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

# Each state has its word and its mark; the colour only repeats them.
STATES = {
    "serving": ("+", "green"),
    "suspect": ("?", "yellow"),
    "torn": ("!", "bold red"),
    "absent": ("x", "red"),
    "restarting": ("~", "blue"),
    "rejoined": ("o", "cyan"),
    "retired": ("-", "dim"),
}
UNKNOWN_STATE = (" ", "")
PHASES = {"built": "green", "refitting": "cyan", "rebuilt": "cyan", "aborted": "red", "halted": "bold red"}
REFRESHES_PER_SECOND = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardRow:
    """One shard as it stands now. `version` and `ranks` are ready to be shown; `-` stands for none."""

    slot: int
    incarnation: int
    state: str
    version: str
    ranks: str


class View(ABC):
    """A screen to tell facts to. Use it as a context manager: leaving it, in whatever way, restores the terminal."""

    @staticmethod
    def create(console: Console | None = None) -> View:
        """A live picture if `console` (stdout by default) is a terminal that can move its cursor, else plain lines."""
        if console is None:
            # rich takes FORCE_COLOR for a terminal; a pipe must stay free of control codes whatever it is set to.
            console = Console(force_terminal=None if sys.stdout.isatty() else False)
        return LiveView(console) if console.is_terminal and not console.is_dumb_terminal else PlainView(console)

    is_live: bool = False
    """Whether it is a picture that wants to be kept true, or lines that are told once."""

    @abstractmethod
    def __enter__(self) -> Self: ...

    @abstractmethod
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    @abstractmethod
    def step(self, *, step: int, steps: int, loss: float, seconds: float) -> None:
        """Training step `step` of `steps` has ended, with this loss (nats a byte), after this many seconds."""

    @abstractmethod
    def shards(self, rows: Sequence[ShardRow]) -> None:
        """All shards as they stand now. Telling what is known already is free: plain lines show changes only."""

    @abstractmethod
    def communicator(self, *, phase: str, epoch: int, world_size: int) -> None:
        """The refit communicator as it stands now."""

    @abstractmethod
    def note(self, text: str) -> None:
        """Something happened. May be called from any thread."""

    @abstractmethod
    def summary(self, title: str, rows: Sequence[tuple[str, str]]) -> None:
        """How it ended: (name, value) rows, shown below everything else, once the live picture has come to rest."""


class PlainView(View):
    """One line for each fact, for pipes, files and logs. Every line is flushed, so that a reader sees it at once."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._lock = threading.Lock()
        self._rows: dict[int, ShardRow] = {}
        self._communicator = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def step(self, *, step: int, steps: int, loss: float, seconds: float) -> None:
        self._line(f"step {step}/{steps}  loss {loss:.4f}  {seconds:.2f} s")

    def shards(self, rows: Sequence[ShardRow]) -> None:
        for row in rows:
            if self._rows.get(row.slot) != row:
                self._line(
                    f"shard {row.slot}  incarnation {row.incarnation}  {row.state}  "
                    f"version {row.version}  ranks {row.ranks}"
                )
        self._rows = {row.slot: row for row in rows}

    def communicator(self, *, phase: str, epoch: int, world_size: int) -> None:
        told = communicator_text(phase=phase, epoch=epoch, world_size=world_size)
        if told != self._communicator:
            self._line(f"communicator  {told}")
        self._communicator = told

    def note(self, text: str) -> None:
        self._line(f"note  {text}")

    def summary(self, title: str, rows: Sequence[tuple[str, str]]) -> None:
        self._line(f"summary  {title}")
        for name, value in rows:
            self._line(f"summary  {name}: {value}")

    def _line(self, text: str) -> None:
        with self._lock:
            # Past rich: it would wrap the line to a width that a pipe does not have.
            self._console.file.write(shown(text, self._console.encoding) + "\n")
            self._console.file.flush()


class LiveView(View):
    """One picture that is redrawn in place. Notes, and what others print meanwhile, scroll by above it and stay."""

    is_live = True

    def __init__(self, console: Console) -> None:
        self._console = console
        self._began = time.monotonic()
        self._ended: float | None = None
        self._step: tuple[int, int, float, float] | None = None
        self._rows: tuple[ShardRow, ...] = ()
        self._communicator: tuple[str, str] | None = None
        self._summaries: tuple[Group, ...] = ()
        # The picture is made when it is drawn, so that it follows the size of the window and its clock runs.
        self._live = Live(
            get_renderable=self._picture,
            console=console,
            refresh_per_second=REFRESHES_PER_SECOND,
            transient=False,
            # What others print is for whoever owns the screen to place; rich would draw it into the picture.
            redirect_stdout=False,
            redirect_stderr=False,
        )

    def __enter__(self) -> Self:
        self._began = time.monotonic()
        try:
            self._live.start(refresh=True)
        except BaseException:
            self._restore()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended = time.monotonic()
        self._restore()
        for told in self._summaries:
            self._console.print(told)

    def _restore(self) -> None:
        try:
            self._live.stop()
        finally:
            # A second Ctrl-C may cut `stop` short before it has shown the cursor again.
            self._console.show_cursor(True)

    def step(self, *, step: int, steps: int, loss: float, seconds: float) -> None:
        self._step = (step, steps, loss, seconds)

    def shards(self, rows: Sequence[ShardRow]) -> None:
        self._rows = tuple(rows)

    def communicator(self, *, phase: str, epoch: int, world_size: int) -> None:
        told = communicator_text(phase=phase, epoch=epoch, world_size=world_size)
        self._communicator = (told, PHASES.get(phase, ""))

    def note(self, text: str) -> None:
        line = Table.grid(padding=(0, 1))
        line.add_column()
        line.add_column(overflow="fold")
        line.add_row(Text(self._clock(), style="dim"), Text(self._shown(text)))
        self._console.print(line)

    def summary(self, title: str, rows: Sequence[tuple[str, str]]) -> None:
        table = Table(show_header=False)
        table.add_column(style="bold")
        table.add_column(overflow="fold")
        for name, value in rows:
            # A value may be a piece of text with lines of its own: there is room for them here.
            lines = (self._shown(line) for line in value.split("\n"))
            table.add_row(Text(self._shown(name)), Text("\n".join(lines)))
        # Not the table's own title, which would be wrapped to the width of a narrow table.
        told = Group(Text(self._shown(title), style="bold"), table)
        if self._ended is None:
            self._summaries = (*self._summaries, told)
        else:
            self._console.print(told)

    def _shown(self, text: str) -> str:
        return shown(text, self._console.encoding)

    def _clock(self) -> str:
        passed = int((self._ended or time.monotonic()) - self._began)
        return f"{passed // 60:02d}:{passed % 60:02d}"

    def _picture(self) -> RenderableType:
        return Group(self._step_line(), self._communicator_line(), self._shard_table())

    def _step_line(self) -> RenderableType:
        step, steps, loss, seconds = self._step or (0, 0, float("nan"), float("nan"))
        line = Table.grid(padding=(0, 2), expand=True)
        for name in ("step", "bar", "loss", "seconds", "clock"):
            line.add_column(no_wrap=True, ratio=1 if name == "bar" else None)
        line.add_row(
            Text(f"step {step}/{steps}" if self._step else "starting", style="bold"),
            ProgressBar(total=max(steps, 1), completed=step),
            Text(f"loss {loss:.4f}" if self._step else ""),
            Text(f"{seconds:.2f} s/step" if self._step else ""),
            Text(self._clock(), style="dim"),
        )
        return line

    def _communicator_line(self) -> RenderableType:
        told, style = self._communicator or ("not yet", "")
        return Text("communicator  ", no_wrap=True, overflow="ellipsis").append(self._shown(told), style=style)

    def _shard_table(self) -> RenderableType:
        table = Table(expand=False)
        for name, width in (("shard", 5), ("incarnation", 11), ("state", 12), ("version", 9), ("ranks", 9)):
            is_number = name in ("shard", "incarnation")
            table.add_column(name, min_width=width, justify="right" if is_number else "left")
        for row in self._rows:
            mark, style = STATES.get(row.state, UNKNOWN_STATE)
            table.add_row(
                str(row.slot),
                str(row.incarnation),
                Text(f"{mark} {self._shown(row.state)}", style=style),
                Text(self._shown(row.version)),
                Text(self._shown(row.ranks)),
            )
        return table


def communicator_text(*, phase: str, epoch: int, world_size: int) -> str:
    """The communicator in words, the same in both views."""
    return f"{phase}  epoch {epoch}  world size {world_size}"


def shown(text: str, encoding: str) -> str:
    """`text` on one line, with everything escaped that a screen would obey rather than show, or could not write.

    The text may come from anywhere: a remote error, or a model that has not learned anything yet.
    """
    visible = "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)
    return visible.encode(encoding, errors="backslashreplace").decode(encoding)
