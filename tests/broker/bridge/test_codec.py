"""Records: Oxcart writes the document's form, and reads any record of other clients."""

from __future__ import annotations

import json
from typing import Any

import msgpack
import pytest

from oxcart.broker.bridge import codec, records
from oxcart.broker.bridge.jobs import decode_job
from oxcart.broker.factory import DEFAULTS
from oxcart.model.backoff import Backoff
from oxcart.model.errors import NotSupported, PayloadTooLarge, ValidationError
from oxcart.model.options import JobOptions
from oxcart.model.target import Abilities, Target

NOW = 1_700_000_000_000
PLAIN = DEFAULTS["bridge"]


def options(**given: Any) -> JobOptions:
    return PLAIN.replace(**given)


def written(data: Any = None, name: str = "email", formal: bool = False, **given: Any) -> dict[str, Any]:
    _, args = codec.encode_job("email", name, data, options(**given), NOW, formal=formal)
    read: dict[str, Any] = json.loads(args[1])  # type: ignore[arg-type]
    return read


def test_a_plain_job_has_the_documents_fields_and_defaults() -> None:
    record = written({"to": "ada"})
    job_id = record.pop("jobId")
    assert len(job_id) == 36
    assert record == {
        "attempts": 0,
        "type": "email",
        "payload": {"to": "ada"},
        "schedule": {},
        "retry": {
            "attempts": 3,
            "backoff": {"type": "exponential", "delay": 2000, "maxDelay": 60_000, "jitter": False},
        },
        "priority": 5,
        "dependsOn": [],
        "target": {},
        "metadata": {},
        "createdAt": NOW,
    }


def test_options_have_their_places() -> None:
    record = written(
        None,
        delay="5s",
        priority=9,
        attempts=7,
        backoff=Backoff("linear", 500, cap=9000, jitter=0.25),
        tags={"tenant": "acme"},
        after=["a", "b"],
        target=Target(capabilities="gpu", region="us-east"),
        rate_limit={"max_concurrent": 4, "max_per_minute": 100},
        skip_on=["ValueError"],
        reroute_on=["MemoryError"],
    )
    assert record["payload"] == {}
    assert record["schedule"] == {"delay": 5000}
    assert record["priority"] == 9
    assert record["retry"] == {
        "attempts": 7,
        "backoff": {"type": "linear", "delay": 500, "maxDelay": 9000, "jitter": True},
        "skipOn": ["ValueError"],
        "rerouteOn": ["MemoryError"],
    }
    assert record["metadata"] == {"tenant": "acme"}
    assert record["dependsOn"] == ["a", "b"]
    assert record["target"] == {"capabilities": ["gpu"], "region": ["us-east"], "mode": "all"}
    assert record["rateLimit"] == {"maxConcurrent": 4, "maxPerMinute": 100}
    assert "ox" not in record


def test_options_without_a_document_field_are_stored_under_ox() -> None:
    record = written(None, name="welcome", timeout="30s", correlation_id="c1")
    assert record["type"] == "email"
    assert record["ox"] == {"name": "welcome", "timeout": 30_000, "corr": "c1"}


@pytest.mark.parametrize(
    "backoff",
    [
        Backoff("fixed", 100),
        Backoff("fixed", 120_000),
        Backoff("linear", 500, cap=None),
        Backoff("exponential", 1000, multiplier=3.0),
        Backoff("exponential", 1000, cap=5000, jitter=0.5),
        Backoff("exponential", 1000, jitter=0.25, jitter_mode="down"),
        Backoff("custom", 700, name="mine"),
        PLAIN.backoff,
    ],
)
def test_a_policy_is_read_back_as_it_was(backoff: Backoff) -> None:
    _, args = codec.encode_job("email", "email", None, options(backoff=backoff, attempts=9), NOW)
    read = records.read_record(args[1]).backoff  # type: ignore[arg-type]
    for attempt in range(1, 9):
        assert read.delay_ms(attempt, lambda: 0.7) == backoff.delay_ms(attempt, lambda: 0.7)
    assert (read.type, read.name) == (backoff.type, backoff.name)


@pytest.mark.parametrize(("given", "number"), [(0, 10), (1, 8), (2, 5), (3, 3), (4, 1)])
def test_formal_priorities_have_numbers_of_their_own(given: int, number: int) -> None:
    assert written(formal=True, priority=given)["priority"] == number


@pytest.mark.parametrize("priority", [11, 100])
def test_a_priority_is_from_1_to_10(priority: int) -> None:
    with pytest.raises(ValidationError, match="from 1 to 10"):
        written(priority=priority)


@pytest.mark.parametrize(
    ("given", "feature"),
    [
        ({"deduplication": "x"}, "deduplication"),
        ({"idempotency_key": "x"}, "idempotency"),
        ({"callback_url": "https://example.com/hook"}, "webhooks"),
        ({"history": True}, "history"),
        ({"lifetime": "1h"}, "lifetime"),
        ({"keep_logs": 10}, "logs"),
        ({"limit_key": "tenant-42"}, "limit_keys"),
        ({"job_id": "mine"}, "custom_ids"),
        ({"remove_on_complete": 100}, "retention_by_count"),
    ],
)
def test_unsupported_options_are_refused(given: dict[str, Any], feature: str) -> None:
    with pytest.raises(NotSupported) as refused:
        written(**given)
    assert refused.value.feature == feature
    assert refused.value.protocol == "bridge"


def test_an_id_of_the_callers_is_a_uuid() -> None:
    one = "6f2c7a52-7d2a-4c5e-8f7b-0a5f4a8d9c11"
    assert written(job_id=one)["jobId"] == one


def test_too_large_is_too_large() -> None:
    with pytest.raises(PayloadTooLarge):
        written("x" * 2000, size_limit=1000)


# -- reading


@pytest.mark.parametrize(
    ("raw", "at"),
    [
        (b'{"attempts":0,"type":"x"}', 12),
        (b'{"type":"x","attempts":17}', 23),
        (b'{ "type" : "x" , "attempts" : 3 }', 30),
        (b'{"retry":{"attempts":5},"attempts":2}', 35),
        ('{"type":"ü","attempts":1}'.encode(), 24),
        (b'{"retry":{"attempts":5}}', -1),
        (b'{"payload":"\\"attempts\\":9","attempts":4}', 39),
        (b'{"attempts":"3","x":1}', -1),
        (b'{"attempts":null,"x":1}', -1),
        (b'{"x":1,"attempts":-1}', -1),
        (b'{"x":1,"attempts":1.5}', -1),
        (b'{"attempts":1e2}', -1),
        (b'{"\\u0061ttempts":3}', -1),
        (b'{"attempts":' + b" " * 60 + b"3}", -1),
        (b'{"attempts":12345678901234567890}', -1),
        (b'{"x":1,"attempts":"3"}', -1),
        (b"[]", -1),
        (b"nonsense", -1),
        (b"", -1),
        (b"{}", -1),
    ],
)
def test_where_the_attempts_stand(raw: bytes, at: int) -> None:
    assert records.attempts_at(raw) == at


@pytest.mark.parametrize(
    "raw",
    [b"", b"nonsense", b"[]", b"{}", b'{"type":7,"retry":[],"priority":"x","target":9}', b'{"schedule":1}'],
)
def test_anything_is_read(raw: bytes) -> None:
    record = records.read_record(raw)
    assert record.attempts == 3
    assert record.backoff.delay_ms(1, lambda: 0) == 2000
    assert record.priority == 5
    assert record.lane == ""
    job = decode_job("email", "7", raw, "waiting")
    assert job.id == "7"


@pytest.mark.parametrize("limit", [2**64, 2**200, 1e300, -(2**70)])
def test_no_number_is_too_large_for_a_script(limit: float) -> None:
    given = {"type": "t", "rateLimit": {"maxConcurrent": limit}, "priority": limit, "createdAt": limit}
    raw = json.dumps(given).encode()
    facts, _, fields = records.read_facts(raw)
    assert msgpack.unpackb(fields)[:2] == ["name", "t"]
    assert facts == records.read_record(raw).facts()
    assert 0 <= msgpack.unpackb(facts.packed())[3] < 2**53


def test_payload_bytes_are_read_unchanged() -> None:
    raw = b'{"type":"t","payload":{"empty":[],"big":12345678901234567890123, "f":1.0}}'
    assert records.read_record(raw).payload == b'{"empty":[],"big":12345678901234567890123, "f":1.0}'


def test_parts_are_replaced_and_the_rest_stays() -> None:
    raw = b'{"type":"t","payload":{"a":[]},"attempts":4,"mine":[ 1 ]}'
    new = codec.with_members(raw, payload=b'{"b":2}')
    assert new == b'{"attempts":4,"type":"t","payload":{"b":2},"mine":[ 1 ]}'


def test_delays_grow_as_the_document_defines() -> None:
    policy = records.read_backoff({"type": "exponential", "delay": 2000, "maxDelay": 60_000})
    assert [policy.delay_ms(n, lambda: 0.5) for n in range(1, 8)] == [
        2000, 4000, 8000, 16_000, 32_000, 60_000, 60_000,
    ]  # fmt: skip
    jittered = records.read_backoff({"type": "fixed", "delay": 1000, "jitter": True})
    assert jittered.delay_ms(1, lambda: 0.0) == 750
    assert jittered.delay_ms(1, lambda: 0.9999) == 1249


@pytest.mark.parametrize(
    ("target", "able", "may"),
    [
        ({}, Abilities("w"), True),
        ({"server": "w"}, Abilities("w"), True),
        ({"server": "v"}, Abilities("w"), False),
        ({"server": "v", "stack": ["python"]}, Abilities("w"), False),
        ({"stack": ["node"], "mode": "any"}, Abilities("w"), False),
        ({"stack": ["node"], "region": ["eu"], "mode": "any"}, Abilities("w", region="eu"), True),
        ({"stack": ["node"], "region": ["eu"], "mode": "all"}, Abilities("w", region="eu"), False),
        ({"capabilities": ["gpu", "tpu"], "mode": "all"}, Abilities("w", capabilities="gpu"), False),
        ({"capabilities": ["gpu", "tpu"], "mode": "any"}, Abilities("w", capabilities="gpu"), True),
        ({"capabilities": "gpu"}, Abilities("w", capabilities=("gpu", "tpu")), True),
        ({"capabilities": [7]}, Abilities("w"), False),
        ({"stack": [], "mode": "all"}, Abilities("w"), True),
    ],
)
def test_target_decides_which_worker_may_run_a_job(
    target: dict[str, Any], able: Abilities, may: bool
) -> None:
    record = records.read_record(json.dumps({"type": "t", "target": target}).encode())
    assert records.matches(record.lane, able) is may
