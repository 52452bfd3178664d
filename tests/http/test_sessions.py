"""Sessions of the dashboard: signing in with a key, forged requests, signing out, and users of a proxy."""

from __future__ import annotations

import re
from typing import Any

import httpx
import pytest

from oxcart import Queue
from oxcart.errors import ValidationError
from oxcart.http.access import Forward
from oxcart.http.application import app
from oxcart.http.sessions import COOKIE, safe_next
from tests.http.conftest import Serve

KEY = "the-token-of-an-operator"
TOKENS = {KEY: "operator"}


async def signed_in(client: httpx.AsyncClient, key: str = KEY, **headers: str) -> httpx.Response:
    return await client.post("/sign-in", data={"key": key, "next": "/queues/q?x=1"}, headers=headers)


async def test_a_key_opens_a_session_whose_cookie_does_not_hold_it(queue: Queue, serve: Serve) -> None:
    client = await serve(queue, tokens=TOKENS)
    answer = await signed_in(client)
    assert (answer.status_code, answer.headers["location"]) == (303, "/queues/q?x=1")
    cookie = answer.headers["set-cookie"]
    assert cookie.startswith(f"{COOKIE}=")
    assert "HttpOnly" in cookie
    assert "samesite=strict" in cookie.lower()
    assert "Path=/" in cookie
    assert KEY not in cookie
    session = (await client.get("/api/v1/session")).json()
    assert (session["kind"], session["role"]) == ("session", "operator")
    assert (await client.get("/api/v1/jobs")).status_code == 200


async def test_unsafe_requests_of_a_session_need_its_token(queue: Queue, serve: Serve) -> None:
    client = await serve(queue, tokens=TOKENS)
    await signed_in(client)
    token = (await client.get("/api/v1/session")).json()["csrf_token"]
    for headers, status in (
        ({}, 403),
        ({"X-CSRF-Token": "x"}, 403),
        ({"X-CSRF-Token": "é".encode("latin-1")}, 403),
        ({"X-CSRF-Token": token, "Origin": "https://evil.example"}, 403),
        ({"X-CSRF-Token": token, "Sec-Fetch-Site": "cross-site"}, 403),
        ({"X-CSRF-Token": token, "Sec-Fetch-Site": "same-site"}, 403),
        ({"X-CSRF-Token": token, "Sec-Fetch-Site": "same-origin"}, 200),
        ({"X-CSRF-Token": token}, 200),
    ):
        answer = await client.post("/api/v1/queues/q/pause", headers=dict(headers))
        assert answer.status_code == status, headers
    form = await client.post("/sign-out", data={"csrf_token": token})
    assert form.status_code == 303


async def test_a_token_of_another_session_is_refused(queue: Queue, serve: Serve) -> None:
    client = await serve(queue, tokens=TOKENS)
    await signed_in(client)
    other = (await client.get("/api/v1/session")).json()["csrf_token"]
    client.cookies.clear()
    await signed_in(client)
    answer = await client.post("/api/v1/queues/q/pause", headers={"X-CSRF-Token": other})
    assert answer.status_code == 403


async def test_signing_out_ends_the_session(queue: Queue, serve: Serve) -> None:
    client = await serve(queue, tokens=TOKENS)
    await signed_in(client)
    cookie = client.cookies[COOKIE]
    token = (await client.get("/api/v1/session")).json()["csrf_token"]
    answer = await client.post("/sign-out", headers={"X-CSRF-Token": token})
    assert (answer.status_code, answer.headers["location"]) == (303, "/sign-in")
    assert COOKIE not in client.cookies
    again = await client.get("/api/v1/jobs", headers={"Cookie": f"{COOKIE}={cookie}"})
    assert again.status_code == 401


@pytest.mark.parametrize("change", ["x{}", "{}x", "{}.{}", "", ".", "e30.e30", "é"])
async def test_a_forged_cookie_is_refused(queue: Queue, serve: Serve, change: str) -> None:
    client = await serve(queue, tokens=TOKENS)
    await signed_in(client)
    cookie = change.format(client.cookies[COOKIE], "x")
    client.cookies.clear()
    headers = {"Cookie": f"{COOKIE}={cookie}".encode()}
    assert (await client.get("/api/v1/jobs", headers=headers)).status_code == 401  # type: ignore[arg-type]


async def test_a_wrong_key_shows_the_form_again_and_is_limited(queue: Queue, serve: Serve) -> None:
    client = await serve(queue, tokens=TOKENS)
    answer = await signed_in(client, "<b>not-the-key-of-anybody")
    assert answer.status_code == 401
    assert "not known" in answer.text
    assert "<b>" not in answer.text
    assert "set-cookie" not in answer.headers
    seen = [(await signed_in(client, f"another-key-{number}")) for number in range(25)]
    assert seen[-1].status_code == 429
    assert int(seen[-1].headers["retry-after"]) >= 1
    assert (await signed_in(client)).status_code == 303  # the right key is not held up by that


async def test_a_form_of_another_site_cannot_sign_in(queue: Queue, serve: Serve) -> None:
    client = await serve(queue, tokens=TOKENS)
    assert (await signed_in(client, Origin="https://evil.example")).status_code == 403
    assert (await signed_in(client, **{"Sec-Fetch-Site": "cross-site"})).status_code == 403


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("/queues/q?state=failed&x=%20", "/queues/q?state=failed&x=%20"),
        ("//evil.example", "/"),
        ("https://evil.example", "/"),
        ("/\\evil.example", "/"),
        ("/a\r\nSet-Cookie: x=1", "/"),
        ("javascript:alert(1)", "/"),
        ('/"><script>', "/%22%3E%3Cscript%3E"),
    ],
)
def test_after_signing_in_one_stays_on_this_site(text: str, kept: str) -> None:
    assert safe_next(text) == kept


async def test_the_session_ends_with_its_key(queue: Queue, serve: Serve) -> None:
    client = await serve(queue, tokens=TOKENS)
    await signed_in(client)
    cookie = client.cookies[COOKIE]
    # Another server with the same store, hence the same signing secret, which no longer knows the key.
    other = await serve(queue, tokens={"the-token-of-another": "admin"})
    assert (await other.get("/api/v1/jobs", headers={"Cookie": f"{COOKIE}={cookie}"})).status_code == 401
    third = await serve(queue, tokens=TOKENS)
    assert (await third.get("/api/v1/jobs", headers={"Cookie": f"{COOKIE}={cookie}"})).status_code == 200


async def test_a_page_without_a_session_leads_to_the_form(queue: Queue, serve: Serve) -> None:
    client = await serve(queue, tokens=TOKENS)
    page = await client.get("/sign-in", params={"next": '/a?b="'})
    assert page.status_code == 200
    assert page.headers["content-type"].startswith("text/html")
    assert re.search(r'name="next" value="/a\?b=%22"', page.text)
    api = await client.get("/api/v1/jobs", headers={"Accept": "text/html"})
    assert api.status_code == 401  # routes of the API never redirect


async def test_a_mounted_application_signs_in_below_its_path(queue: Queue) -> None:
    api = app([queue], tokens=TOKENS)
    transport = httpx.ASGITransport(api, root_path="/jobs", client=("10.0.0.7", 5))
    async with httpx.AsyncClient(transport=transport, base_url="https://site.example") as client:
        answer = await client.post("/jobs/sign-in", data={"key": KEY, "next": "/"})
        assert (answer.status_code, answer.headers["location"]) == (303, "/jobs/")
        assert "Path=/jobs" in answer.headers["set-cookie"]
        assert "Secure" in answer.headers["set-cookie"]
        assert "strict-transport-security" in answer.headers


FORWARD: dict[str, Any] = {"grants": {"ada": "admin", "eve": "operator@emails*"}, "default": "observer"}


@pytest.mark.parametrize(
    ("address", "headers", "status", "caller"),
    [
        ("10.0.0.7", {"X-Forwarded-User": "ada"}, 200, ("ada", "forward", "admin")),
        ("10.0.0.7", {"X-Forwarded-User": "bob"}, 200, ("bob", "forward", "observer")),
        ("10.0.0.7", {"X-Forwarded-User": "bob, ada"}, 401, None),
        ("10.0.0.7", [("X-Forwarded-User", "ada"), ("X-Forwarded-User", "eve")], 401, None),
        ("10.0.0.7", {}, 401, None),
        ("10.9.0.7", {"X-Forwarded-User": "ada"}, 401, None),
    ],
)
async def test_a_header_names_the_user_only_from_a_trusted_proxy(
    queue: Queue, address: str, headers: Any, status: int, caller: tuple[str, str, str] | None
) -> None:
    api = app([queue], forward=Forward("X-Forwarded-User", ["10.0.0.0/24"], **FORWARD))
    transport = httpx.ASGITransport(api, client=(address, 5))
    async with httpx.AsyncClient(transport=transport, base_url="http://jobs.example") as client:
        answer = await client.get("/api/v1/session", headers=headers)
        assert answer.status_code == status
        if caller is not None:
            found = answer.json()
            assert (found["caller"], found["kind"], found["role"]) == caller
            unsafe = await client.post("/api/v1/queues/q/pause", headers=headers)
            assert unsafe.status_code == 403  # the proxy's cookie is sent by any page: a token is needed
            token = {**headers, "X-CSRF-Token": found["csrf_token"]}
            allowed = await client.post("/api/v1/queues/q/pause", headers=token)
            assert allowed.status_code == (200 if caller[2] == "admin" else 403)


async def test_the_header_means_nothing_unless_configured(queue: Queue, serve: Serve) -> None:
    client = await serve(queue, tokens=TOKENS)
    answer = await client.get("/api/v1/session", headers={"X-Forwarded-User": "ada"})
    assert answer.status_code == 401


@pytest.mark.parametrize(("header", "networks"), [("", ["10.0.0.1"]), ("X-User", []), ("X-User", ["proxy"])])
def test_a_proxy_needs_a_header_and_addresses(header: str, networks: list[str]) -> None:
    with pytest.raises(ValidationError, match="forward"):
        Forward(header, networks)
