"""Every key that a script touches is in the slot of its KEYS[1].

MONITOR of a single server shows every command that a script runs; COMMAND GETKEYS returns its keys.
The scenario walks through all scripts and the branches that touch keys of other jobs and queues.
"""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from oxcart.broker.bullmq import gates
from oxcart.broker.bullmq.broker import BullMQBroker
from oxcart.broker.bullmq.scripts import load, verbs
from oxcart.broker.connection import Server
from oxcart.broker.port import Ask, ClaimedJob, Lease, Outage, Outcome, OutcomeKind
from oxcart.broker.port.results import DeadVerb, DeadWork
from oxcart.broker.slots import slot_of
from oxcart.broker.workers import Wakes, WorkerRecord
from oxcart.model.filter import JobFilter
from oxcart.model.flow import OnFailure, Tree
from oxcart.model.graph import Edge, Existing, Kind, Node
from oxcart.model.options import JobOptions
from oxcart.model.retention import REMOVE, Retention
from oxcart.model.schedule import Schedule
from tests.servers import ValkeyServer

_LINE = re.compile(r"^[0-9.]+ \[\d+ (\S+)\] (.*)$")
_WORD = re.compile(r'"((?:[^"\\]|\\.)*)"')
#: Commands without keys that scripts may use.
_KEYLESS = frozenset({"PING", "TIME"})


class Monitor:
    """Collects from MONITOR the called scripts and the commands that they ran."""

    def __init__(self, server: ValkeyServer) -> None:
        self._client: Any = server.client(decode_responses=False)
        connection: Any = self._client.connection_pool.get_connection()
        connection.send_command("MONITOR")
        assert connection.read_response() == b"OK"
        self._connection: Any = connection
        self.lines: list[tuple[str, list[str]]] = []
        self._end = False
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        while not self._end:
            line = self._connection.read_response()
            found = _LINE.match(line.decode("utf-8", "replace"))
            assert found, line
            words = [word.encode().decode("unicode_escape") for word in _WORD.findall(found.group(2))]
            self._end = words[:2] == ["ECHO", "the end"]
            self.lines.append((found.group(1), words))

    def stop(self, server: ValkeyServer) -> list[tuple[str, list[str]]]:
        with server.client() as client:
            client.echo("the end")
        self._thread.join(20)
        assert not self._thread.is_alive()
        self._connection.disconnect()
        self._client.close()
        return self.lines


@pytest.fixture(scope="module")
def server() -> Iterator[ValkeyServer]:
    with ValkeyServer() as server:
        yield server


DEAD: tuple[DeadVerb, ...] = ("list", "replay", "purge")


def _outcome(kind: str, job: ClaimedJob, **more: Any) -> Outcome:
    return Outcome(OutcomeKind(kind), job.id, job.token, job.starts, 1_700_000_000_000, b'"x"', b"[]", **more)


async def _add(broker: BullMQBroker, *names: str, **options: Any) -> None:
    built = [JobOptions.build(job_id=name, **options) for name in names]
    await broker.add([broker.encode("job", {"a": 1}, one) for one in built])


def _parent(base: str, name: str, **flags: bool) -> dict[str, str]:
    set_flags = "".join(f',"{flag}":true' for flag, on in flags.items() if on)
    return {"parentKey": f"{base}:{name}", "parent": f'{{"id":"{name}","queueKey":"{base}"{set_flags}}}'}


async def _walk(broker: BullMQBroker, other: BullMQBroker, client: Any) -> None:
    """Calls every script; the parents of the jobs are in the other queue of the same slot."""
    at, there = broker.keys.base, other.keys.base
    await _add(broker, "plain", "plain", "kept", "lifo", lifo=True)
    await _add(broker, "low", "lower", priority=5)
    await _add(broker, "late", "later", delay=60)
    await broker.pause()
    await broker.promote()
    client.rpush(f"{at}:wait", "kept")
    await _add(broker, "while-paused")
    await broker.resume()
    await broker.updates.change_priority("low", 7)
    await broker.updates.update("low", {"correlation_id": "x", "tags": None}, 8)
    await broker.updates.change_priority("plain", 3, lifo=True)
    await broker.change_delay("later", 30_000)
    await broker.promote_job("late")
    await broker.set_progress("plain", 5)
    await broker.logs.append("plain", ["a", "b"], 1)
    await broker.update_data("plain", 2)
    await broker.states(["plain", "later", "nobody"])
    await broker.look(["plain", "later", "nobody"])
    await _add(broker, "keyed", idempotency_key="k", lifetime="1h", history=True)
    await _add(broker, "keyed-again", idempotency_key="k")
    await broker.expire()
    broker._keep_events = 20_000
    await _add(broker, "keeps-more-events")
    for state in ("wait", "delayed"):
        await broker.page(state, 0, 5)
        await broker.page(state, 0, 5, oldest=True)
    client.hset(f"{at}:meta", mapping={"concurrency": 50, "max": 1000, "duration": 1000})
    jobs = {job.id: job for job in (await broker.claim(Ask(20, worker="w"))).jobs}
    some = next(iter(jobs.values()))
    await broker.set_checkpoint(some.id, some.token, b"1")
    await broker.steps.keep(some.id, some.token, "s", b"step\t1\t1\t1\t1\t\t\n1")
    await broker.steps.receive(some.id, some.token, "go", "go", wait=b"wait\t", arrived=b"", late=b"")
    await broker.steps.signal(some.id, "go", b"1")
    await broker.renew([Lease(job.id, job.token, job.starts) for job in jobs.values()], 30_000)
    await broker.suspects.start([Lease(some.id, some.token, some.starts)], alone=False)
    client.delete(f"{at}:low:lock")
    await broker.renew([Lease("low", jobs["low"].token, jobs["low"].starts)], 30_000)
    await broker.finish(
        [
            _outcome("c", jobs["plain"], retention=Retention(count=1)),
            _outcome("f", jobs["kept"], retention=Retention(age=5)),
            _outcome("r", jobs["low"]),
            _outcome("d", jobs["lower"], delay_ms=1),
            _outcome("w", jobs["lifo"]),
        ],
        Ask(5),
    )
    await _lanes(broker, client)
    await _schedules(broker, client)
    await _children(broker, there, client)
    await _cancel(broker, there, client)
    await _flows(broker, other)
    await _graphs(broker, other, client)
    await _limits(broker)
    # Lost workers.
    client.delete(*client.keys(f"{at}:*:lock"))
    away = Outage(silence_ms=60_000, grace_ms=1)
    await broker.recover(interval_ms=1, outage=away)
    await broker.appear(away)
    await asyncio.sleep(0.01)
    await broker.recover(interval_ms=1, max_stalled=0, outage=away)
    await broker.retry_job("kept", "failed", reset=True)


async def _limits(broker: BullMQBroker) -> None:
    """Limits of both kinds hold jobs back; a finish, the tick and the limit's removal admit them."""
    await broker.bulk.clear()

    async def add(key: str, *names: str, **options: Any) -> None:
        built = [JobOptions.build(job_id=name, limit_key=key, **options) for name in names]
        await broker.add([broker.encode("limited", 1, one) for one in built])

    await broker.limits.set_type("limited", 2, 3)
    await broker.limits.set_keys(1, 0)
    await add("one", "limited-1", "limited-2", "limited-3")
    await add("two", "limited-4", "limited-5", "limited-6", priority=2)
    jobs = (await broker.claim(Ask(9))).jobs
    await broker.finish([_outcome("c", jobs[0])], Ask(5))
    await broker.limits.set_keys(0, 0)
    await broker.promote()
    await broker.limits.usage_of_type("limited")
    await broker.limits.shrink_type("limited", 1, 1)  # as partitions do
    await broker.limits.shrink(2)
    await broker.limits.remove_concurrency()
    await broker.limits.count_starts("limited", 1, 60_000)
    await broker.caller.write("SET", broker.keys.dividing(), "token", "PX", 60_000)
    for ms in (60_000, 0):
        await broker.caller.again(load("keep_mark"), broker.keys.meta(), "ox:dividing", "token", ms)
    await broker.limits.set_type("limited", 0, 0)
    await broker.claim(Ask(9))
    await broker.limits.set_keys(5, 0)


async def _groups(broker: BullMQBroker) -> None:
    """Groups take turns, within limits; one is paused, listed and read."""
    built = [JobOptions.build(job_id=f"grouped-{n}", group=f"g{n % 3}") for n in range(9)]
    await broker.add([broker.encode("grouped", 1, one) for one in built])
    await broker.groups.set(None, concurrent=1, per_minute=100)
    await broker.groups.set("g0", weight=2, paused=True)
    jobs = (await broker.claim(Ask(5))).jobs
    await broker.finish([_outcome("w", jobs[0])], Ask(5))
    await broker.add([broker.encode("grouped", 1, JobOptions.build(group="g1", priority=2))])
    await broker.promote()
    await broker.groups.set("g0", paused=False)
    await broker.groups.usage("g1")
    await broker.groups.page(None, 10)
    assert isinstance([ids async for ids in broker.groups.jobs("g1")], list)
    await broker.groups.ready("g2")
    await broker.groups.settings("g0")
    await broker.groups.set("g0", weight=None)
    await broker.groups.set(None, concurrent=0, per_minute=0)


async def _lanes(broker: BullMQBroker, client: Any) -> None:
    """Jobs in lanes are added, found, claimed, finished, cancelled and tended; one lane is removed."""
    gpu, eu = broker.lanes.open("all;c=gpu"), broker.lanes.open("any;r=eu")
    record = WorkerRecord(id="w", routed=True)
    await broker.registry.beat(record, Wakes.EVERY_ADD)
    await _add(gpu, "g1", "g2", "plain", "low")
    await _add(eu, "e1", "g1", priority=2)
    await _add(broker, "e1")
    await broker.lanes.enter("all;c=peer")
    await broker.look(["e1", "nobody"])
    await broker.set_progress("e1", 5)
    client.hset(broker.keys.meta(), "concurrency", 100)
    choice = ("base", "all;c=gpu", "any;r=eu")
    claimed = await broker.claim(Ask(1, lanes=choice))
    assert claimed.jobs
    claimed = await gpu.claim(Ask(1, lanes=("all;c=gpu",)))
    (job,) = claimed.jobs
    codes, claimed = await gpu.finish([_outcome("c", job)], Ask(5, lanes=("any;r=eu",)))
    assert codes == [1]
    (job,) = claimed.jobs
    await broker.cancelling.cancel([job.id], "no", force=False)
    await eu.finish([_outcome("l", job, delay_ms=1)])
    await broker.limits.release()
    await broker.lanes.counts()
    await broker.lanes.tend(guard_ms=1, outage=Outage(60_000, 1))
    await broker.lanes.sweep_ids("0")
    await broker.pause()
    await broker.resume()
    await gpu.bulk.obliterate(force=True)
    await asyncio.sleep(0.005)
    await broker.lanes.tend(guard_ms=1, idle_ms=-(10**9))
    assert "all;c=peer" not in await broker.lanes.names()
    await broker.registry.leave("w")


async def _schedules(broker: BullMQBroker, client: Any) -> None:
    """Schedules of both kinds and a repeatable job; and a queue that is held."""
    store, at = broker.schedules, broker.keys.base
    for key, schedule in {
        "e": Schedule(every=60_000),
        "c": Schedule(cron="* * * * *", immediately=True),
    }.items():
        await store.write(key, schedule, "run", b"{}", {"priority": 1}, ["ox:timeout", "5"])
        await store.write(key, schedule, "run", b"[1]", {"lifo": True})
    old = "name:::UTC:* * * * *"
    client.zadd(f"{at}:repeat", {old: 1})
    opts = '{"repeat":{"pattern":"* * * * *","tz":"UTC","count":1}}'
    client.hset(f"{at}:repeat:x:1", mapping={"name": "name", "data": "{}", "opts": opts, "rjk": old})
    client.rpush(f"{at}:wait", "repeat:x:1")
    jobs = (await broker.claim(Ask(20))).jobs
    runs = [job for job in jobs if job.advances_schedule]
    assert len(runs) == 3
    assert all(await store.advance(runs))
    await broker.finish([_outcome("l", job, delay_ms=1) for job in jobs])
    assert await broker.limits.wait_ms() >= 0
    await broker.limits.release()
    for key in ("e", "c"):
        assert await store.pause(key)
        assert await store.resume(key)
    await store.remove("c")


async def _children(broker: BullMQBroker, there: str, client: Any) -> None:
    """Children of every kind finish, with a deduplication window, and are removed."""
    at = broker.keys.base
    flags = {"a": {}, "b": {"fpof": True}, "c": {"cpof": True}, "d": {"idof": True}, "e": {"rdof": True}}
    names = [f"child-{flag}-{kind}" for flag in flags for kind in ("c", "f", "0")]
    await _add(broker, *names)
    for name in names:
        flag = name.split("-")[1]
        parent = f"parent-{name}"
        client.hset(f"{there}:{parent}", mapping={"name": "p", "opts": "{}", "data": "1", "timestamp": 1})
        client.zadd(f"{there}:waiting-children", {parent: 1})
        client.sadd(f"{there}:{parent}:dependencies", f"{at}:{name}")
        client.hset(f"{at}:{name}", mapping=_parent(there, parent, **flags[flag]))
    client.hset(f"{at}:child-a-c", "deid", "window")
    client.set(f"{at}:de:window", "child-a-c")
    client.hset(
        f"{at}:dn:window",
        mapping={"name": "n", "data": "1", "opts": '{"de":{"id":"window"}}', "jid": "requeued"},
    )
    jobs = {job.id: job for job in (await broker.claim(Ask(100))).jobs}
    for name in names:
        kind = name[-1]
        retention = REMOVE if kind == "0" else None
        codes, _ = await broker.finish(
            [_outcome("f" if kind == "f" else "c", jobs[name], retention=retention)]
        )
        assert codes == [1], name
    await broker.retry_job("child-a-f", "failed")
    await broker.retry_job("child-b-f", "failed")
    await broker.remove_job("child-c-f")
    await _add(broker, "family")
    client.sadd(f"{at}:family:dependencies", f"{at}:requeued")
    await broker.remove_job("family", children=True)


async def _cancel(broker: BullMQBroker, there: str, client: Any) -> None:
    """Cancels waiting and running children, by id and by filter, with and without force."""
    at = broker.keys.base
    names = [f"doomed-{n}" for n in range(6)]
    await _add(broker, *names, deduplication=None)
    for name in names:
        parent = f"above-{name}"
        client.hset(f"{there}:{parent}", mapping={"name": "p", "opts": "{}", "data": "1", "timestamp": 1})
        client.zadd(f"{there}:waiting-children", {parent: 1})
        client.sadd(f"{there}:{parent}:dependencies", f"{at}:{name}")
        client.hset(f"{at}:{name}", mapping=_parent(there, parent, fpof=True))
    client.hset(f"{at}:doomed-0", mapping={"deid": "d", "opts": '{"removeOnFail":true}'})
    assert await broker.cancelling.cancel(["doomed-0"], "no", force=False) == [1]
    chosen = JobFilter(names=("job",))
    await broker.cancelling.cancel_all(chosen, ["wait"], "no", limit=3)
    held = [job.id for job in (await broker.claim(Ask(50))).jobs]
    assert await broker.cancelling.cancel(held[:1], "no", force=False) == [2]
    assert await broker.cancelling.cancel(held[:1], "no", force=True) == [1]


async def _flows(broker: BullMQBroker, other: BullMQBroker) -> None:
    """Trees over both queues, children of a running job, and deduplication windows."""

    def tree(at: BullMQBroker, name: str, *children: Tree, **options: Any) -> Tree:
        built = JobOptions.build(job_id=name, **options)
        return Tree(at.queue, at.keys.prefix, "job", 1, built, OnFailure.IGNORE, children)

    leaves = [tree(other, "leaf"), tree(broker, "late-leaf", delay=60), tree(other, "low-leaf", priority=2)]
    top = tree(broker, "top", tree(other, "middle", *leaves), deduplication="tree")
    await broker.flows.add(top)
    await broker.flows.add(tree(broker, "again", tree(broker, "plain"), deduplication="tree"))
    [leaf] = (await other.claim(Ask(1))).jobs
    await other.flows.add_children(leaf.id, [tree(broker, "below")], token=leaf.token)
    await other.finish([_outcome("h", leaf)])
    await broker.flows.add(tree(broker, "adopts", tree(broker, "plain")))
    await broker.flows.view("top")
    await broker.flows.leave_parent("late-leaf")
    for rule in (
        {"id": "a", "keep_last_if_active": True},
        {"id": "b", "ttl": 60, "extend": True},
        {"id": "c", "replace": True},
    ):
        await _add(broker, f"{rule['id']}1", f"{rule['id']}2", deduplication=rule, delay=60)
    await broker.promote_job("a1")
    await broker.claim(Ask(20))
    await _add(broker, "a3", deduplication={"id": "a", "keep_last_if_active": True})
    await broker.deduplication.release("b")
    await broker.remove_job("top", children=False)


async def _graphs(broker: BullMQBroker, other: BullMQBroker, client: Any) -> None:
    """Jobs depend on others over both queues, with every end of a dependency; one gate is lost."""

    def made(at: BullMQBroker, name: str, *edges: Edge) -> Node:
        options = JobOptions.build(job_id=name, history=True, lifetime="1h", attempts=1)
        return Node(at.queue, at.keys.prefix, "job", 1, options, edges)

    await broker.bulk.clear()
    await other.bulk.clear()
    nodes = [made(broker, f"first-{n}") for n in range(4)]
    nodes += [made(other, f"then-{n}", Edge(n), Edge((n + 1) % 4, Kind.AFTER_ANY)) for n in range(4)]
    nodes += [made(broker, f"last-{n}", Edge(4 + n)) for n in range(4)]
    await broker.graphs.add(nodes)
    jobs = {job.id: job for job in (await broker.claim(Ask(50))).jobs}
    await broker.finish(
        [_outcome("c", jobs["first-0"]), _outcome("f", jobs["first-1"], category="cancelled")]
    )
    await broker.finish([_outcome("f", jobs["first-2"], retention=REMOVE)])
    client.delete(f"{broker.keys.base}~gates:first-3")
    keeper = gates.GateKeeper(other)
    await keeper.tick()
    assert await keeper.repair() > 0
    gone = Existing(broker.keys.prefix, broker.queue, "first-0")
    await broker.graphs.add([made(other, "late-comer", Edge(gone))])


async def _operate(broker: BullMQBroker, there: str, client: Any) -> None:
    """Calls the operations on many jobs; one job is the last child of a waiting parent."""
    at = broker.keys.base
    await _add(broker, "orphan", "only")
    client.delete(f"{at}:wait")
    await broker.rescue.remove_orphans()
    await _add(broker, "last", "more", "most")
    client.hset(f"{there}:upper", mapping={"name": "p", "opts": "{}", "data": "1", "timestamp": 1})
    client.zadd(f"{there}:waiting-children", {"upper": 1})
    client.sadd(f"{there}:upper:dependencies", f"{at}:last")
    client.hset(f"{at}:last", mapping={**_parent(there, "upper"), "deid": "window"})
    client.set(f"{at}:de:window", "last")
    await broker.bulk.clean(["wait"], 2**53, limit=1)
    # The reads of a pipeline, attached and not.
    meta, now = broker.keys.meta(), broker.clock()
    await broker.caller.again(load("attach"), meta, "reader", now + 60_000, 20_000, now, "life")
    await broker.caller.again(load("stride"), meta, "events", "0-0", "+", 10)
    await broker.caller.again(load("detach"), meta, "reader", now)
    jobs = (await broker.claim(Ask(2))).jobs
    await broker.finish([_outcome("f", job) for job in jobs], Ask(0, metrics=5))
    for doing in DEAD:
        await broker.dead_letters.run(DeadWork(doing, limit=1))
    await broker.bulk.retry_all("failed")
    await broker.logs.append("more", ["a", "b"], None)
    await broker.logs.clear("more", 1)
    await broker.logs.clear("more")
    await broker.bulk.counts_per_priority()
    await broker.caller.again(load("reseal"), meta, "h", f"{at}:more", "data", "1", "2")
    await broker.bulk.publish("own", {"field": "value"})
    client.hset(f"{at}:repeat:daily", "name", "n")
    client.zadd(f"{at}:repeat", {"daily": 1})
    await broker.bulk.obliterate(force=True)


@pytest.mark.parametrize("prefix", ["bull", "{bull}"])
async def test_every_key_is_in_the_slot_of_the_first(server: ValkeyServer, prefix: str) -> None:
    with server.client() as client:
        client.flushall()
        broker = BullMQBroker(Server(server.url), "one", prefix=prefix, tagged=True)
        # Without tags, a flow over two queues would be in two slots, so one queue holds parents and children.
        other = (
            BullMQBroker(Server(server.url), "two", prefix=prefix, tagged=True) if "{" in prefix else broker
        )
        monitor = Monitor(server)
        await _walk(broker, other, client)
        # Two jobs that are in no list, as a peer's rename may leave them.
        await _add(broker, "lost", "lost-low", priority=3)
        client.delete(f"{broker.keys.base}:prioritized", f"{broker.keys.base}:wait")
        assert {"lost", "lost-low"} <= set((await broker.rescue.run()).rescued)
        await _operate(broker, there=other.keys.base, client=client)
        await _groups(broker)
        await broker.close()
        await other.close()
        lines = monitor.stop(server)
        shas = {load(verb).sha.decode(): verb for verb in verbs()}
        called = {shas[words[1]] for _, words in lines if words[0] == "EVALSHA"}
        assert called == set(verbs()), f"not walked through: {set(verbs()) - called}"
        slot = broker.keys.slot()
        seen: set[tuple[str, ...]] = set()
        for who, words in lines:
            if who != "lua" or words[0].upper() in _KEYLESS:
                continue
            keys = client.execute_command("COMMAND GETKEYS", *words)
            seen.update((words[0].upper(), key) for key in keys)
        wrong = sorted((name, key) for name, key in seen if slot_of(key) != slot)
        assert not wrong, wrong[:10]
        assert len(seen) > 300, "the scripts were seen at work"
