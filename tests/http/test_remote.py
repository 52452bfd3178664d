"""``Queue(url="http://…")``: a queue behind the API has the methods of a queue, and loses nothing."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any, ClassVar

import httpx
import msgspec
import pytest
import pytest_asyncio

from oxcart import Abilities, Queue, RunningJob, Target, Worker
from oxcart.errors import (
    ApiRefused,
    BrokerUnavailable,
    JobFailed,
    JobNotFound,
    NotSupported,
    OutcomeUnknown,
    ValidationError,
    WrongState,
)
from oxcart.http.application import app
from oxcart.http.remote import RemoteQueue
from oxcart.http.server import Server
from oxcart.jobs import Cancellation
from oxcart.sync import Queue as SyncQueue
from tests.conftest import MakeQueue
from tests.http.conftest import Serve
from tests.observe.spans import Spans, facts, id_of, parent_of
from tests.signals import eventually

KEY = "the-token-of-a-service"


@pytest_asyncio.fixture
async def remote(queue: Queue, serve: Serve, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Queue]:
    """The queue ``q`` behind an API that needs a key."""
    client = await serve(queue, tokens={KEY: "admin"})
    monkeypatch.setenv("OXCART_API_KEY", KEY)
    async with Queue("q", url=str(client.base_url)) as made:
        yield made


async def test_a_url_of_http_makes_a_queue_behind_an_api(remote: Queue) -> None:
    assert isinstance(remote, RemoteQueue)
    assert isinstance(remote, Queue)
    assert KEY not in repr(remote)
    assert remote.name == "q"


async def test_jobs_are_added_run_and_answered(remote: Queue, queue: Queue) -> None:
    @queue.job
    async def greet(name: str) -> str:
        return f"Hello {name}!"

    async with Worker(queue).running():
        job = await remote.add("greet", {"name": "Ada"}, attempts=2, tags={"team": "a"}, correlation_id="c-1")
        assert job.created
        assert await job.result(30) == "Hello Ada!"
        many = await remote.add_many([("greet", {"name": str(number)}) for number in range(1200)])
        assert [await one.result(60) for one in (many[0], many[-1])] == ["Hello 0!", "Hello 1199!"]
    found = await job.get()
    assert (found.name, found.data, found.state, found.attempts_made) == (
        "greet", {"name": "Ada"}, "completed", 1,
    )  # fmt: skip
    assert (found.tags, found.correlation_id, found.options.attempts) == ({"team": "a"}, "c-1", 2)
    assert await job.state() == "completed"


async def test_a_typed_handler_enqueues_over_http(remote: Queue, queue: Queue) -> None:
    @remote.job(attempts=4)
    async def greet(name: str) -> str:
        return name

    job = await greet.enqueue(name="Ada")
    stored = await queue.jobs.get(job.id)
    assert stored is not None
    assert (stored.name, stored.data, stored.options.attempts) == ("greet", {"name": "Ada"}, 4)
    with pytest.raises(ValidationError):
        await remote.add("greet", {"nobody": 1})


async def test_every_option_that_is_sent_arrives(remote: Queue, queue: Queue) -> None:
    job = await remote.add(
        "t",
        b"bytes",
        attempts=5,
        backoff={"type": "linear", "delay": 250, "cap": 4000},
        delay="1h",
        timeout="90s",
        lifetime="3h",
        priority=7,
        limit_key="tenant",
        job_id="an-id-of-mine",
        tags={"a": "b"},
    )
    stored = await queue.jobs.get(job.id)
    assert stored is not None
    options = stored.options
    assert (stored.id, stored.data, stored.priority) == ("an-id-of-mine", b"bytes", 7)
    assert (options.attempts, options.timeout, options.lifetime, options.limit_key) == (
        5, 90_000, 10_800_000, "tenant",
    )  # fmt: skip
    assert (options.backoff.type, options.backoff.delay, options.backoff.cap) == ("linear", 250, 4000)
    assert stored.delay == 3_600_000
    read = await remote.jobs.get(job.id)
    assert read is not None
    assert (read.data, read.options.attempts, read.state) == (b"bytes", 5, "delayed")
    again = await remote.add("t", job_id="an-id-of-mine")
    assert (again.id, again.created) == (job.id, False)


@pytest.mark.parametrize(
    "options",
    [
        {"timeout": None},
        {"deduplication": "d"},
        {"history": True},
        {"remove_on_complete": True},
        {"backoff": {"type": "fixed", "delay": 5, "jitter": 0.5}},
        {"durability": "replicated"},
    ],
)
async def test_options_that_the_api_lacks_are_refused(remote: Queue, queue: Queue, options: Any) -> None:
    with pytest.raises(NotSupported, match="HTTP"):
        await remote.add("t", **options)
    assert sum((await queue.counts()).values()) == 0


async def test_what_needs_a_server_is_refused(remote: Queue) -> None:
    with pytest.raises(NotSupported):
        await remote.events().read()
    for wrong in (
        {"every": "1m", "missed": "skip"},
        {"cron": "* * * * *", "tz": None},
        {"every": 9, "lifo": True},
    ):
        with pytest.raises(NotSupported):
            await remote.schedules.upsert("s", **wrong)
    with pytest.raises(NotSupported):
        await Worker(remote).run()


async def test_jobs_are_cancelled_retried_searched_and_removed(remote: Queue, queue: Queue) -> None:
    @queue.job(attempts=1)
    async def fails() -> None:
        raise RuntimeError("no")

    waiting, failing = await remote.add("other"), await remote.add("fails", {})
    assert await waiting.cancel("not needed") is Cancellation.CANCELLED
    with pytest.raises(WrongState):
        await waiting.cancel()
    async with Worker(queue).running():
        with pytest.raises(JobFailed, match="no"):
            await failing.result(30)
    found = await remote.jobs.search(state="dead_letter", name="fails", reason="NO")
    assert ([job.id for job in found.jobs], found.matched, found.exact) == ([failing.id], 1, True)
    assert [job.id for job in await remote.dead_letters.list()] == [failing.id]
    assert [job.id for job in await remote.dead_letters.list(reason="N")] == [failing.id]
    assert await remote.dead_letters.list(reason="full") == []
    assert await remote.dead_letters.list(correlation_id="order-1") == []
    assert (await remote.dead_letters.replay_all(dry_run=True)).matched == 1
    assert (await remote.dead_letters.purge_all(reason="full")).matched == 0
    await failing.retry(reset=True)
    assert await failing.state() == "waiting"
    assert (await remote.jobs.cancel_all(name="fails")).cancelled == 1
    await failing.remove()
    assert await remote.jobs.get(failing.id) is None
    with pytest.raises(JobNotFound):
        await failing.retry()
    assert await remote.jobs.state("none") == "unknown"
    assert await remote.jobs.clean("failed") == 1


async def test_schedules_are_set_read_and_removed(remote: Queue, queue: Queue) -> None:
    run = await remote.schedules.upsert(
        "daily", cron="0 7 * * *", tz="Europe/Berlin", name="digest", data={"to": "all"}, attempts=7, limit=3
    )
    stored = await queue.schedules.get("daily")
    assert stored is not None
    assert (stored.name, stored.data, stored.options["attempts"]) == ("digest", {"to": "all"}, 7)
    assert run.id == stored.next_job_id
    await remote.schedules.upsert("often", every="90s", start="2099-01-01T00:00:00Z")
    found = await remote.schedules.get("daily")
    assert found is not None
    assert (found.schedule.cron, found.schedule.tz, found.schedule.limit) == ("0 7 * * *", "Europe/Berlin", 3)
    assert (found.next_ms, found.data) == (stored.next_ms, {"to": "all"})
    assert [one.id for one in await remote.schedules.list()] == ["daily", "often"]
    assert (await remote.schedules.list(first=1))[0].schedule.every == 90_000
    assert await remote.schedules.count() == 2
    assert await remote.schedules.pause("often")
    paused = await remote.schedules.get("often")
    assert paused is not None
    assert paused.paused
    stored = await queue.schedules.get("often")
    assert stored is not None
    assert stored.paused
    assert await remote.schedules.resume("often")
    assert [one.paused for one in await remote.schedules.list()] == [False, False]
    assert not await remote.schedules.pause("none")
    assert await remote.schedules.remove("often")
    assert not await remote.schedules.remove("often")
    assert await remote.schedules.get("often") is None


async def test_the_log_of_a_job_is_read(remote: Queue, queue: Queue, serve: Serve) -> None:
    job = await remote.add("greet")
    await queue.jobs.handle(job.id).log(*(f"line {number}" for number in range(5)))
    assert await job.logs() == [f"line {number}" for number in range(5)]
    routed = await remote.add("greet", target="all;c=gpu")
    handle = queue.lanes.get("all;c=gpu").jobs.handle(routed.id)
    await handle.log("in a lane")
    assert await routed.logs() == ["in a lane"]
    with pytest.raises(JobNotFound):
        await remote.jobs.handle("none").logs()
    client = await serve(queue, tokens={"the-key-of-a-submitter": "submitter", KEY: "operator"})
    path = f"/api/v1/jobs/{job.id}/logs"
    for query, lines in (
        ("", [0, 1, 2, 3, 4]),
        ("?first=3", [3, 4]),
        ("?first=1&limit=2", [1, 2]),
        ("?first=-2", [3, 4]),
        ("?first=-4&limit=2", [1, 2]),
        ("?first=9", []),
    ):
        answer = await client.get(path + query, headers={"X-API-Key": KEY})
        assert answer.json() == {"lines": [f"line {number}" for number in lines], "hidden": False}, query
    hidden = await client.get(path, headers={"X-API-Key": "the-key-of-a-submitter"})
    assert hidden.json() == {"lines": [], "hidden": True}
    for wrong in ("first=x", "first=-1000001", "limit=0", "limit=10001"):
        assert (await client.get(f"{path}?{wrong}", headers={"X-API-Key": KEY})).status_code == 400


async def test_the_queue_is_paused_limited_and_counted(remote: Queue, queue: Queue) -> None:
    await remote.add("t")
    await remote.pause()
    assert await remote.is_paused()
    assert await queue.is_paused()
    await remote.resume()
    assert (await remote.counts())["waiting"] == 1
    await remote.limits.set_concurrency(4)
    await remote.limits.set_rate(10, per="1m")
    assert await queue.limits.concurrency() == await remote.limits.concurrency() == 4
    assert await remote.limits.rate() == await queue.limits.rate()
    await remote.limits.remove_rate()
    assert await queue.limits.rate() is None
    assert await remote.jobs.clear() == 1


async def test_a_job_waits_for_others(remote: Queue, queue: Queue) -> None:
    first = await remote.add("t")
    second = await remote.add("t", after=[first])
    assert await second.state() == "waiting-children"
    with pytest.raises(NotSupported):
        await remote.add("t", after=[first], after_any=[first])


async def test_a_wrong_key_is_refused_and_never_shown(queue: Queue, serve: Serve) -> None:
    served = await serve(queue, tokens={KEY: "admin"})
    url = str(served.base_url).replace("http://", "http://:another-key-of-nobody@")
    async with Queue("q", url=url) as made:
        with pytest.raises(ApiRefused) as caught:
            await made.add("t")
    assert caught.value.status == 401
    assert "another-key" not in f"{caught.value!r} {made!r} {caught.value}"


@pytest.mark.parametrize(
    "options", [{"prefix": "x"}, {"protocol": "bridge"}, {"folder": "x"}, {"attempts": 0}]
)
def test_arguments_of_other_queues_are_refused(options: Any) -> None:
    with pytest.raises(ValidationError):
        Queue("q", url="https://jobs.example", **options)


def test_the_environment_names_an_api(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setenv("OXCART_URL", "https://jobs.example/jobs/")
    made = Queue("q")
    assert isinstance(made, RemoteQueue)
    assert made.url == "https://jobs.example/jobs"
    assert not isinstance(Queue("q", url=url), RemoteQueue)


async def test_an_add_survives_the_loss_of_the_api(queue: Queue) -> None:
    """The API ends and comes back on the same port while jobs are added: each is added once."""
    server = Server(app([queue]), grace=1)
    await server.start()
    port = server.port
    async with Queue("q", url=server.url) as remote:
        first = await remote.add("t")
        await server.stop()
        adding = [asyncio.create_task(remote.add("t")) for _ in range(20)]
        await asyncio.sleep(0.3)
        assert not any(task.done() for task in adding)
        async with Server(app([queue]), port=port, grace=1):
            handles = await asyncio.gather(*adding)
            assert len({job.id for job in (first, *handles)}) == 21
            assert (await remote.counts())["waiting"] == 21


async def test_an_add_without_an_api_fails_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Queue("q", url="http://127.0.0.1:9", add_timeout=0.5) as remote:
        with pytest.raises(BrokerUnavailable):
            await remote.add("t")


def test_the_blocking_face_works_over_http(url: str) -> None:
    async def serve() -> None:
        async with Queue("q", url=url) as queue, Server(app([queue]), grace=1) as server:
            await asyncio.to_thread(use, server.url)

    def use(address: str) -> None:
        with SyncQueue("q", url=address) as queue:
            job = queue.add("t", {"a": 1})
            assert queue.counts()["waiting"] == 1
            found = queue.jobs.get(job.id)
            assert found is not None
            assert found.data == {"a": 1}

    asyncio.run(serve())


async def test_the_client_needs_no_server_packages() -> None:
    import subprocess
    import sys

    program = (
        "import sys; sys.modules['litestar'] = sys.modules['uvicorn'] = None\n"
        "from oxcart import Queue\nfrom oxcart.http import Client\nQueue('q', url='https://jobs.example')"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


async def test_the_id_of_a_request_must_be_an_id(queue: Queue, serve: Serve) -> None:
    client: httpx.AsyncClient = await serve(queue)
    for wrong in ("meta", "a:b", ""):
        answer = await client.post("/api/v1/jobs", json={"type": "t", "id": wrong})
        assert answer.status_code == 400, wrong


async def test_a_partition_key_is_sent(make_queue: MakeQueue, serve: Serve) -> None:
    events = make_queue("events", partitions=4)
    client = await serve(events)
    async with Queue("events", url=str(client.base_url)) as remote:
        one = [await remote.add("t", partition_key="tenant-42") for _ in range(8)]
        many = await remote.add_many([("t", None, {"partition_key": "tenant-42"})] * 8)
        stored = [await events.jobs.get(job.id) for job in (*one, *many)]
        assert len({job.queue for job in stored if job is not None}) == 1


async def test_a_batch_spreads_over_partitions(make_queue: MakeQueue, serve: Serve) -> None:
    events = make_queue("events", partitions=4)
    client = await serve(events)
    async with Queue("events", url=str(client.base_url)) as remote:
        many = await remote.add_many([("t", number) for number in range(40)])
        stored = [await events.jobs.get(job.id) for job in many]
        assert len({job.queue for job in stored if job is not None}) == 4
        with pytest.raises(ApiRefused, match="nothing was added"):
            await remote.add_many([("t", None), ("t", None, {"delay": "2h", "lifetime": "1h"})])
        assert sum((await events.counts()).values()) == 40


async def test_limits_of_types_and_keys_are_set_and_removed(remote: Queue, queue: Queue) -> None:
    await remote.limits.set_type_limit("render", concurrent=2)
    await remote.limits.set_key_limit(per_minute=30)
    assert (await remote.limits.type_limits())["render"].concurrent == 2
    found = await remote.limits.key_limit()
    assert found is not None
    assert (found.concurrent, found.per_minute) == (None, 30)
    assert await remote.limits.type_limits() == await queue.limits.type_limits()
    assert await remote.limits.wait_ms() == 0
    await remote.limits.remove_type_limit("render")
    await remote.limits.remove_key_limit()
    assert (await queue.limits.type_limits(), await queue.limits.key_limit()) == ({}, None)


async def test_a_job_is_promoted_changed_and_signalled(remote: Queue, queue: Queue) -> None:
    @queue.job
    async def wait(job: RunningJob) -> Any:
        return await job.wait_signal("approved", timeout="30s")

    job = await remote.add("wait", delay="1h", tags={"a": "1"})
    await job.update(tags={"b": "2"}, correlation_id="c-2")
    stored = await queue.jobs.get(job.id)
    assert stored is not None
    assert (stored.tags, stored.correlation_id) == ({"b": "2"}, "c-2")
    await job.promote()
    with pytest.raises(WrongState):
        await job.promote()
    assert await job.signal("approved", {"by": b"ada"}) is False
    async with Worker(queue).running():
        assert await job.result(30) == {"by": b"ada"}
    with pytest.raises(WrongState):
        await job.signal("approved")
    with pytest.raises(WrongState):
        await job.update(tags=None)
    with pytest.raises(JobNotFound):
        await remote.jobs.handle("missing").promote()


async def test_a_dead_letter_is_read_replayed_and_purged(remote: Queue, queue: Queue) -> None:
    @queue.job(attempts=1)
    async def bad() -> None:
        raise ConnectionError("no answer 42")

    jobs = [await remote.add("bad") for _ in range(2)]
    waiting = await remote.add("bad", delay="1h")
    async with Worker(queue).running():
        for job in jobs:
            with pytest.raises(JobFailed):
                await job.result(30)
    letters = remote.dead_letters
    assert await letters.count() == 2
    assert (await letters.get(jobs[0].id)).state == "dead_letter"
    (group,) = (await remote.jobs.failures()).groups
    assert (group.count, group.names) == (2, {"bad": 2})
    await letters.replay(jobs[0].id)
    await letters.purge(jobs[1].id)
    assert await queue.jobs.get(jobs[1].id) is None
    assert await letters.count() == 0
    with pytest.raises(WrongState):
        await letters.replay(waiting.id)
    with pytest.raises(JobNotFound):
        await letters.get("missing")
    with pytest.raises(NotSupported):
        await remote.jobs.failures(name="bad")


async def test_workers_and_flows_are_read(remote: Queue, queue: Queue) -> None:
    first = await remote.add("first")
    second = await remote.add("second", after=[first])
    (key,) = await remote.flows.dependents(first.id)
    assert key.endswith(second.id)
    view = await remote.flows.get(second.id)
    assert view is not None
    assert (view.job.id, view.state) == (second.id, "waiting-children")
    assert await remote.flows.get("missing") is None
    await queue.add("render", target=Target(capabilities="gpu"))
    async with Worker(queue, name="a-worker", abilities=Abilities(capabilities=("cpu",))).running():
        await eventually(lambda: _has_workers(remote), "the worker is listed")
        (worker,) = await remote.workers.list()
        assert (worker.name, worker.capabilities) == ("a-worker", ("cpu",))
        assert sum((await remote.workers.unroutable()).values()) == 1


async def _has_workers(remote: Queue) -> bool:
    return bool(await remote.workers.list())


async def test_many_jobs_go_to_a_server_of_an_earlier_version(
    queue: Queue, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    class EarlierBatch(msgspec.Struct, forbid_unknown_fields=True):
        strict: ClassVar[bool] = False
        jobs: list[Any]
        atomic: bool = False

    monkeypatch.setattr("oxcart.http.values.Batch", EarlierBatch)
    client = await serve(queue)
    refused = await client.post("/api/v1/jobs/batch", json={"jobs": [{"type": "t"}], "strict": True})
    assert refused.status_code == 400
    async with Queue("q", url=str(client.base_url)) as remote:
        made = await remote.add_many([("t", number) for number in range(3)])
    assert [one.created for one in made] == [True] * 3
    assert (await queue.counts())["waiting"] == 3


async def test_dead_letters_are_counted_by_an_observer(
    queue: Queue, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    @queue.job(attempts=1)
    async def bad() -> None:
        raise ConnectionError("no answer 42")

    jobs = await queue.add_many([("bad", None)] * 3, tags={"team": "a"})
    async with Worker(queue).running():
        for job in jobs:
            with pytest.raises(JobFailed):
                await job.result(30)
    client = await serve(queue, tokens={KEY: "observer"})
    monkeypatch.setenv("OXCART_API_KEY", KEY)
    async with Queue("q", url=str(client.base_url)) as remote:
        letters = remote.dead_letters
        assert await letters.count() == 3
        assert await letters.count(name="bad", tags={"team": "a"}, newer_than="1h") == 3
        assert await letters.count(older_than="1h") == 0
        assert await letters.count(tags={"team": "b"}) == 0
        assert len(await letters.list(newer_than="1h", limit=2)) == 2
        with pytest.raises(NotSupported):
            await letters.count(permanent=True)


async def test_jobs_continue_the_trace_of_their_options(remote: Queue, queue: Queue) -> None:
    contexts = [
        {
            "traceparent": f"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b{number}-01",
            "tracestate": "a=b",
        }
        for number in range(2)
    ]
    first = await remote.add("t", trace_context=contexts[0])
    waiting = await remote.add("t", after=[first], trace_context=contexts[1])
    rows = [("t", number, {"trace_context": contexts[number // 2]}) for number in range(4)]
    many = await remote.add_many([*rows, ("t", 4), rows[0]])
    ids = [job.id for job in (first, waiting, *many)]
    found = [
        None if job is None or job.options.trace_context is None else json.loads(job.options.trace_context)
        for job in await queue.jobs.get_many(ids)
    ]
    one, other = contexts
    assert found == [one, other, one, one, other, other, None, one]


async def test_a_remote_queue_with_tracing_makes_a_span_of_each_add(queue: Queue, serve: Serve) -> None:
    spans = Spans()
    client = await serve(queue)
    async with Queue("q", url=str(client.base_url), tracing=spans.tracing) as remote:
        with spans.tracer.start_as_current_span("request"):
            one = await remote.add("t")
            await remote.add("t", after=[one])
            many = await remote.add_many([("t", number) for number in range(3)])
    adds = spans.named("add q")
    assert [parent_of(span) for span in adds] == [id_of(spans.one("request"))] * 3
    assert facts(adds[2])["messaging.batch.message_count"] == 3
    for job_id, span in ((one.id, adds[0]), (many[2].id, adds[2])):
        stored = await queue.jobs.get(job_id)
        assert stored is not None
        assert f"{id_of(span):016x}" in (stored.options.trace_context or "")


async def test_a_batch_whose_reply_is_lost_is_added_once(
    queue: Queue, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = await serve(queue)
    bodies = list[dict[str, Any]]()
    async with Queue("q", url=str(client.base_url)) as remote:
        assert isinstance(remote, RemoteQueue)
        send = remote.client.send

        async def lossy(method: str, path: str, body: Any = None, **more: Any) -> httpx.Response:
            answer = await send(method, path, body, **more)
            bodies.append(body)
            if len(bodies) < 3:
                raise OutcomeUnknown("the connection broke before the reply")
            return answer

        monkeypatch.setattr(remote.client, "send", lossy)
        made = await remote.add_many([("t", number) for number in range(5)])
    assert [body["strict"] for body in bodies] == [True] * 3
    assert len({job.id for job in made}) == 5
    assert (await queue.counts())["waiting"] == 5
    assert {job.id for job in await queue.jobs.list("waiting")} == {job.id for job in made}
