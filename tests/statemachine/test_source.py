"""A digest of code changes with what the code says, and with nothing else."""

from __future__ import annotations

import sys

import pytest

from reknit.spec.lifecycle import effects, guards
from reknit.statemachine import source
from reknit.statemachine.source import digest, digest_of_function, meaning

PLAIN = '''
"""A module."""
LIMIT = 3

class Record:
    """A record."""
    size: int = 1

def fits(size, *, limit=LIMIT):
    """Whether it fits."""
    return f"{size!r:>{limit}}" if size < limit else None
'''


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"""A module."""', '"""Another text."""'),
        ('"""A module."""', ""),
        ('    """Whether it fits."""', "    # a comment"),
        ('    """A record."""\n', ""),
        ("LIMIT = 3", "LIMIT = (3)  # why"),
        ("size, *, limit=LIMIT", "\n    size,\n    *,\n    limit=LIMIT,\n"),
        ('f"{size!r:>{limit}}"', "f'{size!r:>{limit}}'"),
    ],
)
def test_comments_docstrings_and_formatting_change_nothing(old: str, new: str) -> None:
    assert old in PLAIN
    assert meaning(PLAIN.replace(old, new)) == meaning(PLAIN)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("LIMIT = 3", "LIMIT = 4"),
        ("LIMIT = 3", "LIMIT = 3.0"),
        ("LIMIT = 3", "LIMIT = True"),
        ("LIMIT = 3", "LIMIT = '3'"),
        ("size < limit", "size <= limit"),
        ("else None", "else 0"),
        ("else None", "else ''"),
        ("size, *, limit", "size, limit"),
        ("!r", "!s"),
        ("size: int = 1", "size: int"),
        ("class Record:", "class Record(Base):"),
    ],
)
def test_whatever_changes_what_it_does_changes_the_digest(old: str, new: str) -> None:
    assert old in PLAIN
    assert meaning(PLAIN.replace(old, new)) != meaning(PLAIN)


def test_a_text_that_is_no_docstring_counts() -> None:
    assert meaning('def f():\n    g()\n    "text"') != meaning("def f():\n    g()")


def test_the_same_code_has_the_same_meaning_in_every_python() -> None:
    """Written down once: a Python whose syntax trees have other names or fields fails here."""
    said = meaning("def f(x: int = 1, *y):\n    return [f'{x!r:>{y[0]}}a' for x in y if not x.z]")
    assert said == (
        "Module(body=[FunctionDef(name='f',args=arguments(args=[arg(arg='x',annotation=Name(id='int',ctx=Load()))],"
        "vararg=arg(arg='y'),defaults=[1]),body=[Return(value=ListComp(elt=JoinedStr(values=[FormattedValue("
        "value=Name(id='x',ctx=Load()),conversion=114,format_spec=JoinedStr(values=['>',FormattedValue(value="
        "Subscript(value=Name(id='y',ctx=Load()),slice=0,ctx=Load()),conversion=-1)])),'a']),generators=["
        "comprehension(target=Name(id='x',ctx=Store()),iter=Name(id='y',ctx=Load()),ifs=[UnaryOp(op=Not(),operand="
        "Attribute(value=Name(id='x',ctx=Load()),attr='z',ctx=Load()))],is_async=0)]))])])"
    ), sys.version


def test_where_one_text_ends_counts() -> None:
    assert digest(["ab", "c"]) != digest(["a", "bc"]) != digest(["abc"])


def test_a_function_stands_for_all_that_it_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    reached = {function.__name__ for function in source._reached(guards.trainer_is_silent)}
    assert {"trainer_is_silent", "trainer_ranks"} <= reached
    before, other = digest_of_function(guards.trainer_is_silent), digest_of_function(guards.is_late)
    monkeypatch.setattr(guards, "trainer_ranks", effects.all_ranks)
    assert digest_of_function(guards.trainer_is_silent) != before
    assert digest_of_function(guards.is_late) == other


def test_functions_of_other_packages_are_not_followed() -> None:
    assert all(f.__module__.startswith("reknit.") for f in source._reached(effects.complete_refit))
