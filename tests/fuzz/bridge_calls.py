"""A walk through every script of Bridge, whose calls are recorded."""

from __future__ import annotations

from typing import Any

from oxcart import Queue
from oxcart.broker.bridge.broker import BridgeBroker
from oxcart.broker.bridge.rescue import Rescuer
from oxcart.broker.bridge.schedules import CronKeeper
from oxcart.broker.bridge.scripts import load
from oxcart.broker.factory import DEFAULTS
from oxcart.broker.keyring import KeyRing
from oxcart.broker.port import Lease, Outage
from oxcart.broker.resealing import reseal
from oxcart.model.schedule import Schedule
from oxcart.model.target import Abilities, Target
from tests.broker.bridge.conftest import Desk
from tests.servers import ValkeyServer

FAILURE: dict[str, Any] = {"value": b"no", "category": "temporary"}
_DAY = 86_400_000


async def walk(server: ValkeyServer) -> None:
    """Calls every script of Bridge."""
    with server.client() as client:
        desk = Desk(server.url, client)
        broker = desk.broker(abilities=Abilities(capabilities="gpu"))
        await _attached(broker, desk)
        await _lives(broker, desk)
        await _operated(broker, desk)
        await _lost(broker, desk)
        await _scheduled(broker, desk)
        await _sealed(server)
        await broker.bulk.clear(delayed=True)
        await broker.bulk.obliterate(force=True)
        await desk.close()


async def _attached(broker: BridgeBroker, desk: Desk) -> None:
    await desk.add()
    now, waiting = desk.clock(), broker.keys.waiting()
    await broker.caller.again(load("attach"), waiting, "email", "main", now + 60_000, 50_000, now, "mark")
    await broker.caller.again(load("stride"), waiting, "email", "0-0", "+", 10)
    await broker.caller.again(load("detach"), waiting, "email", "main", now)
    await broker.bulk.publish("note", {"a": "b"}, 1_000)


async def _lives(broker: BridgeBroker, desk: Desk) -> None:
    """Jobs of every kind, from their adds to their ends."""
    first = await desk.add()
    await desk.add(priority=1, after=(first,), rate_limit={"max_concurrent": 4, "max_per_minute": 100})
    await desk.add(target=Target(capabilities="gpu"))
    delayed = await desk.add(delay="5s")
    desk.foreign("11111111-1111-4111-8111-111111111111", push="lpush")
    desk.foreign("22222222-2222-4222-8222-222222222222", push="rpush", type="video")
    desk.store.rpush("bridge:jobs:waiting", "33333333-3333-4333-8333-333333333333")  # without a record
    await broker.appear(Outage(silence_ms=60_000, grace_ms=1))
    some, *others = await desk.claim(4)
    await broker.renew([Lease(job.id, job.token, job.starts) for job in (some, *others)], 30_000)
    await broker.set_progress(some.id, 5)
    await broker.set_checkpoint(some.id, some.token, b"1")
    await broker.steps.keep(some.id, some.token, "s", b"step\t1\t1\t1\t1\t\t\n1")
    await broker.steps.receive(some.id, some.token, "go", "go", wait=b"wait\t", arrived=b"", late=b"")
    await broker.steps.signal(some.id, "go", b"1")
    await desk.end(some)
    ends: list[tuple[str, dict[str, Any]]] = [
        ("f", FAILURE),
        ("d", {"delay_ms": 1_000, **FAILURE}),
        ("w", {}),
    ]
    for job, (kind, fields) in zip(others, ends, strict=False):
        await desk.end(job, kind, **fields)
    desk.clock.now += 10_000
    await broker.promote()
    await broker.change_delay(await desk.add(delay="1d"), 5_000)
    await broker.promote_job(await desk.add(delay="1d"))
    await broker.states([some.id, delayed])


async def _operated(broker: BridgeBroker, desk: Desk) -> None:
    job_id = await desk.add()
    await broker.update_data(job_id, {"n": 2})
    await broker.cancelling.cancel([job_id, await desk.add()], "no", force=True)
    await broker.remove_job(await desk.add())
    dead = await desk.add(attempts=1)
    for job in await desk.claim(9):
        await desk.end(job, "f", **FAILURE)
    await broker.retry_job(dead, "failed")


async def _lost(broker: BridgeBroker, desk: Desk) -> None:
    """Jobs whose workers are gone, and jobs that are in no list."""
    await desk.add()
    for job in await desk.claim(9):
        desk.store.delete(f"bridge:jobs:lock:{job.id}")
    desk.store.delete("bridge:ox:checking")
    await broker.recover(interval_ms=1)
    nowhere = desk.foreign("44444444-4444-4444-8444-444444444444", push="")
    desk.foreign("55555555-5555-4555-8555-555555555555", push="")
    desk.store.set("bridge:jobs:status:55555555-5555-4555-8555-555555555555", "completed")
    rescuer = Rescuer(broker, grace_ms=0, rest_ms=0)
    await rescuer.step()
    desk.clock.now += 1
    await rescuer.step()
    assert desk.status(nowhere) == "waiting"
    await broker._sweeper._forget([nowhere.encode()])


async def _scheduled(broker: BridgeBroker, desk: Desk) -> None:
    made = await broker.schedules.upsert(
        "s", Schedule.build(cron="0 0 * * *"), "email", b"{}", DEFAULTS["bridge"], missed="all"
    )
    assert made
    keeper = CronKeeper(broker, "s1")
    desk.clock.now += 2 * _DAY
    assert await keeper.tick() > 0
    await broker.schedules.pause("s")
    await broker.schedules.resume("s")
    await keeper.resign()
    await broker.schedules.remove("s")


async def _sealed(server: ValkeyServer) -> None:
    old, new = bytes(range(32)), bytes(range(1, 33))
    async with Queue(
        "email",
        url=server.url,
        protocol="bridge",
        namespace="bridge",
        key_ring=KeyRing({"old": old}, progress=True),
    ) as one:
        job = await one.add("email", {"n": 1})
        await one._core.broker.set_progress(job.id, b'"half"')
    both = KeyRing({"new": new, "old": old}, "new", progress=True, migrating=True)
    async with Queue("email", url=server.url, protocol="bridge", namespace="bridge", key_ring=both) as other:
        await reseal(other._core.broker)
