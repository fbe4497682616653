"""Journals of simulated runs, with one random edit: rejected, or accepted for a reason that is written down here.

`--hypothesis-show-statistics` tells how often each kind of edit was rejected, and why it was accepted.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from hypothesis import assume, event, given, settings
from hypothesis import strategies as st

from reknit.runtime.errors import RefitHalted
from reknit.runtime.seams import Worker
from reknit.runtime.simulated import SimulatedRun
from reknit.spec.config import RefitConfig
from reknit.statemachine.conform import conform

Lines = list[str]
Path = tuple[str | int, ...]


# --- the journals ----------------------------------------------------------------------------------------------


def a_quiet_run(run: SimulatedRun) -> None:
    for step in (1, 2, 3):
        run.controller.refit(step)


def a_shard_is_lost_and_comes_back(run: SimulatedRun) -> None:
    run.controller.refit(1)
    run.controller.report_failure(0)
    run.controller.report_success(0, kind="probe")
    run.fleet.kill_shard(1)
    run.controller.refit(2)
    run.clock.advance(20)
    run.controller.refit(3)


def a_frozen_shard_is_fenced(run: SimulatedRun) -> None:
    run.controller.refit(1)
    run.fleet.freeze(Worker(1, 0, 0))
    run.controller.refit(2)
    run.fleet.thaw(Worker(1, 0, 0))
    run.clock.advance(20)
    run.controller.refit(3)


def most_are_silent_and_the_run_halts(run: SimulatedRun) -> None:
    run.controller.refit(1)
    for slot in (0, 1):
        run.fleet.freeze(Worker(slot, 0, 0))
    try:
        run.controller.refit(2)
    except RefitHalted:
        return
    raise AssertionError("it should have halted")


STORIES = (a_quiet_run, a_shard_is_lost_and_comes_back, a_frozen_shard_is_fenced, most_are_silent_and_the_run_halts)


@cache
def journal(story: Callable[[SimulatedRun], None]) -> tuple[str, ...]:
    with SimulatedRun(config=RefitConfig(on_frozen="fence")) as run:
        run.controller.start()
        story(run)
    assert conform(run.journal.lines).ok
    return tuple(run.journal.lines)


# --- the edits -------------------------------------------------------------------------------------------------

values = st.one_of(st.none(), st.booleans(), st.integers(-1, 9), st.floats(allow_nan=False), st.text(max_size=3))


def paths(value: Any, at: Path = ()) -> list[Path]:
    """Where anything stands in a line, the whole of it excepted."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path for name, part in inside for path in [(*at, name), *paths(part, (*at, name))]]


def at(value: Any, path: Path) -> Any:
    for name in path:
        value = value[name]
    return value


@st.composite
def edited_line(draw: st.DrawFn, text: str) -> str:
    """The line with one value altered, left out, or added."""
    record = json.loads(text)
    path = draw(st.sampled_from(paths(record)))
    holder, name = at(record, path[:-1]), path[-1]
    match draw(st.sampled_from(["alter", "alter", "alter", "nudge", "leave out", "add"])):
        case "alter":
            holder[name] = draw(values)
        case "nudge":
            old = holder[name]
            assume(type(old) in (int, float))
            holder[name] = draw(st.sampled_from([old + 1, old - 1, float(old), int(old), bool(old), str(old)]))
        case "leave out":
            del holder[name]
        case "add" if isinstance(holder, dict):
            holder[draw(st.text(max_size=3))] = draw(values)
        case _:
            holder.insert(int(name), draw(values))
    return json.dumps(record, separators=(",", ":"))


@st.composite
def retyped_line(draw: st.DrawFn, text: str) -> str:
    """The line with one character replaced, left out or added."""
    place = draw(st.integers(0, len(text) - 1))
    character = draw(st.one_of(st.just(""), st.characters(max_codepoint=126), st.sampled_from('0123456789"{}[],:.')))
    return text[:place] + character + text[place + draw(st.integers(0, 1)) :]


@st.composite
def one_edit(draw: st.DrawFn, lines: Lines) -> tuple[str, Lines]:
    """The kind of the edit, and the journal after it."""
    kind = draw(st.sampled_from(["drop", "double", "swap", "cut", "edit", "edit", "edit", "retype", "retype"]))
    i = draw(st.integers(0, len(lines) - 1))
    line = lines[i]
    match kind:
        case "drop":
            changed: Lines = []
        case "double":
            changed = [line, line]
        case "swap":
            assume(i + 1 < len(lines))
            return kind, [*lines[:i], lines[i + 1], line, *lines[i + 2 :]]
        case "cut":
            rest = line[: draw(st.integers(0, len(line)))]
            return kind, [*lines[:i], *([rest] if rest else [])]
        case "edit":
            changed = [draw(edited_line(line))]
        case _:
            changed = [draw(retyped_line(line))]
    return kind, [*lines[:i], *changed, *lines[i + 1 :]]


# --- what may be accepted --------------------------------------------------------------------------------------


def differences(old: Lines, new: Lines) -> list[tuple[dict[str, Any], Path]]:
    """Where the lines of two journals of the same length say something else: the old line, and the place."""
    assert len(old) == len(new), "only a cut may change how many lines there are"
    found = []
    for before, after in zip(map(json.loads, old), map(json.loads, new), strict=True):
        for path in differing(before, after):
            found.append((before, path))
    return found


def differing(before: Any, after: Any, path: Path = ()) -> list[Path]:
    if isinstance(before, dict) and isinstance(after, dict) and before.keys() == after.keys():
        return [found for name in before for found in differing(before[name], after[name], (*path, name))]
    same = json.dumps(before, sort_keys=True) == json.dumps(after, sort_keys=True)
    return [] if same else [path]


def everywhere(where: Callable[[dict[str, Any], Path], bool]) -> Callable[[Lines, Lines], bool]:
    def is_it(old: Lines, new: Lines) -> bool:
        found = differences(old, new) if len(old) == len(new) else []
        return bool(found) and all(where(line, path) for line, path in found)

    return is_it


@dataclass(frozen=True)
class Accepted:
    """A kind of edit that no check of the story alone can find."""

    name: str
    why: str
    is_it: Callable[[Lines, Lines], bool]


TOLD_BY_ONE_OF_MANY = ("RequestFailed", "ProbeFailed", "RankProgressed", "RankFailed", "RankLeft", "WorkerExited")
ACCEPTED = (
    Accepted(
        "cut off after a whole line",
        "a run that was killed leaves just that; the verdict says where it was cut off",
        lambda old, new: len(new) < len(old) and new == old[: len(new)],
    ),
    Accepted(
        "spelled differently",
        "spaces, escapes and further digits of a number change nothing of what a line says",
        lambda old, new: len(old) == len(new) and differences(old, new) == [],
    ),
    Accepted(
        "another name",
        "the name of the run, and the version that wrote it, are nowhere else in the journal",
        everywhere(lambda line, path: path in (("run",), ("reknit",))),
    ),
    Accepted(
        "another knob that was never turned to",
        "a deadline shows when it is armed and a budget when it is spent; of the others a run tells nothing",
        everywhere(lambda line, path: path[0] == "config" and path != ("config", "type")),
    ),
    Accepted(
        "another time",
        "between its neighbours an event may have come at any time",
        everywhere(lambda line, path: path == ("t",)),
    ),
    Accepted(
        "other last words",
        "they come from outside and decide nothing; where the table repeats them, they are found",
        everywhere(lambda line, path: path == ("event", "detail")),
    ),
    Accepted(
        "another event that changed nothing",
        "a late reply about another rank is as late, and a refused call for another version as refused",
        everywhere(lambda line, path: path[0] == "event" and not line.get("fired") and path != ("event", "type")),
    ),
    Accepted(
        "a report about another process",
        "who failed, answered a probe or moved on is kept, but nothing that the table orders has to tell of it",
        everywhere(
            lambda line, path: (
                path[0] == "event"
                and path[1:] in (("slot",), ("rank",), ("worker",))
                and line["event"]["type"] in TOLD_BY_ONE_OF_MANY
            )
        ),
    ),
    Accepted(
        "another progress or cause",
        "how far a rank got, and what it fails of after the break, decides later who serves, which no line lists",
        everywhere(lambda line, path: path in (("event", "progress"), ("event", "cause"))),
    ),
)


@settings(deadline=None, max_examples=400)
@given(data=st.data())
def test_a_journal_with_one_edit_is_rejected_or_tells_another_possible_story(data: st.DataObject) -> None:
    old = list(journal(data.draw(st.sampled_from(STORIES))))
    kind, new = data.draw(one_edit(old))
    assume(new != old)
    verdict = conform(new)
    if not verdict.ok:
        event(f"{kind}: rejected")
        return
    excuse = next((accepted.name for accepted in ACCEPTED if accepted.is_it(old, new)), None)
    event(f"{kind}: accepted, {excuse}")
    assert excuse is not None, (
        f"accepted, and nobody has excused it: {set(new) - set(old)}, before {set(old) - set(new)}"
    )
