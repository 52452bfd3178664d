"""The API inside another ASGI application, below a path."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from oxcart import Queue
from oxcart.http.application import app


@pytest.mark.parametrize("full", [True, False])
async def test_the_api_is_mounted_below_a_path(queue: Queue, full: bool) -> None:
    """Servers pass the path with ``root_path`` (the specification, Starlette) or without it (older ones)."""
    api = app([queue], trusted=True)

    async def site(scope: Any, receive: Any, send: Any) -> None:
        path = scope["path"] if full else scope["path"].removeprefix("/jobs")
        await api({**scope, "root_path": "/jobs", "path": path}, receive, send)

    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(site), base_url="http://site.example"
    ) as client:
        assert (await client.get("/jobs/health")).status_code == 200
        made = await client.post("/jobs/api/v1/jobs", json={"type": "welcome"})
        assert made.status_code == 201
        assert (await client.get(f"/jobs/api/v1/jobs/{made.json()['id']}")).json()["state"] == "scheduled"
        assert (await client.get("/jobs/nothing")).status_code == 404


PROGRAM = """
import asyncio, httpx, json, sys
from examples.mount_{name} import emails, site

async def main():
    headers = {{}}
    if "{name}" == "fastapi":
        from examples.mount_fastapi import PASSWORD
        headers = {{"Authorization": f"Bearer {{PASSWORD}}"}}
    transport = httpx.ASGITransport(site, client=("127.0.0.1", 5))
    seen = []
    async with emails, httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        seen.append((await client.get("/jobs/api/v1/jobs")).status_code)
        made = await client.post("/jobs/api/v1/jobs", json={{"type": "emails"}}, headers=headers)
        found = await client.get(f"/jobs/api/v1/jobs/{{made.json()['id']}}", headers=headers)
        page = await client.get("/jobs/", headers={{**headers, "Accept": "text/html"}})
        seen += [made.status_code, found.json()["state"], page.status_code, "/jobs/static" in page.text]
        own = "/welcome/ada" if "{name}" == "fastapi" else "/"
        method = "POST" if "{name}" == "fastapi" else "GET"
        seen.append((await client.request(method, own, headers=headers)).status_code)
        seen.append((await emails.counts())["waiting"])
    print(json.dumps(seen))

asyncio.run(main())
"""


@pytest.mark.parametrize(
    ("name", "seen"),
    [
        ("fastapi", [401, 201, "scheduled", 200, True, 200, 2]),
        ("starlette", [200, 201, "scheduled", 200, True, 200, 1]),
        ("django", [200, 201, "scheduled", 200, True, 200, 1]),
    ],
)
def test_the_examples_mount_the_api(url: str, name: str, seen: list[Any]) -> None:
    """Each in a process of its own: a Django project is configured once per process."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(name=name)],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "OXCART_URL": url},
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == seen
