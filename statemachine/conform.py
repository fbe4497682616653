"""Whether a journal tells a run that the table allows: the format of a line, and the check of all of them.

A journal is JSONL. The first line is the header, then one line for every event that reached the controller, applied
or refused; the last line of an orderly run says so. The check replays the events with the plain reading of the table,
which shares no code with the machine that the runtime steps, and holds every line against what the table says: all of
it, types included, for to Python 1, 1.0 and true are equal.

What it cannot tell is which of several possible stories is the true one. Cut off after a whole line, with times moved
that still do not go back, other last words, another late reply to be ignored: each is a run that the table allows.
Lines carry no digests of their predecessors, though these would show such edits. Whoever edits on purpose computes them
again; against accidents the disk has its own; and a journal from which somebody took the host names before showing it
around would not be checkable any more.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NoReturn

from ..spec.config import RefitConfig
from ..spec.lifecycle.errors import Refused
from ..spec.lifecycle.events import Event
from ..spec.lifecycle.interpret import Step, interpret
from ..spec.lifecycle.state import State
from ..spec.roster import Topology
from .codec import decode_event, decode_header, encode, encode_header
from .export import table_hash
from .recheck import new_violations

JOURNAL_VERSION = 1
LONGEST_WHY = 1000
Record = dict[str, Any]


# --- the lines: the one owner of the format --------------------------------------------------------------------


def header_record(*, run: str, version: str, topology: Topology, config: RefitConfig) -> Record:
    """The first line. run: the name of the run. version: of reknit."""
    return {
        "kind": "header",
        "journal": JOURNAL_VERSION,
        "run": run,
        "reknit": version,
        "table": table_hash(),
        **encode_header(topology, config),
    }


def step_record(seq: int, t: float, event: Event, step: Step) -> Record:
    """An event that was applied. seq counts from 1, t is in seconds and never goes back."""
    state = step.state
    return {
        "kind": "step",
        "seq": seq,
        "t": t,
        "event": encode(event),
        "fired": list(step.fired),
        "ignored": list(step.ignored),
        "commands": [encode(command) for command in step.commands],
        "phase": state.phase.value,
        "epoch": state.epoch,
        "attempt": state.attempt,
    }


def refused_record(seq: int, t: float, event: Event, error: Refused) -> Record:
    """An event that was refused; nothing changed."""
    return {
        "kind": "refused",
        "seq": seq,
        "t": t,
        "event": encode(event),
        "error": type(error).__name__,
        "why": error.why,
    }


def end_record(seq: int, t: float, state: State) -> Record:
    """The last line of an orderly run."""
    return {"kind": "end", "seq": seq, "t": t, "phase": state.phase.value}


_WRITER = json.JSONEncoder(separators=(",", ":"), check_circular=False, allow_nan=False)


def written(record: Record) -> str:
    """The text of a line, without its end: ASCII, no spaces, fields in the order of the record."""
    return _WRITER.encode(record)


# --- the check -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the check of a journal found.

    lines: how many were read, events: how many of them were replayed. ending: how the story ends. first_bad_line
    counts from 1 and is None when all is well; why says in one sentence what was expected and what was found.
    other_table: the table that the journal names, where it is not the present one and was let through.
    """

    ok: bool
    lines: int
    events: int
    first_bad_line: int | None = None
    why: str = ""
    ending: str = ""
    other_table: str = ""

    def __str__(self) -> str:
        if self.ok:
            return f"conforms: {self.lines} lines, {self.events} events"
        return f"does not conform: line {self.first_bad_line}: {self.why} ({self.events} events before it conform)"


class _Mismatch(Exception):
    """A line that the table does not allow."""


def conform(lines: Iterable[str], *, any_table: bool = False) -> Verdict:
    """Replay a journal and hold every line against the table. Never raises for what the lines say.

    A journal that was decided by another table is refused, whether or not its lines fit: what they would prove is not
    what they say. any_table holds it against the present table all the same, to see where the two part.
    """
    number = events = 0
    other = ""
    try:
        state: State | None = None
        seq, now, ended = 0, 0.0, False
        for text, is_last in _with_last(lines):
            number += 1
            record = _parsed(text, is_last)
            if state is None:
                state, other = _opened(record, text, any_table)
                continue
            if ended:
                raise _Mismatch("expected nothing after the end, found another line")
            seq += 1
            now = _in_order(record, seq, now)
            kind = record.get("kind")
            if kind == "end":
                _same(end_record(seq, now, state), record, text)
                ended = True
                continue
            if kind not in ("step", "refused"):
                raise _Mismatch(f"expected a line of kind step, refused or end, found {kind!r}")
            state = _replayed(state, record, text, seq, now)
            events += 1
        if state is None:
            number += 1
            raise _Mismatch("expected a header, found nothing: the journal is empty")
    except _Mismatch as mismatch:
        return Verdict(False, number, events, number, _one_line(str(mismatch)), other_table=other)
    except RecursionError:
        return Verdict(False, number, events, number, "expected a line a few levels deep, found one nested without end")
    return Verdict(True, number, events, ending=_ending(state, ended), other_table=other)


def _ending(state: State, ended: bool) -> str:
    """A journal that was cut off tells a possible story too, and whoever reads it must know."""
    how = f"halted ({state.halt.reason.value})" if state.halt else state.phase.value
    return f"it ends {how}" if ended else f"it was cut off while {how}, in epoch {state.epoch}"


def _with_last(lines: Iterable[str]) -> Iterator[tuple[str, bool]]:
    """Each line, and whether it is the last one. A trailing empty line is none."""
    held: str | None = None
    for line in lines:
        if held is not None:
            yield held, False
        held = line
    if held is not None and held.strip():
        yield held, True


def _parsed(text: str, is_last: bool) -> Record:
    try:
        record = _READER.decode(text)
    except ValueError as error:
        if is_last and not text.endswith("\n"):
            raise _Mismatch(f"expected a whole line, found one that is cut short: {_excerpt(text)}") from None
        raise _Mismatch(f"expected JSON, found {_excerpt(text)} ({error})") from None
    if not isinstance(record, dict):
        raise _Mismatch(f"expected a JSON object, found {_excerpt(text)}")
    return record


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number in JSON")


def _unique(pairs: list[tuple[str, Any]]) -> Record:
    """An object each of whose fields is there once: elsewhere the last of several would hide the others."""
    record = dict(pairs)
    if len(record) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{twice} is there more than once")
    return record


_READER = json.JSONDecoder(parse_constant=_no_number)
_STRICT_READER = json.JSONDecoder(parse_constant=_no_number, object_pairs_hook=_unique)


def _opened(record: Record, text: str, any_table: bool) -> tuple[State, str]:
    """The state before the first event, from the header; and the table that it names, where that is another one."""
    if record.get("kind") != "header":
        raise _Mismatch(f"expected a header, found a line of kind {record.get('kind')!r}")
    if record.get("journal") != JOURNAL_VERSION:
        raise _Mismatch(f"expected journal version {JOURNAL_VERSION}, found {record.get('journal')!r}")
    table, run, version = (_text_of(record, name) for name in ("table", "run", "reknit"))
    if not re.fullmatch("[0-9a-f]{64}", table):
        raise _Mismatch(f"expected table to be a sha256 in hex, found {_excerpt(table)}")
    if table != table_hash() and not any_table:
        raise _Mismatch(
            f"expected the table {table_hash()} of this version, found {table} of reknit {version}: "
            "check it with the version that wrote it, or against this table with --any-table"
        )
    try:
        topology, config = decode_header(record)
        state = State.initial(topology, config)
    except ValueError as error:
        raise _Mismatch(f"expected a topology and a configuration, found a bad one: {error}") from None
    header = header_record(run=run, version=version, topology=topology, config=config)
    _same(header | {"table": table}, record, text)
    return state, table if table != table_hash() else ""


def _text_of(record: Record, name: str) -> str:
    text = record.get(name)
    if not isinstance(text, str):
        raise _Mismatch(f"expected {name} to be text, found {_excerpt(text)}")
    return text


def _in_order(record: Record, seq: int, now: float) -> float:
    """The time of the line. Lines are counted without a gap and time never goes back."""
    if record.get("seq") != seq or type(record.get("seq")) is not int:
        raise _Mismatch(f"expected seq {seq}, found {record.get('seq')!r}: a line is missing, doubled or moved")
    t: Any = record.get("t")
    if type(t) is not float or not math.isfinite(t):
        raise _Mismatch(f"expected a time in seconds, found {t!r}")
    if t < now:
        raise _Mismatch(f"expected a time of at least {now}, found {t}: time went back")
    return t


def _replayed(state: State, record: Record, text: str, seq: int, now: float) -> State:
    """The state after the event of this line. Raises `_Mismatch` where the line says something else."""
    try:
        event = decode_event(record.get("event"))
    except ValueError as error:
        raise _Mismatch(f"expected an event, found a bad one: {error}") from None
    try:
        step = interpret(state, event)
    except Refused as error:
        _same(refused_record(seq, now, event, error), record, text)
        return state
    except Exception as error:  # a step that fails is written nowhere, so no run has written this line
        found = f"found {_excerpt(record['event'])} ({type(error).__name__}: {error})"
        raise _Mismatch(f"expected an event that can happen here, {found}") from None
    _same(step_record(seq, now, event, step), record, text)
    if step.state is state and not step.commands:
        return state
    if broken := new_violations(state, event, step):
        raise _Mismatch(f"expected every invariant to hold, found {'; '.join(broken)}")
    return step.state


def _same(expected: Record, found: Record, text: str) -> None:
    """Whether the line says what it must. To the letter, or else spelled differently (spaces, the order of fields)."""
    if text.rstrip("\n") == written(expected):
        return
    if expected["kind"] != found.get("kind"):
        said = expected.get("error") or ", ".join(expected.get("fired") or expected.get("ignored") or ())
        raise _Mismatch(f"expected a line of kind {expected['kind']} ({said}), found {found.get('kind')!r}")
    try:
        text.encode()  # bytes that are no UTF-8 come as lone surrogates
        _STRICT_READER.decode(text)
    except ValueError as error:
        raise _Mismatch(f"expected a line of plain JSON, found one that is not: {error}") from None
    for name in (*expected, *found):
        if name not in found:
            raise _Mismatch(f"expected {name} to be {_excerpt(expected[name])}, found no {name}")
        if name not in expected:
            raise _Mismatch(f"expected no {name}, found {_excerpt(found[name])}")
        if _canonical(expected[name]) != _canonical(found[name]):
            raise _Mismatch(f"expected {name} to be {_excerpt(expected[name])}, found {_excerpt(found[name])}")


def _canonical(value: object) -> str:
    """One text for one meaning; values that are merely equal (1, 1.0, true) have different ones."""
    return json.dumps(value, sort_keys=True)


def _excerpt(value: object) -> str:
    text = value.rstrip("\n") if isinstance(value, str) else json.dumps(value)
    return repr(text) if len(text) <= 200 else repr(f"{text[:200]}...")


def _one_line(why: str) -> str:
    """Whatever the journal holds, the answer is one line, not too long, that a terminal can show."""
    short = why if len(why) <= LONGEST_WHY else f"{why[:LONGEST_WHY]}..."
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in short)
