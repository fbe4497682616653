"""What code says, apart from how it is written: digests that comments, docstrings and formatting do not change.

A digest is taken of the syntax tree and not of its text. `ast.unparse` and `tokenize` would be shorter, but both spell
f-strings differently from one Python to the next, and `ast.dump` leaves out empty fields since 3.13 only. The dump here
names the nodes and the fields that are there, which are the same in every Python that reknit supports. The source is
read from the installed package itself, so it must lie there, as it does in every wheel.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from textwrap import dedent
from types import FunctionType, ModuleType
from typing import Any

_PACKAGE = __name__.removesuffix(".statemachine.source")
_WITH_DOCSTRING = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def digest(texts: Iterable[str]) -> str:
    """The sha256 of several texts, in hex; where one ends and the next begins counts."""
    summed = hashlib.sha256()
    for text in texts:
        data = text.encode()
        summed.update(b"%d:" % len(data) + data)
    return summed.hexdigest()


def meaning(source: str) -> str:
    """The syntax tree of a source as text, without docstrings."""
    return _dumped(ast.parse(source))


def _dumped(part: object) -> str:
    match part:
        case ast.Constant():
            return ascii(part.value)
        case ast.AST():
            present = ((name, value) for name, value in ast.iter_fields(part) if value is not None and value != [])
            if isinstance(part, _WITH_DOCSTRING):
                present = ((name, _undocumented(value) if name == "body" else value) for name, value in present)
            return f"{type(part).__name__}({','.join(f'{name}={_dumped(value)}' for name, value in present)})"
        case list():
            return f"[{','.join(map(_dumped, part))}]"
    return ascii(part)


def _undocumented(body: list[ast.stmt]) -> list[ast.stmt]:
    match body:
        case [ast.Expr(value=ast.Constant(value=str())), *rest]:
            return rest
    return body


def digest_of_modules(modules: Iterable[ModuleType]) -> str:
    """The digest of what these modules say, each whole."""
    return digest(meaning(inspect.getsource(module)) for module in modules)


def digest_of_function(function: Callable[..., Any]) -> str:
    """The digest of a function of this package with all functions of the package that it calls by name, at any depth.

    Methods, and what stands outside of functions, are not followed: `digest_of_modules` covers them.
    """
    told = {f"{each.__module__}.{each.__qualname__}": _read(each)[0] for each in _reached(function)}
    return digest(f"{name}={said}" for name, said in sorted(told.items()))


def _reached(function: Callable[..., Any]) -> Iterator[FunctionType]:
    waiting = [function]
    seen: set[FunctionType] = set()
    while waiting:
        each = inspect.unwrap(waiting.pop())
        if isinstance(each, FunctionType) and each not in seen and each.__module__.startswith(f"{_PACKAGE}."):
            seen.add(each)
            yield each
            waiting += [value for name in _read(each)[1] if callable(value := each.__globals__.get(name))]


@cache
def _read(function: FunctionType) -> tuple[str, frozenset[str]]:
    """What one function says, and the names that it uses."""
    tree = ast.parse(dedent(inspect.getsource(function)))
    return _dumped(tree), frozenset(node.id for node in ast.walk(tree) if isinstance(node, ast.Name))
