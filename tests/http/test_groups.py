"""Fair groups over HTTP: submission, pages, settings and operations, also by `Queue(url="http://…")`."""

from __future__ import annotations

from typing import Any

import pytest

from oxcart import Queue
from oxcart.broker.port.results import GroupSettings
from oxcart.errors import ApiRefused, ValidationError
from oxcart.groups import GroupUsage
from tests.http.conftest import Serve

PATH = "/api/v1/queues/q/groups"


async def submit(client: Any, many: int, **fields: Any) -> None:
    jobs = [{"type": "welcome", "queue": "q", **fields} for _ in range(many)]
    assert (await client.post("/api/v1/jobs/batch", json={"jobs": jobs})).status_code in (200, 201)


async def test_submitted_jobs_join_their_group(queue: Queue, serve: Serve) -> None:
    client = await serve(queue)
    await queue.groups.pause("a/b")
    answer = await client.post("/api/v1/jobs", json={"type": "welcome", "queue": "q", "group": "a/b"})
    assert answer.status_code == 201
    await submit(client, 3, group="a/b")
    assert await queue.groups.list() == {"a/b": 4}
    wrong = await client.post("/api/v1/jobs", json={"type": "welcome", "queue": "q", "group": "a\nb"})
    assert wrong.status_code == 400
    assert "group" in wrong.text


async def test_groups_are_listed_page_by_page(queue: Queue, serve: Serve) -> None:
    client = await serve(queue)
    for name, many in (("a", 1), ("b", 5), ("c", 2)):
        await queue.groups.pause(name)
        await submit(client, many, group=name)
    first = (await client.get(PATH, params={"limit": 2})).json()
    assert first["groups"] == [{"group": "a", "waiting": 1}, {"group": "b", "waiting": 5}]
    assert (first["total"], first["waiting"], first["exact"]) == (3, 8, True)
    assert [row["group"] for row in first["largest"]] == ["b", "c", "a"]
    rest = (await client.get(PATH, params={"limit": 2, "after": first["cursor"]})).json()
    assert (rest["groups"], rest["cursor"]) == ([{"group": "c", "waiting": 2}], None)
    assert (await client.get(PATH, params={"limit": 0})).status_code == 400


async def test_a_group_is_limited_paused_and_resumed(queue: Queue, serve: Serve) -> None:
    client = await serve(queue)
    changed = await client.put(f"{PATH}/limits", json={"group": "a", "concurrent": 2, "weight": 3})
    assert (changed.json()["concurrent"], changed.json()["weight"]) == (2, 3)
    await client.put(f"{PATH}/limits", json={"group": None, "per_minute": 60})
    paused = (await client.post(f"{PATH}/pause", json={"group": "a"})).json()
    assert paused["settings"]["paused"]
    assert await queue.groups.settings("a") == GroupSettings(2, None, 3, True)
    assert await queue.groups.settings() == GroupSettings(0, 60)
    resumed = (await client.post(f"{PATH}/resume", json={"group": "a"})).json()
    assert not resumed["settings"]["paused"]
    shown = (await client.get(f"{PATH}/one", params={"group": "a"})).json()
    assert (shown["settings"]["weight"], shown["all"]["per_minute"]) == (3, 60)
    removed = await client.put(f"{PATH}/limits", json={"group": "a", "concurrent": None, "weight": None})
    assert removed.json()["concurrent"] is None
    for wrong in (
        {"group": None, "weight": 2},
        {"group": "a", "concurrent": -1},
        {"group": "a", "weight": 0},
    ):
        assert (await client.put(f"{PATH}/limits", json=wrong)).status_code == 400, wrong
    assert (await client.post(f"{PATH}/pause", json={})).status_code == 400


async def test_a_group_is_cleared_and_cancelled(queue: Queue, serve: Serve) -> None:
    client = await serve(queue)
    for name in ("", "a", "b"):
        await queue.groups.pause(name)
        await submit(client, 3, **({"group": name} if name else {}))
    assert (await client.post(f"{PATH}/clear", json={"group": "a"})).json() == {"changed": 3}
    done = await client.post(f"{PATH}/cancel", json={"group": "b", "reason": "moved out"})
    assert done.json() == {"changed": 3}
    assert (await queue.counts())["delayed"] == 3, (
        "removed jobs count in their group until a worker meets them"
    )
    assert (await client.get(f"{PATH}/one", params={"group": ""})).json()["waiting"] == 3
    assert (await queue.counts())["failed"] == 3


async def test_groups_of_a_queue_behind_the_api(
    queue: Queue, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = await serve(queue)
    async with Queue("q", url=str(client.base_url)) as remote:
        groups = remote.groups
        await groups.set_all(per_minute=60)
        await groups.set("a", concurrent=2, weight=3)
        await groups.pause("a")
        assert await groups.settings("a") == await queue.groups.settings("a")
        assert await groups.settings() == await queue.groups.settings() == GroupSettings(0, 60)
        for _ in range(3):
            await remote.add("welcome", group="a")
        assert await groups.list() == {"a": 3}
        assert await groups.list(after="a") == {}
        assert await groups.usage("a") == GroupUsage(3, 0, 0)
        found = await groups.summary()
        assert (found.groups, found.waiting, found.largest) == (1, 3, {"a": 3})
        assert await groups.clear("a") == 3
        await remote.add("welcome", group="a")
        assert await groups.cancel("a", "gone") == 1
        await groups.resume("a")
        assert await queue.groups.settings("a") == GroupSettings(2, None, 3, False)
        with pytest.raises((ApiRefused, ValidationError)):
            await groups.set("a", concurrent=-1)
