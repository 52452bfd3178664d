"""``oxcart doctor`` on queues: no worker, backlog, pauses, late schedules, kept jobs; each with its fix."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator
from typing import Any

import pytest

from oxcart import PermanentError, Queue, Worker
from oxcart.broker.port import Ask
from oxcart.broker.workers import WorkerRecord
from oxcart.cli import checks
from oxcart.cli.checks import Finding
from oxcart.cli.queue_checks import QueueFacts, Stuck, judge
from oxcart.handle import JobHandle
from oxcart.model.errors import JobFailed
from tests.cli.conftest import Commands
from tests.servers import ValkeyServer
from tests.signals import eventually

WORKER = WorkerRecord(id="w", name="w")
HOUR = 3600


@pytest.fixture
def client(clean: ValkeyServer) -> Iterator[Any]:
    with contextlib.closing(clean.client()) as client:
        yield client


def found(ox: Commands, *arguments: str) -> dict[str, dict[str, str]]:
    return {one["name"]: one for one in ox(*arguments, "doctor", "--json").json["findings"]}


def ago(seconds: float) -> int:
    return int((time.time() - seconds) * 1000)


@pytest.mark.parametrize(
    ("facts", "connected", "expected"),
    [
        (QueueFacts("q"), 0, {}),
        (QueueFacts("q", {"waiting": 2}, oldest="a", waited=10), 0, {"no worker for q": "warning"}),
        (QueueFacts("q", {"prioritized": 2}, oldest="a", waited=HOUR), 0, {"no worker for q": "problem"}),
        (QueueFacts("q", {"waiting": 2}, (WORKER,), oldest="a", waited=10), 0, {}),
        (QueueFacts("q", {"waiting": 2}, oldest="a", waited=10), 1, {}),
        (QueueFacts("q", {"waiting": 2}, (WORKER,), oldest="a", waited=HOUR), 0, {"backlog of q": "warning"}),
        (QueueFacts("q", {"waiting": 2}, paused=True, paused_for=60), 0, {"paused q": "note"}),
        (QueueFacts("q", {"waiting": 2}, paused=True, paused_for=2 * HOUR), 0, {"paused q": "warning"}),
        (QueueFacts("q", paused=True), 0, {"paused q": "note"}),
        (QueueFacts("q", paused=True, oldest="a", waited=2 * HOUR), 0, {"paused q": "warning"}),
        (QueueFacts("q", running=Stuck(2, "a", 97)), 0, {"running jobs of q": "warning"}),
        (QueueFacts("q", running=Stuck(1, "a", HOUR)), 0, {"running jobs of q": "problem"}),
        (QueueFacts("q", running=Stuck(1, "a", HOUR)), 1, {}),
        (QueueFacts("q", {}, (WORKER,), running=Stuck(1, "a", HOUR)), 0, {}),
        (QueueFacts("q", overdue=Stuck(5, "a", 97)), 0, {"overdue jobs of q": "warning"}),
        (QueueFacts("q", overdue=Stuck(5, "a", HOUR)), 0, {"overdue jobs of q": "problem"}),
        (QueueFacts("q", overdue=Stuck(5, "a", 97)), 1, {}),
        (QueueFacts("q", unhandled={"x": Stuck(5, "a", 0, "why")}), 1, {"no handler for x of q": "warning"}),
        (QueueFacts("q", late={"daily": 90.0}), 0, {"schedule daily of q": "warning"}),
        (QueueFacts("q", {"completed": 9_999}), 0, {}),
        (QueueFacts("q", {"completed": 10_000}), 0, {"completed jobs of q": "note"}),
        (QueueFacts("q", {"completed": 100_000}), 0, {"completed jobs of q": "warning"}),
        (QueueFacts("q", {"failed": 3}), 0, {"failures of q": "note"}),
        (
            QueueFacts("q", {"failed": 200_000}),
            0,
            {"failed jobs of q": "warning", "failures of q": "note"},
        ),
    ],
)
def test_judgements(facts: QueueFacts, connected: int, expected: dict[str, str]) -> None:
    findings = judge(facts, connected)
    assert {one.name: one.level for one in findings} == expected
    assert all(one.fix for one in findings)


def test_many_late_schedules_are_counted() -> None:
    findings = judge(QueueFacts("q", late={f"s{number}": 60.0 + number for number in range(8)}))
    assert findings[0].name == "schedule s7 of q"
    assert findings[-1].detail == "3 more schedules are late"


def test_every_finding_of_the_server_that_is_not_in_order_has_a_fix() -> None:
    findings: list[Finding] = [
        checks.server_version({"redis_version": "6.0.16"}),
        checks.role({"role": "slave"}),
        checks.eviction({}),
        checks.eviction({"maxmemory_policy": "allkeys-lru"}),
        checks.persistence({}),
        checks.persistence({"rdb_saves": "3"}),
        checks.persistence({"aof_last_write_status": "err"}),
        checks.memory({"used_memory": "90", "maxmemory": "100"}),
        checks.memory({"used_memory": "99", "maxmemory": "100"}),
        checks.judge_skew(7.0, 0.01),
        *checks.worker_clocks([("w", "host", 7_000)]),
        *checks.routes({"video": {"all;c=gpu": 3}}),
        *checks.peers(["a", "b", "c"], {"a": "bullmq:5.1.0", "b": "bullmq:6.7.0", "c": "other:1"})[1:],
    ]
    for one in findings:
        assert one.level != "ok"
        assert one.fix, one


def test_jobs_without_a_worker(ox: Commands, client: Any) -> None:
    ox("add", "mail", "hello", "--job-id", "first")
    ox("add", "mail", "hello")
    one = found(ox)["no worker for mail"]
    assert one["level"] == "warning"
    assert one["detail"].startswith("2 jobs wait, the oldest, first, for ")
    assert one["fix"] == "oxcart work MODULE:QUEUE"
    client.hset("bull:mail:first", "timestamp", ago(2 * HOUR))
    ended = ox("doctor")
    assert ended.code == 1
    shown = " ".join(ended.out.split())  # it may be wrapped
    assert "for 2h, and no worker serves the queue" in shown
    assert "→ oxcart work MODULE:QUEUE" in shown


def test_a_worker_of_ours_and_a_peer_attend_a_queue(ox: Commands, clean: ValkeyServer) -> None:
    async def look() -> dict[str, dict[str, str]]:
        async with Queue("mail", url=clean.url) as queue:
            queue.fallback(lambda: None)
            async with Worker(queue).running() as worker:
                await worker.pause()
                await queue.add("hello")
                while not await queue.workers.list():
                    await asyncio.sleep(0.01)
                return await asyncio.to_thread(found, ox)

    assert "no worker for mail" not in asyncio.run(look())
    ox("add", "video", "cut")
    with contextlib.closing(clean.client()) as peer:
        peer.client_setname("bull:dmlkZW8=:w:node")  # as Node names the connection of a worker
        assert "no worker for video" not in found(ox)
    assert "no worker for video" in found(ox)


def test_jobs_of_a_lost_worker_while_none_lives(ox: Commands, clean: ValkeyServer, client: Any) -> None:
    async def claim() -> None:
        async with Queue("mail", url=clean.url) as queue:
            await queue.add("hello", job_id="lost")
            await queue._core.broker.claim(Ask(1, worker="w1"))  # as a worker that is killed at once

    asyncio.run(claim())
    one = found(ox)["running jobs of mail"]
    assert one["level"] == "warning"
    assert one["detail"].startswith("1 job is running, the first, lost, for ")
    assert one["fix"] == "oxcart work MODULE:QUEUE"
    client.hset("bull:mail:lost", "processedOn", ago(HOUR))
    assert ox("doctor").code == 1


def test_overdue_jobs_without_a_worker(ox: Commands, client: Any) -> None:
    ox("add", "mail", "hello", "--job-id", "first", "--delay", "1m")
    assert "overdue jobs of mail" not in found(ox)
    client.hset("bull:mail:first", "timestamp", ago(HOUR))
    one = found(ox)["overdue jobs of mail"]
    assert one["detail"].startswith("1 delayed job is overdue, first for 59m")
    assert one["level"] == "problem"


def test_jobs_without_a_handler(ox: Commands, clean: ValkeyServer) -> None:
    async def look() -> dict[str, dict[str, str]]:
        async with Queue("mail", url=clean.url) as queue:
            queue.job(name="other")(lambda: None)
            async with Worker(queue, name="w1").running():
                job = await queue.add("hello", job_id="first")
                await eventually(lambda: _is_put_off(job), "the job is put off")
                return await asyncio.to_thread(found, ox)

    one = asyncio.run(look())["no handler for hello of mail"]
    assert one["detail"].endswith("the first is first: no handler for hello in worker w1")
    assert one["fix"].endswith("oxcart jobs mail --state delayed --name hello")
    assert "no handler for hello in worker w1" in " ".join(ox("job", "mail", "first").out.split())
    assert ox("job", "mail", "first", "--json").json["put_off"] == "no handler for hello in worker w1"
    assert "no handler for hello" in " ".join(ox("jobs", "mail").out.split())


async def _is_put_off(job: JobHandle[Any]) -> bool:
    found = await job.get()
    return found is not None and found.put_off is not None


def test_a_long_pause(ox: Commands, client: Any) -> None:
    ox("add", "mail", "hello")
    ox("pause", "mail")
    one = found(ox)["paused mail"]
    assert (one["level"], one["fix"]) == ("note", "oxcart resume mail")
    client.delete("bull:mail:events")
    client.xadd("bull:mail:events", {"event": "paused"}, id=f"{ago(3 * HOUR)}-0")
    client.xadd("bull:mail:events", {"event": "added", "jobId": "1"})
    one = found(ox)["paused mail"]
    assert one["level"] == "warning"
    assert one["detail"] == "no worker takes its jobs for at least 3h; 1 wait"


def test_a_schedule_that_never_ran_has_no_runs(ox: Commands, client: Any) -> None:
    ox("schedules", "add", "mail", "daily", "--every", "1h")
    assert ox("schedules", "list", "mail", "--json").json[0]["fired"] == 0
    listed = ox("schedules", "list", "mail").out
    assert "overdue" not in listed
    client.zadd("bull:mail:repeat", {"daily": ago(2 * HOUR)})
    assert "(overdue)" in ox("schedules", "list", "mail").out


def test_a_schedule_that_missed_its_run(ox: Commands, client: Any) -> None:
    ox("schedules", "add", "mail", "daily", "--every", "1h")
    assert "schedule daily of mail" not in found(ox)
    client.zadd("bull:mail:repeat", {"daily": ago(2 * HOUR)})
    one = found(ox)["schedule daily of mail"]
    assert (one["level"], one["detail"]) == ("warning", "its next run was due 2h ago")
    assert "oxcart schedules show mail daily" in one["fix"]


def test_failures_lead_to_their_groups(ox: Commands, clean: ValkeyServer) -> None:
    async def work() -> None:
        async with Queue("mail", url=clean.url) as queue:

            @queue.fallback
            async def handle(job: Any) -> None:
                raise PermanentError("no")

            async with Worker(queue).running():
                with contextlib.suppress(JobFailed):
                    await (await queue.add("hello")).result(60)

    asyncio.run(work())
    one = found(ox)["failures of mail"]
    assert (one["level"], one["fix"]) == ("note", "oxcart failures mail --since 1d")


def test_in_a_namespace(ox: Commands) -> None:
    ox("--namespace", "wk", "add", "email", "email")
    assert found(ox, "--namespace", "wk")["no worker for email"]["level"] == "warning"
    ox("--namespace", "wk", "pause", "email")
    assert found(ox, "--namespace", "wk")["paused email"]["fix"] == "oxcart resume email"


def test_memory_near_its_limit(ox: Commands, client: Any) -> None:
    used = int(client.info("memory")["used_memory"])
    client.config_set("maxmemory", int(used * 1.1))
    try:
        one = found(ox)["memory"]
    finally:
        client.config_set("maxmemory", 0)
    assert one["level"] in ("warning", "problem")
    assert "oxcart clean" in one["fix"]
