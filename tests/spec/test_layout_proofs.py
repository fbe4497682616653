"""The layout holds for every size and any survivors: two solvers prove it on the real code, and both notice mistakes.

CrossHair runs the code of `contracts/` with symbolic numbers and must confirm every contract over all paths. z3 gets
the terms of its theorems by calling the same formulas with its own integers. What is not decided in time has failed.
docs/lifecycle.md says what this proves and what it does not.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import z3

from reknit.spec import layout

ROOT = Path(__file__).resolve().parents[2]
CONTRACTS = Path(__file__).parent / "contracts"
LAYOUT, MEMBERSHIP = "layout.py", "membership.py"

# One solver call or one contract. The longest that is expected to end takes less than a second on two slow cores.
SOLVER_MS = 10_000
CONTRACT_S = 15
SEARCH_S = 2
PROCESS_S = 120


# --- seeded mistakes: in the source, so that both tools meet what a programmer would have written -------------------


@dataclass(frozen=True)
class Mistake:
    """`right` stands once in the source, and `wrong` takes its place."""

    says: str
    file: str
    right: str
    wrong: str

    def source(self) -> str:
        """The file with the mistake in it."""
        text = (ROOT / "spec" / self.file).read_text(encoding="utf-8")
        assert text.count(self.right) == 1, f"{self.says}: {self.right!r} must stand once in {self.file}"
        return text.replace(self.right, self.wrong)


RANK = "return train_world_size + prefix + worker"
PREFIX = "return position * workers_per_shard"
WORLD = "return train_world_size + survivors * workers_per_shard"
INVERSE = "return divmod(rank - train_world_size, workers_per_shard)"
TRAINER = "return rank < train_world_size"

# Met by both tools: CrossHair through the contracts on the formulas, z3 through its theorems.
FORMULA_MISTAKES = [
    Mistake("a rank is one too high", LAYOUT, RANK, f"{RANK} + 1"),
    Mistake("a rank is one too low", LAYOUT, RANK, f"{RANK} - 1"),
    Mistake("a rank counts the trainers twice", LAYOUT, RANK, f"{RANK} + train_world_size"),
    Mistake("a rank forgets the worker", LAYOUT, RANK, "return train_world_size + prefix"),
    Mistake("a prefix is one too high", LAYOUT, PREFIX, f"{PREFIX} + 1"),
    Mistake("prefixes count positions from one", LAYOUT, PREFIX, "return (position + 1) * workers_per_shard"),
    Mistake("shards overlap by one rank", LAYOUT, PREFIX, "return position * (workers_per_shard - 1)"),
    Mistake("shards leave a hole of one rank", LAYOUT, PREFIX, "return position * (workers_per_shard + 1)"),
    Mistake("the world is one too large", LAYOUT, WORLD, f"{WORLD} + 1"),
    Mistake("the world is one too small", LAYOUT, WORLD, f"{WORLD} - 1"),
    Mistake("the world counts the trainers twice", LAYOUT, WORLD, f"{WORLD} + train_world_size"),
    Mistake("the inverse is one rank off", LAYOUT, INVERSE, INVERSE.replace("rank -", "rank + 1 -")),
    Mistake("the inverse forgets the trainers", LAYOUT, INVERSE, "return divmod(rank, workers_per_shard)"),
    Mistake("the inverse divides by one too many", LAYOUT, INVERSE, INVERSE.replace("shard)", "shard + 1)")),
    Mistake("the inverse swaps position and worker", LAYOUT, INVERSE, f"{INVERSE}[::-1]"),
    Mistake("the first generation rank is a trainer", LAYOUT, TRAINER, "return rank <= train_world_size"),
    Mistake("the last trainer is none", LAYOUT, TRAINER, "return rank + 1 < train_world_size"),
]

# Met by CrossHair alone: these stand in code with containers and branches, which z3 is not shown.
MEMBERSHIP_MISTAKES = [
    Mistake(
        "survivors are counted from one", MEMBERSHIP, "in enumerate(survivors)", "in enumerate(survivors, start=1)"
    ),
    Mistake("a shard ends one rank too early", MEMBERSHIP, "first + self.w", "first - 1 + self.w"),
    Mistake("a rank leads to the shard before", MEMBERSHIP, "_shards[position]", "_shards[position - 1]"),
    Mistake("the world leaves a survivor out", MEMBERSHIP, "survivors=len(survivors)", "survivors=len(survivors) - 1"),
]


def named(mistake: Mistake) -> str:
    return mistake.says


# --- CrossHair ------------------------------------------------------------------------------------------------------

# `file:line: info: Confirmed over all paths.`
LINE = re.compile(r"^.*\.py:\d+: (?P<kind>\w+): (?P<message>.*)$", re.MULTILINE)
CONFIRMED = ("info", "Confirmed over all paths.")


def crosshair(contracts: str, *, package: Path, seconds: int = CONTRACT_S) -> tuple[int, list[tuple[str, str]]]:
    """Check one module of contracts against a package as anybody would: the exit status, and every line's verdict."""
    ran = subprocess.run(
        [
            *(sys.executable, "-m", "crosshair", "check", "--report_all", "--analysis_kind=PEP316"),
            *("--per_condition_timeout", str(seconds), str(CONTRACTS / f"{contracts}.py")),
        ],
        env={**os.environ, "PYTHONPATH": str(package)},
        capture_output=True,
        text=True,
        timeout=PROCESS_S,
    )
    lines = [(line["kind"], line["message"]) for line in LINE.finditer(ran.stdout)]
    assert lines, f"CrossHair says nothing: {ran.stdout}{ran.stderr}"
    return ran.returncode, lines


def finds_a_counterexample(contracts: str, package: Path) -> bool:
    """Whether a contract is broken by a call that CrossHair can show; a module that does not load is none."""
    status, lines = crosshair(contracts, package=package)
    return status == 1 and any(kind == "error" and "when calling" in message for kind, message in lines)


def promises(contracts: str) -> int:
    return (CONTRACTS / f"{contracts}.py").read_text(encoding="utf-8").count("    post: ")


@pytest.fixture
def spoilt(tmp_path: Path) -> Callable[[Mistake], Path]:
    """A package with a mistake in it, as a folder to import `reknit` from: the layout alone, which loads quickly."""

    def spoil(mistake: Mistake) -> Path:
        spec = tmp_path / "reknit" / "spec"
        spec.mkdir(parents=True)
        for package in (spec.parent, spec):
            (package / "__init__.py").touch()
        for file in (LAYOUT, MEMBERSHIP):
            shutil.copy(ROOT / "spec" / file, spec)
        (spec / mistake.file).write_text(mistake.source(), encoding="utf-8")
        return tmp_path

    return spoil


@pytest.mark.parametrize("contracts", ["formulas", "memberships"])
def test_crosshair_confirms_every_contract_over_all_paths(contracts: str) -> None:
    """S1, S2. Not to have found a counterexample is not enough, nor is a contract whose precondition nothing meets."""
    status, lines = crosshair(contracts, package=ROOT / ".dev")
    assert lines == [CONFIRMED] * promises(contracts)
    assert status == 0


def test_crosshair_searches_fleets_of_any_size_and_finds_nothing() -> None:
    """A list of symbolic length has no end of paths, so this can be searched and not confirmed."""
    assert crosshair("searched", package=ROOT / ".dev", seconds=SEARCH_S) == (0, [("info", "Not confirmed.")])


@pytest.mark.parametrize("mistake", FORMULA_MISTAKES, ids=named)
def test_crosshair_finds_a_mistake_in_a_formula(mistake: Mistake, spoilt: Callable[[Mistake], Path]) -> None:
    assert finds_a_counterexample("formulas", spoilt(mistake))


@pytest.mark.parametrize("mistake", MEMBERSHIP_MISTAKES, ids=named)
def test_crosshair_finds_a_mistake_around_the_formulas(mistake: Mistake, spoilt: Callable[[Mistake], Path]) -> None:
    assert finds_a_counterexample("memberships", spoilt(mistake))


def test_the_search_too_finds_a_mistake(spoilt: Callable[[Mistake], Path]) -> None:
    """Otherwise its silence would say nothing."""
    assert finds_a_counterexample("searched", spoilt(FORMULA_MISTAKES[0]))


# --- z3: the survivors are any set whatever -------------------------------------------------------------------------

TRAINERS, WORKERS, FLEET = z3.Ints("train_world_size workers_per_shard dp_size")
survives = z3.Function("survives", z3.IntSort(), z3.BoolSort())
below = z3.Function("survivors_below", z3.IntSort(), z3.IntSort())
SURVIVORS = below(FLEET)
SIZES = [TRAINERS >= 1, WORKERS >= 1, FLEET >= 1, below(0) == 0, SURVIVORS >= 1]

shard, other, worker, others_worker, rank, count = z3.Ints("shard other worker others_worker rank count")


@pytest.fixture(autouse=True)
def z3_integers_know_divmod(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python's divmod over z3's division, the same thing where the divisor is positive (tested below)."""
    monkeypatch.setattr(z3.ArithRef, "__divmod__", lambda self, by: (self / by, self % by), raising=False)


def decide(premises: list[Any], claim: Any) -> z3.CheckSatResult:
    """`unsat`: the claim follows. `sat`: a counterexample. `unknown`: neither, in time."""
    solver = z3.Solver()
    solver.set("timeout", SOLVER_MS)
    solver.add(*SIZES, *premises, z3.Not(claim))
    return solver.check()


def within(low: Any, value: Any, high: Any) -> Any:
    """`low <= value < high`"""
    return z3.And(low <= value, value < high)


def counted(slot: Any) -> Any:
    """What `survivors_below` is: it grows by one behind every survivor."""
    return z3.Implies(within(0, slot, FLEET), below(slot + 1) == below(slot) + z3.If(survives(slot), 1, 0))


# A lemma is a formula about the terms it is given. It is proven below for unknown ones, so it may be used for any.


def grows(low: Any, high: Any) -> Any:
    """`survivors_below` never falls, and it rises behind a survivor."""
    own = z3.If(z3.And(survives(low), low < high), 1, 0)
    return z3.Implies(z3.And(low >= 0, low <= high, high <= FLEET), below(low) + own <= below(high))


def filled(high: Any, position: Any) -> Any:
    """Every position below the count belongs to a survivor."""
    slot = z3.Int("slot")
    somebody = z3.Exists(slot, z3.And(within(0, slot, high), survives(slot), below(slot) == position))
    return z3.Implies(z3.And(within(0, high, FLEET + 1), within(0, position, below(high))), somebody)


LEMMAS = {
    "survivors_below grows: from here": ([], grows(shard, shard)),
    "survivors_below grows: by one more slot": (
        [grows(shard, other), shard <= other, other < FLEET, counted(other)],
        grows(shard, other + 1),
    ),
    "positions are filled: in no slots": ([], filled(z3.IntVal(0), count)),
    "positions are filled: in one more slot": (
        [filled(other, count), within(0, other, FLEET), counted(other)],
        filled(other + 1, count),
    ),
}


@dataclass(frozen=True)
class Theorem:
    """What follows from the sizes and the premises, given the formulas."""

    says: str
    premises: list[Any]
    claim: Any


def member(slot: Any, its_worker: Any) -> list[Any]:
    """It survives, so its position is below the number of survivors: an instance of the lemma."""
    return [
        within(0, slot, FLEET),
        survives(slot),
        within(0, its_worker, WORKERS),
        grows(z3.IntVal(0), slot),
        grows(slot, FLEET),
    ]


def theorems(formulas: ModuleType) -> Iterator[Theorem]:
    """Every theorem over the terms that these formulas make of symbolic numbers."""

    def at(position: Any, its_worker: Any) -> Any:
        prefix = formulas.prefix_of(position=position, workers_per_shard=WORKERS)
        return formulas.rank_at(train_world_size=TRAINERS, prefix=prefix, worker=its_worker)

    def sits(slot: Any, its_worker: Any) -> Any:
        return at(below(slot), its_worker)

    def trainer(of_rank: Any) -> Any:
        return formulas.is_trainer(rank=of_rank, train_world_size=TRAINERS)

    def found(at_rank: Any) -> Any:
        return formulas.position_and_worker_at(rank=at_rank, train_world_size=TRAINERS, workers_per_shard=WORKERS)

    world = formulas.world_size_of(train_world_size=TRAINERS, survivors=SURVIVORS, workers_per_shard=WORKERS)
    one, two = member(shard, worker), [*member(other, others_worker), grows(shard, other), grows(other, shard)]

    yield Theorem("range", one, within(TRAINERS, sits(shard, worker), world))
    yield Theorem(
        "injective",
        [*one, *two, sits(shard, worker) == sits(other, others_worker)],
        z3.And(shard == other, worker == others_worker),
    )
    position, its_worker = found(rank)
    yield Theorem(
        "onto: every rank behind the trainers belongs to a worker at a position",
        [within(TRAINERS, rank, world)],
        z3.And(within(0, position, SURVIVORS), within(0, its_worker, WORKERS), at(position, its_worker) == rank),
    )
    slot = z3.Int("slot")
    yield Theorem(
        "onto: and every position belongs to a survivor",
        [within(TRAINERS, rank, world), filled(FLEET, position)],
        z3.Exists(slot, z3.And(within(0, slot, FLEET), survives(slot), below(slot) == position)),
    )
    position, its_worker = found(sits(shard, worker))
    yield Theorem("inverse", one, z3.And(position == below(shard), its_worker == worker))
    yield Theorem(
        "contiguous: a shard's workers",
        [*one, worker + 1 < WORKERS],
        sits(shard, worker + 1) == sits(shard, worker) + 1,
    )
    yield Theorem("contiguous: from the trainers", [*one, below(shard) == 0], sits(shard, 0) == TRAINERS)
    yield Theorem(
        "contiguous: from a survivor to the next",
        [*one, *two, below(other) == below(shard) + 1],
        sits(other, 0) == sits(shard, WORKERS - 1) + 1,
    )
    yield Theorem(
        "contiguous: to the end of the world",
        [*one, below(shard) == SURVIVORS - 1],
        sits(shard, WORKERS - 1) == world - 1,
    )
    yield Theorem("in slot order", [*one, *two, shard < other], sits(shard, worker) < sits(other, others_worker))
    yield Theorem(
        "trainers unmoved: they keep their ranks", [within(0, rank, TRAINERS)], z3.And(trainer(rank), rank < world)
    )
    yield Theorem("trainers unmoved: no worker sits among them", one, z3.Not(trainer(sits(shard, worker))))
    yield Theorem("S2: rank 0 is a trainer", [], trainer(z3.IntVal(0)))


def verdicts(formulas: ModuleType) -> dict[str, z3.CheckSatResult]:
    """What z3 says of every theorem about these formulas."""
    return {theorem.says: decide(theorem.premises, theorem.claim) for theorem in theorems(formulas)}


def spoilt_formulas(mistake: Mistake) -> ModuleType:
    module = ModuleType("spoilt_layout")
    exec(compile(mistake.source(), mistake.says, "exec"), vars(module))
    return module


def test_division_of_z3_is_that_of_python_where_the_divisor_is_positive() -> None:
    for number in range(-20, 21):
        for by in range(1, 8):
            quotient, rest = divmod(z3.IntVal(number), z3.IntVal(by))
            assert (z3.simplify(quotient).as_long(), z3.simplify(rest).as_long()) == divmod(number, by)


@pytest.mark.parametrize("lemma", LEMMAS)
def test_counting_survivors_is_understood(lemma: str) -> None:
    """By induction over the slots: the base, then one more slot."""
    assert decide(*LEMMAS[lemma]) == z3.unsat


def test_every_theorem_is_proven_for_all_sizes_and_any_survivors() -> None:
    """S1, S2."""
    assert verdicts(layout) == dict.fromkeys(verdicts(layout), z3.unsat)


def test_no_theorem_is_about_nothing() -> None:
    """Premises that contradict each other would prove anything."""
    for theorem in theorems(layout):
        assert decide(theorem.premises, z3.BoolVal(False)) == z3.sat, theorem.says


@pytest.mark.parametrize("mistake", FORMULA_MISTAKES, ids=named)
def test_z3_refutes_a_mistake_in_a_formula(mistake: Mistake) -> None:
    """With a counterexample: a proof that merely did not end would say nothing."""
    assert z3.sat in verdicts(spoilt_formulas(mistake)).values()


def test_every_theorem_is_needed_to_refute_some_mistake() -> None:
    """One that nothing refutes might as well say nothing."""
    answers = [verdicts(spoilt_formulas(mistake)) for mistake in FORMULA_MISTAKES]
    refuted = {theorem for answer in answers for theorem, verdict in answer.items() if verdict == z3.sat}
    assert refuted == set(verdicts(layout))
