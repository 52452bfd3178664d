"""The model holds in every state, misses no fault in itself, and does what the real scripts do.

`make model` explores it at full size and replays more paths.
"""

from __future__ import annotations

import random
from dataclasses import fields

import pytest
import redis

from oxcart.broker.bullmq.broker import BullMQBroker
from oxcart.broker.bullmq.scripts import verbs
from oxcart.broker.connection import Server
from tests.explorer.actions import Rules
from tests.explorer.explore import explore
from tests.explorer.replay import Replay
from tests.servers import ValkeyServer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

#: A rule that the model leaves out, and the beginning of what the explorer finds then.
FOUND = {
    "checks_lease": "lease: job",
    "remembers": "acknowledged: a worker was told something else",
    "waits_for_all": "released once: the dependent was released before",
    "checks_lock": "lease: job 0 has a lease and is not active",
    "fences": "lease: job",
}


def test_every_state_of_one_worker_holds() -> None:
    found = explore(workers=1, starts=2, crashes=1)
    assert found.faults == (), str(found)
    assert found.states > 400


@pytest.mark.parametrize("rule", FOUND)
def test_a_rule_that_is_left_out_is_found_by_the_shortest_way(rule: str) -> None:
    found = explore(workers=2, rules=Rules(**{rule: False}))
    assert found.faults[0].startswith(FOUND[rule]), str(found)
    assert len(found.way) <= 10


def test_every_rule_can_be_left_out() -> None:
    assert set(FOUND) == {field.name for field in fields(Rules)}


def test_actions_are_named_as_the_scripts_are() -> None:
    assert {"claim", "finish", "renew", "recover", "settle"} <= set(verbs())


@pytest.mark.parametrize("seed", range(4))
async def test_the_scripts_do_what_the_model_does(
    valkey: ValkeyServer, store: redis.Redis, seed: int
) -> None:
    broker = BullMQBroker(Server(valkey.url), "q")
    with valkey.client(decode_responses=False) as raw:
        replay = Replay(store, raw, workers=3)
        await replay.add(broker)
        replay.walk(random.Random(seed), 40)
    await broker.close()


async def test_a_script_that_differs_from_the_model_is_noticed(
    valkey: ValkeyServer, store: redis.Redis
) -> None:
    broker = BullMQBroker(Server(valkey.url), "q")
    with valkey.client(decode_responses=False) as raw:
        replay = Replay(store, raw, workers=2)
        await replay.add(broker)
        store.hset("bull:q:j2", "stc", 5)
        with pytest.raises(AssertionError):
            replay.walk(random.Random(1), 1)
    await broker.close()
