"""The event stream: its messages, the filter by job, and resuming without loss or repetition."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import httpx
import pytest

from oxcart import Abilities, PermanentError, Queue, Retry, RunningJob, Worker
from oxcart.http.application import app
from oxcart.http.hub import Hub
from oxcart.http.position import Position
from oxcart.http.server import Server
from oxcart.model.errors import BrokerUnavailable
from oxcart.model.job import Job
from tests.conftest import MakeQueue
from tests.http.conftest import Serve
from tests.signals import eventually


class Sent(NamedTuple):
    id: str
    event: str
    data: Any


class Reader:
    """Reads messages of an open stream."""

    def __init__(self, lines: AsyncIterator[str]) -> None:
        self._lines = lines
        self.order: list[str] = []

    async def next(self) -> Sent:
        fields: dict[str, str] = {}
        async with asyncio.timeout(30):
            async for line in self._lines:
                if not line and fields:
                    return Sent(fields["id"], fields["event"], json.loads(fields["data"]))
                name, _, value = line.partition(": ")
                if name:
                    self.order.append(name)
                    fields[name] = value
        raise AssertionError("the stream ended")

    async def until(self, event: str) -> list[Sent]:
        found = [await self.next()]
        while found[-1].event != event:
            found.append(await self.next())
        return found


@asynccontextmanager
async def stream(client: httpx.AsyncClient, since: str | None = None, **params: str) -> AsyncIterator[Reader]:
    headers = {} if since is None else {"Last-Event-ID": since}
    async with client.stream("GET", "/api/v1/events", params=params, headers=headers) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        reader = Reader(answer.aiter_lines())
        first = await reader.next()
        assert (first.event, first.data) == ("connected", {"status": "connected"})
        yield reader


async def test_the_events_of_a_job(queue: Queue, serve: Serve) -> None:
    @queue.job
    async def welcome(job: RunningJob) -> object:
        await job.update_progress({"percent": 50, "message": "half"})
        if job.attempt == 1:
            return Retry(after="10ms")
        return "fine"

    client = await serve(queue)
    async with stream(client) as events, Worker(queue).running():
        made = (await client.post("/api/v1/jobs", json={"type": "welcome"})).json()
        seen = await events.until("job.completed")
    names = [one.event for one in seen]
    assert names == [
        "job.created", "job.started", "job.progress", "job.retried", "job.started", "job.progress",
        "job.completed",
    ]  # fmt: skip
    assert {one.data["id"] for one in seen} == {made["id"]}
    assert seen[-1].data["state"] == "completed"
    assert {"type", "priority", "attempt", "max_attempts", "created_at"} <= seen[0].data.keys()
    assert events.order.index("event") < events.order.index("data")


async def test_failed_cancelled_and_deleted_jobs_have_their_events(queue: Queue, serve: Serve) -> None:
    @queue.job
    async def bad() -> None:
        raise PermanentError("no")

    client = await serve(queue)
    async with stream(client) as events:
        job = (await client.post("/api/v1/jobs", json={"type": "bad", "delay": "1h"})).json()
        await client.post(f"/api/v1/jobs/{job['id']}/cancel")
        await client.delete(f"/api/v1/jobs/{job['id']}")
        seen = await events.until("job.deleted")
        assert [one.event for one in seen] == ["job.created", "job.cancelled", "job.deleted"]
        assert seen[-1].data == {"id": job["id"]}
        async with Worker(queue).running():
            await client.post("/api/v1/jobs", json={"type": "bad"})
            failed = (await events.until("job.failed"))[-1]
    assert (failed.data["state"], failed.data["error_category"]) == ("failed", "permanent")


async def test_a_stream_of_one_job_has_no_others(queue: Queue, serve: Serve) -> None:
    client = await serve(queue)
    one = (await client.post("/api/v1/jobs", json={"type": "t"})).json()["id"]
    async with stream(client, job_id=one) as events:
        await client.post("/api/v1/jobs", json={"type": "t"})
        await client.delete(f"/api/v1/jobs/{one}")
        assert (await events.next()).data == {"id": one}


async def test_a_stream_resumes_without_loss_or_repetition(make_queue: MakeQueue, serve: Serve) -> None:
    queues = [make_queue(name) for name in ("a", "b b", "c")]
    client = await serve(*queues)
    added: list[str] = []

    async def add(count: int) -> None:
        for number in range(count):
            handle = await queues[number % 3].add("t")
            added.append(handle.id)

    seen: list[str] = []
    async with stream(client) as events:
        await add(5)
        for _ in range(3):
            last = await events.next()
            seen.append(last.data["id"])
    for _ in range(3):
        await add(4)
        async with stream(client, since=last.id) as events:
            await add(3)
            for _ in range(6):
                last = await events.next()
                seen.append(last.data["id"])
    async with stream(client, since=last.id) as events:
        while len(seen) < len(added):
            last = await events.next()
            seen.append(last.data["id"])
    assert sorted(seen) == sorted(added)
    for queue in queues:  # in the order of each queue
        own = [one for one in added if await queue.jobs.get(one) is not None]
        assert [one for one in seen if one in own] == own


async def test_a_stream_has_the_events_of_lanes_and_resumes_in_them(queue: Queue, serve: Serve) -> None:
    client = await serve(queue)
    targets = ["all;c=gpu", "all;c=tpu", "any;r=eu,us"]
    added: list[str] = []

    async def add(count: int) -> None:
        for number in range(count):
            body = {"type": "t", "target": targets[number % 3]}
            added.append((await client.post("/api/v1/jobs", json=body)).json()["id"])

    seen: list[tuple[str, str]] = []
    async with stream(client) as events:
        await add(7)  # two of the lanes are new to the stream's reader, and so is the third
        for _ in range(4):
            last = await events.next()
            seen.append((last.data["id"], last.event))
    async with stream(client, since=last.id) as events:
        await add(2)
        while len(seen) < len(added):
            last = await events.next()
            seen.append((last.data["id"], last.event))
    assert sorted(seen) == sorted((one, "job.created") for one in added)
    async with (
        stream(client, since=last.id, job_id=added[0]) as events,
        Worker(queue, abilities=Abilities(capabilities=["gpu"])).running(),
    ):
        queue.fallback(_nothing)
        found = [(await events.next()).event for _ in range(2)]
    assert found == ["job.started", "job.completed"]


async def test_a_batch_of_one_millisecond_is_read_in_pages(
    queue: Queue, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("oxcart.broker.bullmq.lanes.EVENTS", 7)
    client = await serve(queue)
    jobs = [{"type": "t", "target": f"all;c={'gpu' if number % 3 else 'tpu'}"} for number in range(90)]
    async with stream(client) as events:
        first = await client.post("/api/v1/jobs/batch", json={"jobs": jobs, "atomic": True})
        seen = [(await events.next()).data["id"] for _ in range(90)]
    assert sorted(seen) == sorted(one["job"]["id"] for one in first.json()["results"])


async def _nothing(job: RunningJob) -> None:
    pass


@pytest.mark.parametrize("text", ["x", "q=", "q=1", "q=a-b", "=1-1", "q=1-1;x", "q=1-x@all", "q=@all"])
async def test_a_wrong_position_is_a_400(queue: Queue, serve: Serve, text: str) -> None:
    answer = await (await serve(queue)).get("/api/v1/events", headers={"Last-Event-ID": text})
    assert (answer.status_code, answer.json()["error"]["details"][0]["field"]) == (400, "Last-Event-ID")


def test_a_position_survives_its_text() -> None:
    position = Position({"a;b=c": "1-2", "ü": "3-4"}, {"a;b=c": (5, 6, "all;c=gpu,ü@=x"), "v": (7, 0, "")})
    read = Position.parse(str(position))
    assert (read.ids, read.lanes) == (position.ids, position.lanes)


async def test_listeners_share_one_reader_per_queue_that_ends_with_the_last(
    queue: Queue, serve: Serve, store: Any
) -> None:
    client = await serve(queue)

    def readers() -> int:
        return sum(one["cmd"] == "xread" for one in store.client_list())

    async with stream(client), stream(client), stream(client):
        await eventually(lambda: readers() == 1, "one reader")
    await eventually(lambda: readers() == 0, "no reader")


async def test_the_server_ends_while_a_stream_is_open(queue: Queue) -> None:
    from oxcart.http.application import app
    from oxcart.http.server import Server

    server = Server(app([queue]), grace=30)
    await server.start()
    async with httpx.AsyncClient(base_url=server.url, timeout=30) as client, stream(client):
        async with asyncio.timeout(20):
            await server.stop()


async def test_a_listener_beyond_the_bound_is_refused(
    queue: Queue, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("oxcart.http.hub.MOST", 1)
    client = await serve(queue)
    async with stream(client):
        answer = await client.get("/api/v1/events")
        assert (answer.status_code, answer.json()["error"]["code"]) == (429, "quota_exceeded")


async def test_a_slow_listener_is_ended_and_continues_by_its_position(
    queue: Queue, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("oxcart.http.hub.BACKLOG", 3)
    client = await serve(queue)
    async with client.stream("GET", "/api/v1/events") as answer:
        lines = answer.aiter_lines()
        position = (await anext(lines)).removeprefix("id: ")
        made = await queue.add_many([("t", None)] * 50)  # one page, more than a listener may fall behind
        async with asyncio.timeout(30):
            assert not [line async for line in lines if line.startswith("event: job")]
    async with stream(client, since=position) as events:
        assert [(await events.next()).data["id"] for _ in made] == [one.id for one in made]


async def test_events_of_jobs_that_nobody_follows_are_not_looked_up(
    queue: Queue, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = await serve(queue)
    look, read = queue._core.broker.look, list[str]()

    async def counted(ids: Sequence[str], *, lenient: bool = False) -> list[Job | None]:
        read.extend(ids)
        return await look(ids, lenient=lenient)

    one = await queue.add("t")
    async with stream(client, job_id=one.id) as events:
        monkeypatch.setattr(queue._core.broker, "look", counted)
        await queue.add_many([("t", None)] * 20)
        await queue.jobs.cancel(one.id)
        assert (await events.next()).event == "job.cancelled"
    assert set(read) == {one.id}


async def test_a_job_that_is_followed_while_events_are_read_loses_none(
    queue: Queue, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = await serve(queue)
    look, reading, go_on = queue._core.broker.look, asyncio.Event(), asyncio.Event()

    async def slow(ids: Sequence[str], *, lenient: bool = False) -> list[Job | None]:
        reading.set()
        await go_on.wait()
        return await look(ids, lenient=lenient)

    first, second = str(uuid.uuid4()), str(uuid.uuid4())
    async with stream(client, job_id=first) as of_first:
        monkeypatch.setattr(queue._core.broker, "look", slow)
        await queue.add_many([("t", None, {"job_id": first}), ("t", None, {"job_id": second})])
        await reading.wait()
        # Its events were read already, and nobody followed it then.
        async with stream(client, job_id=second) as of_second:
            go_on.set()
            assert (await of_first.next()).data["id"] == first
            assert (await of_second.next()).data["id"] == second


async def test_events_whose_jobs_could_not_be_read_are_read_again(
    queue: Queue, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = await serve(queue)
    look, failed = queue._core.broker.look, asyncio.Event()

    async def once(ids: Sequence[str], *, lenient: bool = False) -> list[Job | None]:
        if not failed.is_set():
            failed.set()
            raise BrokerUnavailable("away")
        return await look(ids, lenient=lenient)

    async with stream(client) as events:
        monkeypatch.setattr(queue._core.broker, "look", once)
        handle = await queue.add("t")
        await failed.wait()
        assert (await events.next()).data["id"] == handle.id


async def test_listeners_of_the_same_queues_receive_the_same_bytes(
    make_queue: MakeQueue, serve: Serve
) -> None:
    queues = [make_queue("a"), make_queue("b")]
    client = await serve(*queues)
    async with stream(client) as first:
        for queue in queues:
            await queue.add("t")
        early = [await first.next(), await first.next()]
        async with stream(client) as second:
            handle = await queues[0].add("t")
            one = await first.next()
            assert await second.next() == one
            assert one.data["id"] == handle.id
    # The position of the later listener, which had no event of the second queue, leads behind it too.
    async with stream(client, since=one.id) as third:
        last = await queues[1].add("t")
        assert (await third.next()).data["id"] == last.id
    assert {event.data["queue"] for event in early} == {"a", "b"}


async def test_a_listener_that_stalls_while_a_queue_is_added_costs_others_no_event(
    queue: Queue, make_queue: MakeQueue
) -> None:
    hub, only = Hub([queue]), {queue.name}
    stalled, listening = hub.follow(None, only), hub.follow(None, only)
    await anext(stalled)
    position = (await anext(listening)).split(b"\n")[0].removeprefix(b"id: ").decode()
    await hub.add(make_queue("emails"))
    assert [lines async for lines in listening] == []
    one = await queue.add("t")
    again = hub.follow(Position.parse(position), only)
    try:
        async with asyncio.timeout(30):
            while one.id.encode() not in await anext(again):
                pass
    finally:
        await stalled.aclose()
        await again.aclose()
        await hub.close()


async def test_a_stream_that_is_opened_while_a_queue_is_added_ends_or_has_its_events(
    queue: Queue, make_queue: MakeQueue
) -> None:
    server = Server(app([queue]), grace=1)
    service, more = server.api.service, make_queue("emails")
    prepares, may_go_on = asyncio.Event(), asyncio.Event()

    async def prepare(_: Queue) -> None:
        prepares.set()
        await may_go_on.wait()

    service.added.append(prepare)
    async with server, httpx.AsyncClient(base_url=server.url, timeout=60) as client:
        adding = asyncio.create_task(service.add_queue(more))
        async with asyncio.timeout(30):
            await prepares.wait()
            async with client.stream("GET", "/api/v1/events") as answer:
                lines = answer.aiter_lines()
                assert (await anext(lines)).startswith("id: ")
                may_go_on.set()
                await adding
                assert [line async for line in lines]
        async with stream(client) as events:
            job = await more.add("t")
            assert (await events.next()).data["id"] == job.id
