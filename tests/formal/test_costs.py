"""Unused features cost nothing: a plain job takes no more commands than before the formal model.

The figures are those of the commit before it, counted by the server itself (``INFO commandstats``).
"""

from __future__ import annotations

from typing import Any

import redis

from oxcart import Queue
from oxcart.broker.port import Ask, Outcome, OutcomeKind
from oxcart.model.options import JobOptions
from tests.broker.bullmq.making import Q

#: Commands that the server ran for 100 plain jobs: added in one call, taken 50 at a time, ended 50 at a time.
BEFORE = {"add": 307, "claim": 164, "finish": 326, "retry": 505, "promote": 204}


async def counted(q: Q, store: redis.Redis) -> dict[str, int]:
    """Returns the commands of each step of a hundred jobs."""
    found: dict[str, int] = {}

    def note(step: str) -> None:
        stats: dict[str, dict[str, Any]] = store.info("commandstats")
        ours = {
            name: stat["calls"] for name, stat in stats.items() if "info" not in name and "config" not in name
        }
        found[step] = sum(ours.values())
        store.config_resetstat()

    jobs = [q.broker.encode("n", {"n": number}, JobOptions.build()) for number in range(100)]
    await q.broker.add(jobs[:1])  # the scripts are known from here on
    (first,) = await q.claim()
    await q.broker.finish([q.outcome(first)], Ask(0))
    await q.broker.recover()
    await q.broker.promote()
    store.config_resetstat()
    await q.broker.add(jobs[1:])
    note("add")
    claimed = await q.claim(50)
    note("claim")
    ended = [q.outcome(job, "c") for job in claimed]
    _, more = await q.broker.finish(ended, Ask(49))
    note("finish")
    later: list[Outcome] = [q.outcome(job, "d", value=b"no", stack=b"[]", delay_ms=1000) for job in more.jobs]
    await q.broker.finish(later, Ask(0))
    note("retry")
    q.clock.now += 2000
    await q.broker.promote()
    note("promote")
    return found


async def test_a_plain_job_takes_no_more_commands_than_before(q: Q, store: redis.Redis) -> None:
    found = await counted(q, store)
    # A command or two per call are nothing per job: the tick, once a second, looks for ended lifetimes too.
    assert {step: calls for step, calls in found.items() if calls > BEFORE[step] + 2} == {}


async def test_a_job_that_keeps_a_history_takes_at_most_three_more(q: Q, store: redis.Redis) -> None:
    """One at its start, two at its end."""

    async def commands(**options: Any) -> int:
        store.flushall()
        jobs = [q.broker.encode("n", None, JobOptions.build(**options)) for _ in range(50)]
        await q.broker.add(jobs)
        store.config_resetstat()
        claimed = await q.claim(50)
        await q.broker.finish([q.outcome(job) for job in claimed], Ask(0))
        stats: dict[str, dict[str, Any]] = store.info("commandstats")
        return sum(stat["calls"] for name, stat in stats.items() if "info" not in name)

    plain = await commands()
    assert await commands(history=True) <= plain + 4 * 50


async def test_a_call_asks_for_the_time_at_most_once(queue: Queue, store: redis.Redis) -> None:
    broker = queue._core.broker
    options = [JobOptions.build(), JobOptions.build(delay=1), JobOptions.build(lifetime=60, history=True)]
    jobs = [broker.encode("n", {"n": number}, options[number % 3]) for number in range(90)]
    store.config_resetstat()
    await broker.add(jobs)
    claimed = (await broker.claim(Ask(30))).jobs
    later = [
        Outcome(OutcomeKind.DELAY, job.id, job.token, job.starts, value=b"no", stack=b"[]", delay_ms=1)
        for job in claimed[:15]
    ]
    ended = [
        Outcome(OutcomeKind.COMPLETED, job.id, job.token, job.starts, value=b"1") for job in claimed[15:]
    ]
    await broker.finish(later + ended, Ask(30))
    await broker.promote()
    await broker.expire()
    await broker.recover()
    stats: dict[str, dict[str, Any]] = store.info("commandstats")
    calls = sum(stats.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in ("eval", "evalsha"))
    assert 3 <= stats["cmdstat_time"]["calls"] <= calls
