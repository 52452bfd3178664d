"""The API inside another ASGI application, below a path."""

from __future__ import annotations

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
