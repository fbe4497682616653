"""A way that a search found, as a file: to look at again, to send to somebody, to run once a table was mended.

A scenario names the search that it comes from and, for each step, the number of the move among those that were
possible there. Its sentences are for people, and guard against another model: when a number now means something else,
the scenario says so instead of telling another story.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from .coupled import Followed
from .exploration import RULES, Asked, Found

FORMAT = 1


@dataclass(frozen=True, slots=True)
class Scenario:
    """The search, the numbers of the moves, their sentences, and what was wrong at the end."""

    asked: Asked
    says: str
    choices: tuple[int, ...]
    trace: tuple[str, ...]


class BadScenario(ValueError):
    """The text is no scenario, or one of another model."""


def written(found: Found) -> str:
    """A finding of a coupled search as JSON. Raises `ValueError` for one of the free search, which has no numbers."""
    if found.asked is None or len(found.choices) != len(found.trace):
        raise ValueError(f"only what a coupled search found can be replayed, not {found.says!r}")
    steps = [{"move": move, "says": says} for move, says in zip(found.choices, found.trace, strict=True)]
    data = {"format": FORMAT, "search": asdict(found.asked), "finds": found.says, "steps": steps}
    return json.dumps(data, indent=1) + "\n"


def read(text: str) -> Scenario:
    """The scenario in a text that `written` wrote. Raises `BadScenario`."""
    try:
        data: Any = json.loads(text)
        if data["format"] != FORMAT:
            raise BadScenario(f"the scenario has format {data['format']!r}, known is {FORMAT}")
        asked = Asked(**data["search"])
        numbers = (asked.shards, asked.faults, asked.refits, asked.operator)
        moves = tuple(step["move"] for step in data["steps"])
        if not all(type(each) is int and each >= 0 for each in (*numbers, *moves)) or asked.shards < 1:
            raise BadScenario("numbers of a scenario are ints, at least 0, and it has at least 1 shard")
        if asked.rule not in RULES or asked.policy not in ("stop", "fence"):
            raise BadScenario(f"rule {asked.rule!r} with policy {asked.policy!r} is not known")
        return Scenario(asked, str(data["finds"]), moves, tuple(str(step["says"]) for step in data["steps"]))
    except BadScenario:
        raise
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise BadScenario(f"this is no scenario: {error or type(error).__name__}") from error


def replay(scenario: Scenario) -> Followed:
    """Follow the way again, with what is wrong at its end now; nothing, if that was mended.

    Raises `BadScenario` when the model no longer allows the way.
    """
    try:
        followed = scenario.asked.search().follow(scenario.choices)
    except ValueError as error:
        raise BadScenario(f"the way is not possible any more: {error}") from error
    for step, (line, said) in enumerate(zip(followed.told, scenario.trace, strict=True), start=1):
        if line.says != said:
            raise BadScenario(f"step {step} was {said!r} and is now {line.says!r}: the scenario is of another model")
    return followed
