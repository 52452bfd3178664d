"""Trees on the wire: what one call writes, what it refuses, and that a refusal writes nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import pytest_asyncio
import redis

from oxcart.broker.bullmq.broker import BullMQBroker
from oxcart.broker.connection import Server
from oxcart.broker.port import Ask, ClaimedJob, Outcome, OutcomeKind
from oxcart.broker.port.results import AddedTree
from oxcart.model.errors import (
    JobLocked,
    JobNotFound,
    LeaseLost,
    ParentConflict,
    ScriptError,
    TreeTooLarge,
    ValidationError,
)
from oxcart.model.flow import DependencyCounts, FlowView, OnFailure, Tree
from oxcart.model.options import JobOptions
from oxcart.model.retention import REMOVE, Retention

NOW = 1_700_000_000_000


def tree(
    job_id: str, *children: Tree, queue: str = "q", on_failure: str = "fail", data: Any = None, **options: Any
) -> Tree:
    built = JobOptions.build(job_id=job_id, **{"attempts": 1, **options})
    return Tree(queue, "bull", "n", data, built, OnFailure(on_failure), children)


class Two:
    """Two queues of one server."""

    def __init__(self, url: str) -> None:
        self.now = NOW
        self.q = BullMQBroker(Server(url), "q", clock=lambda: self.now)
        self.p = BullMQBroker(Server(url), "p", clock=lambda: self.now)

    async def add(self, made: Tree) -> AddedTree:
        return await (self.p if made.queue == "p" else self.q).flows.add(made)

    async def claim(self, broker: BullMQBroker | None = None) -> ClaimedJob:
        (job,) = (await (broker or self.q).claim(Ask())).jobs
        return job

    async def end(
        self,
        job: ClaimedJob,
        kind: str = "c",
        value: bytes = b"1",
        at: BullMQBroker | None = None,
        keep: Retention | None = None,
    ) -> Any:
        outcome = Outcome(OutcomeKind(kind), job.id, job.token, job.starts, self.now, value, b"[]", keep)
        return (await (at or self.q).finish([outcome]))[0][0]

    async def state(self, job_id: str, broker: BullMQBroker | None = None) -> str:
        return (await (broker or self.q).states([job_id]))[0]


@pytest_asyncio.fixture
async def two(url: str) -> AsyncIterator[Two]:
    made = Two(url)
    yield made
    await made.q.close()
    await made.p.close()


@pytest.fixture
def keys(store: redis.Redis) -> Callable[[], set[str]]:
    """Returns all keys except wake-ups, the journal and the keys that every read writes."""
    passing = (":meta", ":marker")
    return lambda: {key for key in store.scan_iter() if ":ox:" not in key and not key.endswith(passing)}


class TestAdding:
    async def test_a_tree_over_two_queues(self, two: Two, store: redis.Redis) -> None:
        added = await two.add(
            tree("top", tree("a", tree("b")), tree("c", on_failure="ignore"), queue="p", priority=3)
        )
        assert (added.id, added.queue, added.created) == ("top", "p", True)
        assert [child.id for child in added.children] == ["a", "c"]
        assert [child.id for child in added.children[0].children] == ["b"]
        assert await two.state("top", two.p) == await two.state("a") == "waiting-children"
        assert store.lrange("bull:q:wait", 0, -1) == ["b", "c"]
        assert store.smembers("bull:p:top:dependencies") == {"bull:q:a", "bull:q:c"}
        assert store.hget("bull:q:c", "parentKey") == "bull:p:top"
        assert store.hget("bull:q:c", "parent") == '{"id":"top","queueKey":"bull:p","idof":true}'
        (job,) = await two.q.get(["c"])
        assert job is not None
        assert job.parent == {"id": "top", "queueKey": "bull:p", "idof": True}

    @pytest.mark.parametrize("place", ["waiting-children", "delayed", "wait", "x"])
    async def test_a_key_of_the_wrong_type_refuses_all_of_it(
        self, two: Two, store: redis.Redis, keys: Callable[[], set[str]], place: str
    ) -> None:
        store.set(f"bull:q:{place}", "text")
        before = keys()
        with pytest.raises(ScriptError, match="WRONGTYPE"):
            await two.add(tree("top", tree("x"), queue="p"))
        if place == "x":
            with pytest.raises(ScriptError, match="WRONGTYPE"):
                await two.add(tree("x", tree("below")))
        assert keys() == before

    async def test_an_id_of_another_parent_refuses_all_of_it(
        self, two: Two, store: redis.Redis, keys: Callable[[], set[str]]
    ) -> None:
        """Node reports nothing here, and the new parent may wait without end."""
        await two.add(tree("one", tree("shared")))
        before, counter = keys(), store.get("bull:q:id")
        with pytest.raises(ParentConflict, match="shared"):
            await two.add(tree("two", tree("fresh"), tree("shared")))
        assert (keys(), store.get("bull:q:id")) == (before, counter)

    async def test_a_job_below_itself(self, two: Two, keys: Callable[[], set[str]]) -> None:
        await two.add(tree("top", tree("middle", tree("leaf"))))
        leaf = await two.claim()
        before = keys()
        for name in ("leaf", "top"):
            with pytest.raises(ParentConflict, match="they would wait for each other"):
                await two.q.flows.add_children("leaf", [tree("new"), tree(name)], token=leaf.token)
        assert keys() == before

    async def test_a_child_whose_old_parent_is_gone_gets_the_new_one(
        self, two: Two, store: redis.Redis
    ) -> None:
        await two.add(tree("one", tree("shared")))
        store.delete("bull:q:one")
        await two.add(tree("two", tree("shared")))
        assert store.hget("bull:q:shared", "parentKey") == "bull:q:two"
        assert store.smembers("bull:q:two:dependencies") == {"bull:q:shared"}

    async def test_a_parent_is_not_released_before_the_whole_tree_is_added(
        self, two: Two, store: redis.Redis
    ) -> None:
        """The first child completed long ago; the parent must still wait for the second."""
        await two.q.add([two.q.encode("n", None, JobOptions.build(job_id="done"))])
        await two.end(await two.claim(), value=b'"early"')
        added = await two.add(tree("top", tree("done"), tree("next")))
        assert [child.created for child in added.children] == [False, True]
        assert await two.state("top") == "waiting-children"
        await two.end(await two.claim(), value=b'"late"')
        assert await two.state("top") == "waiting"
        assert store.hgetall("bull:q:top:processed") == {"bull:q:done": '"early"', "bull:q:next": '"late"'}

    async def test_a_tree_whose_children_have_all_completed_runs(self, two: Two) -> None:
        await two.q.add([two.q.encode("n", None, JobOptions.build(job_id="done"))])
        await two.end(await two.claim())
        await two.add(tree("top", tree("done")))
        assert await two.state("top") == "waiting"

    async def test_the_same_tree_again_is_no_other_tree(self, two: Two, store: redis.Redis) -> None:
        made = tree("top", tree("a"), tree("b"))
        await two.add(made)
        again = await two.add(made)
        assert (again.created, [child.created for child in again.children]) == (False, [False, False])
        assert store.lrange("bull:q:wait", 0, -1) == ["b", "a"]
        assert store.scard("bull:q:top:dependencies") == 2

    async def test_a_window_keeps_a_whole_tree_out(
        self, two: Two, store: redis.Redis, keys: Callable[[], set[str]]
    ) -> None:
        await two.add(tree("one", tree("a"), deduplication="d"))
        before = keys()
        kept_out = await two.add(tree("two", tree("b"), deduplication="d"))
        assert (kept_out.id, kept_out.created, kept_out.children) == ("one", False, ())
        assert keys() == before

    async def test_too_many_bytes(self, two: Two, keys: Callable[[], set[str]]) -> None:
        big = "x" * 6_000_000
        with pytest.raises(ValidationError, match="at most 16777216 bytes of payloads"):
            await two.add(tree("top", *(tree(f"c{n}", data=big) for n in range(3))))
        assert keys() == set()


class TestChildrenOfARunningJob:
    async def test_running_job_can_add_children_and_wait_for_them(self, two: Two, store: redis.Redis) -> None:
        await two.add(tree("top"))
        job = await two.claim()
        added = await two.q.flows.add_children("top", [tree("a"), tree("b", tree("c"))], token=job.token)
        assert [one.id for one in added] == ["a", "b"]
        assert await two.end(job) == -4, "not completed with children pending"
        assert await two.end(job, "h") == 1
        assert await two.state("top") == "waiting-children"
        assert store.exists("bull:q:top:lock") == 0
        for _ in range(3):
            await two.end(await two.claim())
        assert (await two.claim()).id == "top"
        (again,) = await two.q.get(["top"])
        assert again is not None
        assert (again.attempts_made, again.attempts_started) == (0, 2), "waiting used up no attempt"

    async def test_none_to_wait_for(self, two: Two) -> None:
        await two.add(tree("top"))
        job = await two.claim()
        assert await two.end(job, "h") == 0
        assert await two.state("top") == "active"
        assert await two.end(job) == 1

    async def test_many_go_in_several_calls(self, two: Two, store: redis.Redis) -> None:
        await two.add(tree("top"))
        job = await two.claim()
        added = await two.q.flows.add_children("top", [tree(f"c{n}") for n in range(600)], token=job.token)
        assert [one.id for one in added] == [f"c{n}" for n in range(600)]
        assert store.scard("bull:q:top:dependencies") == 600
        assert await two.q.flows.counts("top") == DependencyCounts(unprocessed=600)

    async def test_under_a_lost_lease(
        self, two: Two, store: redis.Redis, keys: Callable[[], set[str]]
    ) -> None:
        await two.add(tree("top"))
        job = await two.claim()
        store.set("bull:q:top:lock", "somebody else")
        before = keys()
        with pytest.raises(LeaseLost, match="another worker"):
            await two.q.flows.add_children("top", [tree("a")], token=job.token)
        store.delete("bull:q:top:lock")
        with pytest.raises(LeaseLost):
            await two.q.flows.add_children("top", [tree("a")], token=job.token)
        store.delete("bull:q:top")
        with pytest.raises(JobNotFound):
            await two.q.flows.add_children("top", [tree("a")], token=job.token)
        assert keys() <= before

    async def test_a_child_that_failed_with_the_policy_fail(self, two: Two) -> None:
        await two.add(tree("top"))
        job = await two.claim()
        await two.q.flows.add_children("top", [tree("a"), tree("b")], token=job.token)
        await two.end(await two.claim(), "f")
        assert await two.end(job, "h") == -9


class TestPolicies:
    @pytest.mark.parametrize(
        ("policy", "state", "counts"),
        [
            ("fail", "waiting", DependencyCounts(unprocessed=1, failed=1)),
            ("continue", "waiting", DependencyCounts(unprocessed=1, ignored=1)),
            ("ignore", "waiting-children", DependencyCounts(unprocessed=1, ignored=1)),
            ("remove", "waiting-children", DependencyCounts(unprocessed=1)),
            ("wait", "waiting-children", DependencyCounts(unprocessed=2)),
        ],
    )
    async def test_of_a_failed_child(
        self, two: Two, policy: str, state: str, counts: DependencyCounts
    ) -> None:
        await two.add(tree("top", tree("a", on_failure=policy), tree("b"), queue="p"))
        await two.end(await two.claim(), "f", b"boom")
        assert await two.state("top", two.p) == state
        assert await two.p.flows.counts("top") == counts
        (top,) = await two.p.get(["top"])
        assert top is not None
        assert top.deferred_failure == ("child bull:q:a failed" if policy == "fail" else None)

    async def test_a_failed_child_that_is_retried_is_waited_for_again(self, two: Two) -> None:
        await two.add(tree("top", tree("a", on_failure="ignore"), tree("b")))
        await two.end(await two.claim(), "f", b"boom")
        await two.q.retry_job("a", "failed")
        assert await two.q.flows.counts("top") == DependencyCounts(unprocessed=2)

    @pytest.mark.parametrize(
        ("options", "state"),
        [
            ({}, "waiting"),
            ({"priority": 5}, "prioritized"),
            ({"delay": 60}, "delayed"),
            ({"delay": 60, "priority": 5}, "delayed"),
        ],
    )
    async def test_a_released_parent_obeys_its_delay_and_then_its_priority(
        self, two: Two, store: redis.Redis, options: dict[str, Any], state: str
    ) -> None:
        await two.add(tree("top", tree("a"), **options))
        two.now += 5000
        await two.end(await two.claim())
        assert await two.state("top") == state
        if "delay" in options:
            assert store.zscore("bull:q:delayed", "top") == (two.now + 60_000) * 4096
            two.now += 60_000
            assert await two.q.promote() == (1, 0)
            assert await two.state("top") == ("prioritized" if "priority" in options else "waiting")

    async def test_a_released_parent_is_the_next_to_run(self, two: Two) -> None:
        await two.add(tree("top", tree("a")))
        await two.add(tree("other"))
        await two.end(await two.claim())
        assert (await two.claim()).id == "top"


class TestReading:
    async def test_pages(self, two: Two) -> None:
        await two.add(tree("top"))
        job = await two.claim()
        children = [tree(f"c{n}", on_failure="ignore" if n % 3 == 1 else "fail") for n in range(900)]
        await two.q.flows.add_children("top", children, token=job.token)
        for kind in "cff":
            jobs = (await two.q.claim(Ask(250))).jobs
            outcomes = [
                Outcome(
                    OutcomeKind(kind if one.id[1:].isdigit() else "c"),
                    one.id,
                    one.token,
                    one.starts,
                    NOW,
                    b'"v"',
                    b"[]",
                )
                for one in jobs
            ]
            await two.q.finish(outcomes)
        counted = await two.q.flows.counts("top")
        assert counted.total == 900
        for kind in ("processed", "unprocessed", "ignored", "failed"):
            seen: list[str] = []
            cursor: str | None = "0"
            while cursor is not None:
                one = await two.q.flows.page("top", kind, cursor, 100)
                seen += [child.id for child in one.children]
                cursor = one.cursor
            assert len(set(seen)) == getattr(counted, kind), kind
        one = await two.q.flows.page("top", "ignored", "0", 10)
        assert {(child.queue, child.value, child.reason) for child in one.children} == {("q", None, '"v"')}
        with pytest.raises(ValidationError, match="kind must be one of"):
            await two.q.flows.page("top", "other")

    async def test_a_view_of_the_tree(self, two: Two) -> None:
        await two.add(tree("top", tree("a", tree("b"), queue="q"), tree("c", on_failure="ignore"), queue="p"))
        await two.end(await two.claim(), "f", b"boom")
        await two.end(await two.claim(), value=b"7")

        def shape(one: FlowView) -> tuple[str, str, str, list[Any]]:
            return one.job.queue, one.job.id, one.state, sorted(map(shape, one.children))

        seen = await two.p.flows.view("top")
        assert seen is not None
        # `b` was added last and so ran second; `c` had failed by then.
        assert shape(seen) == (
            *("p", "top", "waiting-children"),
            [("q", "a", "waiting", [("q", "b", "completed", [])]), ("q", "c", "failed", [])],
        )
        assert await two.p.flows.view("nobody") is None
        shallow = await two.p.flows.view("top", depth=1)
        assert shallow is not None
        assert (shallow.children, shallow.more) == ([], 2)
        narrow = await two.p.flows.view("top", limit=1)
        assert narrow is not None
        assert (len(narrow.children), narrow.more) == (1, 1)

    async def test_a_view_of_a_job_that_is_its_own_ancestor(self, two: Two, store: redis.Redis) -> None:
        await two.add(tree("top", tree("a")))
        store.sadd("bull:q:a:dependencies", "bull:q:top")
        seen = await two.q.flows.view("top")
        assert seen is not None
        assert [child.job.id for child in seen.children] == ["a"]
        assert seen.children[0].children == []


class TestRemoving:
    async def test_with_children(self, two: Two, keys: Callable[[], set[str]]) -> None:
        await two.add(tree("top", tree("a", tree("b")), tree("c", on_failure="ignore"), queue="p"))
        await two.end(await two.claim(), "f", b"boom")
        await two.p.remove_job("top", children=True)
        assert keys() == {"bull:p:events", "bull:q:events", "bull:p:id", "bull:q:id"}

    @pytest.mark.parametrize("paused", [False, True])
    async def test_others_keep_their_places(self, two: Two, store: redis.Redis, paused: bool) -> None:
        """The jobs of a tree are removed from a list by their places, which a merge of lists changes."""
        await two.q.add([two.q.encode("n", None, JobOptions.build(job_id=f"old{n}")) for n in range(1500)])
        await two.add(tree("top", *(tree(f"a{n}", tree(f"b{n}")) for n in range(20))))
        await two.q.add([two.q.encode("n", None, JobOptions.build(job_id=f"new{n}")) for n in range(1500)])
        others = [f"new{n}" for n in reversed(range(1500))] + [f"old{n}" for n in reversed(range(1500))]
        if paused:
            await two.q.pause()
            store.lpush("bull:q:wait", "stray")  # as BullMQ 6 leaves it: then the lists are merged
            store.hset("bull:q:stray", mapping={"name": "n", "timestamp": 1, "data": "{}", "opts": "{}"})
        await two.q.remove_job("top", children=True)
        left = [one for state in ("wait", "paused") for one in store.lrange(f"bull:q:{state}", 0, -1)]
        names = [one.decode() if isinstance(one, bytes) else one for one in left]
        assert [name for name in names if name != "stray"] == others
        assert ("stray" in names) == paused

    @pytest.mark.parametrize("place", [0, 1, 2500, 4998, 4999])
    async def test_job_is_removed_from_any_place_of_a_list(
        self, two: Two, store: redis.Redis, place: int
    ) -> None:
        ids = [f"j{n}" for n in range(5000)]
        await two.q.add([two.q.encode("n", None, JobOptions.build(job_id=one)) for one in ids])
        await two.q.remove_job(ids[place])
        left = [one.decode() if isinstance(one, bytes) else one for one in store.lrange("bull:q:wait", 0, -1)]
        assert left[::-1] == ids[:place] + ids[place + 1 :]

    async def test_while_a_child_runs(self, two: Two, keys: Callable[[], set[str]]) -> None:
        await two.add(tree("top", tree("a", tree("b")), queue="p"))
        await two.claim()
        before = keys()
        with pytest.raises(JobLocked):
            await two.p.remove_job("top", children=True)
        assert keys() == before

    async def test_a_job_that_is_its_own_ancestor(
        self, two: Two, store: redis.Redis, keys: Callable[[], set[str]]
    ) -> None:
        await two.add(tree("top", tree("a", tree("b"))))
        store.sadd("bull:q:b:dependencies", "bull:q:top", "bull:q:b")
        await two.q.remove_job("top", children=True)
        assert keys() == {"bull:q:events", "bull:q:id"}

    async def test_removal_handles_very_deep_trees(self, two: Two, store: redis.Redis) -> None:
        await two.add(tree("top"))
        with store.pipeline() as pipe:
            for n in range(1500):
                pipe.hset(f"bull:q:x{n}", "name", "n")
                above = f"x{n - 1}" if n else "top"
                pipe.sadd(f"bull:q:{above}:dependencies", f"bull:q:x{n}")
            pipe.execute()
        with pytest.raises(TreeTooLarge, match="too many jobs below it"):
            await two.q.remove_job("top", children=True)
        assert store.exists("bull:q:x1499", "bull:q:top") == 2


class TestUnreachableParent:
    """If each finish were refused, the stalled check would recover the child and run it without end."""

    @pytest.mark.parametrize("kind", ["c", "f"])
    @pytest.mark.parametrize("keep", [None, REMOVE])
    @pytest.mark.parametrize(
        "fault", ["no json", "json of another kind", "a set that is none", "a queue that is none"]
    )
    async def test_child_of_an_unreachable_parent_finishes(
        self, two: Two, store: redis.Redis, kind: str, keep: Retention | None, fault: str
    ) -> None:
        await two.add(tree("top", tree("a"), queue="p"))
        if fault == "no json":
            store.hset("bull:q:a", "parent", "{")
        elif fault == "json of another kind":
            store.hset("bull:q:a", "parent", "[1]")
        elif fault == "a set that is none":
            store.set("bull:p:top:dependencies", "text")
        else:
            store.set("bull:p:waiting-children", "text")
        assert await two.end(await two.claim(), kind, keep=keep) == 2
        assert await two.state("a") == ("unknown" if keep else {"c": "completed", "f": "failed"}[kind])
        assert store.llen("bull:q:active") == 0
        if not keep:
            assert store.hget("bull:q:a", "ox:untold")
            await two.q.remove_job("a")
