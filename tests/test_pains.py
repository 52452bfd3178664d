"""Known problems of other job systems, each with a test that is named after the problem.

`docs/pains.md` has the whole list with further tests. Only short tests are here; kills, outages and clusters
are in `tests/chaos`, `tests/cluster` and `tests/interop`.
"""

from __future__ import annotations

import asyncio
import re
import sys
from pathlib import Path
from typing import Any, assert_type

import pytest
import redis

from oxcart import Flow, JobHandle, Queue, RunningJob, Worker
from oxcart.model import JobFailed, State
from tests.conftest import MakeQueue
from tests.servers import ValkeyServer
from tests.signals import eventually

ROOT = Path(__file__).parents[1]
LIMIT = 20.0
#: A lease so short that a test can outlive it, with stalled checks often enough to notice.
BRIEF: dict[str, Any] = {"lock_duration": 2, "stalled_interval": 0.5}


# ------------------------------------------------------------------------------------------- the page


def test_every_pain_that_we_claim_to_have_solved_names_its_tests() -> None:
    page = (ROOT / "docs" / "pains.md").read_text()
    source = "\n".join(file.read_text() for file in (ROOT / "tests").rglob("test_*.py"))
    known = set(re.findall(r"def (test_\w+)\(", source))
    named = set(re.findall(r"`(test_\w+)`", page))
    assert named <= known, sorted(named - known)
    rows = [line for line in page.splitlines() if re.match(r"\| [BP]\d+ ", line)]
    assert len(rows) >= 15 + 20
    bare = [row for row in rows if "`test_" not in row and "**not solved**" not in row]
    assert not bare
    mine = {name for name in known if name.startswith("test_pain_")}
    assert mine <= named, sorted(mine - named)


def test_every_pain_has_a_row() -> None:
    page = (ROOT / "docs" / "pains.md").read_text()
    numbers = re.findall(r"^\| ([BP]\d+) ", page, re.MULTILINE)
    wanted = [f"B{n}" for n in range(1, 16)] + [f"P{n}" for n in range(1, 21)]
    assert [one for one in wanted if one not in numbers] == []


# ------------------------------------------------------------------------------------------- outages, leases


async def test_pain_a_worker_that_is_silent_after_an_outage() -> None:
    with ValkeyServer(appendonly=True) as server:
        async with Queue("q", url=server.url) as queue:

            @queue.job
            async def echo(n: int) -> int:
                return n

            async with Worker(queue).running():
                assert await (await echo.enqueue(n=1)).result(LIMIT) == 1
                await asyncio.to_thread(server.kill)
                await asyncio.to_thread(server.restart)
                assert await (await echo.enqueue(n=2)).result(LIMIT) == 2


async def test_pain_a_job_that_is_longer_than_its_lease_runs_twice(queue: Queue, store: redis.Redis) -> None:
    starts: list[int] = []

    @queue.job
    async def long(job: RunningJob) -> None:
        starts.append(job.fencing)
        await asyncio.sleep(4.5)

    # Renewed so often that a machine may be away for most of a lease.
    lease: dict[str, Any] = {"lock_duration": 4, "renew_every": 0.5, "stalled_interval": 0.5}
    async with Worker(queue, **lease).running(), Worker(queue, **lease).running():
        await (await long.enqueue()).result(LIMIT)
    assert starts == [1]
    assert not [one for _, one in _events(store) if one["event"] == "stalled"]


async def test_pain_a_delay_that_is_longer_than_a_lease_runs_twice(queue: Queue) -> None:
    """Elsewhere it is held in a worker's memory, and given to another when its time there is up."""
    starts: list[int] = []

    @queue.job
    async def later(job: RunningJob) -> None:
        starts.append(job.fencing)

    async with Worker(queue, **BRIEF).running():
        job = await queue.add("later", {}, delay="2500ms")
        async with Worker(queue, **BRIEF).running():
            await job.result(LIMIT)
    assert starts == [1]


async def test_pain_a_constructor_that_binds_to_an_event_loop() -> None:
    """Made where no loop runs, and used in one loop after another."""
    with ValkeyServer() as server:
        queue = await asyncio.to_thread(Queue, "q", url=server.url)

        def in_a_loop_of_its_own() -> str:
            async def add() -> str:
                async with queue:
                    return (await queue.add("n", {})).id

            return asyncio.run(add())

        ids = [await asyncio.to_thread(in_a_loop_of_its_own) for _ in range(2)]
        async with queue:
            assert {job.id for job in await queue.jobs.list("waiting")} == set(ids)


# ------------------------------------------------------------------------------------------- cancel, timeout


async def test_pain_a_running_job_that_cannot_be_cancelled_from_another_process(
    queue: Queue, url: str
) -> None:
    running, noticed = asyncio.Event(), asyncio.Event()

    @queue.job
    async def endless() -> None:
        running.set()
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            noticed.set()
            raise

    program = (
        "import sys; from oxcart.sync import Queue; Queue('q', url=sys.argv[1]).jobs.cancel(sys.argv[2])"
    )
    async with asyncio.timeout(LIMIT), Worker(queue).running():
        job = await endless.enqueue()
        await running.wait()
        other = await asyncio.create_subprocess_exec(sys.executable, "-c", program, url, job.id)
        assert await other.wait() == 0
        await noticed.wait()
        with pytest.raises(JobFailed, match="cancel"):
            await job.result(LIMIT)


async def test_pain_a_timeout_that_is_not_tried_again(queue: Queue) -> None:
    attempts: list[int] = []

    @queue.job(attempts=2, backoff="1ms", timeout="200ms")
    async def slow_once(job: RunningJob) -> str:
        attempts.append(job.attempt)
        await asyncio.sleep(30 if job.attempt == 1 else 0)
        return "done"

    async with Worker(queue).running():
        assert await (await slow_once.enqueue()).result(LIMIT) == "done"
    assert attempts == [1, 2]


# ------------------------------------------------------------------------------------------- results, errors


async def test_pain_waiting_for_a_job_that_is_removed_at_its_end_hangs(queue: Queue) -> None:
    @queue.job(remove_on_complete=True)
    async def brief() -> int:
        return 7

    async with Worker(queue).running():
        job = await brief.enqueue()
        assert await job.result(LIMIT) == 7
        await eventually(lambda: _is_gone(queue, job.id), "it was removed")
        assert await job.result(LIMIT) == 7  # also when it is asked for afterwards


async def test_pain_a_retry_that_changes_the_id_and_loses_the_error(queue: Queue) -> None:
    ids: list[str] = []

    @queue.job(attempts=3, backoff="1ms")
    async def fails(job: RunningJob) -> None:
        ids.append(job.id)
        raise RuntimeError(f"attempt {job.attempt}")

    async with Worker(queue).running():
        job = await fails.enqueue()
        with pytest.raises(JobFailed, match="attempt 3"):
            await job.result(LIMIT)
    assert ids == [job.id] * 3
    found = await job.get()
    assert found.failed_reason == "attempt 3"
    assert [trace.count("RuntimeError") > 0 for trace in found.stacktrace] == [True] * 3


async def test_pain_no_dead_letter_queue_that_can_be_replayed(queue: Queue) -> None:
    broken = True

    @queue.job(attempts=2, backoff="1ms")
    async def moody() -> str:
        if broken:
            raise RuntimeError("not today")
        return "mended"

    async with Worker(queue).running():
        jobs = [await moody.enqueue() for _ in range(3)]
        for job in jobs:
            with pytest.raises(JobFailed):
                await job.result(LIMIT)
        assert {one.id for one in await queue.jobs.list("failed")} == {job.id for job in jobs}
        assert {(await job.get()).state for job in jobs} == {State.DEAD_LETTER}
        broken = False
        assert await queue.jobs.retry_all() == 3
        assert [await job.result(LIMIT) for job in jobs] == ["mended"] * 3


# ------------------------------------------------------------------------------------------- order, fan-in


async def test_pain_a_prefetch_that_defeats_priority(queue: Queue) -> None:
    """What a worker has not begun is not its own: a job that matters more is taken before."""
    order: list[str] = []
    added = asyncio.Event()

    @queue.fallback
    async def note(job: RunningJob) -> None:
        order.append(job.name)
        if job.name == "first":
            await added.wait()

    await queue.add("first", {}, priority=5)
    last = (await queue.add_many([("low", {}, {"priority": 5})] * 20))[-1]
    async with asyncio.timeout(LIMIT), Worker(queue).running():
        await eventually(lambda: order == ["first"], "the first has begun")
        await queue.add("high", {}, priority=1)
        added.set()
        await last.result(LIMIT)
    assert order[:2] == ["first", "high"]


@pytest.mark.parametrize(("policy", "ends"), [("ignore", "completed"), ("fail", "failed")])
async def test_pain_a_fan_in_that_hangs_when_a_member_fails_or_is_tried_again(
    queue: Queue, policy: str, ends: str
) -> None:
    @queue.fallback
    async def member(job: RunningJob) -> None:
        if job.name == "shaky" and job.attempt == 1:
            raise RuntimeError("once more")
        if job.name == "broken":
            raise RuntimeError("never")

    top = Flow(queue, "top", {}).after(
        Flow(queue, "shaky", {}, attempts=2, backoff="1ms"),
        Flow(queue, "broken", {}, attempts=1, on_failure=policy),
    )
    async with asyncio.timeout(LIMIT), Worker(queue, concurrency=2).running():
        job = await top.add()
        await eventually(lambda: _is_in(queue, job.id, ends), f"the parent has {ends}")


async def test_pain_a_limit_on_one_queue_blocks_the_others(make_queue: MakeQueue) -> None:
    limited, free = make_queue("limited"), make_queue("free")
    await limited.limits.set_rate(1, per="1h")
    for queue in (limited, free):
        queue.fallback(_nothing)
    async with Worker(limited, free, concurrency=4).running():
        await limited.add_many([("n", {})] * 5)
        for job in await free.add_many([("n", {})] * 20):
            await job.result(LIMIT)
        assert (await limited.counts())["waiting"] == 4


# ------------------------------------------------------------------------------------------- speed, types


async def test_pain_a_bulk_add_that_makes_a_call_per_job(queue: Queue, store: redis.Redis) -> None:
    await queue.add("n", {})
    before: Any = store.info("commandstats")
    await queue.add_many([("n", {"number": number}) for number in range(2_000)])
    after: Any = store.info("commandstats")
    calls = [
        after.get(name, {}).get("calls", 0) - before.get(name, {}).get("calls", 0)
        for name in ("cmdstat_evalsha", "cmdstat_eval")
    ]
    assert sum(calls) <= 50
    assert (await queue.counts())["waiting"] == 2_001


async def test_pain_async_handlers_that_wait_for_each_other_in_one_process(queue: Queue) -> None:
    """A hundred wait at once in one event loop: none could go on if they took turns."""
    meeting = asyncio.Barrier(100)

    @queue.fallback
    async def meet(job: RunningJob) -> None:
        await meeting.wait()

    async with asyncio.timeout(LIMIT), Worker(queue, concurrency=100).running():
        for job in await queue.add_many([("n", {})] * 100):
            await job.result(LIMIT)


async def test_pain_sync_handlers_that_stop_the_event_loop(queue: Queue) -> None:
    """A plain function runs in a thread: the loop goes on, and the others with it."""
    gone_on = asyncio.Event()
    loop = asyncio.get_running_loop()

    @queue.job
    def plain() -> bool:
        asyncio.run_coroutine_threadsafe(gone_on.wait(), loop).result(LIMIT)
        return True

    @queue.job
    async def light() -> None:
        gone_on.set()

    async with Worker(queue, concurrency=2).running():
        first = await plain.enqueue()
        await light.enqueue()
        assert await first.result(LIMIT) is True


async def test_pain_types_that_are_lost_at_the_decorator(queue: Queue) -> None:
    """Checked by mypy with the rest of the code; what does not fit is refused at run time as well."""

    @queue.job
    async def add(a: int, b: int) -> int:
        return a + b

    job = await add.enqueue(a=1, b=2)
    assert_type(job, JobHandle[int])
    assert_type(await add(1, 2), int)
    async with Worker(queue).running():
        assert_type(await job.result(LIMIT), int)


# ------------------------------------------------------------------------------------------- small things


async def _nothing(job: RunningJob) -> None:
    pass


def _events(store: redis.Redis) -> list[tuple[str, dict[str, str]]]:
    found: Any = store.xrange("bull:q:events")
    return list(found)


async def _is_gone(queue: Queue, job_id: str) -> bool:
    return await queue.jobs.get(job_id) is None


async def _is_in(queue: Queue, job_id: str, state: str) -> bool:
    return str(await queue.jobs.state(job_id)) == state
