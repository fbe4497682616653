"""The demo's verdict is false for each thing that can be wrong, alone, and its summary names that thing."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest

from reknit.runtime.demo.options import DemoOptions
from reknit.runtime.demo.verdict import Ledger, failures, summary
from reknit.runtime.report import RefitReport
from reknit.spec.lifecycle.events import Version
from reknit.spec.roster import Roster
from reknit.statemachine.conform import Verdict

OPTIONS = DemoOptions(trainers=2, workers_per_shard=2, steps=5, kill_at=2, journal=Path("run.jsonl"))
CONFORMS = Verdict(ok=True, lines=42, events=40)
FIRST, REST, AGAIN = OPTIONS.expected
FORMED_IN_STEP = {2: REST, 4: AGAIN}


def report(step: int) -> RefitReport:
    formed = FORMED_IN_STEP.get(step)
    epoch, roster = FIRST if step < 2 else REST if step < 4 else AGAIN
    return RefitReport(
        version=Version(0, step),
        epoch=epoch,
        roster=roster,
        world_size=2 + 2 * len(roster),
        communicators=(formed,) if formed else (),
        seconds=0.25,
        forming_s=0.125 if formed else 0.0,
        transfer_s=0.0625,
        tensors=77,
        bytes=30_000_000,
        digest="d",
    )


def good() -> Ledger:
    """The ledger of a run that went as it must: 3 shards of 2 workers, one away for two steps, and a second trainer."""
    reports = [report(step) for step in range(1, 6)]
    return Ledger(step=5, reports=reports, formed=[FIRST, REST, AGAIN], proofs=7 + 5 + 5 + 7 + 7)


def test_a_run_that_went_as_it_must_has_nothing_against_it() -> None:
    assert failures(OPTIONS, good(), CONFORMS) == []
    title, rows = summary(OPTIONS, good(), CONFORMS)
    assert title == "every proof held"
    assert dict(rows)["proofs"] == "31 compared bit for bit, 0 failed"
    assert dict(rows)["rebuilds"] == "2, expected 2"
    assert dict(rows)["journal"] == "run.jsonl (40 events, conforms: yes)"
    assert not any(name.startswith("FAILED") for name, _ in rows)


def no_rebuild(ledger: Ledger) -> None:
    ledger.formed = [FIRST]


def one_rebuild_too_many(ledger: Ledger) -> None:
    ledger.formed.append((4, FIRST[1]))


def rebuilds_in_another_order(ledger: Ledger) -> None:
    ledger.formed = [FIRST, (2, AGAIN[1]), (3, REST[1])]


def the_old_process_is_back(ledger: Ledger) -> None:
    ledger.formed[-1] = (3, Roster({0: 0, 1: 0, 2: 0}))


def another_epoch(ledger: Ledger) -> None:
    ledger.formed[-1] = (4, AGAIN[1])


def a_proof_differs(ledger: Ledger) -> None:
    ledger.compare_proofs("a", [("shard 0 worker 0", "b")])
    ledger.proofs -= 1


def no_proof_was_compared(ledger: Ledger) -> None:
    ledger.proofs = 0


def one_proof_is_missing(ledger: Ledger) -> None:
    ledger.proofs -= 1


def a_shard_that_was_spanned_does_not_serve(ledger: Ledger) -> None:
    ledger.compare_serving((0, 2), (0, 1, 2))


def a_step_is_missing(ledger: Ledger) -> None:
    del ledger.reports[2]
    ledger.proofs -= 5


def the_run_broke_off(ledger: Ledger) -> None:
    ledger.broke = "step 3: RefitHalted: refit halted (trainer_lost): trainer rank 0 is gone"


@pytest.mark.parametrize(
    ("damage", "what", "how"),
    [
        (no_rebuild, "communicators", "expected epoch 1"),
        (one_rebuild_too_many, "communicators", "epoch 4"),
        (rebuilds_in_another_order, "communicators", "formed"),
        (the_old_process_is_back, "communicators", "{0:0, 1:0, 2:0}; expected"),
        (another_epoch, "communicators", "epoch 4"),
        (a_proof_differs, "proof", "step 5: shard 0 worker 0 holds b, the trainer a"),
        (no_proof_was_compared, "proofs", "0 compared, 31 due"),
        (one_proof_is_missing, "proofs", "30 compared, 31 due"),
        (a_shard_that_was_spanned_does_not_serve, "serving", "shards (0, 2) serve, the refit spanned (0, 1, 2)"),
        (a_step_is_missing, "steps", "4 refits completed, 5 asked for"),
        (the_run_broke_off, "run", "broke off: step 3: RefitHalted: refit halted (trainer_lost)"),
    ],
)
def test_one_thing_wrong_is_enough_and_is_named(damage: Callable[[Ledger], None], what: str, how: str) -> None:
    ledger = good()
    damage(ledger)
    found = failures(OPTIONS, ledger, CONFORMS)
    assert [name for name, _ in found] == [what]
    assert how in found[0][1]
    title, rows = summary(OPTIONS, ledger, CONFORMS)
    assert title == "FAILED"
    assert rows[-1] == (f"FAILED {what}", found[0][1])


def test_a_journal_that_does_not_conform_is_a_failure_at_its_line() -> None:
    told = Verdict(ok=False, lines=7, events=5, first_bad_line=6, why="expected seq 5, found 6")
    assert failures(OPTIONS, good(), told) == [("journal", "line 6 does not fit the table: expected seq 5, found 6")]
    assert dict(summary(OPTIONS, good(), told)[1])["journal"] == "run.jsonl (5 events, conforms: NO)"


def test_a_run_without_a_journal_has_failed() -> None:
    assert failures(OPTIONS, good(), None) == [("journal", "none was written")]
    assert dict(summary(OPTIONS, good(), None)[1])["journal"] == "run.jsonl (not written)"


def test_only_failed_proofs_are_counted_as_failed_proofs() -> None:
    ledger = good()
    for damage in (no_rebuild, a_shard_that_was_spanned_does_not_serve, the_run_broke_off):
        damage(ledger)
    assert dict(summary(OPTIONS, ledger, None)[1])["proofs"] == "31 compared bit for bit, 0 failed"
    a_proof_differs(ledger)
    assert dict(summary(OPTIONS, ledger, None)[1])["proofs"] == "31 compared bit for bit, 1 failed"


def test_what_a_broken_off_run_has_not_reached_is_no_failure_of_its_own() -> None:
    ledger = Ledger(broke="ray.exceptions.RaySystemError: no port")
    assert failures(OPTIONS, ledger, None) == [("run", f"broke off: {ledger.broke}")]
    title, rows = summary(OPTIONS, ledger, None)
    assert title == "FAILED"
    assert dict(rows)["communicators formed"] == "0: none"


def test_every_proof_is_compared_with_the_trainer_and_with_nothing_else() -> None:
    ledger = Ledger(step=3)
    ledger.compare_proofs("a", [("shard 0 worker 0", "a"), ("shard 1 worker 0", "b"), ("shard 2 worker 0", "b")])
    assert ledger.proofs == 3
    assert ledger.failed_proofs == [
        "step 3: shard 1 worker 0 holds b, the trainer a",
        "step 3: shard 2 worker 0 holds b, the trainer a",
    ]


def test_without_faults_one_communicator_is_expected() -> None:
    assert dataclasses.replace(OPTIONS, faults="none").expected == [FIRST]
