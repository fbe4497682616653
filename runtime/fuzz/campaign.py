"""A campaign: rounds of a generated machine until the time is up, or until one finds something.

Each round has a seed of its own, so the seed of the round that failed finds the same failure again, by itself, and the
blob of the shortest program runs that program alone. Hypothesis also draws from the constants of the source files that
are loaded and lie in no site-packages; therefore both machines of this house are loaded whatever is asked for. The blob
holds every draw and depends on none of that.
"""

from __future__ import annotations

import contextlib
import io
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from hypothesis import reproduce_failure, settings
from hypothesis import seed as seeded
from hypothesis.errors import DidNotReproduce, InvalidArgument
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test
from hypothesis.version import __version__ as hypothesis_version

from ...statemachine.generated import Tally, table_machine
from ...statemachine.profiles import PROFILES
from .machine import controller_machine

Machine = type[RuleBasedStateMachine]
HOUSE: Mapping[str, Callable[[], Machine]] = {"table": table_machine, "controller": controller_machine}
_BLOB = re.compile(r"@reproduce_failure\('[^']*', b'([^']*)'\)")


class BadBlob(ValueError):
    """This text is no program of this machine, or was written by another version of Hypothesis."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """What was found. seed: of the round, None for a replay. program: the shortest that fails, a line for each call."""

    target: str
    seed: int | None
    error: str
    program: str
    blob: str | None


def campaign(
    machines: Mapping[str, Machine],
    *,
    seconds: float,
    seed: int,
    progress: Callable[[float], None],
    clock: Callable[[], float] = time.monotonic,
) -> Failure | None:
    """Rounds with the seeds `seed`, `seed + 1`, …, of each machine, one at least, until the time is up.

    progress: told after each round how many seconds have passed. A round that has begun is finished.
    """
    began = clock()
    while True:
        for target, machine in machines.items():
            failure = _round(target, machine, seed)
            progress(clock() - began)
            if failure is not None:
                return failure
        if clock() - began >= seconds:
            return None
        seed += 1


def replay(target: str, machine: Machine, blob: str) -> Failure | None:
    """Run the one program that a blob stands for. None: it does not fail any more. Raises `BadBlob`."""
    one = type(machine.__name__, (machine,), {})
    try:
        wrapped = reproduce_failure(hypothesis_version, blob.encode())(one)
        return _run(target, wrapped, None)
    except DidNotReproduce:
        return None
    except (InvalidArgument, UnicodeError) as error:
        raise BadBlob(f"this is no program of {target}: {str(error).splitlines()[0]}") from None


def tally(machine: Machine) -> Tally:
    """What a machine counts, if it was made here."""
    counted = getattr(machine, "tally", None)
    return counted if isinstance(counted, Tally) else Tally()


def _round(target: str, machine: Machine, seed: int) -> Failure | None:
    return _run(target, seeded(seed)(machine), seed)


def _run(target: str, machine: Machine, seed: int | None) -> Failure | None:
    # A program that was found comes with its error; one that is run again is printed.
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            run_state_machine_as_test(machine, settings=settings(PROFILES["fuzz"], report_multiple_bugs=False))
    except (DidNotReproduce, InvalidArgument, KeyboardInterrupt):
        raise
    except Exception as error:
        told = "\n".join((printed.getvalue(), *getattr(error, "__notes__", ())))
        blob = _BLOB.search(told)
        return Failure(
            target=target,
            seed=seed,
            error=f"{type(error).__name__}: {error}",
            program="\n".join(line for line in told.splitlines() if line.startswith("state")),
            blob=blob.group(1) if blob else None,
        )
    return None
