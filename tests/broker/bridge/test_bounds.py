"""The cost of a claim does not depend on the jobs in front. `make bench-bridge` measures times."""

from __future__ import annotations

from typing import Any

from oxcart.broker.bridge.broker import MOST_JUDGED, SCAN
from oxcart.broker.factory import DEFAULTS
from oxcart.broker.port import Ask
from oxcart.model.target import Abilities, Target
from tests.broker.bridge.conftest import Desk

#: Commands that one call may run, including the reads of 100 unread entries of the list.
MOST_COMMANDS = 60


def runs(stats: Any) -> int:
    """Returns the number of scripts that ran.

    An EVALSHA fails if the server lacks the text. Then one EVAL compiles it and another runs it.
    """
    by_hash, by_text = stats["cmdstat_evalsha"], stats.get("cmdstat_eval", {"calls": 0})
    return int(by_hash["calls"] - by_hash["failed_calls"] + by_text["calls"] // 2)


async def calls_and_commands(desk: Desk, worker: str = "w1") -> tuple[int, float, list[str]]:
    """Returns the scripts that a claim called, the mean number of commands of each, and the claimed jobs."""
    desk.store.config_resetstat()
    claimed = await desk.broker(worker=worker).claim(Ask(1, worker=worker))
    stats = desk.store.info("commandstats")
    scripts = runs(stats)
    inside = sum(
        one["calls"]
        for name, one in stats.items()
        if not name.startswith(("cmdstat_eval", "cmdstat_config", "cmdstat_info", "cmdstat_mget"))
    )
    return scripts, inside / scripts, [job.id for job in claimed.jobs]


async def test_our_job_is_found_at_once_behind_any_number(desk: Desk) -> None:
    seen = []
    for jobs in (200, 2000):
        desk.store.flushall()
        pipe = desk.store.pipeline()
        for n in range(jobs):
            pipe.set(f"bridge:jobs:data:v{n}", '{"type":"video","attempts":0}')
            pipe.rpush("bridge:jobs:waiting", f"v{n}")
        pipe.execute()
        job_id = await desk.add()
        scripts, commands, claimed = await calls_and_commands(desk)
        assert claimed == [job_id]
        assert scripts <= 2, "the claim, and a note of the entries that it read"
        seen.append(commands * scripts)
    assert seen[1] <= seen[0] + 10, "ten times as much in front costs nothing"


async def test_jobs_for_other_workers_are_not_looked_at(desk: Desk) -> None:
    desk.broker(abilities=Abilities("w1", capabilities="gpu"))
    for n in range(300):
        await desk.add(target=Target(capabilities=f"other-{n % 5}"))
    mine = await desk.add(target=Target(capabilities="gpu"))
    await desk.claim()  # learns the lanes and claims the job
    assert desk.store.get(f"bridge:jobs:lock:{mine}") == "w1"
    again = await desk.add(target=Target(capabilities="gpu"))
    scripts, commands, claimed = await calls_and_commands(desk)
    assert claimed == [again]
    assert scripts == 1
    assert commands <= MOST_COMMANDS


async def test_a_job_behind_ten_thousand_of_another_client_is_found(desk: Desk) -> None:
    pipe = desk.store.pipeline()
    for n in range(10_000):
        pipe.set(f"bridge:jobs:data:v{n}", '{"type":"video","attempts":0}')
        pipe.rpush("bridge:jobs:waiting", f"v{n}")
    pipe.execute()
    wanted = desk.foreign("wanted")
    assert [job.id for job in await desk.claim()] == [wanted]
    # The next one is found with a pass that reads nothing.
    again = desk.foreign("again")
    desk.store.config_resetstat()
    assert [job.id for job in await desk.claim()] == [again]
    assert desk.store.info("commandstats")["cmdstat_mget"]["calls"] == 1


async def test_an_end_reads_only_its_dependents(desk: Desk) -> None:
    """The cost does not depend on the number of pending jobs or of workers that check them."""
    broker = desk.broker()
    never = await desk.add(job_type="video")
    waiting = [broker.encode("email", n, DEFAULTS["bridge"].replace(after=[never])) for n in range(1000)]
    await broker.add(waiting)
    first = await desk.add()
    after = await desk.add(after=[first])
    (job,) = await desk.claim()
    desk.store.config_resetstat()
    await desk.end(job)
    stats = desk.store.info("commandstats")
    assert runs(stats) <= 2
    assert [one.id for one in await desk.claim()] == [after]
    desk.store.set(f"bridge:jobs:status:{never}", "completed")  # by another client, without an event
    desk.store.config_resetstat()
    for worker in ("w1", "w2", "w3"):
        await desk.broker(worker=worker).promote()
    assert desk.store.info("commandstats")["cmdstat_zrange"]["calls"] < 40, "one worker checks all of them"
    assert desk.store.zcard("bridge:ox:pending") == 0
    assert desk.store.llen("bridge:jobs:waiting") == 1001


async def test_jobs_in_the_midst_of_a_long_list_are_taken_a_few_at_a_time(desk: Desk) -> None:
    """Removing an entry scans the list up to it, so with thousands of entries a call takes only the first."""
    broker = desk.broker()
    ids = [await desk.add(priority=6) for _ in range(3)]
    pipe = desk.store.pipeline()
    for place in ("lpush", "rpush"):
        for n in range(0, 15_000, 1000):
            getattr(pipe, place)("bridge:jobs:waiting", *(f"{place}{m}" for m in range(n, n + 1000)))
    pipe.execute()
    for n, job_id in enumerate(ids):
        answer = await broker._claim(Ask(9, worker="w1"), 9)
        assert [job.id for job in broker._jobs(answer, "w1")] == [job_id]
        assert answer.more == 1, "there is more"
        assert desk.store.zcard("bridge:ox:marker:email") == 1 or n == 2, "for another worker too"
    assert desk.store.llen("bridge:jobs:waiting") == 30_000


async def test_the_scan_goes_on_nearby_in_a_long_list(desk: Desk) -> None:
    broker = desk.broker()
    pipe = desk.store.pipeline()
    for n in range(0, 12_000, 1000):
        pipe.rpush("bridge:jobs:waiting", *(f"v{m}" for m in range(n, n + 1000)))
    place = {"at": 10_000, "anchor": "v9999", "head": "v0", "tail": "v11999"}
    pipe.hset("bridge:ox:scan", mapping=place)
    pipe.lpop("bridge:jobs:waiting", 100)
    pipe.lpush("bridge:jobs:waiting", "new")
    pipe.config_resetstat()
    pipe.execute()
    answer = await broker._claim(Ask(1, worker="w1"), 1)
    assert answer.unknown[0] == b"v10000"
    assert "cmdstat_lpos" not in desk.store.info("commandstats")
    desk.store.lpop("bridge:jobs:waiting", 3000)  # too far for that
    answer = await broker._claim(Ask(1, worker="w1"), 1)
    assert answer.unknown[0] == b"v10050"


async def test_neither_an_end_nor_a_claim_reads_a_long_list_to_its_end(desk: Desk) -> None:
    """The worker claims again and receives the results of its finishes meanwhile."""
    job = await desk.active()
    pipe = desk.store.pipeline()
    for n in range(3000):
        pipe.set(f"bridge:jobs:data:v{n}", '{"type":"video","attempts":0}')
        pipe.rpush("bridge:jobs:waiting", f"v{n}")
    pipe.execute()
    codes, claimed = await desk.broker().finish([desk.outcome(job)], Ask(1, worker="w1"))
    assert (codes, claimed.jobs, claimed.more) == ([1], [], True)
    assert desk.store.scard("bridge:ox:listed") == SCAN, "the entries that it read are noted"
    claimed = await desk.broker().claim(Ask(1, worker="w1"))
    assert (claimed.jobs, claimed.more) == ([], True)
    assert SCAN < desk.store.scard("bridge:ox:listed") < 3000
    assert await desk.claim() == []
    assert desk.store.scard("bridge:ox:listed") == 3000


def test_lane_match_cache_is_bounded(desk: Desk) -> None:
    broker = desk.broker(abilities=Abilities("w1", capabilities="gpu"))
    for n in range(3 * MOST_JUDGED):
        broker._judge([f"server=w{n}".encode()])
    assert len(broker._judged) <= MOST_JUDGED + 1
