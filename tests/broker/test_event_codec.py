"""Entries of event streams as events of the model."""

from typing import Any

import pytest

from oxcart.broker.event_codec import decode_event
from oxcart.model.errors import ValidationError
from oxcart.model.event import EVENT_NAMES, Event


def parse(*pairs: str, stream_id: str = "1700000000123-4") -> Event:
    raw = [part.encode() for part in pairs]
    return decode_event(stream_id, dict(zip(raw[::2], raw[1::2], strict=True)), "emails")


def test_common_parts() -> None:
    event = parse("event", "waiting", "jobId", "7")
    assert (event.id, event.name, event.queue, event.job_id) == ("1700000000123-4", "waiting", "emails", "7")
    assert event.timestamp == 1_700_000_000_123
    assert event.fields == {}


@pytest.mark.parametrize(
    ("pairs", "expected"),
    [
        (("event", "completed", "returnvalue", '{"a":1}', "prev", "active"), {"return_value": {"a": 1}}),
        (("event", "completed", "returnvalue", "null"), {"return_value": None}),
        (("event", "completed", "returnvalue", "{oops"), {"return_value": "{oops"}),
        (("event", "progress", "data", "42"), {"data": 42}),
        (("event", "progress", "data", '{"at":3}'), {"data": {"at": 3}}),
        (("event", "progress", "data", "forty"), {"data": "forty"}),
        (("event", "mine", "data", "42"), {"data": "42"}),
        (
            ("event", "failed", "failedReason", "boom", "prev", "active"),
            {"failed_reason": "boom", "prev": "active"},
        ),
        (("event", "failed", "failedReason", '"boom"'), {"failed_reason": "boom"}),
        (("event", "failed", "failedReason", '"a" is not "b"'), {"failed_reason": '"a" is not "b"'}),
        (("event", "failed", "failedReason", '"'), {"failed_reason": '"'}),
        (("event", "delayed", "delay", "1700000005000"), {"delay": 1_700_000_005_000}),
        (("event", "delayed", "delay", "1.7e+12"), {"delay": 1_700_000_000_000}),
        (("event", "delayed", "delay", "soon"), {"delay": None}),
        (("event", "retries-exhausted", "attemptsMade", "3"), {"attempts_made": 3}),
        (("event", "added", "name", "welcome"), {"name": "added", "fields": {"name": "welcome"}}),
        (("event", "cleaned", "count", "12"), {"job_id": None, "fields": {"count": "12"}}),
        (("nothing", "here"), {"name": "", "fields": {"nothing": "here"}}),
    ],
)
def test_fields(pairs: tuple[str, ...], expected: dict[str, Any]) -> None:
    event = parse(*pairs)
    assert {name: getattr(event, name) for name in expected} == expected


def test_bytes_that_are_no_text_are_replaced() -> None:
    event = decode_event(b"5-0", {b"event": b"failed", b"failedReason": b"caf\xff"}, "q")
    assert (event.timestamp, event.name, event.failed_reason) == (5, "failed", "caf\ufffd")


@pytest.mark.parametrize(
    ("pairs", "kind"),
    [
        (("event", "waiting", "prev", "active"), "retry"),
        (("event", "waiting"), "waiting"),
        (("event", "waiting", "prev", "delayed"), "waiting"),
        (("event", "delayed"), "delayed"),
        (("event", "completed", "prev", "active"), "completed"),
    ],
)
def test_kind(pairs: tuple[str, ...], kind: str) -> None:
    assert parse(*pairs).kind == kind


@pytest.mark.parametrize("stream_id", ["", "x-1", "-5", "$"])
def test_invalid_stream_ids_are_refused(stream_id: str) -> None:
    with pytest.raises(ValidationError, match="stream_id must be <milliseconds>-<number>, got"):
        parse("event", "waiting", stream_id=stream_id)


def test_the_wire_has_no_retry_event() -> None:
    assert "retry" not in EVENT_NAMES
    assert {"waiting", "active", "completed", "failed", "progress", "stalled", "delayed"} <= EVENT_NAMES
