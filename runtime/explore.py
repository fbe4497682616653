"""`reknit explore`: parse, search, print what was seen and every way to what must not happen."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import IO, TYPE_CHECKING

import click
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from ..statemachine.exploration import Exploration, Found, Searched


@click.command(short_help="Every ordering of events of a small fleet.")
@click.option("--shards", type=click.IntRange(1, 8), default=2, show_default=True, help="Generation shards.")
@click.option("--faults", type=click.IntRange(0, 8), default=2, show_default=True, help="Faults in one run, at most.")
@click.option(
    "--rule",
    type=click.Choice(["ours", "published"]),
    default="ours",
    show_default=True,
    help="The table, or the table with the published layout rule in it, whose three holes are found.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@click.option(
    "--save",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path(".reknit"),
    show_default=True,
    help="The folder for a scenario of each violation.",
)
@click.option("--replay", type=click.File(), help="Only follow the way in this scenario.")
@click.option("--processes", type=click.IntRange(min=1), help="Searches at a time. [default: one on each processor]")
def explore(
    shards: int,
    faults: int,
    rule: str,
    as_json: bool,
    save: Path,
    replay: IO[str] | None,
    processes: int | None,
) -> int:
    """Search every ordering of deaths, freezes, losses, answers and deadlines that a small fleet can meet.

    Controller and fleet are searched together; S1 to S14 hold on every step, P1 to P4 of every state, every row fires
    and every goal is reached, or the exit code is 1 and a shortest way to each violation is printed and saved.
    3 shards with 3 faults take minutes and about 2 GB.
    """
    from ..statemachine.exploration import explore as run

    if replay is not None:
        return _replay(replay)
    quiet = as_json or not sys.stderr.isatty()

    def progress(searched: Searched) -> None:
        if not quiet:
            click.echo(f"{searched.states:>9} states in {searched.seconds:5.1f} s: {searched.name}", err=True)

    result = run(
        shards, faults, "published" if rule == "published" else "ours", processes=processes, on_searched=progress
    )
    saved = _save(result, save)
    if as_json:
        click.echo(json.dumps({**result.as_json(), "scenarios": [str(path) for path in saved.values()]}))
    else:
        _print(result, saved)
    return 0 if result.holds else 1


def _save(result: Exploration, folder: Path) -> dict[int, Path]:
    """One file for each violation that can be replayed, by its number."""
    from ..statemachine.scenario import written

    saved: dict[int, Path] = {}
    for number, found in enumerate(result.violations):
        if found.asked is None:
            continue
        path = folder / f"{found.hole or 'violation'}-{found.property.lower()}-{number + 1}.json"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            path.write_text(written(found))
        except OSError as error:
            raise click.ClickException(f"the scenario {path} cannot be written: {error}") from error
        saved[number] = path
    return saved


def _print(result: Exploration, saved: dict[int, Path]) -> None:
    console = Console()
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("search")
    for title in ("states", "transitions", "depth", "seconds"):
        table.add_column(title, justify="right")
    for each in result.searches:
        table.add_row(each.name, f"{each.states:,}", f"{each.transitions:,}", str(each.depth), f"{each.seconds:.1f}")
    console.print(table)
    console.print(
        f"{result.states:,} states, {result.transitions:,} transitions, depth {result.depth}, {result.seconds:.1f} s",
        highlight=False,
    )
    for number, found in enumerate(result.violations):
        _tell(found, saved.get(number))
    for what, names in (("rows never fired", result.rows_never_fired), ("goals not reached", result.goals_not_reached)):
        if result.rule == "ours":
            click.echo(f"{what}: {', '.join(names) or 'none'}")
    click.echo(f"violations: {len(result.violations) or 'none'}")


def _tell(found: Found, saved: Path | None) -> None:
    faults = f"{found.faults} fault{'' if found.faults == 1 else 's'}"
    click.echo(f"\n{found.says}" + (f"\nafter {faults}, by the row {found.hole}" if found.hole else ""))
    for number, line in enumerate(found.trace, start=1):
        click.echo(f"{number:4}. {line}")
    if saved is not None:
        click.echo(f"follow it again:  reknit explore --replay {saved}")
    click.echo()


def _replay(file: IO[str]) -> int:
    from ..statemachine.scenario import BadScenario, read, replay

    try:
        scenario = read(file.read())
        broken = replay(scenario).broken
    except (BadScenario, UnicodeDecodeError) as error:
        raise click.UsageError(f"--replay {file.name}: {error}") from error
    for number, line in enumerate(scenario.trace, start=1):
        click.echo(f"{number:4}. {line}")
    for said in broken:
        click.echo(f"  => {said}")
    if not broken:
        click.echo("  => nothing is broken at its end")
    return 1 if broken else 0
