"""The example that the docs show is a program; it runs here as a reader would run it."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.ray
def test_the_embedding_example_survives_its_own_fault():
    # Directly under /tmp: the paths of Ray's sockets may have 107 bytes only.
    with tempfile.TemporaryDirectory(prefix="reknit-", dir="/tmp") as folder:
        ran = subprocess.run(
            [sys.executable, str(ROOT / "docs" / "examples" / "own_trainer.py")],
            capture_output=True,
            text=True,
            timeout=180,
            check=False,
            env={**os.environ, "HOME": folder, "RAY_TMPDIR": folder},
        )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines()[-1] == "communicators: 1: {0:0, 1:0} 2: {0:0} 3: {0:0, 1:1}", ran.stdout


def test_the_embedding_page_shows_the_example_as_it_is():
    example = (ROOT / "docs" / "examples" / "own_trainer.py").read_text()
    page = (ROOT / "docs" / "embedding.md").read_text()
    assert f"```python\n{example}```" in page
