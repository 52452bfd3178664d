"""Values and hash fields: exact round trips, and no exception for a peer's values."""

from __future__ import annotations

import json
import uuid
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET

from oxcart.broker.bullmq import codec
from oxcart.broker.bullmq.attempts import retention_argument
from oxcart.broker.ids import new_id
from oxcart.broker.stored import text_of
from oxcart.model import history
from oxcart.model.backoff import Backoff
from oxcart.model.errors import PayloadTooLarge, ValidationError
from oxcart.model.job import Job
from oxcart.model.options import JobOptions, OptionKwargs
from oxcart.model.retention import KEEP, REMOVE, Retention

NOW = 1_700_000_000_000

FIELDS = (
    b"name data opts timestamp delay priority progress atm ats stc processedOn finishedOn returnvalue".split()
)
FIELDS += (
    b"failedReason stacktrace parent parentKey pb rjk deid defa ox:backoff ox:timeout ox:category".split()
)
ODDITIES = [b"{}", b"[]", b"null", b'{"a":1}', b"1e999", b"-1", b'"x"', b"true", b'{"attempts":{}}']


def stored(name: str, data: Any, **options: Any) -> tuple[str, dict[bytes, bytes]]:
    """A job's hash as ``add.lua`` writes it from the arguments."""
    job_id, args = codec.encode_job(name, data, JobOptions.build(**options), NOW)
    raw = [value if isinstance(value, bytes) else str(value).encode() for value in args]
    names = (b"name", b"data", b"opts", b"timestamp", b"delay", b"priority")
    fields = dict(zip(names, raw[1:7], strict=True))
    assert len(raw) == 9 + 2 * int(raw[8])
    fields.update(zip(raw[9::2], raw[10::2], strict=True))
    return job_id, fields


def round_trip(name: str, data: Any, **options: Any) -> Job:
    job_id, fields = stored(name, data, **options)
    return codec.decode_job("q", job_id, fields)


class TestIds:
    def test_new_ids_are_random_uuids(self) -> None:
        ids = {new_id() for _ in range(1000)}
        assert len(ids) == 1000
        for text in ids:
            parsed = uuid.UUID(text)
            assert (str(parsed), parsed.version, parsed.variant) == (text, 4, uuid.RFC_4122)

    def test_a_custom_id_is_kept(self) -> None:
        job_id, fields = stored("n", None, job_id="my-job")
        assert job_id == "my-job"
        assert json.loads(fields[b"opts"])["jobId"] == "my-job"


class TestRoundTrip:
    @pytest.mark.parametrize(
        "data",
        [
            None,
            0,
            -1.5,
            True,
            "",
            "text",
            "ünï → 😀",
            "nul \x00 inside",
            "\ud800 half of a pair",
            [1, [2, {"x": None}]],
            {},
            {"a": {"b": [1, 2, 3]}},
            b"\x00\xff bytes",
            {"deep": [{"raw": b"x"}]},
            2**53 + 1,
            {"": "", "$bytes": "not base64!"},
        ],
    )
    def test_data(self, data: Any) -> None:
        assert round_trip("n", data).data == data

    @pytest.mark.parametrize("name", ["n", "with space", "a:b", "ünï", "😀", "123", "nul\x00"])
    def test_names(self, name: str) -> None:
        assert round_trip(name, None).name == name

    @pytest.mark.parametrize(
        "options",
        [
            {},
            {"attempts": 1},
            {"attempts": 7, "backoff": "5s"},
            {"backoff": Backoff("exponential", 250, 3.0, 10_000, 0.5, "down")},
            {"backoff": {"type": "linear", "delay": 100, "cap": 1000}},
            {"backoff": {"type": "custom", "name": "mine"}},
            {"backoff": {"type": "exponential", "delay": 1000, "cap": None}},
            {"delay": "1h30m"},
            {"priority": 2_097_151},
            {"lifo": True},
            {"remove_on_complete": True, "remove_on_fail": False},
            {"remove_on_complete": 100, "remove_on_fail": {"age": "1d", "count": 5, "limit": 10}},
            {"timestamp": 5},
            {"keep_logs": 3},
            {"stack_trace_limit": 0},
            {"size_limit": 1000},
            {"timeout": "5m"},
            {"timeout": None},
            {"job_id": "x"},
        ],
        ids=str,
    )
    def test_options(self, options: OptionKwargs) -> None:
        wanted = JobOptions.build(**options)
        found = round_trip("n", None, **options).options
        assert msgspec.structs.replace(found, backoff=wanted.backoff) == wanted
        # The wire's nearest policy replaces ours if it waits equally long at every attempt.
        for attempt in range(1, wanted.attempts):
            for rand in (0.0, 0.3, 0.9):
                waits = [policy.delay_ms(attempt, lambda: rand) for policy in (found.backoff, wanted.backoff)]  # noqa: B023
                assert waits[0] == waits[1]

    def test_times_of_the_hash(self) -> None:
        job = round_trip("n", None, delay=5, priority=3)
        assert (job.timestamp, job.delay, job.priority) == (NOW, 5000, 3)
        assert round_trip("n", None, timestamp=7).timestamp == 7

    @given(
        st.recursive(
            st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text() | st.binary(max_size=20),
            lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
            max_leaves=20,
        )
    )
    def test_any_payload(self, data: Any) -> None:
        if isinstance(data, dict) and set(data) == {"$bytes"}:
            return  # our own mark for bytes
        assert round_trip("n", data).data == data


class TestWire:
    """Returns the ``opts`` that a Node peer reads."""

    def opts(self, **options: Any) -> Any:
        return json.loads(stored("n", None, **options)[1][b"opts"])

    def test_defaults(self) -> None:
        assert self.opts() == {"attempts": 3, "backoff": {"type": "exponential", "delay": 1000}}

    def test_all_names_are_the_peers(self) -> None:
        assert self.opts(
            attempts=2,
            backoff="1s",
            delay=1,
            priority=4,
            lifo=True,
            remove_on_complete=True,
            remove_on_fail=10,
            keep_logs=5,
            stack_trace_limit=1,
            size_limit=999,
            timestamp=3,
        ) == {
            "attempts": 2,
            "backoff": {"type": "fixed", "delay": 1000},
            "delay": 1000,
            "priority": 4,
            "lifo": True,
            "removeOnComplete": True,
            "removeOnFail": 10,
            "kl": 5,
            "stackTraceLimit": 1,
            "sizeLimit": 999,
            "timestamp": 3,
        }

    @pytest.mark.parametrize("backoff", [{"type": "linear", "delay": 10}, {"type": "custom", "name": "mine"}])
    def test_a_policy_that_would_kill_a_node_worker_is_never_in_opts(self, backoff: dict[str, Any]) -> None:
        _, fields = stored("n", None, backoff=backoff, attempts=4)
        assert json.loads(fields[b"opts"])["backoff"]["type"] in ("fixed", "exponential")
        assert b"ox:backoff" in fields

    def test_default_job_has_no_ox_fields(self) -> None:
        assert set(stored("n", None)[1]) == {b"name", b"data", b"opts", b"timestamp", b"delay", b"priority"}

    def test_equal_options_are_encoded_once(self) -> None:
        first, second = JobOptions.build(attempts=9), JobOptions.build(attempts=9)
        assert codec.encode_options(first) is codec.encode_options(second)

    def test_refuses_before_anything_is_sent(self) -> None:
        with pytest.raises(ValidationError, match="job name"):
            stored("", None)
        with pytest.raises(ValidationError, match="finite"):
            stored("n", {"x": float("inf")})
        opts = len(stored("n", None, size_limit=200)[1][b"opts"])
        assert round_trip("n", "x" * (198 - opts), size_limit=200)
        with pytest.raises(PayloadTooLarge, match="Job payload size 201 bytes exceeds limit of 200 bytes"):
            stored("n", "x" * (199 - opts), size_limit=200)


class TestRetentionArgument:
    @pytest.mark.parametrize(
        ("kept", "argument"),
        [
            (KEEP, "-1::"),
            (REMOVE, "0::"),
            (Retention(count=5), "5::"),
            (Retention(age=60), ":60:"),
            (Retention(age=60, count=5, limit=10), "5:60:10"),
            (Retention(age=60, count=0), "0::"),
            (Retention(age=60, count=-1), ":60:"),
            (Retention(limit=3), "-1::"),
        ],
    )
    def test_table(self, kept: Retention, argument: str) -> None:
        assert retention_argument(kept) == argument


class TestPeers:
    """Values of other clients are shown as they are, without an exception."""

    def read(self, **fields: str | bytes) -> Job:
        raw = {k.encode(): v if isinstance(v, bytes) else v.encode() for k, v in fields.items()}
        return codec.decode_job("q", "1", raw)

    def test_an_empty_hash(self) -> None:
        job = self.read()
        assert (job.name, job.data, job.timestamp, job.attempts_made, job.progress) == ("", None, 0, 0, 0)
        assert job.options == JobOptions()

    def test_a_node_job(self) -> None:
        job = self.read(
            name="n",
            data='{"x":1}',
            opts='{"attempts":0,"backoff":{"type":"fixed","delay":5,"jitter":0.5},"de":{"id":"d"},"tm":"trace"}',
            timestamp="5",
            delay="0",
            priority="0",
            processedOn="6",
            finishedOn="7",
            returnvalue='"ok"',
            failedReason="an old one",
            atm="2",
            ats="3",
            stc="1",
            pb="worker-1",
            progress='{"step":2}',
            stacktrace='["first","second"]',
            parentKey="bull:p:9",
            parent='{"id":"9","queueKey":"bull:p"}',
            rjk="schedule",
            deid="dedup",
            defa="child failed",
        )
        assert job.options.attempts == 0
        assert (job.options.backoff.delay, job.options.backoff.jitter_mode) == (5, "down")
        assert (job.attempts_made, job.attempts_started, job.stalled_count) == (2, 3, 1)
        assert (job.return_value, job.failed_reason) == ("ok", None)
        assert (job.processed_on, job.finished_on, job.worker_id) == (6, 7, "worker-1")
        assert (job.progress, job.stacktrace) == ({"step": 2}, ["first", "second"])
        assert job.parent == {"id": "9", "queueKey": "bull:p"}
        assert (job.parent_key, job.scheduler_id, job.dedup_id) == ("bull:p:9", "schedule", "dedup")
        assert job.deferred_failure == "child failed"

    def test_attempts_of_an_old_peer(self) -> None:
        assert self.read(attemptsMade="4", atm="1").attempts_made == 4

    def test_a_reason_with_the_quotes_of_old_python_clients(self) -> None:
        assert self.read(failedReason='"it broke"').failed_reason == "it broke"
        assert self.read(failedReason='"half').failed_reason == '"half'
        assert self.read(failedReason='"a" and "b"').failed_reason == '"a" and "b"'

    @pytest.mark.parametrize(
        ("field", "raw", "attribute", "shown"),
        [
            ("data", "not json", "data", "not json"),
            ("data", b"\xff\xfe", "data", "\udcff\udcfe"),
            ("returnvalue", "undefined", "return_value", "undefined"),
            ("progress", "NaN", "progress", "NaN"),
            ("timestamp", "soon", "timestamp", 0),
            ("timestamp", "1.7e12", "timestamp", 1_700_000_000_000),
            ("priority", "", "priority", 0),
            ("atm", "many", "attempts_made", 0),
            ("stacktrace", "null", "stacktrace", []),
            ("stacktrace", '"text"', "stacktrace", []),
            ("stacktrace", "[1,null]", "stacktrace", ["1", "None"]),
            ("parent", "[]", "parent", None),
            ("finishedOn", "inf", "finished_on", None),
        ],
    )
    def test_garbage(self, field: str, raw: str | bytes, attribute: str, shown: Any) -> None:
        assert getattr(self.read(**{field: raw}), attribute) == shown

    @pytest.mark.parametrize(
        "opts",
        [
            b"",
            b"null",
            b"[]",
            b"7",
            b"\xff",
            b"{",
            b'{"attempts":"x","backoff":7,"delay":null,"priority":[],"removeOnComplete":"x","jobId":5,"kl":{}}',
            b'{"backoff":{"type":"unheard-of"}}',
            b'{"backoff":{"type":5,"delay":"x"}}',
            b'{"attempts":1e400}',
            b'{"attempts":true,"lifo":1}',
        ],
    )
    def test_garbage_options(self, opts: bytes) -> None:
        options, _ = codec.read_options(opts)
        assert isinstance(options.attempts, int)
        assert options.backoff.delay_ms(1, lambda: 0.5) >= 0

    def test_garbage_in_our_own_fields(self) -> None:
        options, fault = codec.read_options(b"{}", b"not json", b"not a number")
        assert (options.backoff, options.timeout) == (Backoff.from_wire(None), None)
        assert fault.startswith("ox:backoff")
        assert codec.read_options(b"{}", b'{"type":"unheard-of"}')[0].backoff is not None
        assert codec.read_options(b"{}")[0].timeout is UNSET
        assert codec.read_options(b"{}", None, b"")[0].timeout is None

    def test_facts_of_our_scripts_are_typed(self) -> None:
        written: dict[bytes, bytes] = {
            b"ox:ready": b"5",
            b"ox:moved": b"6",
            b"ox:category": b"timeout",
            b"ox:code": b"E1",
            b"ox:dead": b"lifetime",
            b"ox:unhandled": b"2",
            b"ox:cancel": b"no",
            b"ox:untold": b"why",
            b"ox:idem": b"key",
            b"ox:checkpoint": b"[1]",
            b"ox:signals": b"a\t1\nb\t{}\n",
            b"ox:step:one": b"step\t1\t5\t0\t1\t\t\n[2]",
            b"ox:history": b"5\tpending\tscheduled\t\tadded\n",
            b"ox:attempts": b'[1,5,6,"w","failed","timeout","E1","m",""]\n',
        }
        job = codec.decode_job("q", "1", written)
        assert (job.ready_ms, job.moved_ms, job.unhandled_start) == (5, 6, 2)
        assert (job.category, job.code, job.dead_reason) == ("timeout", "E1", "lifetime")
        assert (job.cancel_reason, job.unreported, job.idempotency_key) == ("no", "why", "key")
        assert (job.checkpointed, job.signals) == ([1], ["a", "b"])
        assert [(step.name, step.value) for step in job.steps] == [("one", [2])]
        assert job.transitions[0].why == "added"
        assert history.attempts(job.attempt_records, "1", 1, job._known())[0].code == "E1"

    def test_garbage_among_these_facts_is_no_error(self) -> None:
        odd = {b"ox:ready": b"x", b"ox:moved": b"9" * 400, b"ox:unhandled": b"", b"ox:checkpoint": b"{"}
        job = codec.decode_job("q", "1", odd)
        assert (job.ready_ms, job.moved_ms, job.unhandled_start) == (None, None, None)
        assert (job.checkpointed, job.signals, job.category) == ("{", [], None)

    @given(st.dictionaries(st.sampled_from(FIELDS), st.binary(max_size=30) | st.sampled_from(ODDITIES)))
    def test_no_hash_is_an_exception(self, fields: dict[bytes, bytes]) -> None:
        job = codec.decode_job("q", "1", fields)
        assert job.id == "1"
        msgspec.json.encode(job.attempts_made)


def test_text_that_is_no_utf8_survives() -> None:
    raw = b"caf\xe9"
    text = text_of(raw)
    assert text is not None
    assert text.encode("utf-8", "surrogateescape") == raw
    assert text_of(None) is None
