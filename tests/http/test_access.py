"""Who may call what: every route and role, tokens, and callers without one."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import httpx
import pytest
from litestar.routes import HTTPRoute

from oxcart import Queue
from oxcart.errors import ValidationError
from oxcart.http.application import app
from oxcart.http.credentials import Credentials, parse_tokens, read_tokens
from oxcart.http.server import check_host
from oxcart.model.access import Role
from tests.http.conftest import Serve

TOKENS = {f"the-token-of-{role.name.lower()}": role.name.lower() for role in Role}
#: The lowest role of each route; None for open ones. The test fails for a route that is not listed.
NEEDS: dict[str, str | None] = {
    "GET /health": None,
    "GET /live": None,
    "GET /ready": None,
    "GET /metrics": "observer",
    "GET /api/v1": "observer",
    "GET /api/v1/openapi.json": "observer",
    "GET /api/v1/session": "observer",
    "GET /api/v1/operations": "observer",
    "GET /api/v1/operations/{operation_id}": "observer",
    "GET /api/v1/history/jobs/{job_id}": "observer",
    "GET /api/v1/history/queues/{name}/failures": "observer",
    "GET /api/v1/history/queues/{name}/slowest": "observer",
    "POST /api/v1/flows": "submitter",
    "POST /api/v1/queues/{name}/schedules/{schedule_id}/run": "operator",
    "POST /api/v1/queues/{name}/schedules/{schedule_id}/pause": "operator",
    "POST /api/v1/queues/{name}/schedules/{schedule_id}/resume": "operator",
    "GET /api/v1/audit": "admin",
    "GET /sign-in": None,
    "POST /sign-in": None,
    "POST /sign-out": "observer",
    "GET /api/v1/stats": "observer",
    "GET /api/v1/events": "observer",
    "GET /api/v1/jobs": "observer",
    "POST /api/v1/jobs": "submitter",
    "POST /api/v1/jobs/batch": "submitter",
    "GET /api/v1/jobs/{job_id}": "observer",
    "DELETE /api/v1/jobs/{job_id}": "operator",
    "POST /api/v1/jobs/{job_id}/cancel": "submitter",
    "POST /api/v1/jobs/{job_id}/retry": "operator",
    "POST /api/v1/jobs/{job_id}/promote": "operator",
    "PATCH /api/v1/jobs/{job_id}": "operator",
    "POST /api/v1/jobs/{job_id}/signal": "submitter",
    "GET /api/v1/jobs/{job_id}/result": "observer",
    "GET /api/v1/jobs/{job_id}/wait": "observer",
    "POST /api/v1/jobs/{job_id}/wait": "observer",
    "GET /api/v1/jobs/{job_id}/logs": "observer",
    "GET /api/v1/jobs/{job_id}/flow": "observer",
    "GET /api/v1/jobs/{job_id}/dependents": "observer",
    "GET /api/v1/queues": "observer",
    "GET /api/v1/queues/{name}": "observer",
    "GET /api/v1/queues/{name}/limits": "observer",
    "PUT /api/v1/queues/{name}/limits": "operator",
    "GET /api/v1/queues/{name}/groups": "observer",
    "GET /api/v1/queues/{name}/groups/one": "observer",
    "PUT /api/v1/queues/{name}/groups/limits": "operator",
    "POST /api/v1/queues/{name}/groups/pause": "operator",
    "POST /api/v1/queues/{name}/groups/resume": "operator",
    "POST /api/v1/queues/{name}/groups/clear": "admin",
    "POST /api/v1/queues/{name}/groups/cancel": "operator",
    "GET /api/v1/queues/{name}/workers": "observer",
    "GET /api/v1/queues/{name}/failures": "observer",
    "POST /api/v1/queues/{name}/pause": "operator",
    "POST /api/v1/queues/{name}/resume": "operator",
    "POST /api/v1/queues/{name}/clean": "operator",
    "POST /api/v1/queues/{name}/clear": "admin",
    "POST /api/v1/queues/{name}/obliterate": "admin",
    "POST /api/v1/queues/{name}/cancel": "operator",
    "POST /api/v1/queues/{name}/retry": "operator",
    "GET /api/v1/queues/{name}/dead-letters": "observer",
    "POST /api/v1/queues/{name}/dead-letters/replay": "operator",
    "POST /api/v1/queues/{name}/dead-letters/purge": "admin",
    "GET /api/v1/queues/{name}/dead-letters/{job_id}": "observer",
    "POST /api/v1/queues/{name}/dead-letters/{job_id}/replay": "operator",
    "DELETE /api/v1/queues/{name}/dead-letters/{job_id}": "admin",
    "GET /api/v1/queues/{name}/schedules": "observer",
    "GET /api/v1/queues/{name}/schedules/{schedule_id}": "observer",
    "PUT /api/v1/queues/{name}/schedules/{schedule_id}": "operator",
    "DELETE /api/v1/queues/{name}/schedules/{schedule_id}": "operator",
}
#: The same for the dashboard.
PAGES: dict[str, str | None] = {
    "GET /": "observer",
    "GET /events": "observer",
    "GET /queue": "observer",
    "GET /queue/events": "observer",
    "GET /jobs": "observer",
    "GET /jobs/events": "observer",
    "GET /job": "observer",
    "GET /job/events": "observer",
    "GET /search": "observer",
    "GET /flow": "observer",
    "GET /flow/events": "observer",
    "GET /failures": "observer",
    "GET /failures/events": "observer",
    "POST /failures/retry": "operator",
    "GET /dead": "observer",
    "GET /dead/events": "observer",
    "POST /dead/replay": "operator",
    "POST /dead/purge": "admin",
    "GET /schedules": "observer",
    "GET /schedules/events": "observer",
    "POST /schedules/run": "operator",
    "POST /schedules/pause": "operator",
    "POST /schedules/resume": "operator",
    "POST /schedules/remove": "operator",
    "GET /workers": "observer",
    "GET /workers/events": "observer",
    "GET /limits": "observer",
    "GET /limits/events": "observer",
    "POST /limits/set": "operator",
    "POST /limits/set-part": "operator",
    "GET /history": "observer",
    "GET /audit": "admin",
    "GET /static/{file}": None,
    "POST /groups/pause": "operator",
    "POST /groups/resume": "operator",
    "POST /queue/pause": "operator",
    "POST /queue/resume": "operator",
    "POST /job/retry": "operator",
    "POST /job/cancel": "submitter",
    "POST /job/remove": "operator",
    "POST /job/promote": "operator",
    "POST /jobs/bulk": "operator",
}


def routes() -> list[str]:
    found = []
    for route in app([Queue("q")]).litestar.routes:
        if isinstance(route, HTTPRoute) and "openapi.json/" not in route.path:
            path = route.path_format
            found += [f"{method} {path}" for method in sorted(route.methods - {"OPTIONS"})]
    return found


def test_every_route_is_listed() -> None:
    assert sorted(routes()) == sorted([*NEEDS, *PAGES])


@pytest.mark.parametrize("role", [None, *(role.name.lower() for role in Role)])
async def test_every_route_and_role(queue: Queue, serve: Serve, role: str | None) -> None:
    client = await serve(queue, tokens=TOKENS)
    headers = {} if role is None else {"Authorization": f"Bearer the-token-of-{role}"}
    for route, needed in {**NEEDS, **PAGES}.items():
        method, path = route.split()
        for name in ("{job_id}", "{schedule_id}", "{operation_id}"):
            path = path.replace(name, "none")
        path = path.replace("{name}", "q").replace("{file}", "oxcart.css")
        async with client.stream(method, path, headers=headers, timeout=60) as answer:
            status = answer.status_code
        if needed is None:
            assert status in (200, 401), route  # the form answers a sign-in without a key with 401
        elif role is None:
            assert status == 401, route
        elif Role.parse(role) < Role.parse(needed):
            assert status == 403, route
        else:
            assert status not in (401, 403), route
            assert status < 500, route


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "Bearer the-token-of-observe"},
        {"Authorization": "Bearer the-token-of-observer-"},
        {"Authorization": "Basic the-token-of-observer"},
        {"X-API-Key": "the-token"},
    ],
)
async def test_without_a_known_token_is_a_401(queue: Queue, serve: Serve, headers: dict[str, str]) -> None:
    client = await serve(queue, tokens=TOKENS)
    answer = await client.get("/api/v1/jobs", headers=headers)
    assert (answer.status_code, answer.json()["error"]["code"]) == (401, "unauthorized")
    assert answer.headers["www-authenticate"] == "Bearer"
    assert "the-token" not in answer.text


async def test_a_key_header_is_as_good_as_a_bearer(queue: Queue, serve: Serve) -> None:
    client = await serve(queue, tokens=TOKENS)
    assert (
        await client.get("/api/v1/jobs", headers={"X-API-Key": "the-token-of-observer"})
    ).status_code == 200


async def test_a_hashed_token_works(queue: Queue, serve: Serve) -> None:
    hashed = "sha256:" + hashlib.sha256(b"the-token-of-observer").hexdigest()
    client = await serve(queue, tokens={hashed: "observer"}, token="the-token-of-observer")
    assert (await client.get("/api/v1/jobs")).status_code == 200


def test_tokens_keep_no_plain_text() -> None:
    assert "the-token" not in repr(vars(Credentials(TOKENS)))


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"Host": "localhost:80"}, 200),
        ({"Host": "[::1]:80"}, 200),
        ({"Host": "evil.example"}, 403),
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "null"}, 403),
    ],
)
async def test_without_tokens_only_this_machine_is_served(
    queue: Queue, serve: Serve, headers: dict[str, str], status: int
) -> None:
    answer = await (await serve(queue)).get("/api/v1/jobs", headers=headers)
    assert answer.status_code == status


async def test_without_tokens_other_machines_are_refused(queue: Queue) -> None:
    for trusted, status in ((False, 403), (True, 200)):
        transport = httpx.ASGITransport(app([queue], trusted=trusted), client=("10.0.0.7", 5))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            assert (await client.get("/api/v1/jobs")).status_code == status


async def test_cors_is_off_unless_a_site_is_named(queue: Queue, serve: Serve) -> None:
    asked = {"Origin": "https://app.example", "Access-Control-Request-Method": "POST"}
    off = await serve(queue, tokens=TOKENS)
    answer = await off.options("/api/v1/jobs", headers=asked)
    assert "access-control-allow-origin" not in answer.headers
    on = await serve(queue, tokens=TOKENS, origins=["https://app.example"])
    answer = await on.options("/api/v1/jobs", headers=asked)
    assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (204, "https://app.example")
    other = await on.get("/health", headers={"Origin": "https://evil.example"})
    assert other.headers.get("access-control-allow-origin") != "https://evil.example"


@pytest.mark.parametrize(
    ("host", "tokens", "everyone", "fine"),
    [
        ("127.0.0.1", False, False, True),
        ("::1", False, False, True),
        ("localhost", False, False, True),
        ("0.0.0.0", False, False, False),
        ("::", False, False, False),
        ("192.168.1.5", False, False, False),
        ("0.0.0.0", True, False, True),
        ("0.0.0.0", False, True, True),
    ],
)
def test_listening_beyond_this_machine_needs_tokens(
    host: str, tokens: bool, everyone: bool, fine: bool
) -> None:
    if fine:
        check_host(host, has_keys=tokens, open_to_all=everyone)
    else:
        with pytest.raises(ValidationError, match="host must be"):
            check_host(host, has_keys=tokens, open_to_all=everyone)


def test_a_file_of_tokens(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.write_text("# who may do what\n\nobserver: a-token-to-read-with\nadmin:sha256:" + "0" * 64 + "\n")
    assert read_tokens(file) == {"a-token-to-read-with": "observer", "sha256:" + "0" * 64: "admin"}
    with pytest.raises(ValidationError, match="token file must be"):
        read_tokens(tmp_path / "none")


@pytest.mark.parametrize(
    "line", ["observer", "observer:short", "chief:a-token-to-read-with", "observer:sha256:12"]
)
def test_a_wrong_token_is_refused_without_being_shown(line: str) -> None:
    with pytest.raises(ValidationError) as caught:
        parse_tokens([line])
    assert "a-token" not in str(caught.value)
    assert "short" not in str(caught.value)


@pytest.mark.parametrize(
    "options",
    [
        {"types": {"t": "other"}},
        {"default": "other"},
        {"tokens": {"short": "observer"}},
        {"tokens": {"a-long-enough-token": "chief"}},
        {"lifetime": "never"},
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        app([Queue("q")], **options)
    with pytest.raises(ValidationError):
        app([])


async def test_a_key_limits_its_caller_also_where_others_are_trusted(queue: Queue) -> None:
    transport = httpx.ASGITransport(app([queue], tokens=TOKENS, trusted=True), client=("10.0.0.7", 5))
    async with httpx.AsyncClient(transport=transport, base_url="http://site.example") as client:
        for token, status in (("the-token-of-observer", 403), ("of-the-site-around", 200), ("", 200)):
            headers = {"Authorization": f"Bearer {token}"} if token else {}
            answer = await client.post("/api/v1/queues/q/pause", headers=headers)
            assert answer.status_code == status, token
