"""`reknit demo` as a person runs it: its verdict, and that it leaves nothing behind, however it ends."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

pytestmark = pytest.mark.ray
COMMAND = [sys.executable, "-u", "-c", "from reknit.runtime.cli import main; main()", "demo"]


def leftovers(pid: int) -> list[Path]:
    """Folders of Ray's that the demo with this pid would leave; other runs on this machine have others."""
    return list(Path("/tmp").glob(f"reknit-{pid}-*"))


def mark(environment: dict[str, str]) -> str:
    """A word in the environment of the demo by which everything that it started can be found."""
    return f"REKNIT_TEST_MARK={environment['REKNIT_TEST_MARK']}"


def started_by(word: str) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            if word in (f"{name}={value}" for name, value in process.environ().items()):
                found.append(process)
        except psutil.Error:
            continue
    return found


@pytest.fixture
def environment(tmp_path) -> dict[str, str]:
    return {**os.environ, "HOME": str(tmp_path), "REKNIT_TEST_MARK": str(tmp_path)}


def until_gone(word: str, seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while left := started_by(word):
        assert time.monotonic() < end, f"still running: {left}"
        time.sleep(0.1)


def demo(*arguments: str, environment: dict[str, str], folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*COMMAND, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
        cwd=folder,
        start_new_session=True,  # a signal to its group is none to ours
    )


def test_the_demo_proves_itself_and_leaves_only_its_journal(tmp_path, environment):
    """T4: exit code 0 means that every proof held and the rebuilds were exactly the expected ones."""
    journal = tmp_path / "journal.jsonl"
    arguments = ("--steps", "6", "--kill-at", "2", "--journal", str(journal))
    with demo(*arguments, environment=environment, folder=tmp_path) as ran:
        told, _ = ran.communicate(timeout=240)
    assert ran.returncode == 0, told
    assert "epoch 1 {0:0, 1:0, 2:0} -> epoch 2 {0:0, 2:0} -> epoch 3 {0:0, 1:1, 2:0}" in told
    assert "every proof held" in told
    assert "\x1b" not in told
    until_gone(mark(environment))
    assert leftovers(ran.pid) == []
    assert sorted(path.name for path in tmp_path.rglob("*") if path.is_file()) == ["journal.jsonl", "journal.log"]


def until_step_1(ran: subprocess.Popen[str]) -> None:
    assert ran.stdout is not None
    assert any(line.startswith("step 1/") for line in ran.stdout), "the demo ended before its first step"


def until_there_is(path: str) -> Callable[[subprocess.Popen[str]], None]:
    """A moment in the start of Ray: something has come up in the folder of this demo."""

    def wait(ran: subprocess.Popen[str]) -> None:
        end = time.monotonic() + 60
        while not any((folder / path).exists() for folder in leftovers(ran.pid)):
            assert ran.poll() is None, "the demo has ended"
            assert time.monotonic() < end, f"no {path}"
            time.sleep(0.01)

    return wait


STARTING = until_there_is("token")
DAEMON_UP = until_there_is("ray/session_latest/logs/gcs_server.out")
CONNECTING = until_there_is("ray/session_latest/sockets/raylet")


@pytest.mark.parametrize(
    ("how", "moment", "send", "code"),
    [
        (signal.SIGINT, STARTING, os.kill, 130),
        (signal.SIGTERM, DAEMON_UP, os.kill, 130),
        (signal.SIGHUP, CONNECTING, os.kill, 130),
        (signal.SIGTERM, until_step_1, os.kill, 130),
        (signal.SIGHUP, until_step_1, os.killpg, 130),  # as a terminal that is closed does
        (signal.SIGKILL, until_step_1, os.kill, -signal.SIGKILL),
    ],
)
def test_a_demo_that_is_ended_from_outside_leaves_nothing_behind(how, moment, send, code, tmp_path, environment):
    """At any moment: no process, no socket, no file of Ray's, and no crash of a Ray that was only half started."""
    arguments = ("--faults", "none", "--journal", str(tmp_path / "journal.jsonl"))
    with demo(*arguments, environment=environment, folder=tmp_path) as ran:
        moment(ran)
        send(ran.pid, how)
        assert ran.stdout is not None
        rest = ran.stdout.read()
        assert ran.wait(timeout=60) == code, rest
    assert "Traceback" not in rest
    until_gone(mark(environment))
    assert leftovers(ran.pid) == []


def test_a_trainer_that_is_killed_ends_the_demo_with_its_summary_and_the_reason(tmp_path, environment):
    journal = tmp_path / "journal.jsonl"
    with demo("--faults", "none", "--journal", str(journal), environment=environment, folder=tmp_path) as ran:
        until_step_1(ran)
        (folder,) = leftovers(ran.pid)
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700, "others on this machine could come at Ray's files"
        (trainer,) = (process for process in started_by(mark(environment)) if "TrainerActor" in process.name())
        trainer.kill()
        assert ran.stdout is not None
        told = ran.stdout.read()
        assert ran.wait(timeout=60) == 1, told
    assert "summary  FAILED\n" in told
    assert "RefitHalted: refit halted (trainer_lost): trainer rank 0 is gone" in told
    assert f"journal: {journal} (" in told
    assert "conforms: yes" in told
    assert "Traceback" not in told
    until_gone(mark(environment))
    assert leftovers(ran.pid) == []
