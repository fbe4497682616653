"""The journal: one JSON line per event, written before anything is dispatched, by one writer.

What the lines mean, how they are spelled, and whether they tell a possible story, is the matter of
`statemachine.conform`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, TextIO

from ..statemachine.conform import written


class FileJournal:
    """Lines in a file of its own. Each is handed to the operating system before `append` returns.

    That survives the death of this process, which is what a successor needs; it does not wait for the disk.
    The file is made with its first line, so that a run which never came to be leaves none behind. What would be in the
    way is said at once: raises `FileExistsError` when the file exists (a journal tells one run), `FileNotFoundError`
    when its folder does not.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: TextIO | None = None
        if path.exists():
            raise FileExistsError(f"{path} exists already: a journal tells one run, name a new file")
        if not path.parent.is_dir():
            raise FileNotFoundError(f"{path.parent} is no folder: the journal {path} needs one that is there")

    def append(self, record: dict[str, Any]) -> None:
        if self._file is None:
            self._file = self.path.open("x", encoding="utf-8", buffering=1)
        self._file.write(written(record) + "\n")

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


class MemoryJournal:
    """Lines in a list, for tests and for runs that keep none."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def append(self, record: dict[str, Any]) -> None:
        self.lines.append(written(record))

    def close(self) -> None:
        pass


class NoJournal:
    """Nothing is written down."""

    def append(self, record: dict[str, Any]) -> None:
        pass

    def close(self) -> None:
        pass
