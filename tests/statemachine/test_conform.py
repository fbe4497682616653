"""A journal of a real run conforms; a journal that was edited in any way does not, and the line is named."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reknit.spec.config import RefitConfig
from reknit.spec.lifecycle import Phase, Refused, State
from reknit.spec.lifecycle import events as ev
from reknit.spec.lifecycle.events import Event
from reknit.spec.lifecycle.interpret import Step
from reknit.spec.roster import Topology
from reknit.statemachine import conform as conform_module
from reknit.statemachine.conform import (
    Record,
    Verdict,
    conform,
    end_record,
    header_record,
    refused_record,
    step_record,
)
from reknit.statemachine.export import table_hash
from reknit.statemachine.machine import LifecycleMachine

FLEET = Topology(train_world_size=1, dp_size=3)
CONFIG = RefitConfig(on_frozen="fence")


def journal() -> list[Record]:
    """A run with a refit, a refused call, a loss inside a refit, a recovery, a late reply and an orderly end."""
    machine = LifecycleMachine(State.initial(FLEET, CONFIG))
    records = [header_record(run="test", version="0.0", topology=FLEET, config=CONFIG)]

    def tell(event: Event) -> None:
        seq = len(records)
        try:
            records.append(step_record(seq, seq / 10, event, machine.step(event)))
        except Refused as error:
            records.append(refused_record(seq, seq / 10, event, error))

    def everybody(reply: Callable[[int], Event]) -> None:
        for rank in sorted(machine.state.inside):
            tell(reply(rank))

    version = ev.Version(0, 1)
    tell(ev.StartRequested())
    tell(ev.RefitRequested(version))
    everybody(lambda rank: ev.RankJoined(machine.state.stamp, rank))
    tell(ev.RefitRequested(version))
    everybody(lambda rank: ev.RankTransferred(machine.state.stamp, rank, version))
    tell(ev.ProbeSucceeded(0, 0))
    version = ev.Version(0, 2)
    tell(ev.RefitRequested(version))
    late = machine.state.stamp
    tell(ev.ShardExited(1, 0, "CUDA error: an illegal memory access was encountered"))
    tell(ev.RankTransferred(late, 3, version))
    everybody(lambda rank: ev.RankLeft(machine.state.stamp, rank, ev.Progress.PARTIAL))
    everybody(lambda rank: ev.RankJoined(machine.state.stamp, rank))
    everybody(lambda rank: ev.RankTransferred(machine.state.stamp, rank, version))
    tell(ev.CloseRequested())
    records.append(end_record(len(records), len(records) / 10, machine.state))
    assert machine.state.phase is Phase.CLOSED
    return records


JOURNAL = journal()
WRITTEN = [json.dumps(record) for record in JOURNAL]


def verdict_of(records: list[Record]) -> Verdict:
    return conform(json.dumps(record) for record in records)


def edited(line: int, **changes: Any) -> list[Record]:
    """The journal with one line changed; lines count from 1 as in an editor."""
    return [*JOURNAL[: line - 1], JOURNAL[line - 1] | changes, *JOURNAL[line:]]


def line_of(kind: str, event: str) -> int:
    """The first line of this kind about this event."""
    return next(
        number
        for number, record in enumerate(JOURNAL, start=1)
        if record["kind"] == kind and record["event"]["type"] == event
    )


def test_the_journal_of_a_run_conforms() -> None:
    assert conform(WRITTEN) == Verdict(True, len(JOURNAL), len(JOURNAL) - 2, ending="it ends closed")
    assert conform(line + "\n" for line in WRITTEN).ok
    assert conform([*WRITTEN, ""]).ok
    assert str(conform(WRITTEN)) == f"conforms: {len(JOURNAL)} lines, {len(JOURNAL) - 2} events"


def test_a_run_that_was_cut_off_between_two_lines_conforms_so_far() -> None:
    for length in range(1, len(WRITTEN)):
        assert conform(WRITTEN[:length]).ok


def test_a_journal_tells_what_was_refused_and_what_was_ignored() -> None:
    refused = JOURNAL[line_of("refused", "RefitRequested") - 1]
    assert (refused["error"], refused["why"].split(";")[0]) == ("RefitUnderWay", "one refit at a time")
    probe = JOURNAL[line_of("step", "ProbeSucceeded") - 1]
    assert (probe["fired"], probe["ignored"]) == ([], ["ignore_ProbeSucceeded@serving"])


def test_the_shape_of_a_line() -> None:
    assert list(JOURNAL[0]) == ["kind", "journal", "run", "reknit", "table", "topology", "config"]
    assert list(JOURNAL[1]) == [
        *("kind", "seq", "t", "event", "fired", "ignored", "commands", "phase", "epoch", "attempt"),
    ]
    assert JOURNAL[-1] == {"kind": "end", "seq": len(JOURNAL) - 1, "t": (len(JOURNAL) - 1) / 10, "phase": "closed"}


@pytest.mark.parametrize("line", range(2, len(JOURNAL) + 1))
def test_a_line_that_is_dropped_doubled_or_swapped_is_found(line: int) -> None:
    dropped = [*JOURNAL[: line - 1], *JOURNAL[line:]]
    doubled = [*JOURNAL[:line], *JOURNAL[line - 1 :]]
    swapped = [*JOURNAL[: line - 2], JOURNAL[line - 1], JOURNAL[line - 2], *JOURNAL[line:]]
    last = line == len(JOURNAL)
    assert verdict_of(dropped).ok is last
    assert (verdict_of(doubled).ok, verdict_of(doubled).first_bad_line) == (False, line + 1)
    assert (verdict_of(swapped).ok, verdict_of(swapped).first_bad_line) == (False, line - 1)


@pytest.mark.parametrize("line", range(2, len(JOURNAL)))
def test_a_dropped_event_is_found_even_when_the_lines_are_numbered_again(line: int) -> None:
    """Whatever was left out, what came after is no longer what the table says; an ignored event left no trace."""
    left = [*JOURNAL[: line - 1], *JOURNAL[line:]]
    renumbered = [left[0], *(record | {"seq": seq} for seq, record in enumerate(left[1:], start=1))]
    changed_nothing = JOURNAL[line - 1]["kind"] == "refused" or JOURNAL[line - 1]["fired"] == []
    assert verdict_of(renumbered).ok is changed_nothing


LOSS = line_of("step", "ShardExited")
REFUSAL = line_of("refused", "RefitRequested")


@pytest.mark.parametrize(
    ("line", "changes", "why"),
    [
        (
            LOSS,
            {"fired": []},
            "expected fired to be '[\"exit@serving\", \"departed_refitting@refitting\"]', found '[]'",
        ),
        (LOSS, {"ignored": ["x"]}, "expected ignored to be '[]', found '[\"x\"]'"),
        (LOSS, {"commands": []}, "expected commands to be"),
        (LOSS, {"phase": "refitting"}, "expected phase to be 'aborted', found 'refitting'"),
        (LOSS, {"epoch": 2}, "expected epoch to be '1', found '2'"),
        (LOSS, {"attempt": 9}, "expected attempt to be '3', found '9'"),
        (LOSS, {"t": 0.0}, "expected a time of at least"),
        (LOSS, {"t": "soon"}, "expected a time in seconds, found 'soon'"),
        (LOSS, {"t": float("nan")}, "expected JSON, found "),
        (LOSS, {"t": 1}, "expected a time in seconds, found 1"),
        (LOSS, {"seq": 3}, "expected seq"),
        (LOSS, {"seq": float(LOSS - 1)}, "expected seq"),
        (LOSS, {"note": "x"}, "expected no note, found 'x'"),
        (LOSS, {"kind": "refused"}, "expected a line of kind step (exit@serving, departed_refitting@refitting), found"),
        (LOSS, {"kind": "comment"}, "expected a line of kind step, refused or end, found 'comment'"),
        (LOSS, {"event": {"type": "Lost"}}, "expected an event, found a bad one: unknown event type 'Lost'"),
        (LOSS, {"event": None}, "expected an event, found a bad one: an event must be a JSON object"),
        (LOSS, {"event": {"type": "ShardExited", "slot": 1, "incarnation": 0}}, "expected event to be"),
        (REFUSAL, {"error": "RunClosed"}, "expected error to be 'RefitUnderWay', found 'RunClosed'"),
        (REFUSAL, {"why": "because"}, "expected why to be 'one refit at a time"),
        (REFUSAL, {"kind": "step"}, "expected a line of kind refused (RefitUnderWay), found 'step'"),
        (len(JOURNAL), {"phase": "halted"}, "expected phase to be 'closed', found 'halted'"),
    ],
)
def test_an_altered_line_is_found(line: int, changes: Record, why: str) -> None:
    verdict = verdict_of(edited(line, **changes))
    assert (verdict.ok, verdict.first_bad_line) == (False, line)
    assert verdict.why.startswith(why)
    assert f"does not conform: line {line}: " in str(verdict)
    assert verdict.events == line - 2


def test_a_line_without_one_of_its_fields_is_found() -> None:
    without = {name: value for name, value in JOURNAL[LOSS - 1].items() if name != "phase"}
    verdict = verdict_of([*JOURNAL[: LOSS - 1], without, *JOURNAL[LOSS:]])
    assert verdict.why == "expected phase to be 'aborted', found no phase"


def types_exchanged(value: Any) -> Iterator[Any]:
    """The value with one number in it, at any depth, replaced by one that Python finds equal."""
    if type(value) is int:
        yield float(value)
        if value in (0, 1):
            yield bool(value)
    elif type(value) is float and value.is_integer():
        yield int(value)
    elif isinstance(value, list):
        yield from ([*value[:i], new, *value[i + 1 :]] for i, part in enumerate(value) for new in types_exchanged(part))
    elif isinstance(value, dict):
        yield from (value | {name: new} for name, part in value.items() for new in types_exchanged(part))


def test_a_number_of_another_type_is_another_number() -> None:
    """To Python 1 == 1.0 == True; to whoever reads the journal with another tool they are three things."""
    tried = 0
    for line, record in enumerate(JOURNAL, start=1):
        for changed in types_exchanged(record):
            verdict = verdict_of([*JOURNAL[: line - 1], changed, *JOURNAL[line:]])
            assert (verdict.ok, verdict.first_bad_line) == (False, line), changed
            tried += 1
    assert tried > 300


def objects(value: Any) -> Iterator[dict[str, Any]]:
    """Every object in a value that is not empty, at any depth."""
    if isinstance(value, dict):
        if value:
            yield value
        value = list(value.values())
    if isinstance(value, list):
        for part in value:
            yield from objects(part)


@pytest.mark.parametrize("behind", [False, True])
def test_a_field_that_is_there_twice_is_found(behind: bool) -> None:
    """JSON readers take the last of several: another first one would go unseen, and another reader may take that."""
    for line, record in enumerate(JOURNAL, start=1):
        for inner in objects(record):
            name, value = next(iter(inner.items()))
            plain = json.dumps(inner)
            first, second = (value, "other") if behind else ("other", value)
            twice = "{" + f"{json.dumps(name)}: {json.dumps(first)}, {json.dumps(name)}: {json.dumps(second)}, "
            text = json.dumps(record).replace(plain, twice + plain[len(json.dumps({name: value})) - 1 :].lstrip(", "))
            text = text.replace(", }", "}")
            assert json.loads(text) is not None
            verdict = conform([*WRITTEN[: line - 1], text, *WRITTEN[line:]])
            assert (verdict.ok, verdict.first_bad_line) == (False, line), text


def test_a_line_may_be_spelled_in_another_way() -> None:
    """Spaces, the order of fields and escapes change nothing of what it says; a tool may write them anew."""
    for line, record in enumerate(JOURNAL, start=1):
        text = json.dumps(record, indent=1, sort_keys=True, ensure_ascii=False).replace("\n", " ")
        assert conform([*WRITTEN[: line - 1], f"{text}\r\n", *WRITTEN[line:]]).ok


CONFIGURATION, SIZES = JOURNAL[0]["config"], JOURNAL[0]["topology"]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"note": "x"}, "expected no note, found 'x'"),
        ({"journal": True}, "expected journal to be '1', found 'true'"),
        ({"run": 3}, "expected run to be text, found '3'"),
        ({"reknit": None}, "expected reknit to be text, found 'null'"),
        ({"config": {n: v for n, v in CONFIGURATION.items() if n != "wait_timeout_s"}}, "expected config to be"),
        ({"config": CONFIGURATION | {"wait_timeout_s": 45}}, "expected config to be"),
        ({"config": CONFIGURATION | {"extra": 1}}, "expected a topology and a configuration, found a bad one: Refit"),
        ({"config": CONFIGURATION | {"fence_timeout_s": 10**400}}, "expected a topology and a configuration"),
        ({"config": CONFIGURATION | {"min_healthy_shards": 99}}, "expected a topology and a configuration"),
        ({"topology": SIZES | {"dp_size": 2**31}}, "expected a topology and a configuration"),
    ],
)
def test_a_header_says_all_that_it_must_and_nothing_else(changes: Record, why: str) -> None:
    verdict = verdict_of(edited(1, **changes))
    assert (verdict.ok, verdict.first_bad_line) == (False, 1)
    assert verdict.why.startswith(why)


def test_a_field_missing_in_the_header_is_found() -> None:
    for name in JOURNAL[0]:
        without = {field: value for field, value in JOURNAL[0].items() if field != name}
        assert verdict_of([without, *JOURNAL[1:]]).first_bad_line == 1


def test_a_line_nested_without_end_is_found() -> None:
    """The reader gives up at some depth, and what it did read may still be too deep to be shown."""
    for depth in (100, 900, 990, 100_000):
        deep = "[" * depth + "]" * depth
        for line in (1, LOSS):
            text = WRITTEN[line - 1]
            for nested in (deep, text.replace("{", f'{{"note": {deep}, ', 1), text.replace("[]", deep)):
                if nested == text:
                    continue
                verdict = conform([*WRITTEN[: line - 1], nested, *WRITTEN[line:]])
                assert (verdict.ok, verdict.first_bad_line) == (False, line)


def test_nothing_follows_the_end() -> None:
    verdict = verdict_of([*JOURNAL, JOURNAL[-1] | {"seq": len(JOURNAL)}])
    assert verdict.why == "expected nothing after the end, found another line"


def test_an_empty_journal_is_no_run() -> None:
    for nothing in ([], [""]):
        assert conform(nothing) == Verdict(False, 1, 0, 1, "expected a header, found nothing: the journal is empty")


def test_a_journal_without_its_header_is_refused() -> None:
    verdict = conform(WRITTEN[1:])
    assert verdict == Verdict(False, 1, 0, 1, "expected a header, found a line of kind 'step'")


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"journal": 2}, "expected journal version 1, found 2"),
        ({"table": "0123456789abcdef"}, "expected table to be a sha256 in hex, found '0123456789abcdef'"),
        ({"table": None}, "expected table to be text, found 'null'"),
        ({"table": "0" * 64}, "expected the table "),
        ({"topology": {}}, "expected a topology and a configuration, found a bad one: topology must be"),
        ({"config": None}, "expected a topology and a configuration, found a bad one: config must be"),
    ],
)
def test_a_header_of_another_kind_is_refused(changes: Record, why: str) -> None:
    verdict = verdict_of(edited(1, **changes))
    assert (verdict.ok, verdict.first_bad_line) == (False, 1)
    assert verdict.why.startswith(why)


OTHER = "0123456789abcdef" * 4


def test_a_journal_of_another_table_is_refused_and_both_are_named() -> None:
    verdict = verdict_of(edited(1, table=OTHER, reknit="9.9"))
    assert (verdict.ok, verdict.first_bad_line) == (False, 1)
    assert f"expected the table {table_hash()} of this version, found {OTHER} of reknit 9.9" in verdict.why
    assert "--any-table" in verdict.why


def test_a_journal_of_another_table_is_held_against_this_one_on_request() -> None:
    assert conform(map(json.dumps, edited(1, table=OTHER)), any_table=True) == replace(
        conform(WRITTEN), other_table=OTHER
    )
    parted = [json.dumps(record) for record in edited(1, table=OTHER)]
    parted[LOSS - 1] = json.dumps(JOURNAL[LOSS - 1] | {"phase": "built"})
    verdict = conform(parted, any_table=True)
    assert (verdict.ok, verdict.first_bad_line, verdict.other_table) == (False, LOSS, OTHER)
    assert conform(WRITTEN, any_table=True) == conform(WRITTEN)


def test_a_last_line_that_is_cut_short_is_told_from_one_that_is_no_json() -> None:
    """A writer that was killed leaves half a line; everything before it still tells."""
    half = WRITTEN[4][:40]
    verdict = conform([*WRITTEN[:4], half])
    assert (verdict.ok, verdict.first_bad_line, verdict.events) == (False, 5, 3)
    assert verdict.why.startswith("expected a whole line, found one that is cut short: ")
    verdict = conform([*(line + "\n" for line in WRITTEN[:4]), "hello\n", WRITTEN[4] + "\n"])
    assert verdict.why.startswith("expected JSON, found 'hello' (")
    assert conform(["[]"]).why == "expected a JSON object, found '[]'"
    assert conform([*WRITTEN[:3], "", *WRITTEN[3:]]).why.startswith("expected JSON, found ''")


def test_a_step_that_breaks_a_property_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The invariants are checked too, in case that the table itself is wrong."""
    monkeypatch.setattr(conform_module, "new_violations", lambda before, event, step: ("S4: made up",))
    verdict = conform(WRITTEN)
    assert (verdict.first_bad_line, verdict.why) == (2, "expected every invariant to hold, found S4: made up")


def test_an_event_that_the_table_cannot_even_take_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank that no fleet has, say: a run would have failed there, and not written the line."""

    def interpret(state: State, event: Event) -> Step:
        raise ValueError("the communicator has ranks 0..3, got rank -1")

    monkeypatch.setattr(conform_module, "interpret", interpret)
    verdict = conform(WRITTEN)
    assert (verdict.ok, verdict.first_bad_line) == (False, 2)
    assert verdict.why.startswith("expected an event that can happen here, found")
    assert "got rank -1" in verdict.why


scalars = st.one_of(st.none(), st.booleans(), st.integers(-2, 9), st.text(max_size=5))
documents = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@settings(deadline=None, max_examples=150)
@given(line=st.integers(1, len(JOURNAL)), value=documents, data=st.data())
def test_no_line_makes_the_check_raise(line: int, value: Any, data: st.DataObject) -> None:
    """Whatever a line says, the answer is a verdict."""
    field = data.draw(st.sampled_from(sorted(JOURNAL[line - 1])), "field")
    verdict = verdict_of(edited(line, **{field: value}))
    free = line == 1 and field in ("run", "reknit") and isinstance(value, str)
    assert verdict.ok is (free or json.dumps(value) == json.dumps(JOURNAL[line - 1][field]))
    assert conform([*WRITTEN[: line - 1], json.dumps(value), *WRITTEN[line:]]).ok is False
