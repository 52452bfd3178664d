"""The page of one job: copies of its call and jobs of the same correlation id; and causes of failures."""

from __future__ import annotations

import shlex
from typing import Any

import pytest

from oxcart import Queue, Worker
from oxcart.errors import JobFailed
from oxcart.http.web import failures
from oxcart.http.web.copies import as_curl, as_python
from tests.conftest import MakeQueue
from tests.http.conftest import Serve
from tests.servers import free_port

KEPT = ("attempts", "backoff", "delay", "lifetime", "timeout", "tags", "correlation_id", "limit_key", "lifo")


async def test_a_copy_has_all_options_of_a_job(queue: Queue, serve: Serve) -> None:
    first = await queue.add(
        "send",
        {"to": "it's"},
        attempts=7,
        backoff={"type": "linear", "delay": 250, "cap": 4000},
        delay="1h",
        lifetime="3h",
        timeout="90s",
        priority=4,
        tags={"tenant": "acme"},
        correlation_id="c-1",
        limit_key="acme",
        lifo=True,
        idempotency_key="once",
    )
    job = await first.get()
    made: list[Any] = []

    class Recorder:
        def __init__(self, name: str) -> None:
            assert name == "q"

        async def add(self, name: str, data: Any, **options: Any) -> None:
            made.append(await queue.add(name, data, **options))

    await eval(as_python(job, job.data, "q").partition("await ")[2], {"Queue": Recorder})
    client = await serve(queue)
    (body,) = [word for word in shlex.split(as_curl(job, job.data, "q")) if word.startswith("{")]
    posted = await client.post("/api/v1/jobs", content=body, headers={"Content-Type": "application/json"})
    for job_id in (made[0].id, posted.json()["id"]):
        again = await queue.jobs.get(job_id)
        assert again is not None
        assert (again.id != job.id, again.data, again.priority) == (True, job.data, 4)
        for name in KEPT:
            assert getattr(again.options, name) == getattr(job.options, name), name


async def test_jobs_of_a_correlation_id_are_found_in_all_visible_queues(
    make_queue: MakeQueue, serve: Serve
) -> None:
    emails, video, hidden = make_queue("emails"), make_queue("video"), make_queue("hidden")
    one = await emails.add("send", correlation_id="order-7")
    other = await video.add("render", correlation_id="order-7")
    secret = await hidden.add("secret", correlation_id="order-7")
    key = "the-key-of-two-queues"
    client = await serve(emails, video, hidden, tokens={key: "operator@[ev]*"})
    page = await client.get(f"/job?queue=emails&id={one.id}", headers={"X-API-Key": key})
    assert f"queue=video&amp;id={other.id}" in page.text
    assert secret.id not in page.text


async def test_a_cause_that_was_not_counted_whole_says_at_least(
    queue: Queue, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    @queue.job(attempts=1)
    async def bad() -> None:
        raise ConnectionError("no answer")

    jobs = await queue.add_many([("bad", None)] * 6)
    async with Worker(queue).running():
        for job in jobs:
            with pytest.raises(JobFailed):
                await job.result(30)
    client = await serve(queue)
    assert "at least" not in (await client.get("/failures")).text
    monkeypatch.setattr(failures, "SCAN", 5)
    assert "at least" in (await client.get("/failures")).text


async def test_a_queue_that_cannot_be_read_leaves_the_page_of_a_job(
    make_queue: MakeQueue, serve: Serve
) -> None:
    emails, video = make_queue("emails"), make_queue("video")
    far = Queue("far", url=f"redis://127.0.0.1:{free_port()}")
    one = await emails.add("send", correlation_id="order-7")
    other = await video.add("render", correlation_id="order-7")
    client = await serve(emails, far, video)
    page = await client.get(f"/job?queue=emails&id={one.id}")
    assert page.status_code == 200
    assert f"queue=video&amp;id={other.id}" in page.text
    await far.close()
