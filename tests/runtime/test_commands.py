"""The command line as a shell sees it: what it prints, where, and with which exit code."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from reknit.runtime.simulated import SimulatedRun

DOCS = Path(__file__).resolve().parents[2] / "docs"


def reknit(*arguments: str, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    code = "from reknit.runtime.cli import main; main()"
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=60, check=False, cwd=folder
    )


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    """A good journal of a run that lost a shard and took it back."""
    with SimulatedRun() as run:
        run.controller.start()
        run.controller.refit(1)
        run.fleet.kill_shard(1)
        run.controller.refit(2)
        run.clock.advance(20)
        run.controller.refit(3)
    path = tmp_path / "journal.jsonl"
    path.write_text("".join(f"{line}\n" for line in run.journal.lines))
    return path


def test_plan_moves_the_survivors_up():
    ran = reknit("plan", "--trainers", "8", "--dp-size", "4", "--gen-workers", "8", "--absent", "1")
    assert ran.returncode == 0
    assert "world of 14 ranks" in ran.stdout
    rows = [line.split("│")[1:4] for line in ran.stdout.splitlines() if line.startswith("│")]
    assert [[cell.strip() for cell in row] for row in rows] == [
        ["trainers (rank 0 is the root)", "0-7", "-"],
        ["shard 0", "8-9", "0"],
        ["shard 1", "absent", "-"],
        ["shard 2", "10-11", "2"],
        ["shard 3", "12-13", "4"],
    ]


def test_plan_as_json_is_one_object():
    ran = reknit("plan", "--trainers", "8", "--dp-size", "4", "--gen-workers", "8", "--absent", "1", "--json")
    assert json.loads(ran.stdout) == {
        "world_size": 14,
        "train_world_size": 8,
        "workers_per_shard": 2,
        "absent_shards": [1],
        "shard_prefixes": {"0": 0, "2": 2, "3": 4},
        "shard_ranks": {"0": [8, 9], "2": [10, 11], "3": [12, 13]},
    }


def test_plan_understands_the_words_of_the_demo():
    sizes = ("--trainers", "8", "--absent", "1", "--json")
    documented = reknit("plan", *sizes, "--dp-size", "4", "--gen-workers", "8")
    ran = reknit("plan", *sizes, "--shards", "4", "--workers-per-shard", "2")
    assert ran.returncode == documented.returncode == 0
    assert ran.stdout == documented.stdout


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--trainers", "8", "--dp-size", "4", "--gen-workers", "9"], "evenly sharded"),
        (["--trainers", "8", "--dp-size", "0", "--gen-workers", "8"], "dp_size"),
        (["--trainers", "0", "--dp-size", "4", "--gen-workers", "8"], "train_world_size"),
        (["--trainers", "8", "--dp-size", "2", "--gen-workers", "8", "--absent", "5"], "5"),
        (["--trainers", "8", "--dp-size", "1", "--gen-workers", "8", "--absent", "0"], "surviv"),
        (["--trainers", "eight", "--dp-size", "4", "--gen-workers", "8"], "eight"),
        (["--trainers", "8"], "--dp-size"),
        (["--trainers", "8", "--shards", "4"], "--workers-per-shard"),
        (["--trainers", "8", "--shards", "4", "--gen-workers", "8", "--workers-per-shard", "2"], "give one of"),
        (["--trainers", "8", "--shards", "4", "--workers-per-shard", "0"], "at least 1"),
        (["--trainers", "1", "--dp-size", "4", "--gen-workers", "4000000000000000000000"], "at most 1048576"),
        (["--trainers", "1", "--dp-size", f"{2**31}", "--gen-workers", f"{2**31}"], "at most 1048576"),
        (["--trainers", f"1{'0' * 400}", "--dp-size", "4", "--gen-workers", "8"], "at most 1048576"),
        (["--trainers", f"1{'0' * 5000}", "--dp-size", "4", "--gen-workers", "8"], "trainers"),
        (["--trainers", "8", "--dp-size", "4", "--gen-workers", "8", "--absent", f"1{'0' * 400}"], "outside"),
        (["--trainers", "1.5", "--dp-size", "4", "--gen-workers", "8"], "1.5"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(arguments, says):
    ran = reknit("plan", *arguments)
    assert ran.returncode == 2
    assert ran.stdout == ""
    assert len(ran.stderr.splitlines()) == 1
    assert says in ran.stderr
    assert "Traceback" not in ran.stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nonsense"], "nonsense"),
        (["demo", "--kill-at", "99"], "2 to 13 with --steps 16, got 99"),
        (["demo", "--kill-at", "1"], "got 1"),
        (["demo", "--shards", "1"], "--shards 1"),
        (["demo", "--shards", "100000"], "100001 processes"),
        (["demo", "--trainers", "0"], "--trainers"),
        (["demo", "--workers-per-shard", "-1"], "--workers-per-shard"),
        (["demo", "--steps", "0"], "--steps"),
        (["demo", "--steps", "4"], "at least 5 steps"),
        (["demo", "--steps", "many"], "many"),
        (["demo", "--victim", "3"], "0 to 2, got 3"),
        (["demo", "--faults", "flood"], "flood"),
        (["demo", "--journal", ""], "--journal must name a file"),
        (["demo", "--journal", "/"], "--journal must name a file"),
        (["demo", "--journal", "there.jsonl"], "there.jsonl exists"),
        (["demo", "--journal", "old.jsonl"], "old.log exists"),
        (["demo", "--journal", "new.log"], ".log"),
        (["demo", "--journal", "none/new.jsonl"], "a folder that exists"),
        (["demo", "--journal", "n" * 300], "too long"),
    ],
)
def test_other_bad_input_is_one_line_too_and_leaves_nothing(arguments, says, tmp_path):
    files = {tmp_path / "there.jsonl", tmp_path / "old.log"}
    for file in files:
        file.touch()
    ran = reknit(*arguments, folder=tmp_path)
    assert ran.returncode == 2
    assert ran.stdout == ""
    assert len(ran.stderr.splitlines()) == 1
    assert says in ran.stderr
    assert set(tmp_path.iterdir()) == files


def test_a_good_journal_conforms(journal):
    ran = reknit("conform", str(journal))
    assert ran.returncode == 0
    assert "every one as the table says" in ran.stdout


def test_a_journal_with_a_line_dropped_is_rejected_at_that_line(journal):
    lines = journal.read_text().splitlines()
    del lines[5]
    journal.write_text("\n".join(lines) + "\n")
    ran = reknit("conform", str(journal))
    assert ran.returncode == 1
    assert ran.stderr.startswith(f"{journal}: line 6 does not fit: expected seq 5, found 6")


def test_a_journal_with_another_roster_in_a_command_is_rejected(journal):
    text = journal.read_text()
    doctored = text.replace('"roster":{"0":0,"2":0}', '"roster":{"0":0,"1":0}', 1)
    assert doctored != text
    journal.write_text(doctored)
    assert reknit("conform", str(journal)).returncode == 1


def test_a_journal_of_another_table_is_rejected_and_held_against_this_one_on_request(journal):
    here, other = json.loads(journal.read_text().splitlines()[0])["table"], "0123456789abcdef" * 4
    journal.write_text(journal.read_text().replace(here, other))
    ran = reknit("conform", str(journal))
    assert (ran.returncode, len(ran.stderr.splitlines())) == (1, 1)
    assert here in ran.stderr
    assert other in ran.stderr
    ran = reknit("conform", str(journal), "--any-table")
    assert ran.returncode == 0
    assert f"(decided by the table {other}, held against {here})" in ran.stdout


DEEP = b"[" * 100_000 + b"]" * 100_000
NOT_JOURNALS = {
    "an empty file": b"",
    "an empty line": b"\n",
    "no JSON": b"hello\n",
    "nested without end": DEEP,
    "nested without end, in a field": b'{"kind":"header","journal":' + DEEP + b"}\n",
    "a number of 5000 digits": b'{"kind":"header","journal":' + b"9" * 5000 + b"}\n",
    "a number of 400 digits": b'{"kind":"header","journal":' + b"9" * 400 + b"}\n",
    "not a number": b'{"kind":"header","journal":NaN}\n',
    "an infinity": b'{"kind":"header","journal":-Infinity}\n',
    "bytes that are no UTF-8": b'{"kind":"header\xff\xfe"}\n',
    "zero bytes": b"\x00" * 100,
    "control characters": b'{"kind":"\x1b[2J"}\n',
    "lines in a text": b'{"kind":"a\\nb\\u2028c\\ud800"}\n',
    "another encoding": '{"kind":"header"}\n'.encode("utf-16"),
}


@pytest.mark.parametrize(
    ("content", "behind_a_good_line"),
    [pytest.param(what, False, id=name) for name, what in NOT_JOURNALS.items()]
    # An empty line at the end is no line.
    + [pytest.param(what, True, id=f"{name}, later") for name, what in NOT_JOURNALS.items() if what.strip()],
)
def test_whatever_a_journal_holds_the_answer_is_one_line_and_exit_code_1(journal, content, behind_a_good_line):
    head = journal.read_bytes().splitlines(keepends=True)[0] if behind_a_good_line else b""
    journal.write_bytes(head + content)
    ran = reknit("conform", str(journal))
    assert (ran.returncode, ran.stdout) == (1, "")
    assert ran.stderr.startswith(f"{journal}: line {2 if head else 1} does not fit: expected ")
    assert len(ran.stderr.splitlines()) == 1
    assert len(ran.stderr) < 2000
    assert ran.stderr.rstrip("\n").isprintable()


def test_bytes_that_are_no_utf_8_are_found_where_any_text_may_stand(journal):
    doctored = journal.read_bytes().replace(b'"run":"simulated"', b'"run":"simul\xffted"', 1)
    journal.write_bytes(doctored)
    ran = reknit("conform", str(journal))
    assert ran.returncode == 1
    assert "line 1 does not fit" in ran.stderr


def test_a_journal_may_come_through_a_pipe(journal, tmp_path):
    code = "from reknit.runtime.cli import main; main()"
    command = [sys.executable, "-c", code, "conform", "-"]
    ran = subprocess.run(command, input=journal.read_bytes(), capture_output=True, timeout=60, check=False)
    assert ran.returncode == 0
    assert b"every one as the table says" in ran.stdout
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    writer = threading.Thread(target=lambda: fifo.write_bytes(journal.read_bytes()), daemon=True)
    writer.start()
    assert reknit("conform", str(fifo)).returncode == 0
    writer.join(60)


def test_what_is_no_file_is_one_line_and_exit_code_2(tmp_path):
    for path in (tmp_path / "none.jsonl", tmp_path):
        ran = reknit("conform", str(path))
        assert ran.returncode == 2
        assert len(ran.stderr.splitlines()) == 1


def test_a_diagram_goes_to_standard_output():
    ran = reknit("diagram", "--what", "shard", "--format", "mermaid")
    assert ran.returncode == 0
    assert "serving" in ran.stdout


def test_the_table_as_json_is_what_a_diagram_is_compared_with(tmp_path):
    old = tmp_path / "old.json"
    ran = reknit("table", "--json")
    old.write_text(ran.stdout)
    assert ran.returncode == 0
    assert ran.stdout == reknit("table", "--json").stdout == (DOCS / "reference" / "table.json").read_text()
    ran = reknit("diagram", "--diff", str(old))
    assert (ran.returncode, ran.stderr) == (0, "nothing differs: it is the same table\n")
    lines = old.read_text().splitlines(keepends=True)
    old.write_text("".join(line for line in lines if '"failure_heard@aborted"' not in line))
    for form, starts in (("dot", "digraph"), ("mermaid", "---"), ("svg", "<!--")):
        ran = reknit("diagram", "--diff", str(old), "--format", form)
        assert ran.returncode == 0
        assert ran.stdout.startswith(starts)
        assert re.search(r"\+ ?failure_heard", ran.stdout.replace("&#45;", "-").replace("&#160;", " "))
        assert ran.stderr.splitlines()[0] == "1 added, 0 removed, 0 changed"
        assert ran.stderr.splitlines()[1].startswith("+ communicator failure_heard@aborted: ")


def test_the_table_is_printed_cell_by_cell():
    ran = reknit("table", "--event", "Settled", "--place", "aborted")
    assert ran.returncode == 0
    found = [ran.stdout.find(guard) for guard in ("everybody_ack", "trainer_is_sil", "may_repeat_tra")]
    assert -1 < found[0] < found[1] < found[2]
    whole = reknit("table")
    assert whole.returncode == 0
    assert len(whole.stdout.splitlines()) > 600


FOREIGN = {
    "there.jsonl": '{"kind": "header", "journal": 1}\n',
    "cut.json": '{"format": 1, "table": "0',
    "future.json": '{"format": 9}',
    "half.json": '{"format": 1}',
    "bytes.json": "\udcff",
    "lines.json": '{"format": 1, "table": "a\\nb"}',
}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["diagram", "--what", "fleet"], "fleet"),
        (["diagram", "--format", "png"], "png"),
        (["diagram", "--diff", "none.json"], "none.json"),
        (["diagram", "--diff", "."], "directory"),
        (["diagram", "--diff", "there.jsonl"], "it names no format"),
        (["diagram", "--diff", "cut.json"], "it is no JSON"),
        (["diagram", "--diff", "future.json"], "a table of format 9; this version reads 1"),
        (["diagram", "--diff", "half.json"], "table must be text in one line, got None"),
        (["diagram", "--diff", "bytes.json"], "bytes.json"),
        (["diagram", "--diff", "lines.json"], "table must be text in one line"),
        (["diagram", "--diff", "there.jsonl", "--write", "docs"], "one of --write and --diff"),
        (["table", "--event", "Lost"], "Lost"),
        (["table", "--place", "nowhere"], "nowhere"),
        (["table", "--event", "Promoted", "--place", "built"], "no entry is about Promoted in built"),
        (["table", "--json", "--place", "built"], "--json is the whole table"),
        (["conform", "there.jsonl", "--any"], "--any"),
    ],
)
def test_what_is_no_table_and_no_picture_is_one_line_and_exit_code_2(arguments, says, tmp_path):
    for name, text in FOREIGN.items():
        (tmp_path / name).write_text(text, errors="surrogateescape")
    ran = reknit(*arguments, folder=tmp_path)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert len(ran.stderr.splitlines()) == 1
    assert says in ran.stderr
    assert {path.name for path in tmp_path.iterdir()} == set(FOREIGN)
