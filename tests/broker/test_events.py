"""The reader of a queue's event stream."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from oxcart.broker.bullmq.broker import BullMQBroker
from oxcart.broker.connection import Server
from oxcart.broker.events import NEWEST, PAGE


async def test_newest_events_come_in_small_pages_first(
    url: str, store: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = BullMQBroker(Server(url), "q")
    for number in range(1, 2 * PAGE):
        store.xadd("bull:q:events", {"event": "added", "jobId": "1"}, id=f"{number}-0")
    asked: list[int] = []
    command = broker.caller.command

    async def counted(*args: Any, timeout: float | None = None) -> Any:
        asked.append(args[-1])
        return await command(*args, timeout=timeout)

    monkeypatch.setattr(broker.caller, "command", counted)
    try:
        found = []
        async for event in broker.open_events().backwards():
            found.append(event.id)
            if len(found) == 1:
                assert asked == [NEWEST], "the end of one job needs few events"
    finally:
        await broker.close()
    assert found == [f"{number}-0" for number in range(2 * PAGE - 1, 0, -1)]
    assert asked == [50, 200, 800, 1000]
