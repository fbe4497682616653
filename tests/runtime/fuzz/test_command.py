"""`reknit fuzz` as a shell sees it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

MISTAKEN = '''
from reknit.runtime import messages
from reknit.runtime.fuzz import controller_machine
from reknit.runtime.seams import Trainer
from reknit.runtime.simulated import SimulatedFleet, SimulatedRun

class Forgetful(SimulatedFleet):
    """Whoever says that it holds the version has dropped it."""

    def _reply(self, process, answer, reply):
        if isinstance(reply, messages.Transferred) and not isinstance(process.member, Trainer):
            process.weights = None
        super()._reply(process, answer, reply)

Mistaken = controller_machine(lambda **sizes: SimulatedRun(fleet=Forgetful, **sizes))
'''


def fuzz(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    code = "from reknit.runtime.cli import main; main()"
    return subprocess.run(
        [sys.executable, "-c", code, "fuzz", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=folder,
    )


@pytest.fixture
def mistaken(tmp_path: Path) -> Path:
    """A folder with a machine that has a mistake in it."""
    (tmp_path / "mistaken.py").write_text(MISTAKEN)
    return tmp_path


def test_a_good_house_is_exit_code_0_and_one_line(tmp_path):
    ran = fuzz("--minutes", "0.001", "--seed", "7", folder=tmp_path)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert re.fullmatch(
        r"seed 7: table \d+ examples, \d+ steps, controller \d+ examples, \d+ steps, \d+ s, and nothing was found\n",
        ran.stdout,
    )
    assert list(tmp_path.iterdir()) == [], "it leaves nothing behind"


def test_a_mistake_is_exit_code_1_and_what_is_printed_finds_it_again(mistaken):
    ran = fuzz("--target", "mistaken:Mistaken", "--seed", "3", folder=mistaken)
    assert (ran.returncode, ran.stderr) == (1, "")
    error = "mistaken:Mistaken fails: SimulationBroken: shard 0 (incarnation 0) worker 0 serves None, committed is 0.1"
    assert error in ran.stdout
    program = [line for line in ran.stdout.splitlines() if line.startswith("state")]
    assert program[0] == "state = ControllerMachine()"

    (replay,) = re.findall(r"run this program again: +reknit fuzz (.*)", ran.stdout)
    (again,) = re.findall(r"find it again: +reknit fuzz (.*)", ran.stdout)
    assert again == "--target mistaken:Mistaken --seed 3"
    for command in (replay, again):
        repeated = fuzz(*command.split(), folder=mistaken)
        assert repeated.returncode == 1
        assert error in repeated.stdout
        assert [line for line in repeated.stdout.splitlines() if line.startswith("state")] == program

    (blob,) = re.findall(r"--replay (.*)", replay)
    fixed = fuzz("--target", "controller", "--replay", blob, folder=mistaken)
    assert (fixed.returncode, fixed.stdout) == (0, "this program does not fail\n")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--minutes", "0"], "above 0, got 0.0"),
        (["--minutes", "nan"], "nan"),
        (["--minutes", "many"], "many"),
        (["--seed", "-1"], "-1"),
        (["--target", "nope"], "'nope'"),
        (["--target", "no_such_module:Machine"], "no_such_module"),
        (["--target", "json:dumps"], "is no machine"),
        (["--replay", "AXic"], "exactly one --target"),
        (["--target", "table", "--replay", "no blob"], "no program of table"),
        (["--target", "table", "--replay", "ä"], "no program of table"),
        (["--target", "table", "--replay", "AXicaaaa"], "no program of table"),
    ],
)
def test_bad_options_are_one_line_and_exit_code_2(arguments, says, tmp_path):
    ran = fuzz(*arguments, folder=tmp_path)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert len(ran.stderr.splitlines()) == 1
    assert says in ran.stderr
    assert list(tmp_path.iterdir()) == []


def test_without_hypothesis_it_says_what_to_install(tmp_path):
    (tmp_path / "hypothesis.py").write_text("raise ModuleNotFoundError(\"No module named 'hypothesis'\")")
    ran = fuzz("--minutes", "0.001", folder=tmp_path)
    assert ran.returncode == 2
    assert ran.stderr == "reknit: this needs hypothesis; install reknit with its extra test\n"
