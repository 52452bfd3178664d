"""The calls of every script, recorded once from a walk through the verbs.

That of BullMQ is in `tests/cluster/test_script_keys.py`, that of Bridge in `bridge_calls.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from oxcart.broker.bridge import scripts as bridge_scripts
from oxcart.broker.bullmq import scripts as bullmq_scripts
from oxcart.broker.bullmq.broker import BullMQBroker
from oxcart.broker.connection import Server
from tests.cluster.test_script_keys import Monitor, _add, _groups, _operate, _walk
from tests.fuzz import bridge_calls
from tests.servers import ValkeyServer

#: The scripts of each protocol.
SCRIPTS: dict[str, Any] = {"bullmq": bullmq_scripts, "bridge": bridge_scripts}


@dataclass(frozen=True)
class Call:
    """A call of a script, as a broker made it."""

    verb: str
    sha: bytes
    arguments: tuple[bytes, ...]


async def record(server: ValkeyServer, protocol: str = "bullmq") -> list[Call]:
    """Walks through every script on an empty server; returns the calls in their order."""
    with server.client() as client:
        client.flushall()
        monitor = Monitor(server)
        if protocol == "bridge":
            await bridge_calls.walk(server)
        else:
            await _bullmq(server, client)
        lines = monitor.stop(server)
    scripts = SCRIPTS[protocol]
    shas = {scripts.load(verb).sha.decode(): verb for verb in scripts.verbs()}
    calls = []
    for who, words in lines:
        if who != "lua" and words[0] == "EVALSHA":
            raw = [word.encode("latin-1", "replace") for word in words]
            calls.append(Call(shas[words[1]], raw[1], tuple(raw[2:])))
    return calls


async def _bullmq(server: ValkeyServer, client: Any) -> None:
    one = BullMQBroker(Server(server.url), "one", prefix="{bull}", tagged=True)
    other = BullMQBroker(Server(server.url), "two", prefix="{bull}", tagged=True)
    await _walk(one, other, client)
    await _add(one, "lost", "lost-low", priority=3)
    client.delete(f"{one.keys.base}:prioritized", f"{one.keys.base}:wait")
    await one.rescue.run()
    await _operate(one, there=other.keys.base, client=client)
    await _groups(BullMQBroker(one.server, "three", prefix="{bull}", tagged=True, caller=one.caller))
    await one.close()
    await other.close()
