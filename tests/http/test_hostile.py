"""Text of jobs and callers that tries to break out of a header, an event, a log line or a terminal."""

from __future__ import annotations

import json
import logging
from typing import Any

import httpx
import pytest

from oxcart import Queue, RunningJob, Worker
from oxcart.http.client import Client
from oxcart.observe import logs
from tests.http.conftest import Serve
from tests.http.test_stream import stream
from tests.servers import ValkeyServer
from tests.signals import eventually

#: Ends of lines of every kind, as Python, JavaScript and HTTP know them, and what would follow them.
ENDS = ("\r\n", "\n", "\x0b", "\x0c", "\x1c", "\x85", "\u2028", "\u2029")
EVIL = "".join(
    f'{end}Set-Cookie: a=b{end}event: job.completed{end}data: {{"id":"forged"}}{end}{end}' for end in ENDS
)
STEERS = "\x1b[31m\x1b]0;title\x07\u202e"
#: The fields of a job that take any text.
FIELDS: dict[str, Any] = {
    "payload": {EVIL: [EVIL + STEERS]},
    "tags": {"tag": "\u2028event: forged\x85data: {}\u2029" + EVIL[:150]},
}
#: Those that take one line: each is refused or carried as it is, never interpreted.
NAMES = (
    "type",
    "id",
    "correlation_id",
    "idempotency_key",
    "limit_key",
    "group",
    "queue",
    "target",
    "callback_url",
)


@pytest.mark.parametrize("field", NAMES)
@pytest.mark.parametrize("text", [EVIL[:120], "x\r\nSet-Cookie: a=b", f"x{STEERS}"])
async def test_no_field_of_a_request_reaches_a_header(
    queue: Queue, serve: Serve, field: str, text: str
) -> None:
    client = await serve(queue)
    answer = await client.post("/api/v1/jobs", json={"type": "welcome", field: text})
    assert answer.status_code in (201, 400, 404)
    assert "set-cookie" not in answer.headers
    assert answer.headers["content-type"] == "application/json"
    answer.json()
    if answer.status_code == 201:
        read = await client.get("/api/v1/jobs", params={"state": "scheduled"})
        assert read.json()["count"] == 1


async def test_no_field_of_a_job_forges_an_event(queue: Queue, serve: Serve) -> None:
    async def fails(job: RunningJob) -> None:
        await job.update_progress(40, EVIL)
        raise RuntimeError(EVIL + STEERS)

    queue.fallback(fails)
    client = await serve(queue)
    async with stream(client) as reader, Worker(queue).running():
        added = await client.post("/api/v1/jobs", json={"type": "welcome", "max_attempts": 1, **FIELDS})
        seen = await reader.until("job.failed")
    assert {one.data["id"] for one in seen} == {added.json()["id"]}
    assert "job.completed" not in [one.event for one in seen]
    assert set(reader.order) <= {"id", "event", "data"}
    async with Client(str(client.base_url)) as ours:
        names = []
        async for event in ours.events(since="q=0-0"):
            assert event.job_id == added.json()["id"]
            names.append(event.name)
            if event.name == "job.failed":
                break
    assert "job.completed" not in names


async def test_raw_events_have_no_end_of_line_but_their_own(queue: Queue, serve: Serve) -> None:
    client = await serve(queue)
    await client.post("/api/v1/jobs", json={"type": "welcome", **FIELDS})
    raw = b""
    async with client.stream("GET", "/api/v1/events", headers={"Last-Event-ID": "q=0-0"}) as answer:
        async for chunk in answer.aiter_bytes():
            raw += chunk
            if b"event: job.created" in raw and raw.endswith(b"\n\n"):
                break
    for block in raw.decode().strip("\n").split("\n\n"):
        lines = block.splitlines()
        assert [line.partition(":")[0] for line in lines] == ["id", "event", "data"]
        json.loads(lines[2].removeprefix("data: "))


async def test_hostile_headers_are_not_echoed(queue: Queue, serve: Serve) -> None:
    client = await serve(queue)
    for value in (b"<script>", b"\xff\xfe", b"x" * 500):
        answer = await client.get("/api/v1", headers=[(b"X-Request-ID", value)])
        assert answer.status_code == 200
        assert answer.headers["x-request-id"].encode("latin-1") != value
    answer = await client.get("/api/v1", headers=[(b"X-Request-ID", b"a\x1b[31m")])
    assert answer.status_code == 400
    error = {"code": "invalid_request", "message": "Invalid HTTP request received."}
    assert answer.json() == {"error": error}
    answer = await client.get("/api/v1/events", headers={"Last-Event-ID": "q=0-0;<b>"})
    assert answer.status_code == 400


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/api/v1/jobs", b'{"type": "\xff", "queue": "q"}'),
        ("POST", "/api/v1/jobs/batch", b'{"jobs": [{"type": "\xc3"}]}'),
        ("PUT", "/api/v1/queues/q/groups/limits", b'{"group": "\xff"}'),
    ],
)
async def test_a_body_that_is_no_utf_8_is_refused(
    queue: Queue, serve: Serve, method: str, path: str, body: bytes
) -> None:
    client = await serve(queue)
    answer = await client.request(method, path, content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 400
    assert answer.json()["error"]["message"] == "the body is no UTF-8"


async def test_what_jobs_and_callers_send_steers_no_log(
    queue: Queue, serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)

    async def fails(job: RunningJob) -> None:
        raise RuntimeError(EVIL + STEERS)

    queue.fallback(fails)
    client = await serve(queue)

    async def has_failed() -> bool:
        return bool((await client.get("/api/v1/jobs?state=dead_letter")).json()["count"])

    async with Worker(queue).running():
        await client.post("/api/v1/jobs", json={"type": "welcome\x1b[31m", "max_attempts": 1, **FIELDS})
        await eventually(has_failed, "the job has failed")
    await client.get(f"/api/v1/jobs/{httpx.QueryParams({'x': EVIL})}")
    assert any("failed for good" in record.getMessage() for record in caplog.records)
    for formatter in (logs.JsonFormatter(), logs.TextFormatter()):
        for record in caplog.records:
            if record.name.startswith("oxcart"):
                lines = formatter.format(record)
                assert "\x1b" not in lines
                assert "\u202e" not in lines
                assert not any(line.startswith("Set-Cookie") for line in lines.splitlines())


async def test_ids_that_are_no_text_are_listed_and_shown(
    queue: Queue, serve: Serve, valkey: ValkeyServer
) -> None:
    client = await serve(queue)
    await queue.schedules.upsert("tick", every="1h", name="tick")
    with valkey.client(decode_responses=False) as raw:
        base = f"bull:{queue.name}"
        raw.hset(f"{base}:".encode() + b"\xff\xfe", mapping={"name": "n", "data": "1", "timestamp": 1})
        raw.rpush(f"{base}:wait", b"\xff\xfe")
        raw.zadd(f"{base}:repeat", {b"\xff\xfe": 1})
        raw.hset(f"{base}:repeat:".encode() + b"\xff\xfe", mapping={"name": "n", "every": 1000, "ic": 1})
    listed = await client.get("/api/v1/jobs", params={"state": "scheduled", "queue": queue.name})
    assert listed.status_code == 200
    assert "\udcff\udcfe" in [job["id"] for job in listed.json()["jobs"]]
    for page in ("/schedules", f"/jobs?queue={queue.name}&state=ready"):
        shown = await client.get(page, headers={"accept": "text/html"})
        assert (shown.status_code, page) == (200, page)
