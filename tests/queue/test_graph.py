"""Graphs through the public API, with real workers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from oxcart import Graph, PermanentError, Queue, RunningJob, Worker, sync
from oxcart.model import JobFailed, ValidationError
from oxcart.model.errors import UnknownDependency
from oxcart.model.state import State
from tests.conftest import MakeQueue

LIMIT = 20


@pytest.fixture
def reports(make_queue: MakeQueue) -> Queue:
    return make_queue("reports")


class Ran(list[str]):
    """The names of the jobs that ran, in order."""

    def on(self, *queues: Queue) -> Ran:
        async def run(job: RunningJob) -> Any:
            self.append(job.name)
            if job.name.startswith("bad"):
                raise PermanentError("no")
            return len(self)

        for queue in queues:
            queue.fallback(run)
        return self


class TestRefusals:
    async def test_a_cycle(self, queue: Queue) -> None:
        graph = Graph(queue)
        first = graph.job("first")
        first.after(graph.job("second", after=[first]))
        with pytest.raises(ValidationError, match=r"first, second .* no cycle"):
            await graph.add()
        assert sum((await queue.counts()).values()) == 0

    async def test_an_unknown_job(self, queue: Queue) -> None:
        with pytest.raises(UnknownDependency, match=r"cannot add the job: the dependency \S+ does not exist"):
            await queue.add("n", after=["nobody"])
        assert sum((await queue.counts()).values()) == 0

    async def test_a_single_job_where_a_list_is_asked_for(self, queue: Queue) -> None:
        with pytest.raises(ValidationError, match="after must be a list of jobs"):
            await queue.add("n", after="nobody")

    async def test_a_job_of_another_graph(self, queue: Queue) -> None:
        graph = Graph(queue)
        graph.job("n", after=[Graph(queue).job("m")])
        with pytest.raises(ValidationError, match="jobs of the same graph"):
            await graph.add()

    async def test_more_than_a_thousand_dependencies(self, queue: Queue) -> None:
        with pytest.raises(ValidationError, match="at most 1000 jobs to wait for"):
            await queue.add("n", after=[f"j{n}" for n in range(1001)])


class TestRunning:
    async def test_a_diamond_over_two_queues(self, queue: Queue, reports: Queue) -> None:
        ran = Ran().on(queue, reports)
        graph = Graph(queue)
        top = graph.job("top")
        middle = graph.fan_out(top, [("left", 1), ("right", 2)])
        graph.fan_in("join", after=middle, queue=reports)
        jobs = await graph.add()
        async with Worker(queue, reports, concurrency=5).running():
            assert await jobs[-1].result(LIMIT) == 4
        assert (ran[0], sorted(ran[1:3]), ran[3]) == ("top", ["left", "right"], "join")
        assert sorted((await jobs[-1].children_values()).values()) == [2, 3]

    async def test_a_failure_stops_the_chain(self, queue: Queue) -> None:
        ran = Ran().on(queue)
        graph = Graph(queue)
        graph.chain(("a", None), ("bad", None, {"attempts": 3}), ("c", None), ("d", None))
        jobs = await graph.add()
        async with Worker(queue).running():
            with pytest.raises(JobFailed, match=r"failed \(permanent\): dependency bull:q:[^ ]* failed: no$"):
                await jobs[-1].result(LIMIT)
        assert ran == ["a", "bad"]
        assert [(await job.get()).state for job in jobs] == [State.COMPLETED, *[State.FAILED] * 3]

    async def test_after_a_job_that_runs_already(self, queue: Queue) -> None:
        begun, may_end = asyncio.Event(), asyncio.Event()

        @queue.job
        async def slow() -> str:
            begun.set()
            await may_end.wait()
            return "done"

        @queue.job
        async def then() -> str:
            return "then"

        first = await slow.enqueue()
        async with Worker(queue, concurrency=2).running(), asyncio.timeout(LIMIT):
            await begun.wait()
            second = await queue.add("then", {}, after=[first])
            assert await second.state() == "waiting-children"
            assert (await second.get()).state == State.PENDING
            may_end.set()
            assert await second.result(LIMIT) == "then"

    async def test_ids_of_the_graph_itself(self, queue: Queue) -> None:
        Ran().on(queue)
        graph = Graph(queue)
        graph.job("then", job_id="t", after=["f"])
        graph.job("first", job_id="f")
        jobs = await graph.add()
        async with Worker(queue).running():
            assert await jobs[0].result(LIMIT) == 2

    async def test_of_typed_handlers(self, queue: Queue) -> None:
        @queue.job
        async def double(n: int) -> int:
            return 2 * n

        @queue.job
        async def total(job: RunningJob) -> int:
            return sum((await job.children_values()).values())

        graph = Graph(queue)
        parts = [graph.take(double.flow(n)) for n in (1, 2, 3)]
        graph.take(total.flow(), after=parts)
        with pytest.raises(ValidationError, match="a job without children"):
            graph.take(total.flow().after(double.flow(1)))
        jobs = await graph.add()
        async with Worker(queue, concurrency=3).running():
            assert await jobs[-1].result(LIMIT) == 12

    async def test_after_any_runs_after_a_failure(self, queue: Queue) -> None:
        ran = Ran().on(queue)
        bad = await queue.add("bad")
        never = await queue.add("never", delay="1h")
        clean = await queue.add("clean", after_any=[bad, never])
        async with Worker(queue).running():
            assert await clean.result(LIMIT) == 2
        assert ran == ["bad", "clean"]

    async def test_a_cancelled_dependency_cancels(self, queue: Queue) -> None:
        first = await queue.add("first", delay="1h")
        second = await queue.add("second", after=[first])
        third = await queue.add("third", after=[second])
        await first.cancel()
        async with Worker(queue).running():
            with pytest.raises(JobFailed, match="was cancelled"):
                await third.result(LIMIT)
        assert (await second.get()).state == (await third.get()).state == State.CANCELLED


class TestWithoutAnEventLoop:
    async def test_the_same_without_await(self, queue: Queue, url: str) -> None:
        ran = Ran().on(queue)

        def add() -> list[str]:
            with sync.Queue("q", url=url) as same:
                first = same.add("first")
                graph = sync.Graph(same)
                parts = graph.fan_out(first, [("part", 1), ("part", 2)])
                graph.fan_in("join", after=parts)
                graph.chain(("x", None), ("y", None), after=[first])
                last = same.add("last", after=[graph.add()[2]])
                return [last.id, last.state()]

        job_id, state = await asyncio.to_thread(add)
        assert state == "waiting-children"
        async with Worker(queue).running():
            assert await queue.jobs.handle(job_id).result(LIMIT) == len(ran)
        assert ran.index("join") < ran.index("last")


class TestIdempotencyKeys:
    async def test_after_with_a_known_key_returns_the_existing_job(self, queue: Queue) -> None:
        first = await queue.add("first")
        one = await queue.add("n", {"x": 1}, after=[first], idempotency_key="k")
        two = await queue.add("n", {"x": 2}, after=[first], idempotency_key="k")
        assert (one.created, one.duplicate) == (True, False)
        assert (two.id, two.created, two.duplicate) == (one.id, False, True)
        stored = await one.get()
        assert (stored.data, stored.idempotency_key) == ({"x": 1}, "k")
        assert await queue.counts() == {**await queue.counts(), "waiting": 1, "waiting-children": 1}

    async def test_a_key_is_one_with_and_without_dependencies(self, queue: Queue) -> None:
        first = await queue.add("first")
        plain = await queue.add("n", idempotency_key="plain")
        tied = await queue.add("n", after=[first], idempotency_key="tied")
        assert (await queue.add("n", after=[first], idempotency_key="plain")).id == plain.id
        assert (await queue.add("n", idempotency_key="tied")).id == tied.id
        other = await queue.add("other", after=[first], idempotency_key="tied")
        assert other.created

    async def test_the_key_of_a_removed_job_is_free(self, queue: Queue) -> None:
        first = await queue.add("first")
        one = await queue.add("n", after=[first], idempotency_key="k")
        await one.remove()
        two = await queue.add("n", after=[first], idempotency_key="k", idempotency_window="1h")
        assert (two.created, two.id != one.id) == (True, True)
        assert (await queue.add("n", idempotency_key="k")).id == two.id

    async def test_dependents_wait_for_the_existing_job(self, queue: Queue) -> None:
        ran = Ran().on(queue)
        existing = await queue.add("middle", idempotency_key="k", delay="1h")
        graph = Graph(queue)
        middle = graph.job("middle", after=[graph.job("first")], idempotency_key="k")
        graph.job("last", after=[middle])
        first, found, last = await graph.add()
        assert (found.id, found.duplicate) == (existing.id, True)
        async with Worker(queue).running():
            await first.result(LIMIT)
            assert await last.state() == "waiting-children"
            await existing.promote()
            await last.result(LIMIT)
        assert ran == ["first", "middle", "last"]

    async def test_racing_adds_make_one_job(self, queue: Queue) -> None:
        first = await queue.add("first")
        many = [queue.add("n", after=[first], idempotency_key="k") for _ in range(20)]
        jobs = await asyncio.gather(*many)
        assert len({job.id for job in jobs}) == 1
        assert sum(job.created for job in jobs) == 1

    async def test_a_key_twice_in_one_graph_is_refused(self, queue: Queue) -> None:
        graph = Graph(queue)
        graph.job("n", idempotency_key="k")
        graph.job("n", idempotency_key="k")
        with pytest.raises(ValidationError, match="idempotency_key must be used once in a graph"):
            await graph.add()
        assert sum((await queue.counts()).values()) == 0
