"""Group commit: which outcomes share a call, which queue is next, and when to claim."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, cast

import pytest
import pytest_asyncio

from oxcart.broker.bullmq.broker import BullMQBroker
from oxcart.broker.bullmq.claimed import BullMQClaim
from oxcart.broker.port import LARGE_OUTCOME, Ask, Claimed, ClaimedJob, Code, Lease, Outcome, OutcomeKind
from oxcart.engine import claims
from oxcart.engine.claims import BATCH, LIMITED, SEARCHED, STAY, Claims
from oxcart.engine.running import RunningJob
from oxcart.engine.station import Station
from oxcart.model.errors import BrokerUnavailable, ScriptError
from tests.engine.making import make_job
from tests.signals import eventually


class Call:
    """One call under way; the test answers it."""

    def __init__(self, queue: str, outcomes: list[Outcome], ask: Ask) -> None:
        self.queue = queue
        self.outcomes = outcomes
        self.count = ask.count
        self.answer: asyncio.Future[Claimed] = asyncio.get_running_loop().create_future()

    def reply(self, jobs: int = 0, **fields: Any) -> None:
        claimed: list[ClaimedJob] = [
            BullMQClaim(f"{self.queue}{i}", "t", 1, 0, {b"data": b"{}"}) for i in range(jobs)
        ]
        self.answer.set_result(Claimed(claimed, **fields))


class Scripted:
    """A broker whose calls wait for the test."""

    def __init__(self, queue: str, calls: asyncio.Queue[Call], clock: Callable[[], int]) -> None:
        self.queue = queue
        self.clock = clock
        self.lane: str | None = None
        self.caller = self
        #: The node that fails together with the queue: "node" of "name@node".
        self.place = queue.rpartition("@")[2]
        self.waits_for_slot = False
        self._calls = calls
        self.extended: list[list[str]] = []
        self.refuses: set[str] = set()

    async def renew(self, leases: list[Lease], lock_ms: int) -> list[str]:
        self.extended.append([lease.id for lease in leases])
        return [lease.id for lease in leases if lease.id in self.refuses]

    async def claim(self, ask: Ask) -> Claimed:
        return await self._call([], ask)

    async def finish(self, outcomes: list[Outcome], ask: Ask) -> tuple[list[Code], Claimed]:
        claimed = await self._call(list(outcomes), ask)
        return [1] * len(outcomes), claimed

    async def _call(self, outcomes: list[Outcome], ask: Ask) -> Claimed:
        call = Call(self.queue, outcomes, ask)
        self._calls.put_nowait(call)
        return await call.answer


class Desk:
    """Claims over scripted queues; records the calls to the worker."""

    def __init__(self, *queues: str, concurrency: int = 10, late: float = 60.0) -> None:
        _open_desks.append(self)
        self.calls: asyncio.Queue[Call] = asyncio.Queue()
        self.load = 0
        self.now = 1000
        self.arrived: list[tuple[str, int]] = []
        self.ended: list[tuple[str, Code]] = []
        self.left: list[str] = []
        self.starved = 0
        self.broken: list[BaseException] = []
        self.seen: list[tuple[str, int, int]] = []
        self.stations = [
            Station(index, cast(BullMQBroker, Scripted(queue, self.calls, lambda: self.now)))
            for index, queue in enumerate(queues)
        ]
        self.claims = Claims(
            self.stations,
            concurrency,
            Ask(lock_ms=5),
            load=lambda: self.load,
            arrived=self._arrived,
            leaving=lambda station, ids: self.left.extend(ids),
            left=lambda station, ids: None,
            ended=lambda station, job, outcome, code: self.ended.append((outcome.id, code)),
            starved=self._starved,
            clock=lambda: self.now,
            broken=self.broken.append,
            observe=lambda station, ended, claimed, seconds: self.seen.append(
                (station.broker.queue, ended, claimed)
            ),
            late=late,
        )

    def _arrived(self, station: Station, claimed: Claimed, began: float) -> None:
        self.arrived.append((station.broker.queue, len(claimed.jobs)))
        self.load += len(claimed.jobs)

    def _starved(self) -> None:
        self.starved += 1

    def end(self, count: int = 1, queue: int = 0, size: int = 1, prefix: str = "j") -> None:
        for number in range(count):
            job: RunningJob = make_job(job_id=f"{prefix}{number}")
            self.load = max(0, self.load - 1)
            outcome = Outcome(OutcomeKind.COMPLETED, job.id, job.token, 1, 0, b"x" * size)
            self.claims.submit(self.stations[queue], job, outcome)

    async def next(self) -> Call:
        return await asyncio.wait_for(self.calls.get(), 10)

    async def quiet(self) -> None:
        """Checks that no further call was made."""
        for _ in range(10):
            await asyncio.sleep(0)
        assert self.calls.empty()


_open_desks: list[Desk] = []


@pytest_asyncio.fixture(autouse=True)
async def close_desks() -> AsyncIterator[None]:
    """Cancels the calls that a test has not answered, so that none is pending when its loop closes."""
    yield
    for desk in _open_desks:
        await desk.claims.close()
    _open_desks.clear()


class TestLateAnswers:
    async def test_jobs_of_a_late_reply_are_renewed_and_jobs_of_others_dropped(self) -> None:
        desk = Desk("q", concurrency=10, late=0.0)
        broker = cast(Scripted, desk.stations[0].broker)
        broker.refuses = {"q1"}
        desk.claims.wake(None)
        (await desk.next()).reply(3)
        await eventually(lambda: desk.arrived == [("q", 2)], "all but the job of another worker")
        assert broker.extended[0] == ["q0", "q1", "q2"]

    async def test_an_answer_in_time_renews_nothing(self) -> None:
        desk = Desk("q", concurrency=10)
        desk.claims.wake(None)
        (await desk.next()).reply(3)
        await eventually(lambda: desk.arrived == [("q", 3)], "arrived")
        assert cast(Scripted, desk.stations[0].broker).extended == []

    async def test_slots_stay_taken_while_a_late_answer_is_renewed(self) -> None:
        desk = Desk("q", concurrency=2, late=0.0)
        broker, renewed = cast(Scripted, desk.stations[0].broker), asyncio.Event()

        async def renew(leases: list[Lease], lock_ms: int) -> list[str]:
            await renewed.wait()
            return []

        broker.renew = renew  # type: ignore[method-assign]
        desk.claims.wake(None)
        (await desk.next()).reply(2)
        for _ in range(5):
            await asyncio.sleep(0)
        assert not desk.claims.has_room
        renewed.set()
        await eventually(lambda: desk.arrived == [("q", 2)], "arrived")


class TestBatches:
    async def test_an_idle_worker_asks_for_its_free_slots(self) -> None:
        desk = Desk("q", concurrency=10)
        desk.claims.wake(None)
        call = await desk.next()
        assert (call.outcomes, call.count) == ([], 10)
        call.reply(4)
        await eventually(lambda: desk.arrived == [("q", 4)], "arrived")
        assert desk.starved == 1
        await desk.quiet()

    async def test_outcomes_that_come_meanwhile_go_together_and_claim(self) -> None:
        desk = Desk("q", concurrency=10)
        desk.claims.wake(None)
        first = await desk.next()
        desk.end(5)
        first.reply(10)
        second = await desk.next()
        assert [outcome.id for outcome in second.outcomes] == [f"j{i}" for i in range(5)]
        assert second.count == 0, "all slots are taken"
        desk.end(3, prefix="k")
        second.reply()
        third = await desk.next()
        assert len(third.outcomes) == 3
        assert third.count == 3, "into the freed slots"
        third.reply(3)
        await eventually(lambda: len(desk.ended) == 8, "all outcomes are reported")
        assert desk.left == [job_id for job_id, _ in desk.ended]
        assert desk.seen == [("q", 0, 10), ("q", 5, 0), ("q", 3, 3)]

    async def test_at_most_a_batch_per_call(self) -> None:
        desk = Desk("q", concurrency=BATCH)
        desk.claims.wake(None)
        (await desk.next()).reply(BATCH)
        await eventually(lambda: desk.arrived, "arrived")
        desk.end(BATCH + 7)
        call = await desk.next()
        assert (len(call.outcomes), call.count) == (BATCH, BATCH)
        call.reply(BATCH)
        assert len((await desk.next()).outcomes) == 7

    async def test_smaller_batches_in_a_crowd(self) -> None:
        desk = Desk("q", concurrency=BATCH)
        desk.claims.wake(None)
        (await desk.next()).reply(BATCH, active=SEARCHED // 10)
        await eventually(lambda: desk.arrived, "arrived")
        desk.end(BATCH)
        call = await desk.next()
        assert (len(call.outcomes), call.count) == (10, BATCH)

    async def test_a_large_outcome_goes_alone(self) -> None:
        desk = Desk("q", concurrency=10)
        desk.claims.stop_claiming()
        for size in (1, 1, LARGE_OUTCOME, 1, LARGE_OUTCOME, LARGE_OUTCOME, 1):
            desk.end(size=size)
        sizes = []
        for _ in range(6):
            call = await desk.next()
            sizes.append([len(outcome.value) for outcome in call.outcomes])
            call.reply()
        big = LARGE_OUTCOME
        assert sizes == [[1, 1], [big], [1], [big], [big], [1]]

    @pytest.mark.parametrize(("concurrency", "calls"), [(1, 1), (50, 1), (51, 2), (100, 2), (150, 3)])
    async def test_calls_in_flight_grow_with_concurrency(self, concurrency: int, calls: int) -> None:
        desk = Desk("q", concurrency=concurrency)
        desk.claims.wake(None)
        under_way = [await desk.next() for _ in range(calls)]
        assert sum(call.count for call in under_way) == concurrency
        await desk.quiet()
        for call in under_way:
            call.reply()

    async def test_no_slot_is_asked_for_twice(self) -> None:
        desk = Desk("q", concurrency=100)
        desk.load = 30
        desk.claims.wake(None)
        one, two = await desk.next(), await desk.next()
        assert (one.count, two.count) == (50, 20)
        assert not desk.claims.has_room
        one.reply()
        two.reply()


class TestTurns:
    async def test_queues_take_turns(self) -> None:
        desk = Desk("a", "b", "c", concurrency=1)
        order = []
        desk.claims.wake(None)
        for _ in range(9):
            call = await desk.next()
            order.append(call.queue)
            call.reply(1)
            await eventually(lambda: desk.load == 1, "arrived")
            desk.end(queue="abc".index(call.queue))
            call = (
                await desk.next()
            )  # the outcome, with a claim into the freed slot, of one queue or the other
            order.append(call.queue)
            desk.load = 0
            call.reply(0 if len(order) % 2 else 1)
            await asyncio.sleep(0)
            desk.load = 0
            desk.claims.wake(None)
        counts = {queue: order.count(queue) for queue in "abc"}
        assert min(counts.values()) >= len(order) // 3 - 2

    async def test_outcomes_claim_from_their_own_queue(self) -> None:
        desk = Desk("a", "b", concurrency=2 * BATCH)
        desk.claims.wake(None)
        for call in (await desk.next(), await desk.next()):
            call.reply(BATCH)
        await eventually(lambda: desk.load == 2 * BATCH, "both have arrived")
        for number in range(STAY):
            place = number % 2
            desk.end(BATCH, queue=place)
            call = await desk.next()
            assert (call.queue, len(call.outcomes), call.count) == ("ab"[place], BATCH, BATCH)
            call.reply(BATCH)
            await eventually(lambda: desk.load == 2 * BATCH, "arrived")

    async def test_no_queue_stays_a_call_late_with_its_outcomes(self) -> None:
        desk = Desk("a", "b", concurrency=10)
        desk.claims.wake(None)
        first = await desk.next()
        first.reply(5, more=True)
        second = await desk.next()
        second.reply(5)
        await eventually(lambda: desk.load == 10, "arrived")
        for place in (0, 1):
            desk.end(5, queue=place)
        call = await desk.next()
        assert (call.queue, len(call.outcomes), call.count) == ("a", 5, 0), "both cannot claim at once"
        call.reply()
        call = await desk.next()
        assert (call.queue, len(call.outcomes), call.count) == ("b", 5, 10)

    async def test_every_queue_has_its_turn_beside_full_ones(self) -> None:
        names = "abcdefgh"
        desk = Desk(*names, concurrency=1)
        desk.claims.wake(None)
        claimed: list[str] = []
        for _ in range(3 * len(names) * (STAY + 1)):
            call = await desk.next()
            if call.count:
                claimed.append(call.queue)
            call.reply(call.count)
            await eventually(lambda: not desk.calls.empty() or desk.load == 1, "arrived, or the next call")
            if desk.load:
                desk.end(queue=names.index(claimed[-1]))
        turns = [one for place, one in enumerate(claimed) if place == 0 or claimed[place - 1] != one]
        assert turns[: 2 * len(names)] == [*names, *names], "each in turn"
        runs = len(claimed) / len(turns)
        assert runs > STAY / 2, "several claims from a queue before the next has its turn"

    async def test_a_queue_with_a_free_slot_beside_it_is_not_asked_again(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(claims, "ASK_AGAIN", 0.0)
        desk = Desk("busy", "idle", concurrency=3)
        desk.claims.wake(None)
        first = await desk.next()
        first.reply(1)
        (await desk.next()).reply()
        await eventually(lambda: desk.starved >= 2 and desk.load == 1, "both are found empty")
        desk.end()
        call = await desk.next()
        assert (len(call.outcomes), call.count) == (1, 0)
        call.reply()
        await desk.quiet()

    async def test_a_busy_queue_does_not_hide_another(self) -> None:
        desk = Desk("busy", "other", concurrency=1)
        asked: list[str] = []
        desk.claims.wake(None)
        for _ in range(20):
            call = await desk.next()
            asked.append(call.queue)
            call.reply(1 if call.queue == "busy" else 0)
            await asyncio.sleep(0)
            desk.load = 0
            desk.claims.wake(1 if len(asked) % 5 == 0 else 0)
        assert asked.count("other") >= 4


class TestWhenToAsk:
    async def test_an_empty_queue_is_not_asked_again(self) -> None:
        desk = Desk("q", concurrency=5)
        desk.claims.wake(None)
        (await desk.next()).reply(0)
        await eventually(lambda: desk.starved == 1, "the wait for work begins")
        await desk.quiet()
        desk.claims.wake(0)
        assert (await desk.next()).count == 5

    async def test_a_full_answer_is_asked_again(self) -> None:
        desk = Desk("q", concurrency=5)
        desk.claims.wake(None)
        (await desk.next()).reply(5)
        await eventually(lambda: desk.load == 5, "arrived")
        desk.end(2)
        assert (await desk.next()).count == 2
        assert desk.starved == 0

    async def test_a_rate_limit_is_waited_for(self) -> None:
        desk = Desk("q", concurrency=5)
        desk.claims.wake(None)
        (await desk.next()).reply(0, limited_ms=30)
        await desk.quiet()
        desk.claims.wake(None)  # a poll in between does not help
        await desk.quiet()
        desk.now += 31
        assert (await desk.next()).count == 5
        assert desk.starved == 1

    async def test_a_rate_limit_leaves_the_wait_for_other_queues_to_begin(self) -> None:
        desk = Desk("a", "b", concurrency=1)
        desk.claims.wake(None)
        (await desk.next()).reply(1)
        await eventually(lambda: desk.load == 1, "the slot taken")
        assert desk.starved == 0
        desk.end()
        (await desk.next()).reply(0)
        (await desk.next()).reply(0, limited_ms=30)
        await eventually(lambda: desk.starved == 2, "both queues are known to be empty")

    async def test_a_short_rate_limit_does_not_hide_the_end_of_a_longer_one(self) -> None:
        desk = Desk("a", "b", concurrency=5)
        desk.claims.wake(None)
        (await desk.next()).reply(0, limited_ms=60)
        (await desk.next()).reply(0, limited_ms=20)
        await desk.quiet()
        desk.now += 20
        assert (await desk.next()).queue == "b"
        desk.now += 40
        assert (await desk.next()).queue == "a"

    async def test_limit_is_checked_again_when_the_loop_wakes_before_the_clock(self) -> None:
        desk = Desk("a", concurrency=5)
        desk.claims.wake(None)
        (await desk.next()).reply(0, limited_ms=5)
        await asyncio.sleep(0.05)  # the alarm has rung, and the clock stands still
        await desk.quiet()
        desk.now += 5
        assert (await desk.next()).count == 5

    async def test_a_long_limit_is_asked_for_again_as_it_may_be_lifted(self) -> None:
        desk = Desk("a", concurrency=5)
        desk.claims.wake(None)
        (await desk.next()).reply(0, limited_ms=3_600_000)
        await eventually(lambda: desk.stations[0].until_ms > 0, "noted")
        assert desk.stations[0].until_ms == desk.now + LIMITED

    async def test_a_paused_queue_is_left_until_a_marker(self) -> None:
        desk = Desk("q", concurrency=5)
        desk.claims.wake(None)
        (await desk.next()).reply(0, closed=True)
        await eventually(lambda: desk.starved == 1, "the wait for work begins")
        await desk.quiet()
        desk.claims.wake(0)
        assert (await desk.next()).count == 5

    async def test_an_end_may_make_room_in_a_queue_at_its_concurrency(self) -> None:
        desk = Desk("q", concurrency=5)
        desk.claims.wake(None)
        (await desk.next()).reply(2, closed=True)
        await eventually(lambda: desk.load == 2, "arrived")
        await desk.quiet()
        desk.end()
        call = await desk.next()
        assert (len(call.outcomes), call.count) == (1, 4)
        call.reply(1)

    async def test_when_the_next_delayed_job_is_due_is_noted(self) -> None:
        desk = Desk("q", concurrency=5)
        desk.claims.wake(None)
        (await desk.next()).reply(0, due_ms=5000)
        await eventually(lambda: desk.starved == 1, "the wait for work begins")
        assert desk.stations[0].due_ms == 5000

    async def test_orphans_are_reported(self, caplog: pytest.LogCaptureFixture) -> None:
        desk = Desk("q", concurrency=5)
        desk.claims.wake(None)
        (await desk.next()).reply(0, orphans=["ghost"])
        await eventually(lambda: "dropped ids without a job: ghost" in caplog.text, "a warning")

    async def test_no_room_no_claim(self) -> None:
        desk = Desk("q", concurrency=2)
        desk.load = 2
        desk.claims.wake(None)
        await desk.quiet()
        assert not desk.claims.has_room


class TestEndpoints:
    @pytest.fixture(autouse=True)
    def hurry(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("oxcart.engine.claims.STUCK", 0.05)

    async def test_one_call_hangs_for_all_queues_of_a_dead_endpoint(self) -> None:
        desk = Desk(*(f"q{number}@dead" for number in range(20)), "q@live", concurrency=5)
        desk.claims.wake(None)
        hanging = await desk.next()
        assert hanging.queue == "q0@dead"
        assert (await desk.next()).queue == "q@live"
        await desk.quiet()
        await desk.claims.close()

    async def test_the_queues_of_an_endpoint_go_on_once_it_answers(self) -> None:
        desk = Desk("a@dead", "b@dead", "c@live", concurrency=5)
        desk.claims.wake(None)
        hanging = await desk.next()
        (await desk.next()).reply()
        await desk.quiet()
        hanging.reply()
        assert (await desk.next()).queue == "b@dead"
        await desk.claims.close()

    async def test_a_slot_that_moves_holds_only_its_queue(self) -> None:
        desk = Desk("a@node", "b@node", concurrency=5)
        cast(Any, desk.stations[0].broker).waits_for_slot = True
        desk.claims.wake(None)
        await desk.next()
        assert (await desk.next()).queue == "b@node"
        await desk.claims.close()


class TestLanes:
    async def test_a_call_that_hangs_holds_its_family(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("oxcart.engine.claims.STUCK", 0.01)
        desk = Desk("a", "b")
        root, _ = desk.stations
        broker = Scripted("lane", desk.calls, lambda: desk.now)
        broker.lane = "all;c=gpu"
        lane = Station(2, cast(BullMQBroker, broker), root)
        desk.claims.join(lane)
        call = await desk.next()
        assert (call.queue, call.count) == ("a", 10)
        await eventually(lambda: root.stuck, "it hangs")
        assert (await desk.next()).queue == "b"
        await eventually(lambda: desk.stations[1].stuck, "the second queue is stuck too")
        desk.claims.wake_station(lane)
        await desk.quiet()  # otherwise the slots would be claimed again, and all calls answered in the end
        await desk.claims.close()


class TestEnd:
    async def test_stop_claiming_still_ends_attempts(self) -> None:
        desk = Desk("q", concurrency=5)
        desk.claims.stop_claiming()
        desk.claims.wake(None)
        await desk.quiet()
        desk.end(2)
        draining = asyncio.create_task(desk.claims.drained())
        call = await desk.next()
        assert (len(call.outcomes), call.count) == (2, 0)
        assert not draining.done()
        call.reply()
        await asyncio.wait_for(draining, 10)

    async def test_drained_of_nothing(self) -> None:
        await asyncio.wait_for(Desk("q").claims.drained(), 10)

    async def test_close_gives_up_calls(self) -> None:
        desk = Desk("q")
        desk.claims.wake(None)
        call = await desk.next()
        await desk.claims.close()
        assert call.answer.cancelled()
        assert desk.broken == []

    async def test_close_starts_no_call_for_outcomes_that_are_left(self) -> None:
        desk = Desk("q")
        desk.end(1)
        await desk.next()
        desk.end(1)
        draining = asyncio.create_task(desk.claims.drained())
        await desk.claims.close()
        await desk.quiet()
        desk.end(1)
        await desk.quiet()
        await asyncio.wait_for(draining, 10)


class TestErrors:
    async def test_a_refused_call_keeps_its_outcomes(self, monkeypatch: pytest.MonkeyPatch) -> None:
        desk = Desk("q", concurrency=5)
        monkeypatch.setattr("oxcart.engine.claims.asyncio.sleep", _at_once)
        desk.end(3)
        call = await desk.next()
        call.answer.set_exception(ScriptError("finish: ERR no"))
        again = await desk.next()
        assert {outcome.id for outcome in again.outcomes} == {"j0", "j1", "j2"}
        again.reply()
        await eventually(lambda: len(desk.ended) == 3, "the outcomes are reported")
        assert desk.broken == []

    async def test_giving_up_raises_in_the_worker(self) -> None:
        desk = Desk("q")
        desk.claims.wake(None)
        (await desk.next()).answer.set_exception(BrokerUnavailable("gave up after 3 attempts"))
        await eventually(lambda: desk.broken, "the error is reported")


_real_sleep = asyncio.sleep


async def _at_once(seconds: float) -> None:
    await _real_sleep(0)
