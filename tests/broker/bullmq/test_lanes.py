"""Lanes on the server: what adds record, which lane a claim serves, and what the base queue decides."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import redis

from oxcart.broker.bullmq import lanes
from oxcart.broker.bullmq.broker import BullMQBroker
from oxcart.broker.port import Ask, ClaimedJob, Outcome, OutcomeKind
from oxcart.broker.workers import Wakes, WorkerRecord
from oxcart.model.errors import JobNotFound, ScriptError
from oxcart.model.options import JobOptions
from tests.broker.bullmq.mesh import BIG, EU, GPU, Mesh, ids, q

__all__ = ["q"]  # a fixture


class TestEvents:
    async def test_events_of_lanes_are_read_in_one_order(
        self, q: Mesh, store: redis.Redis, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(lanes, "EVENTS", 2)
        await q.put(GPU, "a")
        await q.put(EU, "b")
        gpu, eu = f"bull:q@{GPU}:events", f"bull:q@{EU}:events"
        store.delete(gpu, eu)
        placed = [(7, 0, GPU), (7, 0, EU), (7, 1, GPU), (7, 1, EU), (7, 2, GPU), (8, 0, EU), (9, 0, GPU)]
        for ms, number, lane in placed:
            store.xadd(gpu if lane == GPU else eu, {"event": "x"}, id=f"{ms}-{number}")
        at: tuple[int, int, str] = (0, 0, "")
        seen: list[tuple[int, int, str]] = []
        while rows := await q.broker.lanes.read_events(at):
            seen += [place for place, _ in rows]
            at = seen[-1]
        assert seen == sorted(placed)
        for number, place in enumerate(seen):  # from every place on, the rest
            monkeypatch.setattr(lanes, "EVENTS", 100)
            assert [at for at, _ in await q.broker.lanes.read_events(place)] == seen[number + 1 :]

    async def test_events_of_the_present_ms_are_left_for_later(self, q: Mesh, store: redis.Redis) -> None:
        await q.put(GPU, "a")
        store.xadd(f"bull:q@{GPU}:events", {"event": "x"}, id="9000000000000-0")  # far from now
        found = await q.broker.lanes.read_events((0, 0, ""))
        assert [place[0] < 9_000_000_000_000 for place, _ in found] == [True] * len(found)


class TestAdd:
    async def test_notes_the_lane(self, q: Mesh, store: redis.Redis) -> None:
        await q.put(GPU, "a", "b")
        assert store.zrange("bull:q:ox:lanes", 0, -1) == [GPU]
        assert store.smembers("bull:q:ox:lanes:ready") == {GPU}
        assert store.hget("bull:q:meta", "ox:lanes") == "+"
        assert store.hget(f"bull:q@{GPU}:meta", "ox:lanes") == "bull:q:"
        assert store.lrange(f"bull:q@{GPU}:wait", 0, -1) == ["b", "a"]
        assert store.zrange(f"bull:q@{GPU}:marker", 0, -1) == ["0"]
        assert store.get("bull:q:ox:lanes:version") == "1"
        await q.put(GPU, "c")
        assert store.get("bull:q:ox:lanes:version") == "1"
        await q.put(EU, "d")
        assert store.get("bull:q:ox:lanes:version") == "2"
        assert await q.broker.lanes.names() == [GPU, EU]

    async def test_a_new_lane_wakes_listeners_and_every_add_wakes_crowded_ones(
        self, q: Mesh, store: redis.Redis
    ) -> None:
        await q.broker.registry.beat(WorkerRecord(id="none"), Wakes.NOTHING)
        await q.broker.registry.beat(WorkerRecord(id="some"), Wakes.NEW_LANES)
        await q.broker.registry.beat(WorkerRecord(id="all"), Wakes.EVERY_ADD)
        await q.put(GPU, "a")
        for worker, woken in (("none", []), ("some", [GPU]), ("all", [GPU])):
            assert store.zrange(f"bull:q:ox:wake:{worker}", 0, -1) == woken
        store.delete("bull:q:ox:wake:some", "bull:q:ox:wake:all")
        await q.put(GPU, "b")
        assert store.zrange("bull:q:ox:wake:some", 0, -1) == []
        assert store.zrange("bull:q:ox:wake:all", 0, -1) == [GPU]
        assert store.pttl("bull:q:ox:wake:all") > 0

    async def test_a_custom_id_is_unique_over_the_queue_and_its_lanes(self, q: Mesh) -> None:
        assert await q.put("base", "a") == [True]
        assert await q.put(GPU, "a", "b") == [False, True]
        assert await q.put(EU, "a", "b", "c") == [False, False, True]
        assert await q.put("base", "b", "c", "d", "d") == [False, False, True, False]
        assert await q.put(GPU, "b") == [False]
        await q.broker.remove_job("b")
        assert await q.put(EU, "b") == [True]
        assert await q.put(GPU, "b") == [False]

    async def test_ids_that_we_make_are_not_noted(self, q: Mesh, store: redis.Redis) -> None:
        lane = q.at(GPU)
        (added,) = await lane.add([lane.encode("n", None, JobOptions.build())])
        assert added.created
        assert not store.exists("bull:q:ox:ids")
        assert (await q.broker.look([added.id]))[0] is not None

    async def test_a_queue_without_lanes_has_nothing_of_this(self, q: Mesh, store: redis.Redis) -> None:
        await q.put("base", "a")
        assert [key for key in store.scan_iter("*ox:*") if ":ox:call:" not in str(key)] == []
        assert store.hget("bull:q:meta", "ox:lanes") is None

    async def test_a_full_server_refuses_the_whole_add(
        self, q: Mesh, store: redis.Redis, whole: Callable[[], Any]
    ) -> None:
        await q.put(GPU, "a")
        before = whole()
        store.config_set("maxmemory", 1)
        try:
            with pytest.raises(ScriptError, match="OOM"):
                await q.put(EU, "b")
        finally:
            store.config_set("maxmemory", 0)
        assert whole() == before


class TestChoice:
    async def test_the_lowest_priority_over_all_heads(self, q: Mesh) -> None:
        await q.put("base", "base5", priority=5)
        await q.put(GPU, "gpu3", priority=3)
        await q.put(GPU, "gpu9", priority=9)
        await q.put(EU, "eu4", priority=4)
        order = []
        for _ in range(4):
            claimed = await q.choose(1, "base", GPU, EU)
            order += ids(claimed)
        assert order == ["gpu3", "eu4", "base5", "gpu9"]
        claimed = await q.choose(1, "base", GPU, EU)
        assert (claimed.lane, claimed.jobs, claimed.empty) == (None, [], [(0, 0), (1, 0), (2, 0)])

    async def test_no_priority_comes_first_and_equals_by_the_order_asked(self, q: Mesh) -> None:
        await q.put("base", "b1", priority=1)
        await q.put(GPU, "g0", "g1")
        await q.put(EU, "e0")
        assert ids(await q.choose(1, "base", EU, GPU)) == ["e0"]
        claimed = await q.choose(1, "base", EU, GPU)
        assert (ids(claimed), claimed.lane, claimed.empty) == (["g0"], 2, [(1, 0)])
        assert ids(await q.choose(1, GPU, "base")) == ["g1"]
        assert ids(await q.choose(1, GPU, "base")) == ["b1"]

    async def test_a_batch_takes_nothing_that_comes_behind_another_lane(self, q: Mesh) -> None:
        await q.put(GPU, "g0")
        for priority in (2, 3, 7):
            await q.put(GPU, f"g{priority}", priority=priority)
        await q.put(EU, "e3", priority=3)
        claimed = await q.choose(10, "base", GPU, EU)
        assert (ids(claimed), claimed.lane, claimed.more) == (["g0", "g2", "g3"], 1, True)
        claimed = await q.choose(10, GPU, EU)
        assert (ids(claimed), claimed.lane, claimed.more) == (["e3"], 1, False)
        claimed = await q.choose(10, GPU, EU)
        assert (ids(claimed), claimed.lane, claimed.more, claimed.empty) == (["g7"], 0, False, [(1, 0)])

    async def test_lanes_without_priorities_are_claimed_whole(self, q: Mesh) -> None:
        await q.put(GPU, "g0", "g1")
        await q.put("base", "b0", "b1")
        claimed = await q.choose(10, "base", GPU)
        assert (ids(claimed), claimed.lane, claimed.more) == (["b0", "b1"], 0, False)
        assert ids(await q.choose(10, "base", GPU)) == ["g0", "g1"]

    async def test_first_lane_with_enough_unprioritized_jobs_ends_the_choice(self, q: Mesh) -> None:
        await q.put(GPU, "g0", "g1", "g2", "g3", "g4")
        await q.put(GPU, "g9", priority=9)
        await q.put("base", "b0")
        claimed = await q.choose(2, GPU, EU, "base", own=EU)
        assert (ids(claimed), claimed.lane, claimed.more, claimed.empty) == (["g0", "g1"], 0, False, [])
        assert claimed.active == 2
        claimed = await q.choose(1, GPU, EU, own=GPU)
        assert (ids(claimed), claimed.lane, claimed.active) == (["g2"], 0, 3)
        claimed = await q.choose(1, "base", EU, own=GPU)
        assert (ids(claimed), claimed.lane, claimed.active) == (["b0"], 0, 1)
        # If the first lane has fewer jobs, the reply names the empty lanes.
        claimed = await q.choose(5, GPU, EU, "base")
        assert (ids(claimed), claimed.lane, claimed.empty) == (["g3", "g4", "g9"], 0, [(1, 0), (2, 0)])

    async def test_a_claim_that_stopped_for_time_reports_more(self, q: Mesh) -> None:
        await q.put(GPU, *(f"g{number}" for number in range(30)))
        for count in (20, 50):  # the first has as many, and has not
            claimed = await q.choose(count, GPU, EU, spell_us=1)
            assert (len(claimed.jobs), claimed.lane, claimed.more) == (8, 0, True)

    async def test_delayed_jobs_of_lanes(self, q: Mesh) -> None:
        await q.put(GPU, "later", delay=5)
        await q.put(EU, "latest", delay=50)
        claimed = await q.choose(1, "base", GPU, EU)
        due = q.clock.now + 5000
        assert (claimed.jobs, claimed.empty) == ([], [(0, 0), (1, due), (2, due + 45_000)])
        q.clock.now = due
        assert ids(await q.choose(1, "base", GPU, EU)) == ["later"]

    async def test_an_end_claims_in_another_lane(self, q: Mesh, store: redis.Redis) -> None:
        await q.put(GPU, "g0", "g1")
        first = await q.choose(1, "base", GPU)
        await q.put("base", "b0")
        claimed = await q.finish(GPU, first.jobs, 1, "base", GPU)
        assert (ids(claimed), claimed.lane) == (["b0"], 0)
        assert store.zrange(f"bull:q@{GPU}:completed", 0, -1) == ["g0"]
        assert store.lrange("bull:q:active", 0, -1) == ["b0"]
        claimed = await q.finish("base", claimed.jobs, 1, GPU)
        assert (ids(claimed), claimed.lane) == (["g1"], 0)
        claimed = await q.finish(GPU, claimed.jobs, 1, EU)
        assert (claimed.jobs, claimed.lane, claimed.empty) == ([], None, [(0, 0)])
        events: Any = store.xrange(f"bull:q@{GPU}:events")
        assert events[-1][1]["event"] == "drained"

    async def test_a_repeated_claim_gives_the_same_jobs(
        self, q: Mesh, store: redis.Redis, whole: Callable[[], Any]
    ) -> None:
        await q.put(GPU, "g0", "g1")
        await q.put(EU, "e0")
        caller = q.broker.caller
        first = await q.choose(2, "base", EU, GPU)
        assert ids(first) == ["e0"]
        after = whole()
        caller._free[-1][1] -= 1  # the answer was lost: the same number again
        q._tokens -= 1
        again = await q.choose(2, "base", EU, GPU)
        assert (ids(again), again.lane, again.empty, again.repeated) == (["e0"], 1, [(0, 0)], True)
        assert whole() == after
        assert again.jobs[0].starts == 1
        first = await q.choose(2, GPU, EU)
        after = whole()
        caller._free[-1][1] -= 1
        q._tokens -= 1
        again = await q.choose(2, GPU, EU)
        assert (ids(again), again.lane, again.repeated) == (["g0", "g1"], 0, True)
        assert (again.active, again.shut, whole()) == (first.active, first.shut, after)


class TestBase:
    async def test_queue_pause_holds_for_lanes(self, q: Mesh, store: redis.Redis) -> None:
        await q.put(GPU, "a")
        store.delete(f"bull:q@{GPU}:marker")
        await q.broker.pause()
        await q.put(GPU, "b")
        assert store.exists(f"bull:q@{GPU}:marker") == 0
        claimed = await q.choose(1, "base", GPU)
        assert (claimed.jobs, claimed.closed, claimed.shut) == ([], True, True)
        assert (await q.at(GPU).claim(Ask(1))).closed  # a worker of the lane alone
        await q.broker.resume()
        assert store.zrange(f"bull:q@{GPU}:marker", 0, -1) == ["0"]
        assert ids(await q.choose(2, "base", GPU)) == ["a", "b"]

    async def test_a_resume_wakes_as_many_lanes_as_one_call_may(self, q: Mesh, store: redis.Redis) -> None:
        for number in range(10):
            await q.broker.registry.beat(WorkerRecord(id=f"w{number}"), Wakes.EVERY_ADD)
        for number in range(250):
            await q.put(f"all;c=c{number}", f"j{number}")
        await q.broker.pause()
        store.delete(*store.scan_iter("bull:q@*:marker"), *store.scan_iter("bull:q:ox:wake:*"))
        store.config_resetstat()
        await q.broker.resume()
        stats: dict[str, Any] = store.info("commandstats")
        assert sum(one["calls"] for one in stats.values()) < 300
        assert len(list(store.scan_iter("bull:q@*:marker"))) == 200
        assert {store.zcard(f"bull:q:ox:wake:w{number}") for number in range(10)} == {100}
        await q.broker.lanes.tend()  # the rest
        assert len(list(store.scan_iter("bull:q@*:marker"))) == 250

    async def test_a_lane_alone_can_be_paused(self, q: Mesh) -> None:
        await q.put(GPU, "a")
        await q.put("base", "b")
        await q.at(GPU).pause()
        claimed = await q.choose(1, GPU, "base")
        assert (ids(claimed), claimed.empty) == (["b"], [(0, 0)])

    async def test_queue_concurrency_covers_all_lanes(self, q: Mesh) -> None:
        await q.broker.limits.set_concurrency(3)
        await q.put(GPU, "g0", "g1")
        await q.put(EU, "e0", "e1")
        await q.put("base", "b0")
        held = [await q.choose(1, lane) for lane in (GPU, EU, "base")]
        assert [len(one.jobs) for one in held] == [1, 1, 1]
        for lane in (GPU, EU, "base"):
            assert (await q.at(lane).claim(Ask(1))).closed
        claimed = await q.choose(5, GPU, EU)
        assert (claimed.jobs, claimed.shut) == ([], True)
        claimed = await q.finish("base", held[2].jobs, 5, GPU, EU)
        assert ids(claimed) == ["g1"]
        assert (await q.at(EU).claim(Ask(1))).closed

    async def test_queue_rate_covers_all_lanes(self, q: Mesh, store: redis.Redis) -> None:
        await q.broker.limits.set_rate(2, 60_000)
        await q.put(GPU, "g0", "g1")
        await q.put("base", "b0", "b1")
        assert len((await q.choose(1, GPU)).jobs) == 1
        assert len((await q.broker.claim(Ask(5))).jobs) == 1
        assert (await q.choose(1, "base", GPU)).limited_ms > 0
        assert (await q.at(GPU).claim(Ask(1))).limited_ms > 0
        assert store.get("bull:q:limiter") == "2"
        assert not store.exists(f"bull:q@{GPU}:limiter")

    async def test_a_job_of_a_lane_holds_the_whole_queue(self, q: Mesh) -> None:
        await q.put(GPU, "g0")
        await q.put("base", "b0")
        (job,) = (await q.choose(1, GPU)).jobs
        held = Outcome(OutcomeKind.HOLD_QUEUE, job.id, job.token, job.starts, q.clock(), delay_ms=60_000)
        await q.at(GPU).finish([held])
        assert (await q.broker.claim(Ask(1))).limited_ms > 0

    async def test_type_and_key_limits_cover_all_lanes(self, q: Mesh, store: redis.Redis) -> None:
        await q.broker.limits.set_type("n", 2, 0)
        await q.put(GPU, "g0", "g1")
        await q.put(EU, "e0", "e1")
        await q.put("base", "b0")
        (first,) = (await q.choose(1, GPU)).jobs
        (second,) = (await q.choose(1, EU)).jobs
        for lane in (GPU, EU, "base"):
            assert (await q.at(lane).claim(Ask(5))).jobs == []
        assert await q.broker.limits.usage_of_type("n") == (2, 3, 0)
        assert await q.broker.states(["g1", "e1", "b0"]) == ["delayed"] * 3
        assert not store.exists(f"bull:q@{GPU}:ox:held", f"bull:q@{GPU}:ox:parked")
        # A finish in any lane admits the job that was held back first, in its own lane.
        claimed = await q.finish(EU, [second], 5, GPU, EU, "base")
        assert (ids(claimed), claimed.lane) == (["g1"], 0)
        lost = claimed.jobs[0]
        # The place of a lost job is freed.
        store.delete(f"bull:q@{GPU}:{lost.id}:lock")
        store.lrem(f"bull:q@{GPU}:active", 0, lost.id)
        q.clock.now += 6000
        await q.broker.promote()
        assert ids(await q.choose(5, GPU, EU, "base")) == ["e1"]
        await q.finish(GPU, [first])
        assert ids(await q.choose(5, GPU, EU, "base")) == ["b0"]
        assert await q.broker.limits.usage_of_type("n") == (2, 0, 0)
        await q.put(BIG, "k0", "k1", limit_key="tenant")
        await q.broker.limits.set_type("n", 0, 0)
        assert ids(await q.choose(1, BIG)) == ["k0"]
        await q.broker.limits.set_keys(1, 0)  # counts the running jobs of lanes
        assert (await q.choose(1, BIG)).jobs == []
        assert await q.broker.limits.usage_of_keys("tenant") == (1, 1, 0)

    async def test_broken_lane_loses_no_job_that_a_limit_let_in(self, q: Mesh, store: redis.Redis) -> None:
        await q.broker.limits.set_type("n", 1, 0)
        await q.put(EU, "e0")
        first = await q.choose(1, EU)
        await q.put(GPU, "g1", "g2")
        assert (await q.choose(5, GPU)).jobs == []
        store.set(f"bull:q@{GPU}:wait", "no list")
        await q.finish(EU, first.jobs)
        assert set(store.zrange(f"bull:q@{GPU}:delayed", 0, -1)) == {"g1", "g2"}
        store.delete(f"bull:q@{GPU}:wait")
        q.clock.now += 6000
        await q.broker.promote()
        claimed = await q.choose(5, GPU)
        assert ids(claimed) == ["g2"]
        q.clock.now += 86_400_000  # the limit that held it back is forgotten: it is due
        await q.finish(GPU, claimed.jobs)
        assert ids(await q.choose(5, GPU)) == ["g1"]

    async def test_counts(self, q: Mesh) -> None:
        await q.put("base", "a")
        await q.put(GPU, "b", "c")
        await q.put(EU, "d", delay=9)
        await q.choose(1, GPU)
        counted = await q.broker.counts_over_lanes()
        assert {state: count for state, count in counted.items() if count} == {
            "wait": 2,
            "active": 1,
            "delayed": 1,
        }
        rows = await q.broker.lanes.counts()
        assert {lane: (row["wait"], row["active"], row["delayed"]) for lane, row in rows.items()} == {
            GPU: (1, 1, 0),
            EU: (0, 0, 1),
        }

    async def test_jobs_are_found_by_their_ids(self, q: Mesh, store: redis.Redis) -> None:
        await q.put("base", "a")
        await q.put(GPU, "b")
        store.hset(f"bull:q@{EU}:peer", mapping={"name": "n", "data": "{}", "timestamp": "1"})
        store.lpush(f"bull:q@{EU}:wait", "peer")
        await q.broker.lanes.enter(EU)
        found = await q.broker.look(["a", "b", "nobody", "peer"])
        assert [(job.id, job.queue, job.lane) if job else None for job in found] == [
            ("a", "q", None),
            ("b", "q", GPU),
            None,
            ("peer", "q", EU),
        ]
        assert await q.broker.states(["a", "b", "nobody"]) == ["waiting", "waiting", "unknown"]

    async def test_jobs_are_changed_by_their_ids(self, q: Mesh) -> None:
        await q.put(GPU, "b", delay=9)
        await q.broker.set_progress("b", 50)
        await q.broker.logs.append("b", ["line"], None)
        assert await q.broker.logs.read("b") == ["line"]
        await q.broker.update_data("b", {"x": 1})
        await q.broker.promote_job("b")
        (job,) = await q.broker.look(["b"])
        assert job is not None
        assert (job.progress, job.data, job.state) == (50, {"x": 1}, "scheduled")
        assert await q.broker.cancelling.cancel(["b", "nobody"], "no", force=False) == [1, -1]
        await q.broker.retry_job("b", "failed")
        await q.broker.remove_job("b")
        with pytest.raises(JobNotFound):
            await q.broker.remove_job("b")

    async def test_a_running_job_of_a_lane_is_cancelled_where_its_worker_listens(
        self, q: Mesh, store: redis.Redis
    ) -> None:
        broker = BullMQBroker(q.broker.server, "q")
        await q.put(GPU, "b")
        await broker.lanes.open(GPU).claim(Ask(1))
        assert await q.broker.cancelling.cancel(["b"], "no", force=False) == [2]
        assert store.zcard(f"bull:q:ox:cancel:{broker.caller.client_id}") == 1
        await broker.close()


class TestCost:
    #: Commands of a claim of one job, counted by the server: one fewer than before there were lanes.
    CLAIM = "get get hgetall hmget hset lpush lrange ltrim psetex set setrange xadd zadd zrangebyscore"

    async def commands(self, q: Mesh, store: redis.Redis, *lanes: str) -> list[str]:
        store.config_resetstat()
        assert len((await q.choose(1, *lanes)).jobs) == 1
        stats: dict[str, dict[str, Any]] = store.info("commandstats")
        names = {name.removeprefix("cmdstat_"): stat["calls"] for name, stat in stats.items()}
        ours = {name: calls for name, calls in names.items() if name not in ("info", "config|resetstat")}
        assert ours.pop("evalsha") == 1
        return sorted(name for name, calls in ours.items() for _ in range(calls))

    async def test_a_claim_with_no_lanes_is_unchanged(self, q: Mesh, store: redis.Redis) -> None:
        await q.put("base", "a", "b", "c")
        await q.choose(1)  # the script is known from here on
        assert await self.commands(q, store) == self.CLAIM.split()

    async def test_a_claim_of_a_queue_with_lanes_is_unchanged_where_none_is_ready(
        self, q: Mesh, store: redis.Redis
    ) -> None:
        await q.put("base", "a", "b", "c")
        await q.put(GPU, "g")
        await q.choose(1)
        assert await self.commands(q, store) == self.CLAIM.split()

    async def test_a_choice_costs_one_command_where_the_first_has_jobs_without_priority(
        self, q: Mesh, store: redis.Redis
    ) -> None:
        await q.put("base", "a", "b", "c")
        for lane in (GPU, EU, BIG):
            await q.put(lane, f"{lane} one", f"{lane} two")
        await q.choose(1, "base", GPU)
        one_more = sorted([*self.CLAIM.split(), "llen"])
        assert await self.commands(q, store, "base", GPU, EU, BIG) == one_more
        # A lane also reads the settings of its queue, and notes its first active job.
        await q.choose(1, EU, "base")
        assert await self.commands(q, store, EU, GPU, "base") == sorted([*one_more, "hmget"])

    async def test_an_end_looks_at_its_own_lane_only_where_nothing_else_is_active(
        self, q: Mesh, store: redis.Redis
    ) -> None:
        await q.put("base", "a", "b", "c", "d")
        await q.put(GPU, "g")
        held = [(await q.choose(1)).jobs for _ in range(3)]
        await q.finish("base", held[0])

        async def commands(jobs: list[ClaimedJob], *lanes: str) -> dict[str, int]:
            store.config_resetstat()
            await q.finish("base", jobs, 1, *lanes)
            stats: dict[str, dict[str, Any]] = store.info("commandstats")
            return {name: stat["calls"] for name, stat in stats.items() if "info" not in name}

        plain = await commands(held[1])
        chosen = await commands(held[2], GPU, "base")
        more = {name: calls - plain.get(name, 0) for name, calls in chosen.items()}
        assert {name: calls for name, calls in more.items() if calls} == {
            "cmdstat_llen": 1,
            "cmdstat_hmget": 1,
            "cmdstat_sadd": 1,
        }
