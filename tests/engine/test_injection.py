"""Dependencies: parameters that the worker fills, per worker and per job, with their clean-up."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Annotated, Any

import pytest

from oxcart import Depends, Queue, RunningJob, SyncRunningJob, TemporaryError, Worker
from oxcart.engine.handler import Handler
from oxcart.model.errors import JobFailed, ValidationError
from oxcart.testing import inline, override

seen: list[Any] = []


@pytest.fixture(autouse=True)
def _forget() -> None:
    seen.clear()


class Pool:
    def __init__(self, name: str = "real") -> None:
        self.name = name


class Settings:
    url = "db"


async def open_pool() -> AsyncIterator[Pool]:
    seen.append("pool opens")
    yield Pool()
    seen.append("pool closes")


@contextlib.contextmanager
def cursor() -> Iterator[str]:
    seen.append("cursor opens")
    try:
        yield "cursor"
    except TemporaryError:
        seen.append("cursor sees the error")  # and hides it
    finally:
        seen.append("cursor closes")


async def session(
    job: RunningJob,
    pool: Annotated[Pool, Depends(open_pool, scope="worker")],
    cursor: Annotated[str, Depends(cursor)],
) -> AsyncIterator[str]:
    yield f"{job.name} {pool.name} {cursor}"
    seen.append("session closes")


def in_thread() -> Iterator[int]:
    seen.append(("opens", threading.get_ident()))
    yield threading.get_ident()
    seen.append(("closes", threading.get_ident()))


async def answer() -> int:
    return 42


@contextlib.asynccontextmanager
async def lifespan() -> AsyncIterator[dict[str, Any]]:
    yield {"settings": Settings(), "number": 5}


class TestAsync:
    async def test_scopes_clean_up_and_cache(self, queue: Queue) -> None:
        @queue.job
        async def work(
            to: str,
            one: Annotated[str, Depends(session)],
            two: Annotated[str, Depends(cursor)],
            pool: Pool = Depends(open_pool, scope="worker"),
        ) -> list[Any]:
            seen.append("runs")
            return [to, one, two, pool.name]

        async with Worker(queue).running():
            jobs = [await queue.add("work", {"to": to, "two": "not mine"}) for to in ("a", "b")]
            results = [await job.result(timeout=20) for job in jobs]
        assert results == [[to, "work real cursor", "cursor", "real"] for to in ("a", "b")]
        each = ["cursor opens", "runs", "session closes", "cursor closes"]
        assert seen == ["pool opens", *each, *each, "pool closes"]

    async def test_from_the_state_by_type(self, queue: Queue) -> None:
        @queue.job
        async def work(settings: Settings = Depends()) -> str:
            return settings.url

        async with Worker(queue, lifespan=lifespan).running():
            assert await (await work.enqueue()).result(timeout=20) == "db"

    async def test_a_worker_without_the_state_does_not_start(self, queue: Queue) -> None:
        @queue.job
        async def work(settings: Settings = Depends()) -> None: ...

        with pytest.raises(ValidationError, match="one that yields one value of type Settings"):
            async with Worker(queue).running():
                pass

    async def test_a_clean_up_sees_the_error_and_cannot_hide_it(self, queue: Queue) -> None:
        @queue.job(attempts=1)
        async def work(one: str = Depends(cursor)) -> None:
            raise TemporaryError("no")

        async with Worker(queue).running():
            with pytest.raises(JobFailed, match="no"):
                await (await work.enqueue()).result(timeout=20)
        assert seen == ["cursor opens", "cursor sees the error", "cursor closes"]

    async def test_a_dependency_that_fails_fails_the_attempt_alone(self, queue: Queue) -> None:
        def broken() -> None:
            raise TemporaryError("no database")

        @queue.job(attempts=1)
        async def work(one: str = Depends(cursor), two: None = Depends(broken)) -> None: ...

        @queue.job
        async def fine() -> str:
            return "fine"

        async with Worker(queue).running():
            with pytest.raises(JobFailed, match="no database"):
                await (await queue.add("work")).result(timeout=20)
            assert await (await fine.enqueue()).result(timeout=20) == "fine"
        assert seen == ["cursor opens", "cursor sees the error", "cursor closes"]

    async def test_clean_up_follows_a_cancelled_attempt(self, queue: Queue) -> None:
        @queue.job(attempts=1, timeout="50ms")
        async def work(one: str = Depends(cursor)) -> None:
            await asyncio.Event().wait()

        async with Worker(queue).running():
            with pytest.raises(JobFailed, match="longer than"):
                await (await work.enqueue()).result(timeout=20)
        assert seen == ["cursor opens", "cursor closes"]

    async def test_a_handler_that_is_registered_late(self, queue: Queue) -> None:
        async with Worker(queue, concurrency=5).running():

            @queue.job
            async def work(pool: Pool = Depends(open_pool, scope="worker")) -> str:
                return pool.name

            jobs = [await work.enqueue() for _ in range(5)]
            assert {await job.result(timeout=20) for job in jobs} == {"real"}
        assert seen == ["pool opens", "pool closes"]


class TestThread:
    async def test_plain_dependencies_live_in_the_handlers_thread(self, queue: Queue) -> None:
        @queue.job
        def work(
            job: SyncRunningJob,
            to: str,
            one: Annotated[int, Depends(in_thread)],
            two: Annotated[str, Depends(session)],
            three: Annotated[int, Depends(answer)],
            settings: Annotated[Settings, Depends()],
        ) -> list[Any]:
            return [to, one == threading.get_ident(), two, three, settings.url]

        async with Worker(queue, lifespan=lifespan).running():
            job = await queue.add("work", {"to": "a"})
            assert await job.result(timeout=20) == ["a", True, "work real cursor", 42, "db"]
        threads = {entry[1] for entry in seen if isinstance(entry, tuple)}
        assert len(threads) == 1
        assert [entry[0] if isinstance(entry, tuple) else entry for entry in seen] == [
            "pool opens",
            "opens",
            "cursor opens",
            "session closes",
            "cursor closes",
            "closes",
            "pool closes",
        ]

    async def test_an_error_in_a_thread_reaches_the_clean_up(self, queue: Queue) -> None:
        @queue.job(attempts=1)
        def work(one: str = Depends(cursor)) -> None:
            raise TemporaryError("no")

        async with Worker(queue).running():
            with pytest.raises(JobFailed, match="no"):
                await (await work.enqueue()).result(timeout=20)
        assert seen == ["cursor opens", "cursor sees the error", "cursor closes"]


class TestTests:
    async def test_inline_and_overrides(self, queue: Queue) -> None:
        @queue.job
        async def work(
            one: Annotated[str, Depends(session)], settings: Annotated[Settings, Depends()]
        ) -> list[str]:
            return [one, settings.url]

        @queue.job
        def plain(one: str = Depends(session)) -> str:
            return one

        other = Settings()
        other.url = "fake"
        with inline(queue, state=Settings()):
            assert await (await queue.add("work")).result() == ["work real cursor", "db"]
            assert await (await plain.enqueue()).result() == "plain real cursor"
            with override(open_pool, lambda: Pool("fake")), override(Settings, lambda: other):
                assert await (await queue.add("work")).result() == ["work fake cursor", "fake"]
                assert await (await plain.enqueue()).result() == "plain fake cursor"
            assert await (await plain.enqueue()).result() == "plain real cursor"

    async def test_overrides_reach_a_worker(self, queue: Queue) -> None:
        @queue.job
        def plain(pool: Pool = Depends(open_pool, scope="worker")) -> str:
            return pool.name

        with override(open_pool, lambda: Pool("fake")):
            async with Worker(queue).running():
                assert await (await plain.enqueue()).result(timeout=20) == "fake"
        assert seen == []


def a(b: Annotated[int, Depends(lambda: 1)]) -> int:
    return b


def loops(again: Any) -> None: ...


loops.__annotations__["again"] = Annotated[int, Depends(loops)]


class TestRefusals:
    def test_a_process_cannot_have_dependencies(self) -> None:
        with pytest.raises(ValidationError, match="'async' or 'thread' for a handler with dependencies"):
            Handler("a", a, run="process")

    def test_a_cycle(self) -> None:
        def work(one: int = Depends(loops)) -> None: ...

        with pytest.raises(ValidationError, match="loops needs loops"):
            Handler("n", work)

    def test_a_parameter_that_nothing_fills(self) -> None:
        def needs(number: int, other: int = 1) -> None: ...

        def work(one: int = Depends(needs)) -> None: ...

        with pytest.raises(ValidationError, match="number must be a dependency or optional in needs"):
            Handler("n", work)

    def test_a_worker_cannot_need_a_job(self) -> None:
        async def wide(one: str = Depends(cursor)) -> None: ...

        async def with_job(job: RunningJob) -> None: ...

        def work(one: int = Depends(wide, scope="worker")) -> None: ...

        def more(one: int = Depends(with_job, scope="worker")) -> None: ...

        with pytest.raises(ValidationError, match="scope must be 'worker' too: wide needs it"):
            Handler("n", work)
        with pytest.raises(ValidationError, match="an async dependency with the scope 'job'"):
            Handler("n", more)

    def test_a_plain_dependency_cannot_take_the_job(self) -> None:
        def plain(job: SyncRunningJob) -> None: ...

        def work(one: int = Depends(plain)) -> None: ...

        with pytest.raises(ValidationError, match="an async dependency"):
            Handler("n", work)

    def test_names_that_only_a_type_checker_knows(self) -> None:
        def work(one: Annotated[Missing, Depends(cursor)]) -> None: ...  # type: ignore[name-defined]  # noqa: F821

        with pytest.raises(ValidationError, match="names that exist at run time"):
            Handler("n", work)

    @pytest.mark.parametrize(("call", "scope"), [(5, "job"), (cursor, "always")])
    def test_bad_arguments(self, call: Any, scope: Any) -> None:
        with pytest.raises(ValidationError):
            Depends(call, scope=scope)

    async def test_enqueue_takes_no_dependency(self, queue: Queue) -> None:
        @queue.job
        async def work(to: str, pool: Pool = Depends(open_pool)) -> None: ...

        with pytest.raises(ValidationError, match="arguments must be among to"):
            await work.enqueue(to="a", pool=Pool())
