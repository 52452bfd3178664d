"""Pause, resume and add by BullMQ 5, BullMQ 6 and Oxcart on one queue, in every order: no job is lost.

BullMQ 5 keeps the jobs of a paused queue in a list of their own and renames one list onto the other, whatever
the other holds; BullMQ 6 never uses that list. So a rename of BullMQ 5 can drop ids that 6 put there. The
shadow (`pausing.py`) knows exactly which. Nothing else may ever be missing, and a rescue brings those back.

    OXCART_PAUSE_ALL=1 pytest tests/interop/test_pause.py      every sequence instead of a sample
    OXCART_PAUSE_SEQUENCE="us.add v6.pause v5.add v5.resume"    one sequence again
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import random
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio
import redis

from oxcart.broker.bullmq import BullMQBroker
from oxcart.broker.connection import Server
from oxcart.broker.port import Ask
from oxcart.model.options import JobOptions
from tests.interop.conftest import Drivers
from tests.interop.pausing import QUEUE, Lists, after_bullmq_5, after_bullmq_6
from tests.nodes import NodeDriver, versions
from tests.servers import ValkeyServer

pytestmark = [pytest.mark.node, pytest.mark.asyncio(loop_scope="session")]

VERBS = ("pause", "resume", "add")
US = "us"
SAMPLE = 500
LONGEST = 4

Step = tuple[str, str]


class Ground:
    """One queue with its peers, and reads of its state."""

    def __init__(self, peers: dict[str, NodeDriver], broker: BullMQBroker, client: redis.Redis) -> None:
        self.peers = peers
        self.broker = broker
        self.client = client

    async def step(self, who: str, verb: str, job_id: str) -> None:
        if who == US:
            if verb == "add":
                await self.broker.add([self.broker.encode("n", {}, JobOptions.build(job_id=job_id))])
            else:
                await getattr(self.broker, verb)()
            return
        peer = self.peers[who]
        if verb == "add":
            await peer.call("add", queue=QUEUE, name="n", data={}, opts={"jobId": job_id})
        else:
            await peer.call(verb, queue=QUEUE)

    async def play(self, steps: tuple[Step, ...]) -> set[str]:
        """Do the steps on an empty queue and check each. Return the ids that a peer's rename lost."""
        self.client.flushdb()
        lost: set[str] = set()
        for number, (who, verb) in enumerate(steps, 1):
            job_id = f"j{number}"
            before = Lists.of(self.client)
            await self.step(who, verb, job_id)
            after = Lists.of(self.client)
            if who == US:
                check_our_step(before, after, verb, job_id)
            else:
                peer = self.peers[who].version
                expected = (after_bullmq_5 if peer.startswith("5.") else after_bullmq_6)(before, verb, job_id)
                assert after == expected, f"BullMQ {peer} no longer does what this test takes for granted"
                lost |= (before.ids - after.ids).keys()
        return lost

    async def settle(self) -> Lists:
        """Resume through Oxcart and run the tick that each of our workers runs once a second."""
        before = Lists.of(self.client)
        await self.broker.resume()
        await self.broker.promote()
        after = Lists.of(self.client)
        check_our_step(before, after, "resume", "")
        if before.is_paused and after.wait:
            # Otherwise BullMQ 5 had resumed, and it wakes no worker for jobs that 6 left in `wait`.
            assert self.client.zscore(f"bull:{QUEUE}:marker", "0") == 0
        return after


def check_our_step(before: Lists, after: Lists, verb: str, job_id: str) -> None:
    """Check that no job is lost or doubled, the order is kept, and one list is empty."""
    added = Counter([job_id] if verb == "add" else [])
    assert after.ids == before.ids + added
    assert after.is_paused is {"pause": True, "resume": False}.get(verb, before.is_paused)
    assert not (after.wait and after.paused)
    if verb != "add":
        assert not (after.wait if after.is_paused else after.paused)
    merged = after.wait + after.paused
    for ids in (before.wait, before.paused):
        assert [job_id for job_id in merged if job_id in ids] == ids


def all_sequences(peers: list[str]) -> Iterator[tuple[Step, ...]]:
    """Every sequence of one to four steps, on an empty queue and on one with a job."""
    steps = list(itertools.product([*peers, US], VERBS))
    for length in range(1, LONGEST + 1):
        for sequence in itertools.product(steps, repeat=length):
            yield sequence
            yield ((US, "add"), *sequence)


def chosen_sequences() -> list[tuple[Step, ...]]:
    one = os.environ.get("OXCART_PAUSE_SEQUENCE")
    if one:
        return [read(one)]
    everything = list(all_sequences(versions()))
    if os.environ.get("OXCART_PAUSE_ALL"):
        return everything
    return random.Random(4).sample(everything, min(SAMPLE, len(everything)))


def read(sequence: str) -> tuple[Step, ...]:
    return tuple((who, verb) for who, _, verb in (word.partition(".") for word in sequence.split()))


def tell(steps: tuple[Step, ...]) -> str:
    return " ".join(f"{who}.{verb}" for who, verb in steps)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def ground() -> AsyncIterator[Ground]:
    # A separate server: it is emptied before every sequence.
    with ValkeyServer() as server:
        own = Drivers(server.url)
        peers = {version: await own.get(version) for version in versions()}
        broker = BullMQBroker(Server(server.url), QUEUE)
        try:
            yield Ground(peers, broker, server.client())
        finally:
            await broker.close()
            await own.stop()


async def test_no_sequence_loses_a_job_through_oxcart(ground: Ground) -> None:
    losses = 0
    for number, steps in enumerate(chosen_sequences()):
        try:
            lost = await ground.play(steps)
            added = {f"j{place}" for place, (_, verb) in enumerate(steps, 1) if verb == "add"}
            lists = await ground.settle()
            assert Counter(lists.wait) == Counter(added - lost)
            assert lists.paused == []
            if lost:
                losses += 1
                # Oxcart and one BullMQ generation lose nothing: a loss needs both generations.
                assert len({who for who, _ in steps if who != US}) == 2
            if lost or number % 20 == 0:
                # The hashes of the lost jobs still exist without list entries. Others are left alone.
                found = await ground.broker.rescue.run()
                assert set(found.rescued) == lost
                assert (found.leased, found.ended) == ([], [])
                lists = Lists.of(ground.client)
            assert Counter(lists.wait) == Counter(added)
            claimed = await ground.broker.claim(Ask(count=10))
            assert [job.id for job in claimed.jobs] == lists.wait[::-1]
        except AssertionError as error:
            raise AssertionError(f"after {tell(steps)}: {error}") from error
    print(f"{losses} sequences with a loss by a peer's rename")


@pytest.mark.skipif(len(versions()) < 2, reason="needs both generations of BullMQ")
@pytest.mark.parametrize(
    ("sequence", "lost"),
    [
        ("us.add v6.pause v5.add v5.resume", {"j1"}),
        ("us.add v5.pause v6.add v5.resume", {"j3"}),
        ("us.add v5.pause v6.add v5.pause", {"j1"}),
        ("us.add v6.pause v5.add v6.resume", set()),
        ("us.add v6.pause v5.add us.resume", set()),
        ("us.add v5.pause v6.add v6.resume", set()),
        ("us.add v5.pause v6.add us.resume", set()),
    ],
)
async def test_the_documented_sequences(ground: Ground, sequence: str, lost: set[str]) -> None:
    """The table of docs/protocol.md, and the command that it names."""
    assert await ground.play(read(sequence)) == lost
    if lost:
        port = ground.client.connection_pool.connection_kwargs["port"]
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "oxcart.cli", "--url", f"redis://127.0.0.1:{port}"),
            *("doctor", "--rescue", "--queue", QUEUE, "--json"),
            stdout=asyncio.subprocess.PIPE,
        )
        output, _ = await asyncio.wait_for(process.communicate(), 30)
        assert set(json.loads(output)["rescue"]["queues"][QUEUE]["rescued"]) == lost
    lists = await ground.settle()
    assert set(lists.wait) == {"j1", "j3"}
