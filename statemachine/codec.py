"""Values of the specification as JSON, and back.

The shape follows from the dataclasses: `{"type": class name, field: value, ...}`. Enums become their value, stamps and
versions lists, a roster `{"slot": incarnation}` (JSON keys are text). Everything is worked out once per class.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Hashable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from functools import cache
from operator import attrgetter
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from ..spec.config import RefitConfig
from ..spec.lifecycle import events
from ..spec.lifecycle.events import Event, RankReply, ShardObservation, Signal
from ..spec.roster import Roster, Topology

Convert = Callable[[Any], Any]
# Bases that no event is an instance of. Signals are raised inside a step and never come from outside.
_ABSTRACT = (Event, RankReply, ShardObservation)

EVENT_TYPES: Mapping[str, type[Event]] = types.MappingProxyType(
    {
        name: kind
        for name, kind in sorted(vars(events).items())
        if isinstance(kind, type) and issubclass(kind, Event) and not issubclass(kind, Signal) and kind not in _ABSTRACT
    }
)


# --- out -------------------------------------------------------------------------------------------------------


def encode(value: object) -> dict[str, Any]:
    """A dataclass of the specification as plain JSON data: events, commands, configuration, topology."""
    kind: Any = type(value)
    read, names, converts = _encoding(kind)
    encoded: dict[str, Any] = {"type": kind.__name__}
    for name, convert, field in zip(names, converts, read(value), strict=True):
        encoded[name] = field if convert is None else convert(field)
    return encoded


@cache
def _encoding(kind: Hashable) -> tuple[Callable[[Any], tuple[Any, ...]], tuple[str, ...], tuple[Convert | None, ...]]:
    if not is_dataclass(kind):
        raise ValueError(f"only dataclasses of the specification can be encoded, got {kind}")
    hints = get_type_hints(kind)
    names = tuple(field.name for field in fields(kind))
    converts = tuple(_encoder(hints[name]) for name in names)
    if len(names) > 1:
        return attrgetter(*names), names, converts
    only = names[0] if names else None
    return (lambda value: (getattr(value, only),) if only else ()), names, converts


def _encoder(hint: Any) -> Convert | None:
    """How a field of this type is written; None when it is JSON already."""
    if get_origin(hint) in (Union, types.UnionType):
        inner = [_encoder(part) for part in get_args(hint) if part is not type(None)]
        convert = inner[0]
        return None if convert is None else lambda value: None if value is None else convert(value)
    if get_origin(hint) is tuple or (isinstance(hint, type) and issubclass(hint, tuple)):
        return list
    if isinstance(hint, type) and issubclass(hint, Enum):
        return _value_of
    if hint is Roster:
        return lambda roster: {str(slot): incarnation for slot, incarnation in roster.items()}
    return encode if is_dataclass(hint) else None


def _value_of(member: Enum) -> Any:
    return member._value_


# --- in --------------------------------------------------------------------------------------------------------


def decode_event(data: object) -> Event:
    """The event that `encode` wrote. Fields with a default may be left out.

    Raises `ValueError`, naming type and field, for anything that no event looks like. A signal is no event from
    outside and is refused too.
    """
    if not isinstance(data, dict):
        raise ValueError(f"an event must be a JSON object, got {data!r}")
    name = data.get("type")
    kind = EVENT_TYPES.get(name) if isinstance(name, str) else None
    if kind is None:
        raise ValueError(f"unknown event type {name!r}; known are {', '.join(EVENT_TYPES)}")
    event = _decode(kind, data)
    assert isinstance(event, Event)
    return event


def encode_header(topology: Topology, config: RefitConfig) -> dict[str, Any]:
    """What a replay has to know before the first event."""
    return {"topology": encode(topology), "config": encode(config)}


def decode_header(data: Mapping[str, Any]) -> tuple[Topology, RefitConfig]:
    """The topology and the configuration of a header. Raises `ValueError`, naming what is wrong."""
    decoded = []
    for name, kind in (("topology", Topology), ("config", RefitConfig)):
        part = data.get(name)
        if not isinstance(part, dict) or part.get("type") != kind.__name__:
            raise ValueError(f"{name} must be an object of type {kind.__name__}, got {part!r}")
        decoded.append(_decode(kind, part))
    topology, config = decoded
    return topology, config


def _decode(kind: Any, data: dict[str, Any]) -> Any:
    known, needed = _decoding(kind)
    values: dict[str, Any] = {}
    for name, value in data.items():
        if name == "type":
            continue
        convert = known.get(name)
        if convert is None:
            raise ValueError(f"{kind.__name__} has no field {name!r}; it has {', '.join(known) or 'none'}")
        try:
            values[name] = convert(value)
        except _Unfit as wanted:
            raise ValueError(f"{kind.__name__}.{name} must be {wanted}, got {value!r}") from None
    if not needed <= values.keys():
        raise ValueError(f"{kind.__name__} lacks {', '.join(sorted(needed - values.keys()))}")
    return kind(**values)


class _Unfit(Exception):
    """A value that a field cannot take; the text says what it takes."""


@cache
def _decoding(kind: Any) -> tuple[dict[str, Convert], frozenset[str]]:
    hints = get_type_hints(kind)
    declared = fields(kind)
    needed = frozenset(f.name for f in declared if f.default is MISSING and f.default_factory is MISSING)
    return {field.name: _decoder(hints[field.name]) for field in declared}, needed


def _decoder(hint: Any) -> Convert:
    if get_origin(hint) is Literal:
        return _one_of({choice: choice for choice in get_args(hint)})
    if isinstance(hint, type) and issubclass(hint, Enum):
        return _one_of({member.value: member for member in hint})
    if isinstance(hint, type) and issubclass(hint, tuple):
        return _numbers(hint, len(get_type_hints(hint)))
    return {int: _whole, float: _number, str: _text}[hint]


def _one_of(choices: dict[Any, Any]) -> Convert:
    def convert(value: Any) -> Any:
        try:
            return choices[value]
        except (KeyError, TypeError):
            raise _Unfit(f"one of {', '.join(map(repr, choices))}") from None

    return convert


def _numbers(kind: Any, count: int) -> Convert:
    def convert(value: Any) -> Any:
        if type(value) is not list or len(value) != count or any(type(part) is not int for part in value):
            raise _Unfit(f"a list of {count} whole numbers")
        return kind(*value)

    return convert


def _whole(value: Any) -> int:
    if type(value) is not int:
        raise _Unfit("a whole number")
    return value


def _number(value: Any) -> float:
    if type(value) is not float and type(value) is not int:
        raise _Unfit("a number")
    return value


def _text(value: Any) -> str:
    if type(value) is not str:
        raise _Unfit("text")
    return value
