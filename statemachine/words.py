"""What the specification says of itself, in the comments and docstrings beside what they are about."""

from __future__ import annotations

import inspect
import re
from dataclasses import fields
from enum import Enum
from typing import Any

from ..spec.lifecycle import events
from ..spec.lifecycle.events import Event, RankReply, ShardObservation, ShardSignal, Signal


def meanings(kind: type[Enum]) -> dict[str, str]:
    """The comment behind each member of an enum of the specification, which says what it means."""
    found = re.findall(r'^ +[A-Z_]+ = "(\w+)"(?:  # (.+))?$', inspect.getsource(kind), flags=re.MULTILINE)
    return dict(found)


def doc(named: Any) -> str:
    """A docstring as one paragraph."""
    return " ".join((inspect.getdoc(named) or "").split())


def knobs(kind: type[Any]) -> dict[str, str]:
    """What each field of a dataclass is for, from its docstring, where `name: ` begins what is said of the field."""
    names = "|".join(field.name for field in fields(kind))
    _, *parts = re.split(rf"\b({names}): ", doc(kind))
    return {name: said.strip() for name, said in zip(parts[::2], parts[1::2], strict=True)}


def event_types() -> list[type[Event]]:
    """Every event in the order in which the specification defines them, bases left out."""
    bases = {Event, RankReply, ShardObservation, Signal, ShardSignal}
    return [
        kind
        for kind in vars(events).values()
        if isinstance(kind, type) and issubclass(kind, Event) and kind not in bases
    ]
