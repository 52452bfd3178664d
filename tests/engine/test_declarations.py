"""Schedules that handlers declare: stored when a worker starts, removed when the declaration is gone."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from oxcart import Queue, RunningJob, Worker
from oxcart.engine.handler import Handler
from oxcart.errors import NotSupported
from oxcart.model.errors import ValidationError
from oxcart.model.schedule import Schedule
from oxcart.testing import MemoryServer, drain
from tests.conftest import MakeQueue
from tests.signals import eventually


async def digest(job: RunningJob) -> str:
    return job.name


async def poll(limit: int = 10) -> int:
    return limit


async def needs(to: str) -> None: ...


#: Another module of the same queue.
async def of_another_app() -> None: ...


of_another_app.__module__ = "another.app"


async def ids(queue: Queue) -> dict[str, str | None]:
    return {one.id: one.declared_by for one in await queue.schedules.list()}


async def start(queue: Queue, **options: Any) -> None:
    """Starts and stops a worker; its declarations are done in between."""
    worker = Worker(queue, **options)
    async with worker.running():
        await worker.pause(wait=False)
        await eventually(lambda: not _declaring(), "the schedules are declared")


def _declaring() -> bool:
    return any(task.get_name() == "oxcart-declaration of schedules" for task in asyncio.all_tasks())


@pytest.fixture(params=["bullmq", "bridge"])
def queues(request: pytest.FixtureRequest, make_queue: MakeQueue) -> Any:
    """Makes queues of one name, as later versions of an app would."""
    return lambda: make_queue("q", protocol=request.param)


class TestLife:
    async def test_a_worker_stores_what_its_handlers_declare(self, queues: Any) -> None:
        queue = queues()
        queue.job(cron="0 7 * * 1-5", tz="Europe/Zurich", attempts=5)(digest)
        queue.job(poll)
        await start(queue)
        (found,) = await queue.schedules.list()
        assert (found.id, found.name, found.declared_by) == ("digest", "digest", __name__)
        assert (found.schedule.cron, found.schedule.tz) == ("0 7 * * 1-5", "Europe/Zurich")

    async def test_the_second_start_changes_nothing(self, queues: Any) -> None:
        queue = queues()
        queue.job(cron="0 7 * * *")(digest)
        await start(queue)
        (first,) = await queue.schedules.list()
        await start(queue)
        assert await queue.schedules.list() == [first]

    async def test_a_changed_declaration_changes_the_schedule(self, queues: Any) -> None:
        old, new = queues(), queues()
        old.job(cron="0 7 * * *")(digest)
        new.job(cron="0 8 * * *")(digest)
        await start(old)
        await start(new)
        (found,) = await new.schedules.list()
        assert found.schedule.cron == "0 8 * * *"

    async def test_a_removed_declaration_removes_the_schedule(
        self, queues: Any, caplog: pytest.LogCaptureFixture
    ) -> None:
        old, new = queues(), queues()
        old.job(cron="0 7 * * *")(digest)
        old.job(cron="0 9 * * *")(poll)
        new.job(digest)
        new.job(cron="0 9 * * *")(poll)
        with caplog.at_level(logging.INFO):
            await start(old)
            await start(new)
        assert set(await ids(new)) == {"poll"}
        text = f"removed schedule digest, which module {__name__} no longer declares"
        assert any(text in one.getMessage() for one in caplog.records)

    async def test_schedules_of_others_are_never_touched(self, queues: Any) -> None:
        theirs, ours = queues(), queues()
        theirs.job(cron="0 1 * * *", name="theirs")(of_another_app)
        await start(theirs)
        await ours.schedules.upsert("by_hand", cron="0 2 * * *")
        ours.job(cron="0 3 * * *")(digest)
        await start(ours)
        ours_later = queues()
        ours_later.job(digest)
        await start(ours_later)
        assert await ids(ours) == {"theirs": "another.app", "by_hand": None}

    async def test_a_schedule_by_hand_of_the_same_id_is_left_as_it_is(
        self, queues: Any, caplog: pytest.LogCaptureFixture
    ) -> None:
        queue = queues()
        await queue.schedules.upsert("digest", cron="0 2 * * *")
        queue.job(cron="0 3 * * *")(digest)
        await start(queue)
        (found,) = await queue.schedules.list()
        assert (found.schedule.cron, found.declared_by) == ("0 2 * * *", None)
        assert any("schedule digest was made by hand" in one.getMessage() for one in caplog.records)

    async def test_a_worker_may_leave_schedules_alone(self, queues: Any) -> None:
        queue = queues()
        queue.job(cron="0 7 * * *")(digest)
        await start(queue, schedules=False)
        await drain(queue)
        assert await ids(queue) == {}


class TestRuns:
    async def test_an_interval_runs_the_handler_with_its_options(self, queue: Queue) -> None:
        ran: asyncio.Queue[RunningJob] = asyncio.Queue()

        @queue.job(every="1h", attempts=7, delay="1h")
        async def tick(job: RunningJob, limit: int = 10) -> int:
            ran.put_nowait(job)
            return limit

        async with Worker(queue).running():
            job = await asyncio.wait_for(ran.get(), 20)
        assert (job.name, job.options.attempts, job.data) == ("tick", 7, {})
        assert job.id.startswith("repeat:tick:")

    def test_a_protocol_without_schedules(self) -> None:
        queue = Queue("q", broker=MemoryServer())
        with pytest.raises(NotSupported, match="schedules"):
            queue.job(cron="0 7 * * *")(digest)


class TestRefusals:
    @pytest.mark.parametrize(
        ("options", "text"),
        [
            ({"cron": "61 7 * * *"}, "61"),
            ({"cron": "0 7 * * *", "tz": "Mars/Olympus"}, "Mars/Olympus"),
            ({"cron": "0 7 * * *", "every": "1h"}, "either every or cron"),
            ({"every": "0s"}, "every"),
            ({"tz": "Europe/Zurich"}, "tz must be left out without cron"),
            ({"cron": "0 7 * * *", "target": "all;c=gpu"}, "target"),
        ],
    )
    def test_a_bad_declaration(self, queue: Queue, options: dict[str, Any], text: str) -> None:
        with pytest.raises(ValidationError, match=text):
            queue.job(**options)(digest)
        assert queue._core.handlers.names == []

    def test_a_handler_that_needs_a_payload(self) -> None:
        with pytest.raises(ValidationError, match="handler 'needs' needs a payload"):
            Handler("needs", needs, schedule=Schedule.build(cron="0 7 * * *"))

    def test_bridge_has_no_intervals(self, make_queue: MakeQueue) -> None:
        with pytest.raises(NotSupported, match="intervals"):
            make_queue("q", protocol="bridge").job(every="1h")(digest)
