"""Graphs on the wire: gates, what one call writes and refuses, and how dependents end."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
import redis

from oxcart.broker.bullmq import gates
from oxcart.broker.bullmq.broker import BullMQBroker
from oxcart.broker.bullmq.scripts import load
from oxcart.broker.discovery import find_queues
from oxcart.broker.port import Ask, Outcome, OutcomeKind
from oxcart.broker.port.results import AddedNode
from oxcart.model.errors import ChainTooLong, UnknownDependency, ValidationError
from oxcart.model.flow import OnFailure, Tree
from oxcart.model.graph import Edge, Existing, Kind, Node
from oxcart.model.options import JobOptions
from oxcart.model.retention import REMOVE, Retention
from oxcart.model.state import State
from tests.broker.bullmq.test_flows import Two


def node(job_id: str, *edges: Edge, queue: str = "q", **options: Any) -> Node:
    built = JobOptions.build(job_id=job_id, **{"attempts": 1, **options})
    return Node(queue, "bull", "n", None, built, edges)


def after(of: int | str, kind: str = "after", queue: str = "q") -> Edge:
    return Edge(of if isinstance(of, int) else Existing("bull", queue, of), Kind(kind))


class Graphs(Two):
    """Two queues of one server, with graphs."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.keepers = {broker: gates.GateKeeper(broker) for broker in (self.q, self.p)}

    async def graph(self, *nodes: Node) -> list[AddedNode]:
        return await self.q.graphs.add(nodes)

    async def run(self, job_id: str, kind: str = "c", at: BullMQBroker | None = None, **more: Any) -> Any:
        job = await self.claim(at)
        assert job.id == job_id
        return await self.end(job, kind, at=at, **more)

    async def formal(self, job_id: str, broker: BullMQBroker | None = None) -> State | None:
        (job,) = await (broker or self.q).look([job_id])
        return None if job is None else job.state


@pytest_asyncio.fixture
async def two(url: str) -> AsyncIterator[Graphs]:
    made = Graphs(url)
    yield made
    await made.q.close()
    await made.p.close()


def hidden(store: redis.Redis) -> set[str]:
    return {key for key in store.scan_iter() if "~gates" in key}


class TestAdding:
    async def test_add_writes_gates_and_dependencies(self, two: Graphs, store: redis.Redis) -> None:
        added = await two.graph(node("a"), node("b", after(0), queue="p"))
        assert [(one.id, one.created) for one in added] == [("a", True), ("b", True)]
        assert await two.state("a") == "waiting"
        assert await two.state("b", two.p) == "waiting-children"
        assert store.smembers("bull:p:b:dependencies") == {"bull:q:a"}
        assert store.hget("bull:q:a", "parentKey") == "bull:q~gates:a"
        assert store.hget("bull:q~gates:a", "d:bull:p:b") == "a"
        assert store.zrange("bull:q~gates:waiting-children", 0, -1) == ["a"]
        assert store.smembers("bull:p:ox:gates") == {"bull:q~gates"}

    async def test_a_graph_may_name_later_jobs_first(self, two: Graphs) -> None:
        added = await two.graph(node("b", after(1)), node("a"))
        assert [one.id for one in added] == ["b", "a"]
        await two.run("a")
        assert await two.state("b") == "waiting"

    async def test_an_unknown_id_refuses_all_of_it(self, two: Graphs, store: redis.Redis) -> None:
        with pytest.raises(UnknownDependency, match="bull:q:nobody"):
            await two.graph(node("a"), node("b", after(0), after("nobody")))
        assert not store.exists("bull:q:a", "bull:q:b", "bull:q:wait", "bull:q:id")
        assert hidden(store) == set()

    async def test_a_chain_of_a_hundred_and_no_longer(self, two: Graphs, store: redis.Redis) -> None:
        await two.graph(node("j1"), *(node(f"j{n}", after(n - 2)) for n in range(2, 101)))
        with pytest.raises(ChainTooLong, match="j101"):
            await two.graph(node("j101", after("j100")))
        assert not store.exists("bull:q:j101")

    async def test_a_cycle_is_refused(self, two: Graphs, store: redis.Redis) -> None:
        with pytest.raises(ValidationError, match="cycle"):
            await two.graph(node("a", after(1)), node("b", after(0)))
        assert not store.exists("bull:q:a")

    async def test_the_same_again_changes_nothing(self, two: Graphs) -> None:
        made = (node("a"), node("b", after(0)))
        await two.graph(*made)
        assert [one.created for one in await two.graph(*made)] == [False, False]
        await two.run("a")
        assert await two.state("b") == "waiting"

    async def test_inherits_the_highest_priority(self, two: Graphs, store: redis.Redis) -> None:
        await two.graph(node("a", priority=5), node("old", priority=3))
        await two.graph(node("b", after("a"), after("old"), priority=9), node("c", after(0), priority=1))
        assert (store.hget("bull:q:b", "priority"), store.hget("bull:q:c", "priority")) == ("3", "1")


class TestPropagation:
    @pytest.mark.parametrize(
        ("fields", "state"),
        [
            ({"category": "permanent", "attempts": 3}, State.FAILED),
            ({"category": "temporary", "attempts": 1}, State.DEAD_LETTER),
            ({"category": "cancelled", "attempts": 3}, State.CANCELLED),
        ],
    )
    @pytest.mark.parametrize("keep", [None, REMOVE])
    async def test_an_end_without_success_goes_down_the_chain(
        self, two: Graphs, store: redis.Redis, fields: dict[str, Any], state: State, keep: Retention | None
    ) -> None:
        await two.graph(
            node("a", attempts=fields["attempts"]),
            node("b", after(0), queue="p", history=True),
            node("c", after(1)),
            node("any", after(1, "after_any")),
        )
        job = await two.claim()
        outcome = Outcome(
            OutcomeKind.FAILED, job.id, job.token, job.starts, two.now, b"no", b"[]", keep, **fields
        )
        codes, _ = await two.q.finish([outcome])
        assert codes == [1]
        assert await two.formal("b", two.p) == await two.formal("c") == state
        assert await two.state("any") == "waiting"
        (dependent,) = await two.p.look(["b"])
        assert dependent is not None
        assert dependent.failed_reason is not None
        assert "bull:q:a" in dependent.failed_reason
        assert "no" in dependent.failed_reason
        assert [move.target for move in dependent.transitions] == [state]
        for keeper in two.keepers.values():
            await keeper.tick()
        assert hidden(store) == set()
        assert not store.exists("bull:q:ox:gates", "bull:p:ox:gates")

    async def test_the_first_cause_is_passed_on_and_cut(self, two: Graphs) -> None:
        await two.graph(node("a"), node("b", after(0)), node("c", after(1)))
        await two.run("a", "f", value="ä".encode() * 5000)
        for job in await two.q.look(["b", "c"]):
            assert job is not None
            reason = str(job.failed_reason)
            assert reason.startswith("dependency bull:q:a failed: ää")
            assert reason.endswith("ä…")
            assert len(reason) < 600

    async def test_after_waits_for_all(self, two: Graphs, store: redis.Redis) -> None:
        await two.graph(node("a"), node("b"), node("c", after(0), after(1)))
        await two.run("a", value=b"1")
        assert await two.state("c") == "waiting-children"
        await two.run("b", value=b"2")
        assert await two.state("c") == "waiting"
        assert store.hgetall("bull:q:c:processed") == {"bull:q:a": "1", "bull:q:b": "2"}

    async def test_after_any_waits_for_one(self, two: Graphs) -> None:
        await two.graph(
            node("a"), node("b"), node("c", after(0, "after_any"), after(1, "after_any")), node("d", after(2))
        )
        await two.run("a", "f")
        assert await two.state("c") == "waiting"
        await two.run("c")
        assert await two.state("d") == "waiting"
        await two.run("d")
        await two.run("b")
        assert await two.state("c") == "completed"

    async def test_both_kinds_at_once(self, two: Graphs) -> None:
        await two.graph(
            node("a"), node("b"), node("x"), node("c", after(0, "after_any"), after(1, "after_any"), after(2))
        )
        await two.run("a", "f")
        await two.run("b")
        assert await two.state("c") == "waiting-children"
        await two.run("x")
        assert await two.state("c") == "waiting"

    async def test_ended_dependencies_count_at_the_add(self, two: Graphs) -> None:
        await two.graph(node("good"), node("bad", attempts=1))
        await two.run("good", value=b"7")
        await two.run("bad", "f")
        await two.graph(
            node("b", after("good")),
            node("c", after("bad")),
            node("d", after(1)),
            node("e", after("bad", "after_any")),
        )
        assert await two.state("b") == "waiting"
        assert await two.formal("c") == await two.formal("d") == await two.formal("bad")
        assert await two.state("e") == "waiting"

    async def test_a_job_that_is_active_already(self, two: Graphs) -> None:
        await two.graph(node("a"))
        job = await two.claim()
        await two.graph(node("b", after("a")))
        await two.end(job, keep=REMOVE)
        assert await two.state("a") == "unknown"
        assert await two.state("b") == "waiting"

    async def test_a_removed_dependency_cancels(self, two: Graphs) -> None:
        await two.graph(node("a"), node("b", after(0)))
        await two.q.remove_job("a")
        await two.keepers[two.q].tick()
        assert await two.formal("b") == State.CANCELLED

    async def test_a_dependency_with_a_parent_of_its_own(self, two: Graphs) -> None:
        child = Tree("q", "bull", "n", None, JobOptions.build(job_id="child", attempts=1), OnFailure.FAIL, ())
        await two.q.flows.add(
            Tree("q", "bull", "n", None, JobOptions.build(job_id="top"), OnFailure.FAIL, (child,))
        )
        await two.graph(node("b", after("child"), queue="p"))
        await two.run("child", keep=REMOVE)
        assert await two.state("b", two.p) == "waiting-children"
        assert await two.keepers[two.p].tick() == 1
        assert await two.state("b", two.p) == "waiting"
        assert await two.state("top") == "waiting"

    async def test_a_thousand_wide_fan_in_is_released_once(self, two: Graphs, store: redis.Redis) -> None:
        await two.graph(*(node(f"m{n}") for n in range(1000)))
        await two.graph(node("in", *(after(f"m{n}") for n in range(1000)), queue="p"))
        ends = []
        while jobs := (await two.q.claim(Ask(50))).jobs:
            ends += [
                Outcome(OutcomeKind.COMPLETED, job.id, job.token, job.starts, two.now, b"1", b"[]")
                for job in jobs
            ]
        for start in range(0, 999, 50):
            await two.q.finish(ends[start : min(start + 50, 999)])
        assert await two.state("in", two.p) == "waiting-children"
        await two.q.finish(ends[999:])
        assert store.lrange("bull:p:wait", 0, -1) == ["in"]
        stream: Any = store.xrange("bull:p:events")
        assert [entry["event"] for _, entry in stream].count("waiting") == 1

    async def test_a_thousand_wide_fan_out_goes_in_steps(self, two: Graphs, store: redis.Redis) -> None:
        await two.graph(node("a"))
        await two.graph(*(node(f"o{n}", after("a"), queue="p") for n in range(1000)))
        assert store.llen("bull:p:wait") == 0
        await two.run("a")
        assert 0 < store.llen("bull:p:wait") < 1000
        assert await two.keepers[two.p].tick() + 250 == 1000
        assert await two.keepers[two.p].tick() == 0
        assert sorted(map(str, store.lrange("bull:p:wait", 0, -1))) == sorted(f"o{n}" for n in range(1000))
        stream: Any = store.xrange("bull:p:events")
        assert [entry["event"] for _, entry in stream].count("waiting") == 1000

    async def test_an_ended_job_remembers_its_first_dependents(self, two: Graphs) -> None:
        await two.graph(
            node("a"), node("b", after(0), queue="p"), *(node(f"c{n}", after(0)) for n in range(30))
        )
        assert await two.q.graphs.released("a") == []
        await two.run("a")
        found = await two.q.graphs.released("a")
        assert len(found) == 20
        assert set(found) <= {"bull:p:b", *(f"bull:q:c{n}" for n in range(30))}


class TestHiding:
    async def test_hidden_queues_are_not_found(self, two: Graphs) -> None:
        await two.graph(node("a"), node("b", after(0)))
        assert await find_queues(two.q.server, "bull") == ["q"]

    async def test_a_gate_is_not_shown_as_a_parent(self, two: Graphs, store: redis.Redis) -> None:
        """Neither a reader of the job nor the pipeline sees it, which would list it in its table of flows."""
        two.now = time.time_ns() // 1_000_000
        await two.graph(node("a"), node("b", after(0)))
        attach, until = load("attach"), two.now + 60_000
        await two.q.caller.again(attach, two.q.keys.meta(), "reader", until, 20_000, two.now, "life")
        (job,) = await two.q.look(["a"])
        assert job is not None
        assert (job.parent, job.parent_key) == (None, None)
        await two.run("a")
        stream: Any = store.xrange("bull:q:ox:attempts")
        assert [("parent" in entry, entry["jobId"]) for _, entry in stream] == [(False, "a")]


class TestRepair:
    def lose(self, store: redis.Redis) -> None:
        for key in hidden(store):
            store.delete(key)

    async def test_a_job_that_waits_without_a_gate_gets_one(self, two: Graphs, store: redis.Redis) -> None:
        await two.graph(node("a"), node("b", after(0), queue="p"))
        keeper = two.keepers[two.p]
        assert await keeper.repair() == 0
        self.lose(store)
        await keeper.tick()
        assert await keeper.repair() == 1
        await two.run("a")
        assert await two.state("b", two.p) == "waiting"

    async def test_an_end_without_a_gate_releases_dependents(self, two: Graphs, store: redis.Redis) -> None:
        await two.graph(
            node("a"), node("b"), node("c", after(0), queue="p"), node("d", after(1, "after_any"), queue="p")
        )
        self.lose(store)
        await two.run("a", "f")
        await two.run("b", "f", keep=REMOVE)
        assert await two.keepers[two.p].repair() == 2
        assert await two.formal("c", two.p) == State.DEAD_LETTER
        assert await two.state("d", two.p) == "waiting"

    async def test_parents_of_flows_are_left_alone(self, two: Graphs, store: redis.Redis) -> None:
        child = Tree("q", "bull", "n", None, JobOptions.build(job_id="child"), OnFailure.FAIL, ())
        top = Tree("q", "bull", "n", None, JobOptions.build(job_id="top"), OnFailure.FAIL, (child,))
        await two.q.flows.add(top)
        assert await two.keepers[two.q].repair() == 0
        assert hidden(store) == set()

    async def test_a_dependency_whose_id_has_colons(self, two: Graphs, store: redis.Redis) -> None:
        await two.q.add([two.q.encode("n", None, JobOptions.build(job_id="x:y:z"))])
        await two.graph(node("b", after("x:y:z"), queue="p"))
        assert store.hget("bull:q:x:y:z", "parentKey") == "bull:q~gates:x%3Ay%3Az"
        assert await two.keepers[two.p].repair() == 0
        await two.run("x:y:z")
        assert await two.state("b", two.p) == "waiting"


class TestBeside:
    """Other changes to waiting jobs and to their dependencies."""

    async def test_a_cancelled_job_can_be_replayed_while_its_dependency_runs(self, two: Graphs) -> None:
        await two.graph(node("a"), node("b", after(0)))
        running = await two.claim()
        assert await two.q.cancelling.cancel(["b"], "no", force=False) == [1]
        await two.q.retry_job("b", "failed", reset=True)
        assert await two.run("b") == 1
        await two.end(running, "f")
        assert await two.state("b") == "completed"

    async def test_a_replayed_job_is_not_ended_by_a_second_failure(self, two: Graphs) -> None:
        await two.graph(node("a"), node("b"), node("c", after(0), after(1)))
        first, second = await two.claim(), await two.claim()
        await two.end(first, "f")
        assert await two.state("c") == "failed"
        await two.q.retry_job("c", "failed", reset=True)
        await two.end(second, "f")
        assert await two.run("c") == 1

    async def test_removing_a_job_with_its_children_leaves_its_dependencies(self, two: Graphs) -> None:
        await two.graph(node("a"), node("b", after(0)))
        await two.q.remove_job("b", children=True)
        assert await two.state("a") == "waiting"
        await two.run("a")
        assert await two.state("b") == "unknown"

    async def test_children_of_a_job_that_waited_before(self, two: Graphs) -> None:
        """The repair handles them as children, and their failure follows their policy."""
        await two.graph(node("a"), node("b", after(0)))
        await two.run("a")
        job = await two.claim()
        child = Tree("p", "bull", "n", None, JobOptions.build(job_id="k", attempts=1), OnFailure.IGNORE, ())
        await two.q.flows.add_children("b", [child], token=job.token)
        assert await two.end(job, "h") == 1
        assert await two.keepers[two.q].repair() == 0
        await two.run("k", "f", at=two.p)
        assert await two.run("b") == 1

    async def test_a_dependency_whose_queue_was_emptied(self, two: Graphs, store: redis.Redis) -> None:
        await two.graph(node("a"), node("b", after(0), queue="p"))
        await two.q.bulk.obliterate(force=True)
        await two.keepers[two.p].tick()
        assert await two.formal("b", two.p) == State.CANCELLED
        assert hidden(store) == set()

    async def test_the_lifetime_of_a_dependency_is_over(self, two: Graphs) -> None:
        await two.graph(node("a", lifetime=5), node("b", after(0), queue="p"))
        two.now += 6_000
        await two.q.promote()
        await two.q.expire()
        await two.keepers[two.p].tick()
        assert await two.formal("a") == await two.formal("b", two.p) == State.DEAD_LETTER
