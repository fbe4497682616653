"""Who may enter which room: imports point one way, and the inner rooms need next to nothing."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("spec", "statemachine", "runtime")
MAY_ENTER = {"spec": {"spec"}, "statemachine": {"statemachine", "spec"}, "runtime": set(ROOMS)}


def modules(room: str) -> list[Path]:
    found = sorted((ROOT / room).rglob("*.py"))
    assert found, f"{room} has no modules"
    return found


def imported(path: Path) -> Iterator[tuple[ast.Import | ast.ImportFrom, str]]:
    """Every import of a module, wherever it stands, as a dotted path from the root of the package."""
    package = path.relative_to(ROOT).with_suffix("").parts[:-1]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((node, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            if not node.level:
                yield node, node.module or ""
                continue
            base = package[: len(package) - node.level + 1]
            named = (node.module or "").split(".") if node.module else []
            if base or named:
                yield node, ".".join((*base, *named))
            else:
                yield from ((node, alias.name) for alias in node.names)


@pytest.mark.parametrize("room", ROOMS)
def test_imports_point_one_way(room: str) -> None:
    """runtime -> statemachine -> spec; spec never imports a sibling."""
    wrong = [
        f"{path.relative_to(ROOT)}:{node.lineno} imports {name}"
        for path in modules(room)
        for node, name in imported(path)
        if isinstance(node, ast.ImportFrom) and node.level and name.split(".")[0] not in MAY_ENTER[room]
        if name.split(".")[0] in ROOMS
    ]
    assert wrong == []


@pytest.mark.parametrize("room", ROOMS)
def test_the_package_is_imported_relatively_inside(room: str) -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{node.lineno} imports {name}"
        for path in modules(room)
        for node, name in imported(path)
        if (isinstance(node, ast.Import) or not node.level) and name.split(".")[0] == "reknit"
    ]
    assert wrong == []


def outsiders(room: str) -> set[str]:
    """The top-level packages that a room imports, the standard library and itself left out."""
    return {
        name.split(".")[0]
        for path in modules(room)
        for node, name in imported(path)
        if (isinstance(node, ast.Import) or not node.level) and name.split(".")[0] not in sys.stdlib_module_names
    }


def test_the_specification_needs_the_standard_library_alone() -> None:
    assert outsiders("spec") == set()


def test_the_state_machine_needs_transitions_and_for_diagrams_graphviz_and_for_random_stories_hypothesis() -> None:
    assert outsiders("statemachine") <= {"transitions", "graphviz", "hypothesis"}


def test_only_what_is_made_for_it_needs_hypothesis() -> None:
    """Who embeds the controller, or lists the commands, does not have it."""
    users = {
        path.relative_to(ROOT).as_posix()
        for room in ROOMS
        for path in modules(room)
        for _, name in imported(path)
        if name.split(".")[0] == "hypothesis"
    }
    made_for_it = {"statemachine/generated.py", "statemachine/profiles.py", "runtime/fuzz/machine.py"}
    assert users == made_for_it | {"runtime/fuzz/campaign.py", "runtime/fuzz/command.py"}
    allowed = {"transitions", "six", "click", "rich", "markdown_it", "mdurl", "pygments"}
    assert imported_behind_a_wall("reknit.runtime.commands", allowed=allowed, siblings=("hypothesis",)) == "[]"


FORBIDDEN = """
import importlib.abc, sys

allowed = set({allowed!r}) | {{"reknit"}} | set(sys.stdlib_module_names)

class Wall(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in allowed:
            raise ModuleNotFoundError(f"{{name}} is behind the wall", name=name)

for name in [name for name in sys.modules if name.partition(".")[0] not in allowed]:
    if not name.startswith("_"):
        del sys.modules[name]
sys.meta_path.insert(0, Wall())
import {module}
print(sorted(n for n in sys.modules if n.startswith({siblings!r})))
"""


def imported_behind_a_wall(module: str, *, allowed: set[str], siblings: tuple[str, ...]) -> str:
    """Import a module in a fresh interpreter where nothing but the standard library and `allowed` exists."""
    code = FORBIDDEN.format(module=module, allowed=sorted(allowed), siblings=siblings)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_specification_imports_with_nothing_installed() -> None:
    siblings = ("reknit.statemachine", "reknit.runtime")
    assert imported_behind_a_wall("reknit.spec", allowed=set(), siblings=siblings) == "[]"


def test_the_state_machine_imports_with_transitions_installed() -> None:
    # six is what transitions itself needs.
    allowed = {"transitions", "six"}
    assert imported_behind_a_wall("reknit.statemachine", allowed=allowed, siblings=("reknit.runtime",)) == "[]"


def test_the_wall_holds() -> None:
    code = FORBIDDEN.format(module="transitions", allowed=[], siblings=("x",))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode != 0
    assert "transitions is behind the wall" in done.stderr
