"""A Ray of our own on this machine that leaves nothing behind: no process, no socket, no temporary file."""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import ray

from .signals import HeldSignals, keeping_handlers

# Ray's processes end a moment after a killed driver, and may write until then.
REMOVE = 'cat; rm -rf "$0" 2>/dev/null || { sleep 2; rm -rf "$0"; }'


@contextlib.contextmanager
def local_ray() -> Iterator[None]:
    """Start Ray, and stop it whatever happens; Ctrl-C, SIGTERM and SIGHUP interrupt only what is inside.

    Ray cannot be stopped half started (the process may crash, and its daemons stay), so a signal waits until it is up.
    """
    environment = dict(os.environ)
    with HeldSignals() as signals, _private_folder() as folder:
        try:
            try:
                _start(folder)
            finally:
                # A signal to the whole group hits Ray's processes too: it is then why Ray has failed to start.
                signals.raise_noted()
            with signals.let_through():
                yield
        finally:
            ray.shutdown()
            os.environ.clear()
            os.environ.update(environment)


@contextlib.contextmanager
def _private_folder() -> Iterator[Path]:
    """Where everything of this Ray goes, with the token that keeps other users of this machine out.

    It lies directly under /tmp, because the paths of the sockets in it may have 107 bytes only. A shell in a session of
    its own removes it as soon as its input ends: when we leave, and also when this process is killed.
    """
    folder = Path(tempfile.mkdtemp(prefix=f"reknit-{os.getpid()}-", dir="/tmp"))
    token = folder / "token"
    token.touch(mode=0o600)
    token.write_text(secrets.token_hex(32))
    with subprocess.Popen(["/bin/sh", "-c", REMOVE, folder], stdin=subprocess.PIPE, start_new_session=True):
        yield folder


def _start(folder: Path) -> None:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ["RAY_AUTH_TOKEN_PATH"] = str(folder / "token")
    with keeping_handlers():
        ray.init(
            address="local",
            num_cpus=64,  # bookkeeping only: the demo's actors ask for none
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
            # One level down: Ray opens its folder to everybody, and nobody may come as far as that.
            _temp_dir=str(folder / "ray"),
        )
