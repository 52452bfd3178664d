"""A call that is repeated with its number changes nothing more."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import redis

from oxcart.broker.bullmq.scripts import load, verbs
from oxcart.model.flow import Tree
from oxcart.model.options import JobOptions
from oxcart.model.schedule import Schedule
from tests.broker.bullmq.making import Q

#: Verb and arguments behind (slot, number), for the jobs of ``prepare``.
CALLS: list[tuple[str, tuple[Any, ...]]] = [
    ("add", (1, 0, "new", "n", "{}", "{}", 5, 0, 0, "", 0)),
    ("add", (2, "=", "n", "{}", 5, 2, "new", "{}", "newer", "{}")),
    ("claim", (1_700_000_000_000, 1, "tok", 30000, "", "", "", 1000)),
    ("pause", ()),
    ("resume", ()),
    ("set_progress", ("later", "50")),
    ("add_log", ("log", "", "a line")),
    ("change_priority", ("ready", 7, "")),
    ("cancel", (5, "no", "", "ready")),
    ("cancel_jobs", ("delayed", 9, 0, '{"names":["n"]}', 5, "no", "", "", 1)),
    ("dead_jobs", ("replay", 9, 0, "", 2**53, 9, "1", "")),
    ("update_job", ("ready", 7, "ox:corr", "c")),
    ("change_delay", ("later", 5000, 1_700_000_000_000)),
    ("promote_job", ("later",)),
    ("signal", ("ready", "go", "1", 1000)),
    ("retry_job", ("done", "completed", "", "")),
    ("remove_job", ("later", "")),
    ("leave_parent", ("child",)),
    ("add_flow", ("", "", 1, "bull:q:", 1, 1, "top", "n", "{}", "{}", 5, 0, 0, "TP", 0)),
    ("release_window", ("window", "")),
    ("count_starts", ("", 3, 60_000)),
    ("count_starts", ("n", 3, 60_000)),
    ("upsert_scheduler", (5, "new", "n", "{}", "{}", '{"repeat":{}}', "", 9, *[""] * 6)),
    ("advance", (5, 1, "s", "s", "repeat:s:4000000000000", "", '{"repeat":{}}', "{}", "")),
    ("remove_scheduler", ("s",)),
    ("add_graph", (5, 1, "bull:q:", 1, 1, "g", "n", "1", "{}", 5, 0, 0, "TP", 0, 1, 1, "a", 0, 1, "ready")),
]


def _as_text(answer: Any) -> Any:
    if isinstance(answer, list):
        return [_as_text(one) for one in answer]
    return answer.decode() if isinstance(answer, bytes) else answer


class TestRepeatable:
    """A call that is repeated with its number has the same reply and changes nothing."""

    async def prepare(self, q: Q) -> None:
        await q.add("ready")
        await q.add("later", delay=60)
        await q.add("log", delay=60, deduplication="window")
        job = await q.active("done", lifo=True)
        await q.end(job)
        await q.end(await q.active("dead", lifo=True, attempts=1), "f")
        await q.broker.schedules.write("s", Schedule(every=9, start=4_000_000_000_000), "n", b"{}", {})

    def call(self, store: redis.Redis, verb: str, slot: str, number: int, args: tuple[Any, ...]) -> Any:
        raw = redis.Redis(port=store.connection_pool.connection_kwargs["port"])
        with raw:
            answer = raw.eval(load(verb).text.decode(), 1, "bull:q:meta", slot, number, *args)
        if verb in ("claim", "finish"):
            answer[1] = [joined.split(b"\0")[0] for joined in answer[1]]
        return _as_text(answer)

    @pytest.mark.parametrize(("verb", "args"), CALLS, ids=[row[0] for row in CALLS])
    async def test_repeated_call_changes_nothing_more(
        self, q: Q, store: redis.Redis, whole: Callable[[], Any], verb: str, args: tuple[Any, ...]
    ) -> None:
        await self.prepare(q)
        if verb == "leave_parent":
            child = Tree("q", "bull", "n", None, JobOptions.build(job_id="child"))
            await q.broker.flows.add_children("later", [child])
        start = whole()
        first = self.call(store, verb, "s", 1, args)
        after = whole()
        again = self.call(store, verb, "s", 1, args)
        assert whole() == after
        if verb == "claim":
            assert (first[1][0], again[1][0], again[7]) == ("ready", "ready", 1)
        else:
            assert again == first
        assert after != start or verb == "resume"
        if verb in ("add", "set_progress", "add_log", "pause", "resume"):
            self.call(store, verb, "s", 2, args)  # the next number is a call of its own
            assert whole() != after

    @pytest.mark.parametrize(("verb", "args"), CALLS, ids=[row[0] for row in CALLS])
    async def test_an_old_number_is_refused(
        self, q: Q, store: redis.Redis, whole: Callable[[], Any], verb: str, args: tuple[Any, ...]
    ) -> None:
        await self.prepare(q)
        self.call(store, "pause", "s", 5, ())
        self.call(store, "resume", "s", 6, ())
        before = whole()
        with pytest.raises(redis.ResponseError, match="OXSTALE call 4 came after call 6 of its slot"):
            self.call(store, verb, "s", 4, args)
        assert whole() == before

    async def test_finish_and_the_claim_with_it(
        self, q: Q, store: redis.Redis, whole: Callable[[], Any]
    ) -> None:
        job = await q.active()
        await q.add("b")
        ends = ("c", 1, job.token, q.clock.now, "", "", "a", job.starts, "1")
        args = (q.clock.now, 1, "tok", 30_000, "", "", "", 1000, "", "", 1, *ends)
        first = self.call(store, "finish", "s", 1, args)
        after = whole()
        again = self.call(store, "finish", "s", 1, args)
        assert whole() == after
        assert (first[0], again[0]) == ([1], [1])
        assert (first[1][0], again[1][0]) == ("b", "b")

    async def test_a_claim_that_is_repeated_after_its_lease_ran_out(self, q: Q, store: redis.Redis) -> None:
        await q.add("a")
        args = (q.clock.now, 1, "tok", 30_000, "", "", "", 1000, "", "")
        self.call(store, "claim", "s", 1, args)
        store.delete("bull:q:a:lock")
        again = self.call(store, "claim", "s", 1, args)
        assert again[1][0] == "a"
        assert store.get("bull:q:a:lock") == "tok"

    async def test_a_repeated_claim_after_another_worker_claimed_the_job(
        self, q: Q, store: redis.Redis
    ) -> None:
        await q.add("a")
        args = (q.clock.now, 1, "tok", 30_000, "", "", "", 1000, "", "")
        self.call(store, "claim", "s", 1, args)
        store.set("bull:q:a:lock", "other")
        store.hset("bull:q:a", "ats", 2)
        assert self.call(store, "claim", "s", 1, args)[1] == []

    def test_every_verb_that_changes_something_is_here_or_safe_by_itself(self) -> None:
        safe = {"renew", "recover", "promote", "update_data", "page", "job_state", "finish", "limited"}
        safe |= {
            "settle",
            "repair",
            "clear_logs",
            "look",
            "set_checkpoint",
            "set_step",
            "receive_signal",
            "keep_events",
            "priorities",
            "attach",
            "detach",
            "stride",
            "limit",
            "set_group",
            "list_groups",
            "group_jobs",
            "isolate",
        }
        elsewhere = {"rescue", "sweep", "obliterate", "retry_jobs", "publish", "remove_orphans"}
        elsewhere |= {"expire", "appear"}
        safe |= {"enter_lane", "tend_lanes", "find_in_lanes", "count_lanes", "register", "sweep_ids"}
        safe |= {"remove_strays", "reseal", "pause_scheduler", "resume_scheduler", "shrink", "keep_mark"}
        assert set(verbs()) == {verb for verb, _ in CALLS} | safe | elsewhere

    async def test_update_data_may_be_applied_twice(self, q: Q, whole: Callable[[], Any]) -> None:
        await q.add("a")
        await q.broker.update_data("a", 5)
        before = whole()
        await q.broker.update_data("a", 5)
        assert whole() == before
