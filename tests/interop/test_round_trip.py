"""A job's values return from Node unchanged, or are refused before anything is written."""

from __future__ import annotations

import math
from typing import Any, cast

import pytest

from oxcart import Queue, RunningJob, Worker
from oxcart.engine.verdict import LONGEST_REASON
from oxcart.model.errors import JobFailed, PayloadError, ValidationError
from tests.interop.obedient import LIMIT, obeying
from tests.nodes import NodeDriver
from tests.servers import ValkeyServer

pytestmark = [pytest.mark.node, pytest.mark.asyncio(loop_scope="session")]

#: Values that JSON holds and both languages read the same.
VALUES: dict[str, Any] = {
    "null": None,
    "true": True,
    "zero": 0,
    "negative": -17,
    "largest exact": 2**53 - 1,
    "fraction": 0.1,
    "tiny": 5e-324,
    "huge": 1.7976931348623157e308,
    "empty text": "",
    "umlauts": "Grüße, žluťoučký kůň, Ελληνικά, 日本語, עברית",
    "emoji": "🐂🛒 👩‍👩‍👧‍👦 🏳️‍🌈",
    "NUL": "a\x00b\x00",
    "controls": "".join(map(chr, range(32))) + "\x7f\x80\x9f",
    "separators": "\u2028\u2029\ufeff",
    "quotes": "\"'\\/</script>${x}%s{{y}}",
    "lone high surrogate": "a\ud83db",
    "lone low surrogate": "\ude00",
    "reversed pair": "\ude00\ud83d",
    "empty list": [],
    "empty object": {},
    "mixed list": [1, "a", None, [], {}, [[]], False, 1.5],
    "odd keys": {"": 1, " ": 2, "a.b": 3, "ü": 4, "\x00": 5, "🐂": 6, "1": 7, "constructor": 8, "\ud800": 9},
    "looks like a number": "1e3",
    "looks like JSON": '{"a": 1}',
    "deep": None,
    "long": "ox" * 50_000,
    "wide": {f"key{n}": n for n in range(1000)},
}
for _ in range(100):
    VALUES["deep"] = {"down": [VALUES["deep"]]}

NAMES = [
    "welcome",
    "with space",
    "a:b:c",
    "ünïcödé 日本",
    "🐂",
    "a\x00b",
    "line\nbreak\ttab",
    "quote\"'\\",
    "{curly} ${dollar} %s",
    "constructor",
    "__proto__",
    "7",
    "n" * 1000,
]

IDS = [
    "order-42",
    "ünï 日本 🐂",
    "a b",
    "x:y:z",
    "1a",
    "1.5",
    "+5",
    "1e3",
    "{tag}",
    "a\nb",
    "-",
    "$",
    "*",
    "?[a]",
]


async def test_data_and_results_through_nodes_worker(node: NodeDriver, queue: Queue) -> None:
    """We add; Node reads the data and returns it; we read the result."""
    jobs = await queue.add_many([("echo", {"result": value}) for value in VALUES.values()])
    for job, value in zip(jobs, VALUES.values(), strict=True):
        assert (await node.call("getJob", queue=queue.name, jobId=job.id))["data"] == {"result": value}
    await node.call("workerStart", handle=queue.name, queue=queue.name, options={"concurrency": 8})
    for job, value in zip(jobs, VALUES.values(), strict=True):
        _same(await job.result(LIMIT), value)
        seen = await job.get()
        _same(seen.return_value, value)
        _same(seen.data, {"result": value})
    await node.call("workerStop", handle=queue.name)


async def test_data_and_results_through_our_worker(node: NodeDriver, queue: Queue) -> None:
    """Node adds; we read the data and return it; Node reads the result, in the job and in the event."""

    async def echo(job: RunningJob) -> Any:
        return job.data

    queue.fallback(echo)
    await node.call("eventsStart", handle=queue.name, queue=queue.name)
    jobs = [{"name": "echo", "data": value} for value in VALUES.values()]
    ids = await node.call("addBulk", queue=queue.name, jobs=jobs)
    async with Worker(queue, concurrency=8).running():
        events = await node.call(
            "eventsWait", handle=queue.name, event="completed", count=len(VALUES), limit=LIMIT
        )
    await node.call("eventsStop", handle=queue.name)
    results = {event["jobId"]: event["returnvalue"] for event in events if event["event"] == "completed"}
    for job_id, value in zip(ids, VALUES.values(), strict=True):
        _same((await node.call("getJob", queue=queue.name, jobId=job_id))["returnvalue"], value)
        _same(results[job_id], value)
        seen = await queue.jobs.get(job_id)
        assert seen is not None
        _same(seen.data, value)


async def test_bytes_and_large_integers_are_exact_for_us(node: NodeDriver, queue: Queue) -> None:
    """Node cannot hold two kinds: bytes become an object of one key, and large integers are rounded."""
    data = {"raw": b"\x00\xff", "large": 2**53 + 1, "largest": 2**64 - 1, "least": -(2**63)}
    job = await queue.add("j", data)
    assert (await job.get()).data == data
    theirs = (await node.call("getJob", queue=queue.name, jobId=job.id))["data"]
    assert theirs.pop("raw") == {"$bytes": "AP8="}
    assert theirs["large"] == 2**53
    assert {name: float(value) for name, value in theirs.items()} == {
        "large": 2.0**53,
        "largest": 2.0**64,
        "least": -(2.0**63),
    }
    # Values written by Node are read as Node had them.
    await node.call("updateData", queue=queue.name, jobId=job.id, data={"raw": {"$bytes": "AP8="}})
    assert (await job.get()).data == {"raw": b"\x00\xff"}


async def test_names(node: NodeDriver, queue: Queue) -> None:
    ours = [(await queue.add(name, {})).id for name in NAMES]
    theirs = [await node.call("add", queue=queue.name, name=name, data={}) for name in NAMES]
    for ids in (ours, theirs):
        for job_id, name in zip(ids, NAMES, strict=True):
            assert (await node.call("getJob", queue=queue.name, jobId=job_id))["name"] == name
            seen = await queue.jobs.get(job_id)
            assert seen is not None
            assert seen.name == name
    # Each finds the handler of its name.
    called: list[str] = []

    async def handler(job: RunningJob) -> None:
        called.append(job.name)

    for name in NAMES:
        queue.job(name=name)(handler)
    async with Worker(queue, concurrency=4).running():
        for job_id in (*ours, *theirs):
            await queue.jobs.handle(job_id).result(LIMIT)
    assert sorted(called) == sorted(NAMES * 2)


async def test_custom_ids(node: NodeDriver, queue: Queue) -> None:
    """Both accept the same ids of the list, and an id is one job whichever side adds it."""
    for job_id in IDS:
        assert (await queue.add("ours", {}, job_id=job_id)).created
        assert (
            await node.call("add", queue=queue.name, name="again", data={}, opts={"jobId": job_id}) == job_id
        )
        theirs = await node.call("getJob", queue=queue.name, jobId=job_id)
        assert (theirs["id"], theirs["name"]) == (job_id, "ours")
    assert (await queue.counts())["waiting"] == len(IDS)
    async with obeying(queue, concurrency=4) as worker:
        for job_id in IDS:
            await queue.jobs.handle(job_id).result(LIMIT)
    assert sorted(job_id for job_id, _ in worker.runs) == sorted(IDS)
    for job_id in IDS:
        assert await node.call("getState", queue=queue.name, jobId=job_id) == "completed"
        assert await node.call("remove", queue=queue.name, jobId=job_id) == 1


async def test_failures_and_logs_carry_any_text(node: NodeDriver, queue: Queue) -> None:
    texts = [text for text in VALUES.values() if isinstance(text, str) and _is_text(text) and text]
    texts = [text[:LONGEST_REASON] for text in texts]  # a longer one is cut in its middle
    await node.call("workerStart", handle=queue.name, queue=queue.name)
    jobs = await queue.add_many(
        [("j", {"fail": 1, "message": text, "log": text}) for text in texts], attempts=1
    )
    await node.call("workerWait", handle=queue.name, finished=len(texts), limit=LIMIT)
    await node.call("workerStop", handle=queue.name)
    async with obeying(queue, concurrency=4):
        opts = {"attempts": 1}
        ids = await node.call(
            "addBulk",
            queue=queue.name,
            jobs=[
                {"name": "j", "data": {"fail": 1, "message": text, "log": text}, "opts": opts}
                for text in texts
            ],
        )
        for job_id in ids:
            with pytest.raises(JobFailed):
                await queue.jobs.handle(job_id).result(LIMIT)
    for job_id, text in zip([job.id for job in jobs] + ids, texts * 2, strict=True):
        theirs = await node.call("getJob", queue=queue.name, jobId=job_id)
        seen = await queue.jobs.get(job_id)
        assert seen is not None
        assert seen.failed_reason == theirs["failedReason"] == text
        assert seen.stacktrace == theirs["stacktrace"]
        logs = (await node.call("getLogs", queue=queue.name, jobId=job_id))["logs"]
        assert logs == await queue.jobs.handle(job_id).logs() == [text]


async def test_a_failure_that_is_no_text_is_still_stored(node: NodeDriver, queue: Queue) -> None:
    """Half a surrogate pair has no UTF-8 form: both sides write a replacement."""
    job_id = await node.call("add", queue=queue.name, name="j", data={"fail": 1, "message": "a\ud83db"})
    async with obeying(queue):
        with pytest.raises(JobFailed):
            await queue.jobs.handle(job_id).result(LIMIT)
    theirs = await node.call("getJob", queue=queue.name, jobId=job_id)
    assert theirs["failedReason"].startswith("a")
    assert theirs["failedReason"].endswith("b")


def _circle() -> Any:
    data: dict[str, Any] = {}
    data["self"] = data
    return data


REFUSED: list[tuple[dict[str, Any], type[Exception], str]] = [
    *(({"job_id": job_id}, ValidationError, "job_id") for job_id in ("1", "0", "-5", "007", "9" * 40, "NaN")),
    ({"job_id": "0:1"}, ValidationError, "job_id"),
    ({"job_id": "a:b"}, ValidationError, "job_id"),
    ({"job_id": "meta"}, ValidationError, "job_id"),
    ({"job_id": ""}, ValidationError, "job_id"),
    ({"job_id": "\ud800"}, ValidationError, "job_id"),
    ({"name": ""}, ValidationError, "job name"),
    ({"name": "\ud800"}, ValidationError, "job name"),
    ({"data": math.nan}, PayloadError, "data"),
    ({"data": {"a": [math.inf]}}, PayloadError, r"data\.a\[0\]"),
    ({"data": _circle()}, PayloadError, "data"),
    ({"data": {"x": 2**64}}, PayloadError, r"data\.x"),
    ({"data": {(1, 2): 3}}, PayloadError, "data"),
    ({"data": {1: "a", "1": "b"}}, PayloadError, "data"),
    ({"data": object()}, PayloadError, "data"),
    ({"data": "x" * int(12.3 * 1024 * 1024)}, PayloadError, r"12\.3 MB exceeds limit of 10\.0 MB"),
]


@pytest.mark.parametrize("name", ["", "a:b", ":", "\ud800"])
async def test_a_queue_of_a_bad_name_is_refused(server: ValkeyServer, name: str) -> None:
    before = set(cast(Any, server.client().keys()))
    with pytest.raises(ValidationError, match="queue name"):
        Queue(name, url=server.url)
    assert set(cast(Any, server.client().keys())) <= before, "jobs of other tests may end by themselves"


@pytest.mark.parametrize(("given", "error", "says"), REFUSED, ids=range(len(REFUSED)))
async def test_values_that_cannot_round_trip_are_refused_before_any_write(
    queue: Queue, server: ValkeyServer, given: dict[str, Any], error: type[Exception], says: str
) -> None:
    call: dict[str, Any] = {"name": "j", "data": {}, **given}
    with pytest.raises(error, match=says):
        await queue.add(**call)
    # One bad row of many: not even the good ones are written.
    rows = [("j", {}, {}), (call.pop("name"), call.pop("data"), call)]
    with pytest.raises(error, match=says):
        await queue.add_many(rows)
    assert list(server.client().scan_iter(f"bull:{queue.name}:*")) == []


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _same(found: Any, value: Any) -> None:
    assert found == value
    assert type(found) is type(value)
