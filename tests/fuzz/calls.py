"""The calls of every script, recorded once from the walk of `tests/cluster/test_script_keys.py`."""

from __future__ import annotations

from dataclasses import dataclass

from oxcart.broker.bullmq.broker import BullMQBroker
from oxcart.broker.bullmq.scripts import load, verbs
from oxcart.broker.connection import Server
from tests.cluster.test_script_keys import Monitor, _add, _groups, _operate, _walk
from tests.servers import ValkeyServer


@dataclass(frozen=True)
class Call:
    """A call of a script, as a broker made it."""

    verb: str
    sha: bytes
    arguments: tuple[bytes, ...]


async def record(server: ValkeyServer) -> list[Call]:
    """Walks through every script on an empty server; returns the calls in their order."""
    with server.client() as client:
        client.flushall()
        one = BullMQBroker(Server(server.url), "one", prefix="{bull}", tagged=True)
        other = BullMQBroker(Server(server.url), "two", prefix="{bull}", tagged=True)
        monitor = Monitor(server)
        await _walk(one, other, client)
        await _add(one, "lost", "lost-low", priority=3)
        client.delete(f"{one.keys.base}:prioritized", f"{one.keys.base}:wait")
        await one.rescue.run()
        await _operate(one, there=other.keys.base, client=client)
        await _groups(BullMQBroker(one.server, "three", prefix="{bull}", tagged=True, caller=one.caller))
        await one.close()
        await other.close()
        lines = monitor.stop(server)
    shas = {load(verb).sha.decode(): verb for verb in verbs()}
    calls = []
    for who, words in lines:
        if who != "lua" and words[0] == "EVALSHA":
            raw = [word.encode("latin-1", "replace") for word in words]
            calls.append(Call(shas[words[1]], raw[1], tuple(raw[2:])))
    return calls
