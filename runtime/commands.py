"""What `reknit` can do from a shell. Each command parses, calls, prints; the work is done elsewhere."""

from __future__ import annotations

import contextlib
import json
import logging
import secrets
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO

import click
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..spec.membership import NoSurvivingShards, RefitMembership, desired_membership
from ..statemachine.conform import conform as check_journal
from ..statemachine.export import Export, ExportedEntry, table_hash, this_table
from ..statemachine.export import read as read_table
from ..statemachine.export import written as written_table
from .explore import explore
from .fuzz.command import fuzz


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="reknit")
def cli() -> None:
    """The refit controller for RL weight sync: a lost shard leaves, a replaced one comes back, the run goes on."""


@cli.command()
@click.option("--trainers", default=1, show_default=True, help="Trainer ranks.")
@click.option("--shards", default=3, show_default=True, help="Generation shards.")
@click.option("--workers-per-shard", default=1, show_default=True, help="Ranks behind one shard.")
@click.option("--steps", default=16, show_default=True, help="Training steps, each with a refit.")
@click.option(
    "--faults", type=click.Choice(["kill", "none"]), default="kill", show_default=True, help="Kill a shard, or nobody."
)
@click.option("--kill-at", default=5, show_default=True, help="The step before whose refit the victim is killed.")
@click.option("--victim", default=1, show_default=True, help="The shard to kill.")
@click.option("--journal", type=click.Path(path_type=Path), help="A new file. [default: .reknit/demo-….jsonl]")
def demo(
    trainers: int,
    shards: int,
    workers_per_shard: int,
    steps: int,
    faults: str,
    kill_at: int,
    victim: int,
    journal: Path | None,
) -> int:
    """Train a small transformer, kill a shard, rebuild, take it back, prove every step."""
    from .demo.options import DemoOptions

    try:
        options = DemoOptions(
            trainers=trainers,
            shards=shards,
            workers_per_shard=workers_per_shard,
            steps=steps,
            faults="none" if faults == "none" else "kill",
            kill_at=kill_at,
            victim=victim,
            journal=journal or Path(".reknit") / f"demo-{secrets.token_hex(4)}.jsonl",
        )
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    if journal is None:
        options.journal.parent.mkdir(exist_ok=True)
    log = _log_beside(options.journal)

    from .demo.story import tell
    from .demo.view import View

    # The screen is the view's alone: what reknit logs and what Ray prints goes to a file beside the journal.
    screen = Console(file=sys.stdout, force_terminal=None if sys.stdout.isatty() else False)
    with log.open("x", encoding="utf-8") as file, contextlib.redirect_stdout(file):
        logging.basicConfig(stream=file, level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
        with View.create(screen) as view:
            view.note(f"starting Ray on this machine; the log is {log}")
            return 0 if tell(options, view) else 1


def _log_beside(journal: Path) -> Path:
    """The log of a run with this journal. Both must be new: a run overwrites nothing."""
    if not journal.name:
        raise click.UsageError(f"--journal must name a file, got {str(journal)!r}")
    log = journal.with_suffix(".log")
    if log == journal:
        raise click.UsageError(f"--journal must not end in .log, which is the log beside it, got {journal}")
    if not journal.parent.is_dir():
        raise click.UsageError(f"--journal must lie in a folder that exists, got {journal}")
    for path in (journal, log):
        if path.exists():
            raise click.UsageError(f"--journal must be a new file with a new log beside it; {path} exists")
    return log


@cli.command()
@click.option("--trainers", type=int, required=True, help="Trainer ranks.")
@click.option("--dp-size", "--shards", "dp_size", type=int, required=True, help="Generation shards.")
@click.option("--gen-workers", type=int, help="Generation workers in all shards together.")
@click.option("--workers-per-shard", type=int, help="Ranks behind one shard; instead of --gen-workers.")
@click.option("--absent", type=int, multiple=True, help="A shard that is absent; may be given several times.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of a table.")
def plan(
    trainers: int,
    dp_size: int,
    gen_workers: int | None,
    workers_per_shard: int | None,
    absent: tuple[int, ...],
    as_json: bool,
) -> int:
    """Print who sits at which rank when some shards are absent."""
    if (gen_workers is None) == (workers_per_shard is None):
        raise click.UsageError("give one of --gen-workers (of all shards together) and --workers-per-shard")
    if gen_workers is None:
        gen_workers = dp_size * (workers_per_shard or 0)
    try:
        membership = desired_membership(
            absent_shards=absent, dp_size=dp_size, total_gen_workers=gen_workers, train_world_size=trainers
        )
    except (ValueError, NoSurvivingShards) as error:
        raise click.UsageError(str(error)) from error
    if as_json:
        click.echo(json.dumps(_plan_json(membership, absent)))
        return 0
    table = Table(title=f"world of {membership.world_size} ranks", title_justify="left")
    table.add_column("who")
    table.add_column("ranks", justify="right")
    table.add_column("rank prefix", justify="right")
    table.add_row("trainers (rank 0 is the root)", _span(range(trainers)), "-")
    for shard in range(dp_size):
        if shard in membership.shard_prefixes:
            ranks = membership.ranks_of(shard=shard)
            table.add_row(f"shard {shard}", _span(ranks), str(membership.shard_prefixes[shard]))
        else:
            table.add_row(f"shard {shard}", "absent", "-")
    Console().print(table)
    return 0


def _span(ranks: range) -> str:
    return str(ranks.start) if len(ranks) == 1 else f"{ranks.start}-{ranks.stop - 1}"


def _plan_json(membership: RefitMembership, absent: tuple[int, ...]) -> dict[str, object]:
    return {
        "world_size": membership.world_size,
        "train_world_size": membership.train_world_size,
        "workers_per_shard": membership.workers_per_shard,
        "absent_shards": sorted(set(absent)),
        "shard_prefixes": {str(shard): prefix for shard, prefix in membership.shard_prefixes.items()},
        "shard_ranks": {str(shard): list(membership.ranks_of(shard=shard)) for shard in membership.surviving_shards},
    }


@cli.command(short_help="Replay a journal against the table.")
@click.argument("journal", type=click.Path(exists=True, dir_okay=False, allow_dash=True))
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of a sentence.")
@click.option("--any-table", is_flag=True, help="Also if it was decided by another table: where do the two part?")
def conform(journal: str, as_json: bool, any_table: bool) -> int:
    """Replay a journal ("-": standard input) against the table; exit code 1 names the first line that does not fit."""
    # Split as bytes, for text has line ends that JSON has not; what is no UTF-8 is kept, and found to be no JSON.
    with click.open_file(journal, "rb") as lines:
        texts = (line.decode("utf-8", "surrogateescape") for line in lines)
        verdict = check_journal(texts, any_table=any_table)
    other = f" (decided by the table {verdict.other_table}, held against {table_hash()})" if verdict.other_table else ""
    if as_json:
        fields = ("ok", "lines", "events", "ending", "first_bad_line", "why", "other_table")
        click.echo(json.dumps({name: getattr(verdict, name) for name in fields}))
    elif verdict.ok:
        click.echo(f"{journal}: {verdict.events} events, every one as the table says; {verdict.ending}{other}")
    else:
        click.echo(f"{journal}: line {verdict.first_bad_line} does not fit: {verdict.why}{other}", err=True)
    return 0 if verdict.ok else 1


@cli.command()
@click.option(
    "--what",
    type=click.Choice(["overview", "communicator", "shard", "joint"]),
    default="communicator",
    show_default=True,
    help="Which diagram.",
)
@click.option(
    "--format", "form", type=click.Choice(["dot", "mermaid", "svg"]), default="dot", show_default=True, help="In what."
)
@click.option(
    "--diff",
    "older",
    type=click.File("rb"),
    metavar="OLD_TABLE.json",
    help='Show in colour what changed since a table that `reknit table --json` wrote ("-": standard input).',
)
@click.option("--write", type=click.Path(file_okay=False, path_type=Path), help="Write all diagrams and the reference.")
def diagram(what: str, form: str, older: BinaryIO | None, write: Path | None) -> int:
    """Draw the lifecycle from its table; with --diff, what changed in colour, and in words on standard error."""
    from ..statemachine.compare import compare, summary
    from ..statemachine.diagrams import draw, write_all
    from ..statemachine.reference import write_reference

    if write is not None and older is not None:
        raise click.UsageError("give one of --write and --diff")
    shown = compare(_older_table(older), this_table()) if older is not None else None
    try:
        if write is not None:
            for path in [*write_all(write / "diagrams"), *write_reference(write / "reference")]:
                click.echo(str(path))
            return 0
        click.echo(draw(what, form, shown), nl=False)
    except RuntimeError as error:
        raise click.ClickException(str(error)) from error
    for line in summary(shown) if shown else ():
        click.echo(line, err=True)
    return 0


def _older_table(file: BinaryIO) -> Export:
    try:
        return read_table(file.read().decode())
    except ValueError as error:
        raise click.UsageError(
            f"--diff must be a table that `reknit table --json` wrote, got {file.name}: {error}"
        ) from error


@cli.command()
@click.option("--json", "as_json", is_flag=True, help="One JSON object, the same bytes for the same table.")
@click.option("--event", help="Only the entries of this event.")
@click.option("--place", help="Only the entries of this phase or shard state.")
def table(as_json: bool, event: str | None, place: str | None) -> int:
    """Print the table: what happens at which event in which place, if what, and why."""
    exported = this_table()
    if as_json:
        if event or place:
            raise click.UsageError("--json is the whole table: leave out --event and --place")
        click.echo(written_table(exported), nl=False)
        return 0
    places = [each.name for each in (*exported.phases, *exported.shard_states)]
    for name, value, known in (("--event", event, [e.name for e in exported.events]), ("--place", place, places)):
        if value is not None and value not in known:
            raise click.UsageError(f"{name} must be one of {', '.join(known)}, got {value!r}")
    shown = [each for each in exported.entries if event in (None, each.event) and place in (None, each.source)]
    if not shown:
        raise click.UsageError(f"no entry is about {event} in {place}")
    Console().print(_as_columns(shown))
    return 0


def _as_columns(entries: Iterable[ExportedEntry]) -> Table:
    """Cell after cell, the entries of each in the order in which they are tried."""
    columns = Table(box=SIMPLE_HEAD, pad_edge=False)
    for title in ("event", "in", "if", "then", "because"):
        columns.add_column(title, overflow="fold")
    cells: dict[tuple[str, str], list[ExportedEntry]] = {}
    for entry in entries:
        cells.setdefault((entry.event, entry.source), []).append(entry)
    for cell, tried in cells.items():
        for number, entry in enumerate(tried):
            where = cell if number == 0 else ("", "")
            columns.add_row(*map(Text, (*where, entry.guard or "", _then(entry), entry.why)))
        columns.add_section()
    return columns


def _then(entry: ExportedEntry) -> str:
    match entry.kind:
        case "ignore":
            return "ignored"
        case "refuse":
            return f"refused: {entry.error}"
    target = "stays" if entry.target == entry.source else f"-> {entry.target}"
    return f"{target}, {entry.effect}"


cli.add_command(explore)
cli.add_command(fuzz)
