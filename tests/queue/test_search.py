"""Searches on BullMQ's layout: lanes, jobs that a limit holds back, ids without a job, and the cost."""

from __future__ import annotations

import redis

from oxcart import Queue


async def test_jobs_of_lanes_are_found(queue: Queue) -> None:
    own = (await queue.add("cut")).id
    routed = (await queue.add("cut", target="c=gpu")).id
    other = (await queue.add("mix", target="c=gpu")).id
    found = await queue.jobs.search(state="scheduled")
    assert {job.id for job in found.jobs} == {own, routed, other}
    assert found.total == 3
    found = await queue.jobs.search(name="cut")
    assert {job.id for job in found.jobs} == {own, routed}
    assert await queue.jobs.resolve(routed[:20]) == routed


async def test_a_job_that_a_limit_holds_back_is_scheduled(queue: Queue, store: redis.Redis) -> None:
    parked = (await queue.add("a", delay="1h")).id
    later = (await queue.add("a", delay="1h")).id
    store.hset(f"bull:q:{parked}", "delay", 0)  # as a limit leaves it
    assert [job.id for job in (await queue.jobs.search(state="scheduled")).jobs] == [parked]
    found = await queue.jobs.search(state="delayed")
    assert [job.id for job in found.jobs] == [later]
    assert dict(found.other_states) == {"scheduled": 1}


async def test_a_span_of_time_in_a_long_list_costs_few_calls(queue: Queue, store: redis.Redis) -> None:
    """A bisection, not a walk: the span is in the middle of 4 000 ended jobs."""
    await queue.add("a")
    with store.pipeline(transaction=False) as pipe:
        for number in range(4000):
            ended = 1_000_000 + number
            pipe.hset(f"bull:q:j{number}", mapping={"name": "a", "finishedOn": ended, "timestamp": 1})
            pipe.zadd("bull:q:completed", {f"j{number}": ended})
        pipe.execute()
    store.config_resetstat()
    found = await queue.jobs.search(state="completed", since=1_002_000, until=1_002_009)
    assert [job.id for job in found.jobs] == [f"j{number}" for number in range(2009, 1999, -1)]
    assert (found.matched, found.exact, found.looked_at, found.total) == (10, True, 10, 4000)
    calls = store.info("commandstats")["cmdstat_evalsha"]["calls"]
    assert calls < 40


async def test_a_search_without_a_count_stops_at_a_full_page(queue: Queue, store: redis.Redis) -> None:
    await queue.add("a")
    with store.pipeline(transaction=False) as pipe:
        for number in range(4000):
            pipe.hset(
                f"bull:q:j{number}",
                mapping={"name": "a", "finishedOn": number, "atm": 3, "opts": '{"attempts": 3}'},
            )
            pipe.zadd("bull:q:failed", {f"j{number}": number})
        pipe.execute()
    found = await queue.jobs.search(state="dead_letter", limit=50, count=False)
    assert [job.id for job in found.jobs] == [f"j{number}" for number in range(3999, 3949, -1)]
    assert (found.matched, found.exact, found.looked_at <= 100) == (50, False, True)
    found = await queue.jobs.search(state="dead_letter", limit=50)
    assert (found.matched, found.exact, found.looked_at) == (4000, True, 4000)
    found = await queue.jobs.search(state="dead_letter", since=3990, limit=50, count=False)
    assert (found.matched, found.exact) == (10, True)


async def test_ids_without_a_job_hide_none(queue: Queue, store: redis.Redis) -> None:
    """The bisection may meet an id whose job is gone."""
    await queue.add("a")
    for number in range(64):
        if number % 3:
            store.hset(
                f"bull:q:j{number}", mapping={"name": "a", "finishedOn": 1000 + number, "timestamp": 1}
            )
        store.zadd("bull:q:completed", {f"j{number}": 1000 + number})
    for oldest in (False, True):
        found = await queue.jobs.search(
            state="completed", name="a", since=1020, until=1040, limit=100, oldest=oldest
        )
        expected = [f"j{number}" for number in range(20, 41) if number % 3]
        assert [job.id for job in found.jobs] == (expected if oldest else expected[::-1])
