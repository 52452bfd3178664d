"""The same lifecycle of a queue by Node alone and by Oxcart alone: the same keys, fields and events."""

from __future__ import annotations

import pytest

from oxcart import Queue
from tests.interop import wire
from tests.interop.lifecycle import NodeAlone, OursAlone, live
from tests.nodes import NodeDriver
from tests.servers import ValkeyServer

pytestmark = [pytest.mark.node, pytest.mark.asyncio(loop_scope="session")]

#: Keys that exist only at some moments.
_FLEETING = {"marker", "stalled", "*:lock"}


async def test_one_job_leaves_the_same_traces(node: NodeDriver, queue: Queue, server: ValkeyServer) -> None:
    client = server.client()
    theirs, base = f"bull:{queue.name}-node", f"bull:{queue.name}"
    await live(NodeAlone(node, f"{queue.name}-node"))
    await live(OursAlone(queue))

    expected = wire.event_shapes(client, theirs)
    assert expected.keys() >= {"added", "waiting", "delayed", "active", "progress", "completed", "failed"}
    assert expected.keys() >= {"retries-exhausted", "drained", "duplicated", "removed", "paused", "resumed"}
    assert wire.event_shapes(client, base) == expected

    for state in ("completed", "failed"):
        assert wire.job_shapes(client, base, state) == wire.job_shapes(client, theirs, state)

    fleeting = {*_FLEETING, "ox:call:*", "ox:worker:*", "ox:workers", "ox:alive"}
    assert wire.key_types(client, base).keys() - fleeting == wire.key_types(client, theirs).keys() - _FLEETING
    assert wire.wrong_types(client, theirs) == {}
    assert wire.wrong_types(client, base) == {}
    # Every key that only Oxcart uses expires by itself.
    own = list(client.scan_iter(f"{base}:ox:*"))
    assert own
    assert all(0 < int(client.pttl(key)) <= 600_000 for key in own)
