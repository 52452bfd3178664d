"""Our steps on a queue whose two lists of ready jobs both contain jobs, as two kinds of peers leave it.

No rename ever replaces a list that holds jobs. While the queue is paused, one of the lists is empty after
every step of ours that reads them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import pytest_asyncio
import redis

from oxcart.broker.bullmq import BullMQBroker
from oxcart.broker.bullmq.scripts import load
from oxcart.broker.connection import Server
from oxcart.broker.port import Ask, ClaimedJob, Outcome, OutcomeKind
from oxcart.model.options import JobOptions
from tests.interop.pausing import QUEUE, Lists
from tests.servers import ValkeyServer

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest.fixture(scope="module")
def client() -> Iterator[redis.Redis]:
    with ValkeyServer() as server:
        yield server.client()


@pytest_asyncio.fixture(loop_scope="session")
async def broker(client: redis.Redis) -> AsyncIterator[BullMQBroker]:
    client.flushdb()
    port = client.connection_pool.connection_kwargs["port"]
    broker = BullMQBroker(Server(f"redis://127.0.0.1:{port}"), QUEUE)
    yield broker
    await broker.close()


#: Our steps that read the ready lists, each on a queue with the jobs that the step needs.
OUR_STEPS = ["add", "claim", "finish", "give back", "retry now", "promote", "pause", "resume"]
OUR_STEPS += ["change priority", "let through", "run again", "recover"]


@pytest.mark.parametrize("is_paused", [True, False])
@pytest.mark.parametrize("step", OUR_STEPS)
async def test_each_step_of_ours_settles_what_peers_left(
    broker: BullMQBroker, client: redis.Redis, step: str, is_paused: bool
) -> None:
    """Both lists hold jobs, as after steps by both generations: nothing is overwritten, order is kept."""
    base = f"bull:{QUEUE}"
    client.flushdb()
    # A job of each other state, for the steps that need one.
    for name in ("held-1", "stalled-1", "finished-1"):
        await _add(broker, name)
    held = {job.id: job for job in (await broker.claim(Ask(count=3))).jobs}
    await broker.finish([_ended("c", held["finished-1"])])
    await broker.recover(interval_ms=1)
    client.delete(f"{base}:stalled-1:lock", f"{base}:stalled-check")
    await _add(broker, "delayed-1", delay="1h")
    for n in range(6):
        await _add(broker, f"j{n}")
    client.rename(f"{base}:wait", f"{base}:paused")
    for n in range(6, 9):
        await _add(broker, f"j{n}")
    if is_paused:
        client.hset(f"{base}:meta", "paused", 1)
    before = Lists.of(client)
    assert (len(before.wait), len(before.paused)) == (3, 6)

    moved: list[str] = []
    claimed: list[str] = []
    match step:
        case "add":
            await _add(broker, "new")
            moved = ["new"]
        case "claim":
            claimed = [job.id for job in (await broker.claim(Ask(count=2))).jobs]
        case "finish":
            _, answer = await broker.finish([_ended("c", held["held-1"])], Ask(count=2))
            claimed = [job.id for job in answer.jobs]
        case "give back":
            await broker.finish([_ended("w", held["held-1"])])
            moved = ["held-1"]
        case "retry now":
            await broker.finish([_ended("r", held["held-1"])])
            moved = ["held-1"]
        case "change priority":
            await broker.updates.change_priority("j7", 0)
        case "let through":
            await broker.promote_job("delayed-1")
            moved = ["delayed-1"]
        case "run again":
            await broker.retry_job("finished-1", "completed")
            moved = ["finished-1"]
        case "recover":
            assert (await broker.recover(interval_ms=1)).ids == ["stalled-1"]
            moved = ["stalled-1"]
        case _:
            await getattr(broker, step)()

    after = Lists.of(client)
    assert after.ids + Counter(claimed) == before.ids + Counter(moved)
    assert len(claimed) == (2 if step in ("claim", "finish") and not is_paused else 0)
    now_paused = {"pause": True, "resume": False}.get(step, is_paused)
    assert after.is_paused is now_paused
    if now_paused:
        assert after.wait == []
    elif step in ("promote", "resume"):  # the tick does it for all others, within a second
        assert after.paused == []
    kept = after.wait + after.paused
    for ids in (before.wait, before.paused):
        if step == "change priority":
            ids = [job_id for job_id in ids if job_id != "j7"]
        assert [job_id for job_id in kept if job_id in ids] == [i for i in ids if i not in claimed]


async def test_long_lists_are_merged_step_by_step(broker: BullMQBroker, client: redis.Redis) -> None:
    """No call moves more than 2000 ids; ticks move the rest, and no id is lost or out of order."""
    base = f"bull:{QUEUE}"
    for older in ("wait", "paused"):
        client.flushdb()
        options = JobOptions.build(remove_on_complete=True)
        await broker.add([broker.encode("n", {}, options) for _ in range(5000)])
        client.rename(f"{base}:wait", f"{base}:aside")
        await broker.add([broker.encode("n", {}, options) for _ in range(4500)])
        if older == "wait":
            client.rename(f"{base}:wait", f"{base}:paused")
            client.rename(f"{base}:aside", f"{base}:wait")
        else:
            client.rename(f"{base}:aside", f"{base}:paused")
        client.hset(f"{base}:meta", "paused", 1)
        before = Lists.of(client)
        await broker.caller.once(load("resume"), broker.keys.meta())  # the verb would continue to the end
        ticks = 0
        while (after := Lists.of(client)).paused:
            assert after.ids == before.ids
            await broker.promote()
            ticks += 1
        assert 0 < ticks <= 2
        expected = before.paused + before.wait if older == "wait" else before.wait + before.paused
        assert after.wait == expected


async def _add(broker: BullMQBroker, job_id: str, **options: Any) -> None:
    await broker.add([broker.encode("n", {}, JobOptions.build(job_id=job_id, **options))])


def _ended(kind: str, job: ClaimedJob) -> Outcome:
    return Outcome(OutcomeKind(kind), job.id, job.token, job.starts, job.started_ms, b"null", b"[]")
