"""The codecs on what a hostile peer may have stored: they read defaults or name a fault, and never raise.

`OXCART_FUZZ=1000` sets how many thousands of records are read.
"""

from __future__ import annotations

import json
import os
import random
from typing import Any

from oxcart.broker.bridge import jobs as bridge
from oxcart.broker.bridge.claimed import read_claim
from oxcart.broker.bullmq import codec
from oxcart.model.errors import PayloadError
from oxcart.model.options import DEFAULT_OPTIONS
from tests.fuzz.hostile import ODD, odd

RECORDS = 1000 * int(os.environ.get("OXCART_FUZZ", "2"))
#: Fields of a BullMQ job that the codec reads.
FIELDS = (
    *(b"name", b"data", b"opts", b"timestamp", b"delay", b"priority", b"progress", b"atm", b"attemptsMade"),
    *(b"ats", b"stc", b"processedOn", b"finishedOn", b"pb", b"returnvalue", b"failedReason", b"stacktrace"),
    *(b"parentKey", b"parent", b"defa", b"rjk", b"deid", b"ox:tags", b"ox:backoff", b"ox:timeout"),
    *(
        b"ox:lifetime",
        b"ox:since",
        b"ox:forgiven",
        b"ox:excused",
        b"ox:checkpoint",
        b"ox:category",
        b"ox:dead",
    ),
    *(b"ox:limit", b"ox:group", b"ox:cid", b"ox:history", b"ox:steps", b"ox:target", b"ox:cb"),
)
PLACES = ("wait", "active", "delayed", "prioritized", "completed", "failed", "waiting-children", "odd")
#: Values that JSON can hold where a record has another.
VALUES: tuple[Any, ...] = (
    *(None, True, 0, -1, 1e300, 2**70, "", "x", "\ud83d", "1e400", [], [1], {}, {"": None}),
    *({"a": {"b": [None] * 50}}, "9" * 400, [[[[]]]]),
)
MEMBERS = (
    *("id", "type", "payload", "config", "attempts", "status", "createdAt", "version", "target", "ox"),
    *("priority", "retry", "backoff", "delay", "scheduledFor", "metadata", "error", "history"),
)


def _hash(dice: random.Random) -> dict[bytes, bytes]:
    return {dice.choice(FIELDS): odd(dice) for _ in range(dice.randrange(len(FIELDS)))}


def _record(dice: random.Random, depth: int = 0) -> Any:
    """Returns a record as Bridge's clients write it, with odd members at any depth."""
    made: dict[str, Any] = {}
    for _ in range(dice.randrange(len(MEMBERS))):
        deeper = depth < 2 and dice.random() < 0.3
        made[dice.choice(MEMBERS)] = _record(dice, depth + 1) if deeper else dice.choice(VALUES)
    return made


def _raw(dice: random.Random) -> bytes:
    if dice.random() < 0.2:
        return odd(dice)
    raw = json.dumps(_record(dice)).encode()
    return raw[: dice.randrange(len(raw) + 1)] if dice.random() < 0.1 else raw


def test_no_stored_job_of_bullmq_makes_the_codec_raise() -> None:
    dice = random.Random(1)
    for _ in range(RECORDS):
        fields = _hash(dice)
        job = codec.decode_job("q", "id", fields, dice.choice(PLACES))
        codec.options_of(fields)
        assert isinstance(codec.fault_of(fields), str)
        assert job.fault is None or any(job.fault.startswith(name.decode()) for name in fields), job.fault
        repr(job)


def test_every_odd_value_in_every_field_can_be_read() -> None:
    for name in FIELDS:
        for value in ODD:
            repr(codec.decode_job("q", "id", {name: value}, "wait"))


def test_no_stored_job_of_bridge_makes_the_codec_raise() -> None:
    dice = random.Random(2)
    for _ in range(RECORDS):
        raw, run = _raw(dice), _hash(dice)
        claim = read_claim("id", "token", 1, 1, raw, run)
        assert claim.record is not None or claim.unreadable
        repr((claim, claim.name, claim.payload, claim.fault, claim.options, claim.tags))
        found = bridge.decode_job("q", "id", raw, dice.choice(("waiting", "dead", "odd", None)), run=run)
        repr(found)


def test_a_payload_comes_back_as_it_went_in() -> None:
    dice = random.Random(3)
    for _ in range(RECORDS):
        data = _record(dice)
        try:
            _, arguments = codec.encode_job("job", data, DEFAULT_OPTIONS, 1)
        except PayloadError:  # an integer of over 64 bit
            continue
        body = arguments[2]
        assert isinstance(body, bytes)
        assert codec.decode_job("q", "id", {b"data": body}).data == data
