"""`reknit fuzz`: parse, run the campaign, print one line of progress and what was found."""

from __future__ import annotations

import contextlib
import importlib
import logging
import math
import secrets
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from .campaign import Failure, Machine

TARGETS = ("table", "controller")


@click.command(short_help="Random programs against the table and the controller.")
@click.option("--minutes", type=float, default=1.0, show_default=True, help="How long to look.")
@click.option("--seed", type=click.IntRange(min=0), help="Of the first round. [default: a new one]")
@click.option(
    "--target",
    "targets",
    multiple=True,
    help="table, controller, or MODULE:NAME for a machine of your own; may be given several times. [default: both]",
)
@click.option(
    "--replay", "blob", help="Run only the program that this text of a failure stands for; with one --target."
)
def fuzz(minutes: float, seed: int | None, targets: tuple[str, ...], blob: str | None) -> int:
    """Run random programs against the table and the real controller on a simulated fleet, until the time is up.

    Exit code 1 prints the shortest program that fails, and how to run it again.
    """
    if not 0 < minutes < math.inf:
        raise click.UsageError(f"--minutes must be a finite number above 0, got {minutes}")
    if blob is not None and len(targets) != 1:
        raise click.UsageError(f"--replay needs exactly one --target, got {len(targets)}")
    machines = _machines(targets or TARGETS)
    logging.getLogger("reknit").setLevel(logging.CRITICAL)  # halts and losses are what these runs are made of
    with _no_traces():
        failure = _look(machines, minutes, seed) if blob is None else _replay(machines, blob)
    if failure is None:
        return 0
    click.echo(f"\n{failure.target} fails: {failure.error}\n\n{failure.program}\n")
    if failure.blob is not None:
        click.echo(f"run this program again:  reknit fuzz --target {failure.target} --replay {failure.blob}")
    if failure.seed is not None:
        click.echo(f"find it again:           reknit fuzz --target {failure.target} --seed {failure.seed}")
    return 1


@contextlib.contextmanager
def _no_traces() -> Iterator[None]:
    """Hypothesis keeps what it learned of the sources in a folder where it stands; a campaign leaves nothing behind."""
    from hypothesis.configuration import set_hypothesis_home_dir

    with tempfile.TemporaryDirectory(prefix="reknit-") as folder:
        set_hypothesis_home_dir(folder)
        try:
            yield
        finally:
            set_hypothesis_home_dir(None)


def _look(machines: Mapping[str, Machine], minutes: float, seed: int | None) -> Failure | None:
    from .campaign import campaign, tally

    seed = secrets.randbelow(2**32) if seed is None else seed
    screen = sys.stderr.isatty()
    said = ""

    def progress(seconds: float) -> None:
        nonlocal said
        counted = [(target, tally(machine)) for target, machine in machines.items()]
        done = ", ".join(f"{target} {it.examples} examples, {it.steps} steps" for target, it in counted)
        said = f"seed {seed}: {done}, {seconds:.0f} s"
        if screen:
            click.echo(f"\r{said}", nl=False, err=True)

    failure = campaign(machines, seconds=60.0 * minutes, seed=seed, progress=progress)
    if screen:
        click.echo("\r\x1b[K", nl=False, err=True)
    click.echo(said if failure is not None else f"{said}, and nothing was found")
    return failure


def _replay(machines: Mapping[str, Machine], blob: str) -> Failure | None:
    from .campaign import BadBlob, replay

    ((target, machine),) = machines.items()
    try:
        failure = replay(target, machine, blob)
    except BadBlob as bad:
        raise click.UsageError(str(bad)) from bad
    if failure is None:
        click.echo("this program does not fail")
    return failure


def _machines(targets: Sequence[str]) -> dict[str, Machine]:
    try:
        import hypothesis  # noqa: F401
    except ImportError:
        raise click.ClickException("this needs hypothesis; install reknit with its extra test") from None
    return {target: _machine(target) for target in targets}


def _machine(target: str) -> Machine:
    """The machine of this name. Raises `UsageError`."""
    from hypothesis.stateful import RuleBasedStateMachine

    from .campaign import HOUSE

    if target in HOUSE:
        return HOUSE[target]()
    module, colon, name = target.partition(":")
    if not (module and colon and name):
        raise click.UsageError(f"--target must be table, controller or MODULE:NAME, got {target!r}")
    sys.path.insert(0, "")  # a machine of your own lies where you stand
    try:
        machine = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise click.UsageError(f"--target {target}: {error}") from error
    if not (isinstance(machine, type) and issubclass(machine, RuleBasedStateMachine)):
        raise click.UsageError(f"--target {target} is no machine, which is a class made by controller_machine(...)")
    return machine
