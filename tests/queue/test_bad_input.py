"""Bad input raises a clear typed error, and nothing is written."""

from __future__ import annotations

import datetime
import warnings
from typing import Any

import pytest
import redis

from oxcart import Backoff, Queue, sync
from oxcart.model.errors import PayloadError, PayloadTooLarge, ValidationError
from oxcart.model.retention import RetentionWarning
from tests.conftest import MakeQueue

MIB = 1024 * 1024


def circular() -> Any:
    circle: dict[str, Any] = {"name": "circle"}
    circle["self"] = circle
    return circle


def deep(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


#: Every rule of the options, broken once: the options, and the text of the error.
OPTIONS: list[tuple[dict[str, Any], str]] = [
    ({"attempts": 0}, "attempts must be at least 1, got 0"),
    ({"attempts": -3}, "attempts must be at least 1, got -3"),
    ({"attempts": 1.5}, "attempts must be an integer, at least 1, got 1.5"),
    ({"attempts": True}, "attempts must be an integer, at least 1, got True"),
    ({"attempts": "3"}, "attempts must be an integer, at least 1, got '3'"),
    ({"attempts": 2**31}, "attempts must be at most 2147483647, got 2147483648"),
    ({"delay": -1}, "delay must be at least 0, got -1"),
    ({"delay": "soon"}, "delay must be a duration: seconds, a timedelta, or text"),
    ({"delay": float("nan")}, "delay must be a duration"),
    ({"delay": float("inf")}, "delay must be at most 100 years, got inf"),
    ({"delay": datetime.timedelta(seconds=-1)}, "delay must be at least 0"),
    ({"delay": None}, "delay must be a duration"),
    ({"priority": -1}, "priority must be at least 0, got -1"),
    ({"priority": 2_097_152}, "priority must be an integer from 0 to 2097151, got 2097152"),
    ({"priority": 1.5}, "priority must be an integer from 0 to 2097151, got 1.5"),
    ({"priority": "high"}, "names need a queue with formal priorities"),
    ({"lifo": 1}, "lifo must be True or False, got 1"),
    ({"timeout": 0}, "timeout must be at least 1 ms, got 0"),
    ({"timeout": -5}, "timeout must be at least 1 ms, got -5"),
    ({"timeout": "long"}, "timeout must be a duration"),
    ({"timestamp": -1}, "timestamp must be an integer from 0 to"),
    ({"timestamp": 1.5}, "timestamp must be an integer from 0 to"),
    ({"keep_logs": 0}, "keep_logs must be at least 1, got 0"),
    ({"keep_logs": "all"}, "keep_logs must be an integer, at least 1"),
    ({"stack_trace_limit": -1}, "stack_trace_limit must be at least 0, got -1"),
    ({"size_limit": 0}, "size_limit must be an integer from 1 to 16777216, got 0"),
    ({"size_limit": 17 * MIB}, "size_limit must be an integer from 1 to 16777216, got 17825792"),
    ({"remove_on_complete": -1}, "remove_on_complete must be True, False, an integer of at least 0"),
    ({"remove_on_complete": "all"}, "remove_on_complete must be True, False"),
    ({"remove_on_complete": {}}, "remove_on_complete must be an object with an age or a count"),
    ({"remove_on_complete": {"ages": 5}}, "remove_on_complete must be made of age, count, limit, got 'ages'"),
    ({"remove_on_complete": {"age": 0}}, "remove_on_complete.age must be at least 1 ms, got 0"),
    ({"remove_on_complete": {"count": -1}}, "remove_on_complete.count must be"),
    ({"remove_on_complete": {"count": 1, "limit": 0}}, "remove_on_complete.limit must be"),
    ({"remove_on_fail": 1.5}, "remove_on_fail must be True, False"),
    ({"backoff": 0}, "backoff must be at least 1 ms, got 0"),
    ({"backoff": -1}, "backoff must be at least 1 ms"),
    ({"backoff": "quadratic"}, "backoff must be"),
    ({"backoff": {"delay": 5}}, "backoff must be an object with a type"),
    ({"backoff": {"type": "quadratic"}}, "backoff.type must be"),
    ({"backoff": {"type": "fixed", "dealy": 5}}, "did you mean 'delay'?"),
    ({"backoff": {"type": "fixed", "delay": -1}}, "backoff.delay must be"),
    ({"backoff": {"type": "exponential", "multiplier": 0.5}}, "backoff.multiplier must be a number from 1"),
    ({"backoff": {"type": "exponential", "jitter": 2}}, "backoff.jitter must be a number from 0 to 1, got 2"),
    (
        {"backoff": {"type": "exponential", "jitter_mode": "up"}},
        "backoff.jitter_mode must be 'both' or 'down'",
    ),
    ({"backoff": {"type": "exponential", "cap": -1}}, "backoff.cap must be"),
    ({"backoff": Backoff("custom")}, "backoff.name must be the name of the custom strategy, got None"),
    ({"job_id": ""}, "job_id must be a non-empty string"),
    ({"job_id": 5}, "job_id must be a non-empty string"),
    ({"job_id": "12"}, "job_id must be"),
    ({"job_id": "-7"}, "job_id must be"),
    ({"job_id": "a:b"}, "job_id must be"),
    ({"job_id": "0:1"}, "job_id must be"),
    ({"job_id": "meta"}, "job_id must be different from the queue's own keys, got 'meta'"),
    ({"job_id": "wait"}, "job_id must be different from the queue's own keys, got 'wait'"),
    ({"job_id": "\ud800"}, "job_id must be text that UTF-8 can hold"),
    ({"atempts": 3}, "unknown option 'atempts': did you mean attempts"),
    ({"removeOnComplete": True}, "did you mean remove_on_complete"),
    ({"zzz": 1}, "unknown option 'zzz': known are after, attempts"),
]

#: Values that JSON cannot hold, and the place that the error names.
DATA: list[tuple[Any, str]] = [
    (float("nan"), "data must be a finite number, got nan"),
    ({"a": {"b": [1, float("inf")]}}, "data.a.b[1] must be a finite number, got inf"),
    (-float("inf"), "data must be a finite number, got -inf"),
    (circular(), "data must be free of circles and not nested too deeply"),
    (deep(100_000), "data must be free of circles and not nested too deeply"),
    ({"x": object()}, "data.x must be something JSON can hold"),
    (2**64, "data must be an integer of at most 64 bit"),
    ([-(2**63) - 1], "data[0] must be an integer of at most 64 bit"),
    ({(1, 2): "x"}, "data must be an object whose keys are strings or integers, got (1, 2)"),
    ({1: "a", "1": "b"}, "data must be an object without two keys that both read '1'"),
    ({None: 1}, "data must be an object whose keys are strings or integers, got None"),
    (lambda: None, "data must be something JSON can hold"),
    (1j, "data must be something JSON can hold"),
]


@pytest.mark.parametrize(("options", "message"), OPTIONS, ids=[str(row[0])[:60] for row in OPTIONS])
async def test_options(queue: Queue, store: redis.Redis, options: Any, message: str) -> None:
    with pytest.raises(ValidationError) as caught:
        await queue.add("n", **options)
    assert message in str(caught.value)
    assert caught.value.field
    assert store.dbsize() == 0


@pytest.mark.parametrize(("options", "message"), OPTIONS[::7])
async def test_bad_options_are_refused_by_every_other_way_to_add(
    queue: Queue, make_queue: MakeQueue, store: redis.Redis, url: str, options: Any, message: str
) -> None:
    @queue.job
    async def task() -> None: ...

    with pytest.raises(ValidationError):
        await queue.add_many([("n", 1), ("n", 2, options)])
    with pytest.raises(ValidationError):
        await queue.add_many([("n", 1)], **options)
    with pytest.raises(ValidationError):
        make_queue("other", **options)
    with pytest.raises(ValidationError):
        task.using(**options)
    with sync.Queue("q", url=url) as other, pytest.raises(ValidationError):
        other.add("n", **options)
    assert store.dbsize() == 0


@pytest.mark.parametrize(("data", "message"), DATA, ids=[row[1][:50] for row in DATA])
async def test_data(queue: Queue, store: redis.Redis, data: Any, message: str) -> None:
    with pytest.raises(PayloadError) as caught:
        await queue.add("n", data)
    assert message in str(caught.value)
    assert len(str(caught.value)) < 500
    assert store.dbsize() == 0


@pytest.mark.parametrize("name", ["", "\ud800", None, 5, b"bytes"])
async def test_job_names(queue: Queue, store: redis.Redis, name: Any) -> None:
    with pytest.raises(ValidationError, match="job name must be"):
        await queue.add(name)
    assert store.dbsize() == 0


@pytest.mark.parametrize("name", ["", ":", "a:b", "a:", "a~gates", "\udfff", None, 5])
def test_queue_names(name: Any) -> None:
    for kind in (Queue, sync.Queue):
        with pytest.raises(ValidationError, match="queue name must be"):
            kind(name)


class TestSize:
    async def test_the_words_of_the_specification(self, queue: Queue, store: redis.Redis) -> None:
        with pytest.raises(PayloadTooLarge) as caught:
            await queue.add("n", "x" * round(12.3 * MIB))
        assert str(caught.value) == "Job payload size 12.3 MB exceeds limit of 10.0 MB"
        assert store.dbsize() == 0

    async def test_options_count_too(self, queue: Queue, store: redis.Redis) -> None:
        with pytest.raises(PayloadTooLarge):
            await queue.add("n", "x" * (10 * MIB - 10))
        assert store.dbsize() == 0

    async def test_just_within(self, queue: Queue) -> None:
        job = await queue.add("n", "x" * (10 * MIB - 200))
        assert len((await job.get()).data) == 10 * MIB - 200

    async def test_a_higher_limit_and_a_lower_one(self, queue: Queue) -> None:
        assert (await queue.add("n", "x" * round(12.3 * MIB), size_limit=16 * MIB)).created
        with pytest.raises(PayloadTooLarge, match=r"Job payload size .* bytes exceeds limit of 500 bytes"):
            await queue.add("n", "x" * 600, size_limit=500)

    async def test_one_of_many(self, queue: Queue, store: redis.Redis) -> None:
        with pytest.raises(PayloadTooLarge):
            await queue.add_many([("n", "small"), ("n", "x" * 11 * MIB), ("n", "small")])
        assert store.dbsize() == 0


class TestOddButFine:
    """Unusual but valid values come back unchanged."""

    @pytest.mark.parametrize(
        "data",
        [
            "ünïcödé",
            "😀👩‍👩‍👧",
            "\x00",
            "a\x00b",
            "\ud83d",
            "\udc00x",
            "'; DROP TABLE",
            "\r\n$5\r\n",
            {"": 1},
            "💥" * 1000,
        ],
    )
    async def test_text(self, queue: Queue, data: Any) -> None:
        assert (await (await queue.add("n", data)).get()).data == data

    @pytest.mark.parametrize("name", ["ünï", "😀", "a:b", "123", " ", "nul\x00", "*", "x" * 10_000])
    async def test_job_names(self, queue: Queue, name: str) -> None:
        assert (await (await queue.add(name)).get()).name == name

    @pytest.mark.parametrize("name", ["ünï", "😀", "123", "a b", "*", "{tagged}", "a/b", "x" * 1000])
    async def test_queue_names(self, make_queue: MakeQueue, name: str) -> None:
        assert (await make_queue(name).add("n")).created

    @pytest.mark.parametrize(
        "job_id", ["a", "12a", "1.5", "0x10", "1e5", "٣", "+5", " 5", "ünï", "😀", "a b", "repeat-1"]
    )
    async def test_ids(self, queue: Queue, job_id: str) -> None:
        job = await queue.add("n", job_id=job_id)
        assert (await job.get()).id == job_id

    async def test_a_retention_that_costs_is_allowed_with_a_warning(self, queue: Queue) -> None:
        with pytest.warns(RetentionWarning, match="remove_on_complete keeps 20000 jobs"):
            assert (await queue.add("n", remove_on_complete=20_000)).created
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            await queue.add("n", remove_on_complete=10_000)


async def test_the_next_add_works_after_every_error(queue: Queue) -> None:
    for options, _ in OPTIONS:
        with pytest.raises(ValidationError):
            await queue.add("n", **options)
    for data, _ in DATA:
        with pytest.raises(PayloadError):
            await queue.add("n", data)
    assert (await queue.add("n")).created
    assert (await queue.counts())["waiting"] == 1
