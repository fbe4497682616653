"""The console script `reknit`. The commands themselves are in `commands`; here is only how they end."""

from __future__ import annotations

import sys


def main() -> None:
    """Run one command. Exit code 0: it held; 1: it did not; 2: bad input, in one clear line; 130: interrupted."""
    try:
        sys.exit(_run())
    except KeyboardInterrupt:  # at any moment, so also while the libraries are still being imported
        print("reknit: interrupted", file=sys.stderr)
        sys.exit(130)


def _run() -> int:
    try:
        import click

        from .commands import cli
    except ImportError as missing:
        sys.exit(f"reknit: the command line needs {missing.name}; install reknit with its extras ray and cli")
    try:
        return int(cli.main(prog_name="reknit", standalone_mode=False) or 0)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message())
        return 0
    except click.ClickException as error:
        where = error.ctx.command_path if isinstance(error, click.UsageError) and error.ctx else "reknit"
        click.echo(f"{where}: {error.format_message()}", err=True)
        return 2
    except OSError as error:
        click.echo(f"reknit: {error}", err=True)
        return 2
    except click.Abort:
        raise KeyboardInterrupt from None
