"""The fixed faults of the document's sketches, by their number in the protocol's notes.

The faults of cron (1) and of the cluster (7) are in test_schedules.py and tests/conformance.
"""

from __future__ import annotations

import asyncio
import json

import msgpack
import pytest
import redis

from oxcart.broker.bridge import records
from oxcart.broker.bridge.sweeping import Sweeper
from oxcart.broker.port import Ask
from oxcart.model.retention import REMOVE
from oxcart.model.state import State
from oxcart.model.target import Abilities, Target
from tests.broker.bridge.conftest import Desk


async def test_2_a_crashed_worker_frees_its_slot(desk: Desk) -> None:
    job = await desk.active(rate_limit={"max_concurrent": 1})
    waits = await desk.add(rate_limit={"max_concurrent": 1})
    assert await desk.claim(worker="w2") == []
    desk.store.delete(f"bridge:jobs:lock:{job.id}")  # as if the lease had expired
    recovered = await desk.broker(worker="w2").recover()
    assert recovered.ids == [job.id]
    assert desk.counter() == 0
    assert desk.waiting()[0] == job.id
    (again,) = await desk.claim(worker="w2")
    assert again.id == job.id
    assert desk.counter() == 1
    assert desk.waiting() == [waits]


async def test_2_a_wrong_counter_is_corrected(desk: Desk) -> None:
    await desk.active()
    desk.store.set("bridge:ratelimit:concurrent:email", 17)
    assert (await desk.broker().recover()).ran
    assert desk.counter() == 1
    # While workers of other clients hold jobs, the same error must be seen twice.
    desk.foreign("f1", push="")
    desk.store.sadd("bridge:jobs:active", "f1")
    desk.store.set("bridge:jobs:lock:f1", "node-1", ex=30)
    desk.store.set("bridge:ratelimit:concurrent:email", 9)
    for expected in (9, 2):
        desk.store.delete("bridge:ox:checking")
        await desk.broker().recover()
        assert desk.counter() == expected


async def test_2_a_counter_never_goes_below_nothing(desk: Desk) -> None:
    job = await desk.active()
    desk.store.set("bridge:ratelimit:concurrent:email", 0)
    await desk.end(job)
    assert desk.counter() == 0


async def test_3_a_job_behind_many_that_do_not_match_is_found(desk: Desk) -> None:
    for n in range(350):
        desk.foreign(f"v{n}", "video")
    wanted = desk.foreign("wanted", "email")
    (job,) = await desk.claim()
    assert job.id == wanted
    assert desk.store.llen("bridge:jobs:waiting") == 350


async def test_3_the_scan_goes_on_though_the_list_moves(desk: Desk) -> None:
    """No entry is skipped when entries before the scan position disappear."""
    broker = desk.broker()
    for n in range(250):
        desk.foreign(f"v{n}", "video")
    answer = await broker._claim(Ask(1, worker="w1"), 1)
    assert answer.more == 1, "not seen to its end"
    unread = await broker._read_foreign(answer.unknown)
    assert unread is not None
    await broker._index(unread)
    desk.foreign("wanted", "email")
    for n in range(60):
        desk.store.lrem("bridge:jobs:waiting", 1, f"v{n}")
    assert [job.id for job in await desk.claim()] == ["wanted"]


async def test_4_what_does_not_match_is_not_locked(desk: Desk) -> None:
    for n in range(20):
        desk.foreign(f"v{n}", "video")
    mine = desk.foreign("mine")
    desk.store.config_resetstat()
    await desk.claim()
    stats = desk.store.info("commandstats")
    assert stats["cmdstat_lrem"]["calls"] == 1
    assert "cmdstat_del" not in stats
    assert desk.store.keys("bridge:jobs:lock:*") == [f"bridge:jobs:lock:{mine}"]


async def test_5_any_means_any(desk: Desk) -> None:
    able = Abilities("w1", capabilities="gpu", region="eu")
    desk.broker(abilities=able)
    either = await desk.add(target=Target(capabilities="gpu", region="us", mode="any"))
    both = await desk.add(target=Target(capabilities="gpu", region="us", mode="all"))
    foreign = desk.foreign("f", target={"stack": ["node"], "region": ["eu"], "mode": "any"})
    assert {job.id for job in await desk.claim(9)} == {either, foreign}
    assert desk.waiting() == [both]


async def test_6_our_jobs_of_one_priority_keep_their_order(desk: Desk) -> None:
    high = [await desk.add(priority=8) for _ in range(3)]
    normal = [await desk.add() for _ in range(2)]
    highest = await desk.add(priority=10)
    low = await desk.add(priority=1)
    assert desk.waiting() == [highest, *reversed(high), *normal, low], "the list is the document's"
    assert [job.id for job in await desk.claim(9)] == [highest, *high, *normal, low]


async def test_6_jobs_of_others_found_together_run_by_priority_and_then_in_their_order(desk: Desk) -> None:
    given = {f"f{n}": 1 + n * 7 % 10 for n in range(40)}
    for job_id, priority in given.items():
        desk.foreign(job_id, priority=priority)
    found = [job.id for job in await desk.claim(40)]
    assert found == sorted(given, key=lambda job_id: -given[job_id]), "sorting keeps the order of equals"


async def test_jobs_that_fell_out_of_their_lanes_come_back_in_their_order(desk: Desk) -> None:
    ids = [await desk.add() for _ in range(70)]
    lanes = desk.store.keys("bridge:ox:lane:*")
    desk.store.delete("bridge:ox:listed", *lanes)  # the facts of the jobs stay
    assert [job.id for job in await desk.claim(70)] == ids


async def test_8_at_most_so_many_in_a_minute(desk: Desk) -> None:
    ids = [await desk.add(rate_limit={"max_per_minute": 2}) for _ in range(3)]
    claimed = await desk.broker().claim(Ask(9, worker="w1"))
    assert [job.id for job in claimed.jobs] == ids[:2]
    assert 0 < claimed.limited_ms <= 60_000
    desk.store.delete("bridge:ratelimit:minute:email")  # the minute is over
    assert [job.id for job in await desk.claim()] == ids[2:]


async def test_8_a_limited_type_does_not_hold_up_another(desk: Desk) -> None:
    await desk.add(rate_limit={"max_concurrent": 1})
    await desk.add(rate_limit={"max_concurrent": 1})
    video = await desk.add(job_type="video")
    assert len(await desk.claim(9)) == 1
    assert [job.id for job in await desk.claim(9, job_type="video")] == [video]


async def test_8_a_job_waits_for_those_it_depends_on(desk: Desk) -> None:
    first, second = await desk.add(), await desk.add(job_type="video")
    after = await desk.add(after=[first, second])
    assert await desk.broker().states([after]) == ["waiting-children"]
    assert (await desk.broker().look([after]))[0].state is State.PENDING  # type: ignore[union-attr]
    (job,) = await desk.claim(9)
    await desk.end(job)
    assert await desk.claim(9) == []
    (other,) = await desk.claim(9, job_type="video")
    await desk.broker("video").finish([desk.outcome(other)])
    assert [job.id for job in await desk.claim(9)] == [after]


async def test_8_what_was_seen_completed_stays_so(desk: Desk) -> None:
    first, second = await desk.add(), await desk.add()
    after = await desk.add(after=[first, second])
    jobs = await desk.claim(2)
    await desk.end(jobs[0])
    for key in list(desk.store.scan_iter(f"*{jobs[0].id}")):
        desk.store.delete(key)  # its day is over
    await desk.end(jobs[1])
    assert [job.id for job in await desk.claim(9)] == [after]


async def test_8_jobs_of_others_wait_for_theirs_too(desk: Desk) -> None:
    desk.foreign("before", "video")
    desk.foreign("after", dependsOn=["before"])
    assert await desk.claim(9) == []
    desk.store.set("bridge:jobs:status:before", "completed")  # a worker of another client ran it
    await desk.broker().promote()
    assert [job.id for job in await desk.claim(9)] == ["after"]


async def test_8_a_dead_worker_is_known_by_its_heartbeat(desk: Desk) -> None:
    job = await desk.active()
    desk.store.sadd("bridge:workers:active", "w1")
    desk.store.set("bridge:workers:heartbeat:w1", "1", ex=30)
    assert (await desk.broker().recover()).ids == []
    desk.store.delete("bridge:workers:heartbeat:w1", "bridge:ox:checking")
    assert (await desk.broker().recover()).ids == [job.id], "though its lock is still there"
    assert desk.status(job.id) == "waiting"


async def test_8_a_job_of_another_client_must_be_lost_for_a_second(desk: Desk) -> None:
    desk.foreign("f1", push="")
    desk.store.sadd("bridge:jobs:active", "f1")
    assert (await desk.broker().recover()).ids == [], "its worker may be about to end it"
    desk.store.delete("bridge:ox:checking")
    desk.store.zincrby("bridge:ox:suspects", 60_000, "f1")  # so that a pause of the machine is no second
    desk.clock.now += 60_000  # a worker whose clock is ahead
    assert (await desk.broker().recover()).ids == []
    desk.store.delete("bridge:ox:checking")
    desk.store.zincrby("bridge:ox:suspects", -61_000, "f1")  # a second later
    assert (await desk.broker().recover()).ids == ["f1"]
    assert desk.waiting() == ["f1"]


async def test_8_lost_too_often_is_a_dead_letter(desk: Desk) -> None:
    job_id = await desk.add(attempts=2)
    for _ in range(2):
        assert len(await desk.claim()) == 1
        desk.store.delete(f"bridge:jobs:lock:{job_id}", "bridge:ox:checking")
        assert (await desk.broker().recover()).ids == [job_id]
    assert desk.status(job_id) == "dead"
    assert desk.store.lrange("bridge:jobs:deadletter", 0, -1) == [job_id]
    assert desk.result(job_id)["error"]["name"] == "WorkerLost"
    assert desk.counter() == 0


async def test_8_one_check_at_a_time(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oxcart.broker.bridge.broker.CHECK_EVERY", 60_000)  # longer than any pause
    assert (await desk.broker().recover(interval_ms=100_000)).ran
    busy = await desk.broker(worker="w2").recover()
    assert not busy.ran
    assert 0 < busy.wait_ms <= 60_000


async def test_9_a_server_decides_alone(desk: Desk) -> None:
    mine = await desk.add(target=Target(server="w1", capabilities="gpu"))
    other = await desk.add(target=Target(server="w2"))
    assert [job.id for job in await desk.claim(9)] == [mine]
    assert [job.id for job in await desk.claim(9, worker="w2")] == [other]


async def test_10_the_record_stays_as_long_as_the_result(desk: Desk) -> None:
    job = await desk.active()
    await desk.end(job)
    ends = {desk.store.expiretime(f"bridge:jobs:{kind}:{job.id}") for kind in ("data", "status", "result")}
    assert len(ends) == 1


async def test_13_the_side_index_finds_our_job_without_the_scan(desk: Desk) -> None:
    for n in range(300):
        desk.foreign(f"v{n}", "video")
    job_id = await desk.add()
    answer = await desk.broker()._claim(Ask(1, worker="w1"), 1)
    (job,) = desk.broker()._jobs(answer, "w1")
    assert job.id == job_id, "with the first call"


async def test_13_a_record_is_read_once(desk: Desk, store: redis.Redis) -> None:
    for n in range(150):
        desk.foreign(f"v{n}", "video")
    await desk.claim()
    desk.store.config_resetstat()
    desk.clock.now += 5000  # another pass
    await desk.claim()
    stats = desk.store.info("commandstats")
    assert "cmdstat_mget" not in stats
    assert "cmdstat_get" not in stats or stats["cmdstat_get"]["calls"] < 20


async def test_a_job_that_others_took_is_not_run_twice(desk: Desk) -> None:
    """Our index may be behind the list; the list is the truth."""
    first, second = await desk.add(), await desk.add()
    desk.store.lrem("bridge:jobs:waiting", 1, first)
    desk.store.set(f"bridge:jobs:lock:{first}", "node-1")
    assert [job.id for job in await desk.claim(9)] == [second]
    assert desk.store.get(f"bridge:jobs:lock:{first}") == "node-1"


async def test_a_rewritten_record_is_read_again(desk: Desk) -> None:
    desk.foreign("f1", attempts=0)
    desk.foreign("v1", "video")
    await desk.claim(0)
    await desk.claim(job_type="video")  # the pass that reads both
    record = desk.record("f1")
    desk.store.set("bridge:jobs:data:f1", json.dumps({"padding": "x" * 100, **record, "attempts": 1}))
    for _ in range(2):
        desk.clock.now += 2000
        jobs = await desk.claim()
        if jobs:
            break
    assert [job.id for job in jobs] == ["f1"]
    assert desk.record("f1")["attempts"] == 2


async def test_two_workers_never_hold_the_same_job(desk: Desk) -> None:
    ids = {await desk.add() for _ in range(40)} | {desk.foreign(f"f{n}") for n in range(40)}
    taken = await asyncio.gather(*(desk.claim(30, worker=f"w{n}") for n in range(4)))
    seen = [job.id for jobs in taken for job in jobs]
    assert len(seen) == len(set(seen)) == len(ids)


async def test_a_job_goes_to_another_worker_after_some_errors(desk: Desk) -> None:
    job_id = await desk.add(reroute_on=["MemoryError"])
    (job,) = await desk.claim()
    await desk.end(job, "r", value=b"too small", code="MemoryError", category="temporary")
    assert await desk.claim() == []
    (again,) = await desk.claim(worker="w2")
    assert again.id == job_id
    await desk.end(again, "r", value=b"other", code="ValueError", category="temporary")
    assert len(await desk.claim(worker="w2")) == 1, "only after those errors"


async def test_a_job_comes_back_if_no_other_worker_claims_it(desk: Desk) -> None:
    job_id = await desk.add(reroute_on=["MemoryError"])
    (job,) = await desk.claim()
    await desk.end(job, "r", value=b"too small", code="MemoryError", category="temporary")
    assert await desk.claim() == []
    desk.clock.now += 30_000
    assert [one.id for one in await desk.claim()] == [job_id]


async def test_the_index_does_not_grow_with_what_others_take(desk: Desk) -> None:
    """No Oxcart worker serves the type: a pass notes the jobs, and other clients run them."""
    for n in range(30):
        desk.foreign(f"v{n}", "video")
    waits = desk.foreign("w", "video", dependsOn=["x"])
    stays = desk.foreign("stays", "video")
    await desk.claim()
    assert desk.store.scard("bridge:ox:listed") == 32
    for n in range(30):
        desk.store.lrem("bridge:jobs:waiting", 1, f"v{n}")
        desk.store.set(f"bridge:jobs:status:v{n}", "completed" if n % 2 else "active")
    broker = desk.broker()
    assert await Sweeper(broker.keys, broker.caller, slack=0).sweep() == 30
    assert desk.store.smembers("bridge:ox:listed") == {waits, stays}
    assert set(desk.store.hkeys("bridge:ox:facts")) == {waits, stays}
    assert [job.id for job in await desk.claim(9, job_type="video")] == [stays]
    assert not desk.store.exists("bridge:ox:lanes:video")


async def test_job_dropped_from_the_index_is_found_again(desk: Desk) -> None:
    job_id = await desk.add()
    await desk.broker()._sweeper._forget([job_id.encode()])
    assert [job.id for job in await desk.claim()] == [job_id]


async def test_a_job_that_goes_elsewhere_may_get_another_payload(desk: Desk) -> None:
    """The id stays in its list until the job is claimed."""
    job_id = await desk.add(reroute_on=["MemoryError"])
    (job,) = await desk.claim()
    await desk.end(job, "r", value=b"too small", code="MemoryError", category="temporary")
    await desk.broker().update_data(job_id, {"n": 2})
    assert await desk.claim() == []
    async with asyncio.timeout(10):
        (again,) = await desk.claim(worker="w2")
        assert await desk.claim(worker="w2") == []
    assert json.loads(again.payload) == {"n": 2}
    assert desk.store.keys("bridge:ox:lane:*") == []


async def test_a_place_that_the_facts_do_not_name_is_left_too(desk: Desk) -> None:
    job_id = await desk.add()
    facts = msgpack.unpackb(desk.store.execute_command("HGET", "bridge:ox:facts", job_id, NEVER_DECODE=[]))
    facts[1] = "server=w1"
    desk.store.hset("bridge:ox:facts", job_id, records.pack(facts))
    async with asyncio.timeout(10):
        assert len(await desk.claim()) == 1
        assert await desk.claim() == []
    assert desk.store.keys("bridge:ox:lane:*") == []


async def test_8_a_dependency_that_is_removed_when_it_completes_has_completed(desk: Desk) -> None:
    first = await desk.add()
    after = await desk.add(after=[first])
    (job,) = await desk.claim()
    assert job.id == first
    await desk.end(job, retention=REMOVE)
    assert [one.id for one in await desk.claim()] == [after]
    assert [key for key in desk.store.scan_iter() if first in key] == [f"bridge:jobs:status:{first}"]
    assert 0 < desk.store.ttl(f"bridge:jobs:status:{first}") <= 86_400


async def test_runs_that_others_end_leave_nothing_of_ours(desk: Desk) -> None:
    """Our keys of a job are removed with it, however another client removes the job."""
    ids = []
    for _ in range(4):
        job = await desk.active()
        await desk.end(job, "r", value=b"no")
        desk.store.lrem("bridge:jobs:waiting", 1, job.id)
        ids.append(job.id)
    gone, silent, kept, runs = ids
    desk.store.set(f"bridge:jobs:status:{gone}", "completed")
    desk.store.delete(f"bridge:jobs:data:{gone}", f"bridge:jobs:data:{silent}")
    desk.store.set(f"bridge:jobs:status:{kept}", "completed")
    desk.store.set(f"bridge:jobs:status:{runs}", "active")
    broker = desk.broker()
    await Sweeper(broker.keys, broker.caller, slack=0).sweep()
    left = {key for key in desk.store.scan_iter() if gone in key or silent in key}
    assert left == {f"bridge:jobs:status:{gone}"}, "the status that the other client wrote"
    assert 0 < desk.store.ttl(f"bridge:ox:job:{kept}") <= 86_400
    assert desk.store.hkeys("bridge:ox:facts") == [runs], "it is looked at again"
    # The other client runs a job again: its record must last as long as the run.
    desk.store.rpush("bridge:jobs:waiting", kept)
    (job,) = await desk.claim()
    assert desk.store.ttl(f"bridge:ox:job:{kept}") == -1
    assert await desk.end(job) == 1


async def test_2_the_slot_is_that_of_the_lost_jobs_own_type(desk: Desk) -> None:
    """This holds even without a record and for a worker of another type."""
    await desk.active()
    await desk.add(job_type="video")
    (video,) = await desk.claim(job_type="video", worker="w2")
    desk.store.delete(f"bridge:jobs:data:{video.id}", f"bridge:jobs:lock:{video.id}")
    await desk.broker().take_back([video.id.encode()])
    assert (desk.counter(), desk.counter("video")) == (1, 0)
    assert desk.store.smembers("bridge:ox:active:video") == set()


async def test_2_a_counter_that_is_no_number_is_corrected(desk: Desk) -> None:
    await desk.active()
    desk.store.set("bridge:ratelimit:concurrent:email", "oops")
    await desk.broker().recover()
    assert desk.counter() == 1


async def test_an_id_that_is_no_text_is_run(desk: Desk) -> None:
    desk.store.rpush("bridge:jobs:waiting", b"\xff\xfe")
    desk.store.set(b"bridge:jobs:data:\xff\xfe", '{"type":"email"}')
    (job,) = await desk.claim()
    assert await desk.end(job) == 1
    assert desk.store.get(b"bridge:jobs:status:\xff\xfe") == "completed"


async def test_an_entry_that_is_left_over_does_not_run_a_job_again(desk: Desk) -> None:
    """Oxcart and another client both recover a job, which is then twice in the list."""
    job_id = await desk.add()
    desk.store.rpush("bridge:jobs:waiting", job_id)
    (job,) = await desk.claim()
    assert await desk.claim(worker="w2") == [], "it is locked"
    await desk.end(job)
    for _ in range(2):
        desk.clock.now += 2000
        assert await desk.claim(worker="w2") == []
    assert desk.waiting() == []
    await desk.broker().retry_job(job_id, "completed")  # asked for, it runs
    assert [one.id for one in await desk.claim()] == [job_id]


@pytest.mark.parametrize("facts", [b"\x05", b"\xc1", b"", b"\x90", b"\x93\xa1x\xa1y\xa1z"])
async def test_facts_that_a_peer_spoiled_count_as_absent(desk: Desk, facts: bytes) -> None:
    spoiled = [await desk.add() for _ in range(3)]
    for job_id in spoiled:
        desk.store.hset("bridge:ox:facts", job_id, facts)
    await desk.broker().remove_job(spoiled[0])
    await desk.broker().cancelling.cancel([spoiled[1]], "no", force=True)
    healthy = await desk.add()
    claimed = {job.id for job in await desk.claim(5)}
    desk.clock.now += 10_000  # the list is read again after a pause
    claimed |= {job.id for job in await desk.claim(5)}
    assert claimed == {spoiled[2], healthy}


async def test_a_dependent_whose_due_time_is_no_number_is_released(desk: Desk) -> None:
    first = await desk.active()
    dependent = await desk.add(after=(first.id,))
    desk.store.hset(f"bridge:ox:job:{dependent}", "due", "soon")
    await desk.end(first)
    assert [job.id for job in await desk.claim()] == [dependent]


async def test_a_scan_goes_on_though_the_time_of_the_last_one_is_no_number(desk: Desk) -> None:
    job_id = await desk.add()
    head = desk.waiting()[0]
    desk.store.hset("bridge:ox:scan", mapping={"head": head, "tail": head, "done": "never"})
    assert [job.id for job in await desk.claim()] == [job_id]
