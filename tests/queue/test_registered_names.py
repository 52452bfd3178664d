"""An add by name applies the options and the payload check of the handler that this process knows."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from oxcart import Flow, Graph, Queue, RunningJob, sync
from oxcart.model.errors import ValidationError
from oxcart.testing import MemoryServer


async def welcome(job: RunningJob, to: str, name: str = "you") -> None: ...


def register(queue: Queue, **options: Any) -> None:
    queue.job(attempts=5, timeout="2h", priority=7, **options)(welcome)


def shown(job: Any) -> tuple[int, Any, int]:
    return job.options.attempts, job.options.timeout, job.options.priority


class TestOptions:
    async def test_add_by_name_has_the_options_of_the_handler(self, queue: Queue) -> None:
        register(queue)
        job = await queue.add("welcome", {"to": "ada"})
        assert shown(await job.get()) == (5, 7_200_000, 7)

    async def test_explicit_options_win(self, queue: Queue) -> None:
        register(queue)
        job = await queue.add("welcome", {"to": "ada"}, attempts=2, timeout=None)
        assert shown(await job.get()) == (2, None, 7)

    async def test_options_of_the_queue_are_beneath(self, make_queue: Any) -> None:
        queue = make_queue("q", attempts=9, keep_logs=4)
        register(queue)
        job = await (await queue.add("welcome", {"to": "ada"})).get()
        assert (job.options.attempts, job.options.keep_logs) == (5, 4)

    async def test_an_unknown_name_stays_as_it_is(self, queue: Queue) -> None:
        register(queue)
        queue.fallback(lambda to: None)
        job = await queue.add("farewell", {"whatever": 1})
        assert shown(await job.get())[0] == 3

    async def test_add_many_has_them_row_by_row(self, queue: Queue) -> None:
        register(queue)
        rows: list[Any] = [("welcome", {"to": "a"}), ("other", 5), ("welcome", {"to": "b"}, {"attempts": 2})]
        jobs = [await one.get() for one in await queue.add_many(rows, priority=3)]
        assert [(one.options.attempts, one.options.priority) for one in jobs] == [(5, 3), (3, 3), (2, 3)]

    async def test_flows_and_graphs_have_them(self, queue: Queue) -> None:
        register(queue)
        top = await Flow(queue, "other", children=[Flow(queue, "welcome", {"to": "a"}, attempts=6)]).add()
        first = await queue.add("other")
        graph = Graph(queue)
        graph.job("welcome", {"to": "a"}, after=[first])
        (second,) = await graph.add()
        third = await queue.add("welcome", {"to": "a"}, after=[first], attempts=1)
        jobs = [await one.get() for one in (top.children[0], second, third)]
        assert [shown(one) for one in jobs] == [(6, 7_200_000, 7), (5, 7_200_000, 7), (1, 7_200_000, 7)]

    async def test_schedules_have_them_but_for_a_single_jobs_own(self, queue: Queue) -> None:
        register(queue, delay="1h", job_id="one")
        job = await queue.schedules.upsert("welcome", every="1h", data={"to": "a"})
        stored = await job.get()
        assert stored.id.startswith("repeat:welcome:")
        assert shown(stored)[0] == 5

    async def test_the_sync_queue_has_them(self, queue: Queue, url: str) -> None:
        with sync.Queue("q", url=url) as other:

            @other.job(attempts=5)
            def welcome(to: str) -> None: ...

            job_id = other.add("welcome", {"to": "ada"}).id
        stored = await queue.jobs.get(job_id)
        assert stored is not None
        assert stored.options.attempts == 5

    @pytest.mark.parametrize("place", [{"protocol": "bridge"}, {"broker": MemoryServer()}])
    async def test_other_protocols_have_them(self, make_queue: Any, place: dict[str, Any]) -> None:
        queue = Queue("q", **place) if "broker" in place else make_queue("q", **place)
        register(queue)
        assert (await (await queue.add("welcome", {"to": "a"})).get()).options.attempts == 5
        with pytest.raises(ValidationError):
            await queue.add("welcome", {"to": 5})


class TestPayload:
    @pytest.mark.parametrize("data", [{"to": 5}, {}, None, [1], "text"])
    async def test_a_wrong_payload_is_refused_before_anything_is_written(
        self, queue: Queue, store: redis.Redis, data: Any
    ) -> None:
        register(queue)
        graph = Graph(queue)
        with pytest.raises(ValidationError, match=r"does not fit its handler|has no fields"):
            await queue.add("welcome", data)
        with pytest.raises(ValidationError):
            await queue.add_many([("welcome", {"to": "a"}), ("welcome", data)])
        with pytest.raises(ValidationError):
            Flow(queue, "welcome", data)
        with pytest.raises(ValidationError):
            graph.job("welcome", data)
        with pytest.raises(ValidationError):
            await queue.schedules.upsert("welcome", every="1h", data=data)
        assert store.keys("*") == []

    async def test_fields_that_the_handler_does_not_take_are_left_to_other_versions(
        self, queue: Queue
    ) -> None:
        register(queue)
        job = await queue.add("welcome", {"to": "ada", "newer": True})
        assert (await job.get()).data == {"to": "ada", "newer": True}
