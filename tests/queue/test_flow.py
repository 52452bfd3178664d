"""Flows and deduplication through the public API, with real workers."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

import pytest

import oxcart.errors
from oxcart import Flow, Queue, RunningJob, SyncRunningJob, WaitForChildren, Worker, sync
from oxcart.flow import FlowHandle
from oxcart.model import DependencyCounts, JobFailed, ValidationError
from oxcart.testing import inline
from tests.conftest import MakeQueue

LIMIT = 20


@pytest.fixture
def reports(make_queue: MakeQueue) -> Queue:
    return make_queue("reports")


@pytest.fixture
def images(make_queue: MakeQueue) -> Queue:
    return make_queue("images")


class TestWriting:
    def test_reads_like_the_tree(self, reports: Queue, images: Queue) -> None:
        flow = Flow(reports, "assemble", {"month": "May"}, priority=2).after(
            Flow(images, "render", {"page": 1}),
            Flow(images, "render", {"page": 2}, on_failure="ignore", attempts=5),
        )
        assert repr(flow) == "Flow(reports/assemble).after(Flow(images/render), Flow(images/render))"
        same = Flow(reports, "assemble", {"month": "May"}, priority=2, children=flow.children)
        assert same.tree() == flow.tree()
        top = flow.tree()
        assert (top.queue, top.name, top.options.priority) == ("reports", "assemble", 2)
        assert [(one.data, one.on_failure, one.options.attempts) for one in top.children] == [
            ({"page": 1}, "fail", 3),
            ({"page": 2}, "ignore", 5),
        ]

    def test_is_a_value(self, reports: Queue) -> None:
        leaf = Flow(reports, "leaf")
        other = leaf.on_failure("wait")
        assert leaf.after(leaf, leaf).after(other).tree().children == (leaf.tree(), leaf.tree(), other.tree())
        assert (leaf.children, leaf.policy, other.policy) == ((), "fail", "wait")

    def test_of_typed_handlers(self, images: Queue) -> None:
        @images.job(attempts=7)
        async def render(page: int) -> int:
            return page

        made = render.using(delay="5s").flow(3).tree()
        assert (made.name, made.data, made.options.attempts, made.options.delay) == (
            *("render", {"page": 3}),
            *(7, 5000),
        )
        with pytest.raises(ValidationError, match="arguments must be among page"):
            render.flow(pages=3)  # type: ignore[call-arg]

    def test_the_queue_s_defaults_hold(self, make_queue: MakeQueue) -> None:
        assert Flow(make_queue("d", attempts=9), "n").options.attempts == 9

    def test_refused(self, reports: Queue) -> None:
        with pytest.raises(ValidationError, match="on_failure must be one of"):
            Flow(reports, "n", on_failure="explode")
        with pytest.raises(ValidationError, match="children must be flows"):
            Flow(reports, "n").after("n")  # type: ignore[arg-type]
        with pytest.raises(ValidationError, match="job name"):
            Flow(reports, "")
        with pytest.raises(ValidationError, match="unknown option"):
            Flow(reports, "n", atempts=3)  # type: ignore[call-arg]

    def test_two_servers(self, reports: Queue) -> None:
        elsewhere = Queue("images", url="redis://127.0.0.1:1")
        with pytest.raises(ValidationError, match="flow must be on one server"):
            Flow(reports, "n").after(Flow(elsewhere, "n")).tree()


class TestRunning:
    async def test_a_parent_has_the_values_of_its_children(self, reports: Queue, images: Queue) -> None:
        @images.job
        async def render(page: int) -> int:
            if page == 3:
                raise ValueError("no such page")
            return page * 10

        @reports.job
        async def assemble(job: RunningJob, month: str) -> Any:
            values, ignored = await job.children_values(), await job.ignored_failures()
            return [month, sorted(values.values()), list(ignored.values())]

        handle = await (
            assemble.flow("May")
            .after(
                render.flow(1),
                render.flow(2),
                render.using(attempts=1).flow(3).on_failure("ignore"),
            )
            .add()
        )
        assert isinstance(handle, FlowHandle)
        assert [child.queue for child in handle.children] == [images] * 3
        seen = await reports.flows.get(handle.id)
        assert seen is not None
        assert (seen.state, len(seen.children)) == ("waiting-children", 3)
        async with Worker(reports, images, concurrency=3).running():
            assert await handle.result(LIMIT) == ["May", [10, 20], ["no such page"]]
        assert await handle.dependency_counts() == DependencyCounts(processed=2, ignored=1)
        page = await handle.dependencies("processed")
        assert {(one.queue, one.id) for one in page.children} == {
            ("images", child.id) for child in handle.children[:2]
        }
        with pytest.raises(ValidationError, match="limit must be at least 1"):
            await handle.dependencies("processed", limit=0)
        await handle.remove(children=True)
        assert await images.counts() == {**await images.counts(), "completed": 0, "failed": 0}

    async def test_a_failed_child_fails_its_parent(self, reports: Queue, images: Queue) -> None:
        @images.job(attempts=1)
        async def render() -> None:
            raise ValueError("broken")

        ran: list[str] = []

        @reports.job
        async def assemble() -> None:
            ran.append("assemble")

        handle = await assemble.flow().after(render.flow()).add()
        async with Worker(reports, images).running():
            with pytest.raises(JobFailed, match=f"child bull:images:{handle.children[0].id} failed"):
                await handle.result(LIMIT)
        assert ran == []

    async def test_waiting_for_children_as_a_step(self, reports: Queue, images: Queue) -> None:
        @images.job
        async def render(page: int) -> int:
            return page

        attempts: list[int] = []

        @reports.job
        async def assemble(job: RunningJob, pages: int) -> Any:
            attempts.append(job.attempt)
            if not (await job.dependency_counts()).total:
                added = await job.add_children(*(render.flow(n) for n in range(pages)))
                assert len(added) == pages
                return WaitForChildren()
            return sum((await job.children_values()).values())

        async with Worker(reports, images, concurrency=5).running():
            assert await (await assemble.enqueue(pages=400)).result(LIMIT) == sum(range(400))
        assert attempts == [1, 1]

    async def test_waiting_for_children_that_have_ended_meanwhile(
        self, reports: Queue, images: Queue
    ) -> None:
        """No child is left to release the job, so it continues at once."""

        @images.job
        async def render() -> str:
            return "done"

        @reports.job
        async def assemble(job: RunningJob) -> Any:
            if not (await job.dependency_counts()).total:
                (child,) = await job.add_children(render.flow())
                await images.jobs.handle(child.id).result(LIMIT)
                return WaitForChildren()
            return list((await job.children_values()).values())

        async with Worker(reports, images, concurrency=2).running():
            assert await (await assemble.enqueue()).result(LIMIT) == ["done"]

    async def test_children_of_a_thread(self, reports: Queue, images: Queue) -> None:
        @images.job
        def render() -> int:
            return 5

        @reports.job
        def assemble(job: SyncRunningJob) -> Any:
            if not job.dependency_counts().total:
                job.add_children(render.flow())
                return WaitForChildren()
            return list(job.children_values().values())

        async with Worker(reports, images).running():
            assert await (await assemble.enqueue()).result(LIMIT) == [5]

    async def test_waiting_after_a_child_has_failed(self, reports: Queue, images: Queue) -> None:
        @images.job(attempts=1)
        async def render() -> None:
            raise ValueError("broken")

        @reports.job
        async def assemble(job: RunningJob) -> Any:
            (child,) = await job.add_children(render.flow())
            with pytest.raises(JobFailed):
                await images.jobs.handle(child.id).result(LIMIT)
            return WaitForChildren()

        async with Worker(reports, images, concurrency=2).running():
            with pytest.raises(JobFailed, match="a child of the job failed"):
                await (await assemble.enqueue()).result(LIMIT)

    async def test_every_parent_is_released_once(self, reports: Queue, images: Queue) -> None:
        """Many small trees whose children end at the same time, in workers side by side."""
        runs: dict[str, int] = {}

        @images.job
        async def render() -> None:
            await asyncio.sleep(0)

        @reports.job
        async def assemble(job: RunningJob) -> int:
            runs[job.id] = runs.get(job.id, 0) + 1
            return len(await job.children_values())

        handles = [await assemble.flow().after(*(render.flow() for _ in range(5))).add() for _ in range(60)]
        async with (
            Worker(reports, images, concurrency=20).running(),
            Worker(reports, images, concurrency=20).running(),
        ):
            assert [await handle.result(LIMIT) for handle in handles] == [5] * 60
        assert runs == {handle.id: 1 for handle in handles}

    async def test_in_memory_the_error_names_the_alternative(self, reports: Queue) -> None:
        with inline(reports), pytest.raises(oxcart.errors.OxcartError, match="flows need a server"):
            await Flow(reports, "n").after(Flow(reports, "n")).add()


class TestDeduplication:
    async def test_through_the_queue(self, reports: Queue) -> None:
        first = await reports.add("n", 1, deduplication="d")
        again = await reports.add("n", 2, deduplication={"id": "d", "ttl": "5s"})
        assert (again.id, again.created) == (first.id, False)
        assert await reports.deduplication.owner("d") == first.id
        assert await again.release_deduplication() is True
        assert await again.release_deduplication() is False
        assert await reports.deduplication.release("d") is False
        second = await reports.add("n", 3, deduplication="d")
        assert second.created
        assert (await second.get()).dedup_id == "d"
        assert await reports.deduplication.release("d") is True

    async def test_its_events(self, reports: Queue) -> None:
        async with reports.events(names=["deduplicated", "debounced"]) as events:
            first = await reports.add("n", deduplication="d")
            await reports.add("n", deduplication="d")
            seen = await events.read()
        assert [event.name for event in seen] == ["debounced", "deduplicated"]
        assert seen[1].job_id == first.id
        assert seen[1].fields["deduplicationId"] == "d"

    async def test_adds_of_one_turn(self, reports: Queue) -> None:
        added = await asyncio.gather(*(reports.add("n", n, deduplication="d") for n in range(10)))
        assert len({one.id for one in added}) == 1
        assert sum(one.created for one in added) == 1

    async def test_a_task(self, reports: Queue) -> None:
        @reports.job(deduplication={"id": "nightly", "keep_last_if_active": True})
        async def rebuild() -> None: ...

        assert (await rebuild.enqueue()).created
        assert not (await rebuild.enqueue()).created


class TestSync:
    def test_a_flow(self, url: str) -> None:
        with sync.Queue("reports", url=url) as reports, sync.Queue("images", url=url) as images:

            @images.job
            def render(page: int) -> int:
                return page

            flow = sync.Flow(reports, "assemble", on_failure="wait").after(
                render.flow(1), render.flow(2).on_failure("ignore"), sync.Flow(images, "render", {"page": 3})
            )
            assert [child.on_failure for child in flow.tree().children] == ["fail", "ignore", "fail"]
            handle = flow.add()
            assert [child.queue for child in handle.children] == [images] * 3
            assert handle.state() == "waiting-children"
            assert handle.dependency_counts().unprocessed == 3
            assert len(handle.dependencies("unprocessed").children) == 3
            assert (handle.children_values(), handle.ignored_failures()) == ({}, {})
            seen = reports.flows.get(handle.id)
            assert seen is not None
            assert len(seen.children) == 3
            assert handle.children[0].leave_parent()
            assert not handle.children[0].leave_parent()
            handle.remove_unprocessed_children()
            assert (handle.state(), handle.dependency_counts().total) == ("waiting", 0)
            assert [child.state() for child in handle.children] == ["waiting", "unknown", "unknown"]
            with pytest.raises(ValidationError, match=r"children must be flows of oxcart\.sync"):
                flow.after(Flow(reports.asynchronous, "n"))  # type: ignore[arg-type]

    def test_deduplication(self, url: str) -> None:
        with sync.Queue("reports", url=url) as reports:
            first = reports.add("n", deduplication="d")
            assert reports.add("n", deduplication="d").id == first.id
            assert reports.deduplication.owner("d") == first.id
            assert reports.deduplication.release("d")
            assert not first.release_deduplication()

    @pytest.mark.parametrize("name", ["__init__", "add", "after", "on_failure", "tree"])
    def test_sync_signatures_equal_the_async_ones(self, name: str) -> None:
        ours, theirs = (inspect.signature(getattr(kind, name)) for kind in (sync.Flow, Flow))
        assert list(ours.parameters) == list(theirs.parameters)
