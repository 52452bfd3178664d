"""Every script on spoiled keys: no call hangs or crashes the server, and none fails by a fault of the script.

Recorded calls of all scripts are made again while keys are removed, truncated, replaced by random bytes or
given another type. A script may refuse a call, with an error of the server or with its own code. An error of
Lua means that it did not expect what it read, and a worker that repeats such a call would spin.
`OXCART_FUZZ=1000` sets how many rounds are made, `OXCART_FUZZ_SEED=7` the seed of the first (`make fuzz`).
"""

from __future__ import annotations

import os
import random
import re
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from tests.fuzz.calls import SCRIPTS, Call, record
from tests.fuzz.hostile import Hostile
from tests.servers import ValkeyServer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120 + 10 * int(os.environ.get("OXCART_FUZZ", "6")))]

ROUNDS = int(os.environ.get("OXCART_FUZZ", "6"))
FIRST = int(os.environ.get("OXCART_FUZZ_SEED", "0"))
#: An error that Lua raises for a value of an unexpected kind.
OF_LUA = re.compile(
    r"attempt to |bad argument|stack overflow|too many results|malformed"
    r"|[Bb]ad data format|[Mm]issing bytes|[Ee]xpected .* but found"
)


@pytest.fixture(scope="module")
def server() -> Iterator[ValkeyServer]:
    with ValkeyServer() as server:
        yield server


@pytest.mark.parametrize("protocol", SCRIPTS)
async def test_spoiled_keys_break_no_script(server: ValkeyServer, protocol: str) -> None:
    calls = await record(server, protocol)
    assert {call.verb for call in calls} == set(SCRIPTS[protocol].verbs())
    pid = server.pid
    faults: dict[tuple[str, str], str] = {}
    with server.client(decode_responses=False, socket_timeout=60, retry=None) as client:
        for seed in range(FIRST, FIRST + ROUNDS):
            for verb, error, spoils in fuzz(client, calls, seed):
                faults.setdefault((verb, error), f"seed {seed}, after {spoils}")
        assert client.ping()
    assert server.pid == pid
    assert faults == {}


def fuzz(client: Any, calls: list[Call], seed: int) -> Iterator[tuple[str, str, list[str]]]:
    """Makes all calls once; yields script, error and the last spoils for every error of Lua."""
    dice = random.Random(seed)
    client.flushall()
    hostile = Hostile(client, dice)
    spoils: list[str] = []
    for call in calls:
        if dice.random() < 0.4:
            spoils.append(hostile.spoil())
        try:
            client.evalsha(call.sha.decode(), int(call.arguments[0]), *call.arguments[1:])
        except redis.ResponseError as error:  # a connection that is lost, or a timeout, fails the test
            if OF_LUA.search(str(error)):
                yield call.verb, str(error), spoils[-5:]


def test_an_error_of_lua_is_noticed(server: ValkeyServer) -> None:
    text = b"return tonumber(redis.call('GET', KEYS[1])) + 1"
    with server.client(decode_responses=False) as client:
        sha: Any = client.script_load(text)
        found = list(
            fuzz(client, [Call("grow", sha.encode() if isinstance(sha, str) else sha, (b"1", b"k"))], 1)
        )
    assert [verb for verb, _, _ in found] == ["grow"]
