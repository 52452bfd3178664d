"""Connections cut after the server applied a call: nothing is lost, nothing runs twice, nothing stalls."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Any

import pytest

from oxcart import Queue, Worker
from oxcart.broker.bullmq.broker import BullMQBroker
from oxcart.broker.bullmq.scripts import load
from oxcart.broker.connection import Server
from oxcart.broker.port import Ask, ClaimedJob, Outcome, OutcomeKind
from oxcart.model.options import JobOptions
from tests.chaos.fleet import Store, eventually
from tests.chaos.lengths import CUTS, FULL, LIMIT
from tests.chaos.proxy import Call, Proxy
from tests.servers import ValkeyServer


class _CutFirst:
    """Drops the first reply to every call of the chosen verbs; its repeat succeeds."""

    def __init__(self, *verbs: str) -> None:
        self._verbs = verbs
        self._seen: set[tuple[bytes, bytes]] = set()

    def __call__(self, call: Call) -> bool:
        if call.verb not in self._verbs:
            return False
        this = (call.args[4], call.args[5])  # slot and number of the call
        if this in self._seen:
            return False
        self._seen.add(this)
        return True


def _completed(job: ClaimedJob, at_ms: int) -> Outcome:
    return Outcome(OutcomeKind.COMPLETED, job.id, job.token, job.starts, at_ms, b'"done"')


@pytest.mark.timeout(600)
async def test_every_answer_to_add_claim_and_finish_is_lost_once(server: ValkeyServer, store: Store) -> None:
    """Each call reaches the server twice: 1 000 lost replies have no effect."""
    each = CUTS // 4 + 1  # the first call of each verb also loads the script
    async with Proxy(server.port) as proxy:
        proxy.cut_if(_CutFirst("add", "claim", "finish"))
        broker = BullMQBroker(Server(proxy.url), "chaos")
        steady = BullMQBroker(Server(server.url), "chaos")
        await steady.caller.command("SCRIPT", "FLUSH")  # independent of earlier tests on this server
        ids: list[str] = []
        ran: Counter[str] = Counter()
        options = JobOptions.build()
        for turn in range(each):
            batch = [broker.encode("job", {"turn": turn, "n": n}, options) for n in range(4)]
            added = await broker.add(batch)
            assert all(one.created for one in added)
            ids += [one.id for one in added]
            first = await broker.claim(Ask(2, lock_ms=30_000, worker="w"))
            codes, second = await broker.finish(
                [_completed(job, broker.clock()) for job in first.jobs], Ask(2, lock_ms=30_000, worker="w")
            )
            assert codes == [1, 1]
            codes, third = await broker.finish([_completed(job, broker.clock()) for job in second.jobs])
            assert codes == [1, 1]
            assert third.jobs == []
            jobs = first.jobs + second.jobs
            assert [job.starts for job in jobs] == [1] * 4
            ran.update(job.id for job in jobs)
            if turn % 25 == 0:
                # A claim without an owner would be noted at one stalled check and recovered at the next.
                await steady.recover(interval_ms=1)
        await steady.recover(interval_ms=1)
        await steady.close()
        await broker.close()
    assert sum(proxy.cuts.values()) >= CUTS
    assert proxy.cuts["add"] == proxy.cuts["claim"] == each - 1
    assert ran == Counter(ids), "every job was claimed once"
    assert store.lengths() == {"completed": len(ids)}
    assert store.count_events("stalled") == Counter()
    for name in ("added", "waiting", "active", "completed"):
        assert store.count_events(name) == Counter(ids), name
    assert not store.count_events("duplicated")
    for job_id in random.Random(1).sample(ids, 20):
        job = store.job(job_id)
        assert (job["ats"], job["atm"], job["returnvalue"]) == ("1", "1", '"done"')


@pytest.mark.timeout(600)
async def test_a_worker_and_its_producer_on_a_link_that_breaks_all_the_time(
    server: ValkeyServer, store: Store
) -> None:
    """Random cuts on every connection of a real worker, its renewer and its producers."""
    count = 5_000 if FULL else 400
    dice = random.Random(5)
    last: dict[tuple[bytes, bytes], int] = {}

    def chosen(call: Call) -> bool:
        if call.verb in ("ping", "client", "select", "promote", "recover"):
            return False
        if len(call.args) > 5 and call.args[4]:
            this = (call.args[4], call.args[5])
            last[this] = last.get(this, 0) + 1
            if last[this] > 2:  # two losses in a row prove as much as ten
                return False
            return dice.random() < 0.5
        return dice.random() < 0.02

    ran: Counter[str] = Counter()
    async with Proxy(server.port) as proxy:
        queue = Queue("chaos", url=proxy.url)

        @queue.job
        async def work(job: Any, n: int) -> int:
            ran[job.id] += 1
            if n % 5 == 0:
                await asyncio.sleep(0.002)
            return n

        # A lease long enough that a loaded machine cannot lose one, and renewed all the time.
        worker = Worker(queue, concurrency=8, lock_duration=20, renew_every=0.5, stalled_interval=1)
        async with worker.running():
            proxy.cut_if(chosen)
            ids: list[str] = []
            for start in range(0, count, 10):
                handles = await asyncio.gather(*(queue.add("work", {"n": start + n}) for n in range(10)))
                assert all(handle.created for handle in handles)
                ids += [handle.id for handle in handles]
            await eventually(
                lambda: store.lengths().get("completed", 0) >= count, "all jobs completed", LIMIT + count / 50
            )
            proxy.cut_if(None)
        await queue.close()
    assert len(set(ids)) == count
    assert ran == Counter(ids), "every job ran once"
    assert store.lengths() == {"completed": count}
    assert not store.count_events("stalled")
    assert store.count_events("completed") == Counter(ids)
    assert sum(proxy.cuts.values()) > count / 10


@pytest.mark.parametrize("verb", ["pause", "resume", "remove_job", "retry_job", "promote_job", "add_log"])
async def test_other_changes_are_applied_once_too(server: ValkeyServer, store: Store, verb: str) -> None:
    async with Proxy(server.port) as proxy:
        broker = BullMQBroker(Server(proxy.url), "chaos")
        delay = 60 if verb == "promote_job" else 0
        options = JobOptions.build(delay=delay)
        [one] = await broker.add([broker.encode("job", None, options)])
        if verb == "retry_job":
            claimed = await broker.claim(Ask(1))
            await broker.finish([_completed(claimed.jobs[0], broker.clock())])
        if verb == "resume":
            await broker.pause()
        store.client.script_load(load(verb).text)
        proxy.cut_if(_CutFirst(verb))
        if verb in ("pause", "resume"):
            await getattr(broker, verb)()
            assert len([event for event in store.events() if event["event"] == verb + "d"]) == 1
        elif verb == "add_log":
            assert await broker.logs.append(one.id, ["line"], None) == 1
        elif verb == "retry_job":
            await broker.retry_job(one.id, "completed")
            assert store.lengths() == {"wait": 1}
        else:
            await getattr(broker, verb)(one.id)
            assert store.lengths() == ({"wait": 1} if verb == "promote_job" else {})
        assert proxy.cuts[verb] == 1
        await broker.close()


async def test_repeat_after_the_journal_expired_is_a_new_call(server: ValkeyServer, store: Store) -> None:
    """The journal keeps a reply for ten minutes. A later repeat is a new call.

    An id that still exists is not added twice. The stalled check recovers the jobs of a claim whose reply was
    lost. A finish that was applied is refused.
    """
    broker = BullMQBroker(Server(server.url), "chaos")
    caller, meta = broker.caller, broker.keys.meta()
    _, job = broker.encode("job", 1, JobOptions.build(job_id="one"))
    memory = broker.keys.call("slot")

    async def twice(verb: str, *args: Any) -> tuple[Any, Any]:
        first = await caller._run(load(verb), meta, ("slot", 1, *args), False, None)
        assert 590 < store.client.ttl(memory) <= 600
        store.client.delete(memory)
        second = await caller._run(load(verb), meta, ("slot", 1, *args), False, None)
        store.client.delete(memory)
        return first, second

    first, second = await twice("add", 1, 0, *job)
    assert (first[:1], second[:1]) == ([1], [0])
    assert store.lengths() == {"wait": 1}
    first, second = await twice("claim", broker.clock(), 1, "token", 1, "", "", "", 1_000_000, "", "")
    assert [len(answer[1]) for answer in (first, second)] == [1, 0]
    await asyncio.sleep(0.01)
    await broker.recover(interval_ms=1)
    await asyncio.sleep(0.01)
    assert (await broker.recover(interval_ms=1)).ids == ["one"]
    [claimed] = (await broker.claim(Ask(1))).jobs
    assert claimed.starts == 2
    now = broker.clock()
    asked = (now, 0, "token", 1, "", "", "", 1_000_000, "", "")
    end = ("c", 1, claimed.token, now, "", "", claimed.id, claimed.starts, b"1", "")
    first, second = await twice("finish", *asked, 1, *end)
    assert (first[0], second[0]) == ([1], [-2])
    assert store.lengths() == {"completed": 1}
    await broker.close()


@pytest.mark.parametrize("protocol", ["bullmq", "bridge"])
async def test_a_job_that_another_worker_claimed_before_the_reply_is_not_run(
    server: ValkeyServer, store: Store, protocol: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The lease expired before the worker received its claim; another worker has the job by now."""
    options: dict[str, Any] = {} if protocol == "bullmq" else {"protocol": "bridge", "namespace": "late"}
    async with (
        Proxy(server.port) as proxy,
        Queue("chaos", url=proxy.url, **options) as far,
        Queue("chaos", url=server.url, **options) as near,
    ):
        ran: list[str] = []

        @far.fallback
        async def work() -> None:
            ran.append("far")

        async with Worker(far, lock_duration=2, recover=False).running():
            await eventually(lambda: proxy.calls["bzpopmin"] > 0, "the worker waits")
            proxy.delay = 3.0
            handle = await near.add("job")
            lock = f"bull:chaos:{handle.id}:lock" if protocol == "bullmq" else f"late:jobs:lock:{handle.id}"
            await eventually(lambda: store.client.exists(lock), "it has claimed the job")
            store.client.delete(lock)
            broker, back = near._core.broker, list[str]()
            while not back:
                back = (await broker.recover(interval_ms=1)).ids
                await asyncio.sleep(0.005)
            [taken] = (await broker.claim(Ask(1, worker="near", lock_ms=60_000))).jobs
            assert taken.starts == 2
            proxy.delay = 0.0  # the answer to the claim is on its way
            await eventually(lambda: "dropped 1 claimed jobs" in caplog.text, "it drops the job")
            await broker.finish(
                [Outcome(OutcomeKind.COMPLETED, taken.id, taken.token, taken.starts, broker.clock(), b"1")]
            )
            assert await handle.result(LIMIT) == 1
        assert ran == []
