"""Lists of jobs over HTTP: filters, order and pages."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from oxcart import Queue
from tests.conftest import MakeQueue
from tests.http.conftest import Serve


async def pages(client: httpx.AsyncClient, **params: Any) -> list[list[str]]:
    found: list[list[str]] = []
    cursor = None
    while True:
        answer = await client.get("/api/v1/jobs", params={**params, **({"cursor": cursor} if cursor else {})})
        assert answer.status_code == 200, answer.text
        body = answer.json()
        assert body["count"] == len(body["jobs"])
        found.append([job["id"] for job in body["jobs"]])
        cursor = body.get("next_cursor")
        if cursor is None:
            return found


async def test_newest_jobs_come_first_over_all_queues(make_queue: MakeQueue, serve: Serve) -> None:
    a, b = make_queue("a"), make_queue("b")
    for number in range(6):
        await (a, b)[number % 2].add("t", number, job_id=f"j{number}", timestamp=1_000 + number)
    client = await serve(a, b)
    assert await pages(client) == [["j5", "j4", "j3", "j2", "j1", "j0"]]
    assert await pages(client, queue="b") == [["j5", "j3", "j1"]]


@pytest.mark.parametrize("size", [1, 3, 7])
async def test_pages_show_each_job_once(make_queue: MakeQueue, serve: Serve, size: int) -> None:
    a, b = make_queue("a"), make_queue("b")
    # Many jobs of the same millisecond, so that a page ends within it.
    await a.add_many([("t", n, {"job_id": f"a{n}", "timestamp": 1000 + n // 5}) for n in range(12)])
    await b.add_many([("t", n, {"job_id": f"b{n}", "timestamp": 1000 + n // 5}) for n in range(12)])
    client = await serve(a, b)
    first = (await client.get("/api/v1/jobs", params={"limit": size})).json()
    assert (first["matched"], first["exact"]) == (24, True)
    found = await pages(client, limit=size)
    assert all(len(page) <= size for page in found)
    assert sorted(one for page in found for one in page) == sorted(
        f"{name}{n}" for name in "ab" for n in range(12)
    )


async def test_a_job_that_is_added_between_pages_shifts_nothing(queue: Queue, serve: Serve) -> None:
    await queue.add_many([("t", n, {"job_id": f"j{n}", "timestamp": 1000 + n}) for n in range(4)])
    client = await serve(queue)
    first = (await client.get("/api/v1/jobs", params={"limit": 2})).json()
    await queue.add("t", job_id="new")
    second = (await client.get("/api/v1/jobs", params={"limit": 2, "cursor": first["next_cursor"]})).json()
    assert [job["id"] for job in (*first["jobs"], *second["jobs"])] == ["j3", "j2", "j1", "j0"]


async def test_filters(queue: Queue, serve: Serve) -> None:
    await queue.add("mail", job_id="one", tags={"tenant": "acme", "plan": "pro"}, correlation_id="c1")
    await queue.add("mail", job_id="two", tags={"tenant": "acme"}, delay="1h")
    await queue.add("sms", job_id="three")
    await queue.jobs.cancel("three", "not wanted")
    client = await serve(queue)
    for params, ids in (
        ({"type": "mail"}, {"one", "two"}),
        ({"type": ["mail", "sms"]}, {"one", "two", "three"}),
        ({"state": "delayed"}, {"two"}),
        ({"state": ["scheduled", "cancelled"]}, {"one", "three"}),
        ({"tag": "tenant=acme"}, {"one", "two"}),
        ({"tag": ["tenant=acme", "plan=pro"]}, {"one"}),
        ({"correlation_id": "c1"}, {"one"}),
        ({"reason": "NOT wanted"}, {"three"}),
        ({"since": "1h"}, {"one", "two", "three"}),
        ({"until": "1h"}, set()),
    ):
        assert set((await pages(client, **params))[0]) == ids, params


@pytest.mark.parametrize(
    ("params", "field"),
    [
        ({"state": "asleep"}, "state"),
        ({"limit": "0"}, "limit"),
        ({"limit": "1001"}, "limit"),
        ({"limit": "many"}, "limit"),
        ({"cursor": "!!"}, "cursor"),
        ({"cursor": "W10"}, "cursor"),
        ({"tag": "acme"}, "tag"),
        ({"since": "someday"}, "since"),
        ({"category": "bad"}, "category"),
    ],
)
async def test_a_wrong_parameter_is_named(
    queue: Queue, serve: Serve, params: dict[str, str], field: str
) -> None:
    answer = await (await serve(queue)).get("/api/v1/jobs", params=params)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (400, "validation_error")
    assert error["details"][0]["field"] == field


async def test_an_unknown_queue_is_a_404(queue: Queue, serve: Serve) -> None:
    assert (await (await serve(queue)).get("/api/v1/jobs", params={"queue": "other"})).status_code == 404
