"""What a run of the demo has shown, and what follows from that. Plain data and pure functions; no Ray, no files.

The verdict is the absence of failures, and every way to fail is listed in `failures` alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ...statemachine.conform import Verdict
from ..report import RefitReport
from .options import Communicators, DemoOptions

Failure = tuple[str, str]
"""What failed, in a word or two, and how."""


@dataclass
class Ledger:
    """What was seen. Written while the run goes on, so it holds what was reached when a run breaks off.

    step: the one under way, 0 before the first. proofs: how many were compared. broke: why the run broke off.
    """

    step: int = 0
    reports: list[RefitReport] = field(default_factory=list)
    formed: Communicators = field(default_factory=list)
    proofs: int = 0
    failed_proofs: list[str] = field(default_factory=list)
    wrong_serving: list[str] = field(default_factory=list)
    broke: str | None = None
    killed_at: float | None = None
    rebuilt_after: float | None = None
    serving_after: float | None = None

    def compare_proofs(self, truth: object, held: Sequence[tuple[str, object]]) -> None:
        """Hold the proof of each holder against `truth`, the proof of the trainer whose weights were sent."""
        for name, proof in held:
            self.proofs += 1
            if proof != truth:
                self.failed_proofs.append(f"step {self.step}: {name} holds {proof}, the trainer {truth}")

    def compare_serving(self, serving: Sequence[int], spanned: Sequence[int]) -> None:
        """Hold the shards that serve after a refit against those that it spanned."""
        if tuple(serving) != tuple(spanned):
            self.wrong_serving.append(f"step {self.step}: shards {serving} serve, the refit spanned {spanned}")


def failures(options: DemoOptions, ledger: Ledger, told: Verdict | None) -> list[Failure]:
    """Everything that speaks against the run. told: what the check of its journal found, None if there is none."""
    # A run that broke off has of course not done the rest.
    found = _unfinished(options, ledger, told) if ledger.broke is None else [("run", f"broke off: {ledger.broke}")]
    found += [("proof", text) for text in ledger.failed_proofs]
    found += [("serving", text) for text in ledger.wrong_serving]
    if told is not None and not told.ok:
        found.append(("journal", f"line {told.first_bad_line} does not fit the table: {told.why}"))
    return found


def _unfinished(options: DemoOptions, ledger: Ledger, told: Verdict | None) -> list[Failure]:
    found = []
    if len(ledger.reports) != options.steps:
        found.append(("steps", f"{len(ledger.reports)} refits completed, {options.steps} asked for"))
    if ledger.formed != options.expected:
        found.append(("communicators", f"formed {_spell(ledger.formed)}; expected {_spell(options.expected)}"))
    due = proofs_due(options, ledger.reports)
    if ledger.proofs != due:
        found.append(("proofs", f"{ledger.proofs} compared, {due} due"))
    if told is None:
        found.append(("journal", "none was written"))
    return found


def proofs_due(options: DemoOptions, reports: Sequence[RefitReport]) -> int:
    """How many proofs must be compared: after each refit, of every worker it spanned and every trainer but the root."""
    return sum(len(report.roster) * options.workers_per_shard + options.trainers - 1 for report in reports)


def summary(options: DemoOptions, ledger: Ledger, told: Verdict | None) -> tuple[str, list[tuple[str, str]]]:
    """The verdict in words, and the (name, value) rows that it rests on, failures last."""
    found = failures(options, ledger, told)
    rows = [
        ("communicators formed", f"{len(ledger.formed)}: {_spell(ledger.formed)}"),
        ("rebuilds", f"{max(len(ledger.formed) - 1, 0)}, expected {len(options.expected) - 1}"),
        ("proofs", f"{ledger.proofs} compared bit for bit, {len(ledger.failed_proofs)} failed"),
        *_timings(ledger),
        ("journal", f"{options.journal} ({_conformance(told)})"),
        ("reading {slot:incarnation}", "{0:0, 1:1} is shard 0's first process and shard 1's second"),
    ]
    return "FAILED" if found else "every proof held", rows + [(f"FAILED {what}", how) for what, how in found]


def _timings(ledger: Ledger) -> list[tuple[str, str]]:
    rows = []
    if ledger.reports:
        last = ledger.reports[-1]
        rows.append(("weights per refit", f"{last.bytes / 1e6:.1f} MB in {last.tensors} tensors"))
    quiet = sorted(report.seconds for report in ledger.reports if not report.communicators)
    rows.append(("refit, quiet", f"median {quiet[len(quiet) // 2]:.3f} s" if quiet else "none"))
    rows += [
        (f"refit, step {report.version.step}", f"{report.seconds:.3f} s, of it {report.forming_s:.3f} s forming")
        for report in ledger.reports
        if report.communicators
    ]
    if ledger.rebuilt_after is not None:
        rows.append(("kill to next proven refit", f"{ledger.rebuilt_after:.2f} s"))
    if ledger.serving_after is not None:
        rows.append(("kill to serving again", f"{ledger.serving_after:.2f} s"))
    return rows


def _conformance(told: Verdict | None) -> str:
    if told is None:
        return "not written"
    return f"{told.events} events, conforms: {'yes' if told.ok else 'NO'}"


def _spell(communicators: Communicators) -> str:
    return " -> ".join(f"epoch {epoch} {roster}" for epoch, roster in communicators) or "none"
