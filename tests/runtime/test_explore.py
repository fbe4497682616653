"""`reknit explore` as it is called."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from reknit.runtime.cli import main
from reknit.statemachine.exploration import Exploration, Searched

Run = Callable[..., tuple[int, str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Calls the command, and returns its exit code and everything that it printed."""

    def call(*arguments: object) -> tuple[int, str]:
        monkeypatch.setattr("sys.argv", ["reknit", "explore", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        said = capsys.readouterr()
        return int(ended.value.code or 0), said.out + said.err

    return call


def test_a_violation_is_printed_saved_and_followed_again(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "found"
    said, text = run("--shards", "1", "--faults", "1", "--rule", "published", "--processes", "1", "--save", str(folder))
    assert said == 1
    assert "S3: transfer ordered in stale" in text
    assert "   1. the trainer starts the run" in text
    (saved,) = folder.iterdir()
    assert f"follow it again:  reknit explore --replay {saved}" in text
    said, text = run("--replay", str(saved))
    assert said == 1
    assert (
        text.splitlines()[-1] == "  => S3: transfer ordered in stale: there is no communicator over whom it should span"
    )


def test_json_is_one_object(run: Run, tmp_path: Path) -> None:
    said, text = run(
        "--shards", "1", "--faults", "1", "--rule", "published", "--processes", "1", "--json", "--save", str(tmp_path)
    )
    data = json.loads(text)
    assert said == 1
    assert [found["hole"] for found in data["violations"]] == ["published_same_layout"]
    assert [Path(path).exists() for path in data["scenarios"]] == [True]
    assert data["states"] > 0
    assert data["transitions"] > data["states"]
    assert (data["rows_never_fired"], data["goals_not_reached"]) == ([], [])


@pytest.mark.parametrize(
    ("result", "code", "line"),
    [
        (Exploration("ours", [Searched("one", states=2)]), 0, "violations: none"),
        (Exploration("ours", rows_never_fired=("start@unbuilt",)), 1, "rows never fired: start@unbuilt"),
        (Exploration("ours", goals_not_reached=("close",)), 1, "goals not reached: close"),
    ],
)
def test_the_exit_code_says_whether_everything_holds(
    run: Run, monkeypatch: pytest.MonkeyPatch, result: Exploration, code: int, line: str
) -> None:
    monkeypatch.setattr("reknit.statemachine.exploration.explore", lambda *_, **__: result)
    said, text = run()
    assert said == code
    assert line in text.splitlines()


@pytest.mark.parametrize("text", ["", "{}", '{"format": 9}'])
def test_what_is_no_scenario_is_a_usage_error(run: Run, tmp_path: Path, text: str) -> None:
    file = tmp_path / "scenario.json"
    file.write_text(text)
    said, output = run("--replay", str(file))
    assert said == 2
    assert f"--replay {file}" in output


def test_a_folder_that_cannot_be_written_is_one_error(run: Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    said, output = run(
        "--shards",
        "1",
        "--faults",
        "1",
        "--rule",
        "published",
        "--processes",
        "1",
        "--save",
        str(tmp_path / "file" / "x"),
    )
    assert said == 2
    assert "cannot be written" in output.splitlines()[-1]
