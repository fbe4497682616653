"""Values of the specification survive JSON, and what is not such a value is refused with a clear text."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reknit.spec.config import RefitConfig
from reknit.spec.lifecycle import commands as cmd
from reknit.spec.lifecycle import events as ev
from reknit.spec.lifecycle.state import Halt, HaltReason
from reknit.spec.roster import Roster, Topology
from reknit.statemachine import codec
from reknit.statemachine.codec import decode_event, decode_header, encode, encode_header

STAMP, VERSION = ev.Stamp(3, 1), ev.Version(1, 42)


@settings(deadline=None)
@given(event=st.sampled_from(list(codec.EVENT_TYPES.values())).flatmap(st.from_type))
def test_every_event_from_outside_comes_back_as_it_went(event: ev.Event) -> None:
    assert decode_event(json.loads(json.dumps(encode(event)))) == event


def test_the_shape_of_an_event_is_its_class_and_its_fields() -> None:
    event = ev.RankFailed(STAMP, 2, ev.Cause.PEER, "closed")
    assert encode(event) == {"type": "RankFailed", "stamp": [3, 1], "rank": 2, "cause": "peer", "detail": "closed"}
    assert encode(ev.StartRequested()) == {"type": "StartRequested"}


@pytest.mark.parametrize(
    ("command", "shape"),
    [
        (cmd.Form(STAMP, Roster({2: 0, 0: 1})), {"stamp": [3, 1], "roster": {"0": 1, "2": 0}}),
        (
            cmd.Transfer(STAMP, Roster({0: 0}), VERSION, ev.Payload.DELTA),
            {"stamp": [3, 1], "roster": {"0": 0}, "version": [1, 42], "payload": "delta"},
        ),
        (
            cmd.Leave(STAMP, ev.Stamp(3, 0), Roster({0: 0}), (0, 1)),
            {"stamp": [3, 1], "breaking": [3, 0], "roster": {"0": 0}, "ranks": [0, 1]},
        ),
        (cmd.Fence(1, 0), {"slot": 1, "incarnation": 0}),
        (
            cmd.Arm(ev.Timer.FENCE, 20.0, ev.FenceExpired(1, 0), 1),
            {
                "timer": "fence",
                "seconds": 20.0,
                "expiry": {"type": "FenceExpired", "slot": 1, "incarnation": 0},
                "slot": 1,
            },
        ),
        (cmd.Disarm(ev.Timer.FORM), {"timer": "form", "slot": None}),
        (cmd.DisarmAll(), {}),
        (
            cmd.ReportHalted(Halt(HaltReason.MISMATCH, "told")),
            {"halt": {"type": "Halt", "reason": "mismatch", "detail": "told"}},
        ),
    ],
)
def test_commands_are_plain_data(command: cmd.Command, shape: dict[str, Any]) -> None:
    encoded = encode(command)
    assert encoded == {"type": type(command).__name__, **shape}
    assert json.loads(json.dumps(encoded)) == encoded


def test_a_header_comes_back_as_it_went() -> None:
    topology = Topology(train_world_size=2, dp_size=3, workers_per_shard=4)
    config = RefitConfig(on_frozen="fence", min_healthy_shards=2, refit_timeout_s=1000)
    assert decode_header(json.loads(json.dumps(encode_header(topology, config)))) == (topology, config)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (None, "an event must be a JSON object, got None"),
        ({}, "unknown event type None"),
        ({"type": "Nonsense"}, "unknown event type 'Nonsense'; known are BackoffElapsed, "),
        ({"type": "FormDue"}, "unknown event type 'FormDue'"),
        ({"type": "RankReply", "stamp": [1, 0], "rank": 0}, "unknown event type 'RankReply'"),
        ({"type": ["x"]}, "unknown event type"),
        ({"type": "RankJoined", "stamp": [1, 0]}, "RankJoined lacks rank"),
        ({"type": "RankJoined", "stamp": [1, 0], "rank": 0, "slot": 1}, "RankJoined has no field 'slot'; it has stamp"),
        ({"type": "StartRequested", "x": 1}, "StartRequested has no field 'x'; it has none"),
        ({"type": "RankJoined", "stamp": [1, 0], "rank": "0"}, "RankJoined.rank must be a whole number, got '0'"),
        ({"type": "RankJoined", "stamp": [1, 0], "rank": True}, "RankJoined.rank must be a whole number, got True"),
        ({"type": "RankJoined", "stamp": [1, 0], "rank": 1.0}, "RankJoined.rank must be a whole number, got 1.0"),
        (
            {"type": "RankJoined", "stamp": [1], "rank": 0},
            "RankJoined.stamp must be a list of 2 whole numbers, got [1]",
        ),
        ({"type": "RankJoined", "stamp": "1.0", "rank": 0}, "RankJoined.stamp must be a list of 2 whole numbers"),
        (
            {"type": "RankLeft", "stamp": [1, 0], "rank": 0, "progress": "half"},
            "RankLeft.progress must be one of 'never_entered', 'entered', 'partial', 'stuck', 'complete', got 'half'",
        ),
        (
            {"type": "RankLeft", "stamp": [1, 0], "rank": 0, "progress": ["entered"]},
            "RankLeft.progress must be one of",
        ),
        (
            {"type": "RestartFailed", "slot": 0, "incarnation": 0, "detail": 3},
            "RestartFailed.detail must be text, got 3",
        ),
    ],
)
def test_what_is_no_event_is_refused(data: object, says: str) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        decode_event(data)
    assert str(caught.value).startswith(says)


def test_fields_with_a_default_may_be_left_out() -> None:
    assert decode_event({"type": "RefitRequested", "version": [0, 1]}) == ev.RefitRequested(ev.Version(0, 1))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"topology": None}, "topology must be an object of type Topology, got None"),
        ({"config": {"type": "Topology"}}, "config must be an object of type RefitConfig"),
        (
            {"config": {"type": "RefitConfig", "on_frozen": "wait"}},
            "RefitConfig.on_frozen must be one of 'stop', 'fence'",
        ),
        ({"config": {"type": "RefitConfig", "min_healthy_shards": 0}}, "min_healthy_shards must be at least 1, got 0"),
        ({"config": {"type": "RefitConfig", "fence_timeout_s": "5"}}, "RefitConfig.fence_timeout_s must be a number"),
        ({"topology": {"type": "Topology", "dp_size": 1}}, "Topology lacks train_world_size"),
    ],
)
def test_a_bad_header_is_refused(change: dict[str, Any], says: str) -> None:
    header = encode_header(Topology(train_world_size=1, dp_size=1), RefitConfig()) | change
    with pytest.raises(ValueError, match=r".") as caught:
        decode_header(header)
    assert str(caught.value).startswith(says)


def test_only_dataclasses_are_encoded() -> None:
    with pytest.raises(ValueError, match="only dataclasses"):
        encode(3)
