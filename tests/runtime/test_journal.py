"""The journal's file: one run, one file, made with its first line."""

from __future__ import annotations

from pathlib import Path

import pytest

from reknit.runtime import embed
from reknit.runtime.journal import FileJournal, MemoryJournal
from reknit.spec.config import RefitConfig


def test_every_line_is_in_the_file_when_append_returns(tmp_path: Path) -> None:
    journal = FileJournal(tmp_path / "run.jsonl")
    journal.append({"kind": "step", "t": 0.5})
    assert journal.path.read_text() == '{"kind":"step","t":0.5}\n'
    journal.append({"detail": "é\n"})
    assert journal.path.read_text().splitlines()[1] == '{"detail":"\\u00e9\\n"}'
    journal.close()


def test_a_run_that_never_came_to_be_leaves_no_journal_behind(tmp_path: Path) -> None:
    """An empty file would be in the way of the next try, and tells of nothing."""
    journal = FileJournal(tmp_path / "run.jsonl")
    journal.close()
    assert list(tmp_path.iterdir()) == []


class Actor:
    """As much of an actor as is asked for before any is called."""

    reknit = None


class NoStore:
    """A rendezvous whose store cannot be opened."""

    def __init__(self, host: str) -> None:
        raise OSError("no port is free")


def test_a_controller_that_cannot_be_made_leaves_no_journal_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def make(**options: object) -> None:
        members = {"trainers": [Actor()], "shards": [[Actor()]], "host": "127.0.0.1"}
        embed.refit_controller(**members, journal=tmp_path / "run.jsonl", **options)  # type: ignore[arg-type]

    with pytest.raises(ValueError, match="min_healthy_shards"):
        make(config=RefitConfig(min_healthy_shards=2))
    monkeypatch.setattr(embed, "StoreRendezvous", NoStore)
    with pytest.raises(OSError, match="no port is free"):
        make()
    assert list(tmp_path.iterdir()) == []


def test_what_is_in_the_way_of_a_journal_is_said_at_once(tmp_path: Path) -> None:
    taken = tmp_path / "run.jsonl"
    taken.write_text("")
    with pytest.raises(FileExistsError, match="a journal tells one run"):
        FileJournal(taken)
    with pytest.raises(FileNotFoundError, match="needs one that is there"):
        FileJournal(tmp_path / "nowhere" / "run.jsonl")


def test_a_file_that_appears_meanwhile_is_not_written_over(tmp_path: Path) -> None:
    journal = FileJournal(tmp_path / "run.jsonl")
    journal.path.write_text("another run")
    with pytest.raises(FileExistsError):
        journal.append({"kind": "header"})
    assert journal.path.read_text() == "another run"


def test_a_record_that_is_no_json_is_not_written() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        MemoryJournal().append({"t": float("nan")})
