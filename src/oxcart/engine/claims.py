"""Group commit: finishes attempts and claims jobs in as few calls as the moment allows.

Free slots decide how many jobs a call asks for. Outcomes that become ready while calls are in flight go
together in the next call, which also claims into the freed slots. An idle worker makes one call per job, with
the lowest latency; under load the batch grows by itself.

A call reaches one queue. So outcomes claim from their own queue, and every few calls another queue gets all
free slots: a turn. Turns at every call would commit outcomes in one call and claim in another, in batches of
half the size (docs/decisions/175).

The lanes of a queue (docs/decisions/60) are its family. A call names the lanes that may have jobs, and the
server chooses the lane whose next job comes first.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Hashable, Sequence

from oxcart.broker.port import LARGE_OUTCOME, Ask, Claimed, Code, Lease, Outcome
from oxcart.engine.running import RunningJob
from oxcart.engine.station import Station
from oxcart.model.errors import BrokerError, BrokerUnavailable, CrossSlotError

log = logging.getLogger("oxcart.worker")

#: Most attempts that one call finishes, and most jobs that it claims: usually less than 2 ms of server time.
BATCH = 50
#: The same while many delayed jobs are due, which such calls promote as well.
BATCH_DUE = 12
#: Microseconds after which a call claims no more, for whatever reason: a slow server, large jobs, or a pause
#: of Lua's collector. Other clients wait meanwhile.
SPELL_US = 2_000
#: Seconds after which an empty queue is asked again while others keep the slots busy. With a free slot the
#: worker waits for its marker instead.
ASK_AGAIN = 0.1
#: Ms after which a queue at its rate limit is asked again at most: a user may have lifted the limit.
LIMITED = 5_000
#: Seconds after which a call counts as hanging: its endpoint is away or silent. No other call goes to that
#: endpoint meanwhile. Queues of other endpoints continue, without the slots that the call asked for.
STUCK = 1.0
#: Most finished attempts in one call times active jobs: each of them may cost a search in the list.
SEARCHED = 100_000
#: Calls that commit outcomes and claim from the same queue, before another queue with jobs has its turn.
STAY = 10
#: The same times the number of queues at most, so that the turn of each of many queues comes.
STAY_TIMES_QUEUES = 160
#: Seconds after which a quarter of these calls suffices.
STAY_SECONDS = 0.25
#: Seconds after which another queue has its turn in any case.
STAY_LONGEST = 1.0
#: How often the jobs of a late reply are renewed while the replies to renewals are late as well.
CONFIRMED = 3


class _Call:
    """One call in flight: the slots that it asked for, its queue, and the timer that finds it hanging."""

    __slots__ = ("asked_for", "choice", "ends", "is_stuck", "place", "station", "timer")

    def __init__(self, station: Station, asked_for: int, ends: int, choice: list[Station]) -> None:
        self.station = station
        self.asked_for = asked_for
        self.ends = ends
        self.choice = choice
        self.is_stuck = False
        self.place: Hashable = None
        self.timer: asyncio.TimerHandle | None = None


class Claims:
    """Keeps a worker's slots filled and its outcomes committed.

    Args:
        stations: The worker's queues.
        concurrency: How many jobs the worker may have at once.
        ask: The parts of a claim that stay the same.
        load: Returns how many jobs the worker has now.
        arrived: Receives claimed jobs, and when their call began (`time.perf_counter`).
        leaving: Receives the ids of outcomes before they are sent.
        left: Receives the ids of outcomes after the server's reply.
        ended: Receives each outcome and its code.
        starved: Called when a queue is empty, so that the wait for jobs begins.
        clock: A monotonic clock in ms, for all times of stations.
        broken: Receives an error that ends the worker.
        observe: Receives the station, the ended attempts, the claimed jobs and the seconds of every call.
        late: Seconds after which a reply is so late that the leases of its jobs must be renewed first.
    """

    def __init__(
        self,
        stations: list[Station],
        concurrency: int,
        ask: Ask,
        *,
        load: Callable[[], int],
        arrived: Callable[[Station, Claimed, float], None],
        leaving: Callable[[Station, list[str]], None],
        left: Callable[[Station, list[str]], None],
        ended: Callable[[Station, RunningJob, Outcome, Code], None],
        starved: Callable[[], None],
        clock: Callable[[], int],
        broken: Callable[[BaseException], None],
        observe: Callable[[Station, int, int, float], None] | None = None,
        late: float = math.inf,
    ) -> None:
        self._stations = stations
        self._concurrency = concurrency
        self._ask = ask
        self._load = load
        self._arrived = arrived
        self._leaving = leaving
        self._left = left
        self._ended = ended
        self._starved = starved
        self._clock = clock
        self._broken = broken
        self._observe = observe
        self._late = late
        self._most_calls = max(1, -(-concurrency // BATCH))
        self._asked_for = 0
        self._ending = 0  # outcomes of calls in flight
        self._stuck = 0
        self._stuck_places: Counter[Hashable] = Counter()  # endpoints at which calls hang
        self._calls: set[asyncio.Task[None]] = set()
        self._owing: dict[Station, None] = {}  # roots with outcomes to commit, the oldest first
        #: Stations that may have jobs, in the order of their turns.
        self.ready: dict[Station, None] = {}
        for station in stations:
            station.enter(self.ready)
        self._stayed = 0  # calls since a queue had its turn
        self._turned_at = 0.0
        self._looked_at = 0.0
        self._was_full = False  # since it looked at idle queues
        self._pumping = False
        self._claiming = True
        self._closed = False
        #: Whether no jobs are claimed for now.
        self.paused = False
        self._idle = asyncio.Event()
        self._idle.set()
        self._alarm: asyncio.TimerHandle | None = None

    @property
    def has_room(self) -> bool:
        """Whether a slot is free."""
        return self._claiming and not self.paused and self._load() + self._asked_for < self._concurrency

    @property
    def asked_for(self) -> int:
        """How many slots calls in flight may fill."""
        return self._asked_for

    @property
    def owed(self) -> int:
        """How many outcomes are not committed yet."""
        return self._ending + sum(len(station.outcomes) for station in self._stations)

    def submit(self, station: Station, job: RunningJob, outcome: Outcome) -> None:
        """Commits an ended attempt with the next call."""
        job.took = time.monotonic() - job.began
        station.outcomes.append((job, outcome))
        station.root.owing[station] = self._owing[station.root] = None
        if station.retired and station not in self._stations:
            self._stations.append(station)
        if not self._pumping:
            self._pump_soon()

    def join(self, station: Station) -> None:
        """Starts claiming from a lane."""
        station.retired = False
        station.root.family.append(station)
        if station not in self._stations:
            self._stations.append(station)
        station.enter(self.ready)
        station.wake()
        self._pump_soon()

    def take_in(self, stations: Sequence[Station]) -> None:
        """Starts claiming from further queues."""
        self._stations += stations
        for station in stations:
            station.enter(self.ready)
            station.wake()
        self._pump_soon()

    def retire(self, station: Station) -> None:
        """Stops claiming from a lane; its claimed jobs still end."""
        station.retired, station.ready, station.due_ms = True, False, 0
        station.root.family.remove(station)
        if not station.calls and not station.outcomes:
            self._stations.remove(station)

    def wake(self, index: int | None) -> None:
        """Marks that a queue may have jobs, or any queue for None."""
        if index is None:
            now = self._clock()
            for station in self._stations:
                if station.until_ms <= now:
                    station.wake()
        else:
            self._stations[index].wake()
        self._pump_soon()

    def wake_station(self, station: Station) -> None:
        """Marks that a queue may have jobs."""
        station.wake()
        self._pump_soon()

    def stop_claiming(self) -> None:
        """Only finishes attempts from now on."""
        self._claiming = False
        if self._alarm is not None:
            self._alarm.cancel()

    async def drained(self) -> None:
        """Waits until every outcome is committed, or until the end."""
        self._pump_soon()
        while not self._closed and (self._calls or any(station.outcomes for station in self._stations)):
            await asyncio.sleep(0)
            await self._idle.wait()

    async def close(self) -> None:
        """Cancels the calls in flight and starts no others."""
        self.stop_claiming()
        self._closed = True
        calls = list(self._calls)
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)

    def _pump_soon(self) -> None:
        if not self._pumping:
            self._pumping = True
            self._idle.clear()
            asyncio.get_running_loop().call_soon(self._pump)

    def _pump(self) -> None:
        """Starts as many calls as are useful now."""
        self._pumping = False
        if self._closed:  # the brokers close next, and a call would report their closing as its failure
            self._idle.set()
            return
        if len(self._stations) > 1:
            self._ask_again()
        while len(self._calls) - self._stuck < self._most_calls:
            free = (
                self._concurrency - self._load() - self._asked_for
                if self._claiming and not self.paused
                else 0
            )
            owing = self._next_owing()
            turn = self._next_turn(owing, free)
            if turn is not None:
                self._stayed, self._turned_at = 0, asyncio.get_running_loop().time()
                # The outcomes of its family go along.
                self._start(next(iter(turn.root.owing), turn), free, turn)
            elif owing is not None:
                if self._is_behind():
                    free = 0
                self._stayed += free > 0
                members = [owing, *owing.family]
                owing.turn += 1
                self._start(next(iter(owing.owing)), free, members[owing.turn % len(members)])
            else:
                break
        if not self._calls:
            self._idle.set()

    def _next_owing(self) -> Station | None:
        """Returns the root that has waited longest to commit outcomes."""
        for root in list(self._owing):
            if not root.owing:
                del self._owing[root]
            elif not self._is_stuck(root):
                return root
        return None

    def _is_behind(self) -> bool:
        """Whether more queues have outcomes than calls may start: all of them would stay a call late."""
        waiting = sum(1 for root in self._owing if root.owing and not self._is_stuck(root))
        return waiting > self._most_calls - len(self._calls) + self._stuck

    def _next_turn(self, owing: Station | None, free: int) -> Station | None:
        """Returns the station whose turn it is; None if the outcomes should claim from their own queue.

        Args:
            owing: The root with outcomes to commit.
            free: How many slots are free.
        """
        if free <= 0 or (owing is not None and not self._is_time_to_turn()):
            return None
        for station in self.ready:
            if not (owing is not None and station.root is owing) and not self._is_stuck(station):
                return station
        return None

    def _is_time_to_turn(self) -> bool:
        if len(self._stations) == 1:
            return False
        stay = max(1, min(STAY, STAY_TIMES_QUEUES // len(self._stations)))
        if self._stayed >= stay:
            return True
        since = asyncio.get_running_loop().time() - self._turned_at
        return since >= STAY_LONGEST or (since >= STAY_SECONDS and self._stayed >= stay // 4)

    def _is_stuck(self, station: Station) -> bool:
        if station.root.stuck:
            return True
        return bool(self._stuck_places) and station.broker.place in self._stuck_places

    def _ask_again(self) -> None:
        """Keeps a busy queue from hiding the others: with full slots the worker waits for no marker.

        With a free slot it does, and finds the marker of a job that came before.
        """
        now = asyncio.get_running_loop().time()
        if not self._was_full or now - self._looked_at < ASK_AGAIN / 4:
            return
        self._looked_at, self._was_full = now, False
        for station in self._stations:
            if not station.ready and not station.until_ms and now - station.asked_at > ASK_AGAIN:
                station.ready = not station.retired

    def _start(self, station: Station, free: int, turn: Station) -> None:
        """Starts a call that commits the outcomes of a queue and claims into the free slots.

        Args:
            station: The queue.
            free: How many slots are free.
            turn: The station to prefer if several of the family have equal jobs.
        """
        self._owing.pop(station.root, None)
        most = BATCH_DUE if 0 < station.due_ms <= self._clock() else BATCH
        batch = self._batch(station, max(1, min(most, SEARCHED // max(1, station.active))))
        if station.root.owing:
            self._owing[station.root] = None
        if batch and station.closed:
            station.ready = not station.retired
        choice: list[Station] = []
        if station.root.family or station.retired:
            if batch:
                for one in station.root.family:
                    one.ready = one.ready or one.closed  # the outcome may make room for all of them
            choice = turn.choice() if free > 0 else []
            claim = min(free, most) if choice else 0
            if choice == [station]:
                choice = []
        else:
            claim = min(free, most) if station.ready and free > 0 else 0
        call = _Call(station, claim, len(batch), choice)
        self._asked_for += claim
        self._ending += len(batch)
        if claim:
            now = asyncio.get_running_loop().time()
            for one in choice or (station,):
                one.asked_at = now
                if one in self.ready:
                    self.ready[one] = self.ready.pop(one)
        station.calls += 1
        loop = asyncio.get_running_loop()
        if len(self._stations) > 1:
            call.timer = loop.call_later(STUCK, self._hangs, call)
        task = loop.create_task(self._commit(call, batch), name="oxcart-commit")
        self._calls.add(task)
        task.add_done_callback(self._finished)

    def _hangs(self, call: _Call) -> None:
        """Lets other queues continue. The call continues too, because the server may have applied it."""
        call.is_stuck = True
        self._stuck += 1
        call.station.root.stuck += 1
        self._asked_for -= call.asked_for
        broker = call.station.broker
        if not broker.waits_for_slot:
            call.place = broker.place
            self._stuck_places[call.place] += 1
        self._pump_soon()

    def _over(self, call: _Call) -> None:
        call.station.calls -= 1
        self._ending -= call.ends
        if call.is_stuck:
            self._stuck -= 1
            call.station.root.stuck -= 1
            if call.place is not None:
                self._stuck_places[call.place] -= 1
                self._stuck_places += Counter()  # drops endpoints without a hanging call
            return
        self._asked_for -= call.asked_for
        if call.timer is not None:
            call.timer.cancel()

    def _batch(self, station: Station, limit: int) -> list[tuple[RunningJob, Outcome]]:
        """Returns the next outcomes to send; a large one goes alone."""
        outcomes = station.outcomes
        station.root.owing.pop(station, None)
        if len(outcomes) <= limit and all(len(outcome.value) < LARGE_OUTCOME for _, outcome in outcomes):
            station.outcomes = []
            return outcomes
        station.root.owing[station] = None
        size = 0
        for _, outcome in outcomes[:limit]:
            if len(outcome.value) >= LARGE_OUTCOME:
                size = size or 1
                break
            size += 1
        batch = outcomes[:size]
        del outcomes[:size]
        return batch

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._calls.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._broken(error)
        self._pump_soon()

    async def _commit(self, call: _Call, batch: list[tuple[RunningJob, Outcome]]) -> None:
        station, claim, choice = call.station, call.asked_for, call.choice
        ask = _with_count(self._ask, claim, tuple(one.lane for one in choice))
        wakes = station.wakes
        all_wakes = [one.wakes for one in choice]
        started = time.perf_counter()
        try:
            if batch:
                outcomes = [outcome for _, outcome in batch]
                ids = [outcome.id for outcome in outcomes]
                self._leaving(station, ids)
                codes, claimed = await station.broker.finish(outcomes, ask)
                self._left(station, ids)
            else:
                codes, claimed = [], await station.broker.claim(ask)
            if claimed.jobs and time.perf_counter() - started > self._late:
                await self._confirm(choice[claimed.lane or 0] if choice else station, claimed)
        except (BrokerUnavailable, CrossSlotError):
            raise  # the limit of attempts is reached, or a cluster's key has no hash tag
        except BrokerError as error:
            # The server refused the call as such, for example its script: it applied nothing.
            log.error(
                "queue %s: the server refused a claim, retrying in 1 s: %s", station.broker.queue, error
            )
            station.outcomes.extend(batch)
            if batch:
                station.root.owing[station] = self._owing[station.root] = None
            station.ready = False
            await asyncio.sleep(1)
            self._starved()
            return
        finally:
            self._over(call)
        for (job, outcome), code in zip(batch, codes, strict=True):
            self._ended(station, job, outcome, code)
        if choice:
            for place, due_ms in claimed.empty:
                if not claimed.repeated and choice[place].wakes == all_wakes[place]:
                    self._is_empty(choice[place], due_ms)
            if claimed.lane is None:
                return self._deliver(station, batch, claimed, started)
            if claimed.shut or claimed.limited_ms:
                for one in choice:
                    if one is not choice[claimed.lane]:
                        self._note(one, claimed, claim, one.wakes)
            station, wakes = choice[claimed.lane], all_wakes[claimed.lane]
        if claim:
            self._note(station, claimed, claim, wakes)
        station.active = claimed.active
        self._deliver(station, batch, claimed, started)

    async def _confirm(self, station: Station, claimed: Claimed) -> None:
        """Renews the jobs of a late reply, and drops jobs that other workers may run by now.

        A reply is late after an outage, or if a handler blocked the event loop. No lease was renewed since.
        """
        for _ in range(CONFIRMED):
            started = time.perf_counter()
            leases = [Lease(job.id, job.token, job.starts) for job in claimed.jobs]
            try:
                refused = set(await station.broker.renew(leases, self._ask.lock_ms))
            except BrokerUnavailable:
                raise
            except BrokerError as error:
                log.error("queue %s: could not renew claimed jobs: %s", station.broker.queue, error)
                refused = {lease.id for lease in leases}
            if refused:
                log.warning(
                    "queue %s: dropped %d claimed jobs: the reply came after their leases had expired",
                    station.broker.queue,
                    len(refused),
                    extra={"job_ids": sorted(refused)[:100]},
                )
                claimed.jobs = [job for job in claimed.jobs if job.id not in refused]
            if not claimed.jobs or time.perf_counter() - started <= self._late:
                return

    def _deliver(
        self, station: Station, batch: list[tuple[RunningJob, Outcome]], claimed: Claimed, started: float
    ) -> None:
        if claimed.jobs:
            self._arrived(station, claimed, started)
            self._was_full = self._was_full or self._load() >= self._concurrency
        if self._observe is not None:
            self._observe(station, len(batch), len(claimed.jobs), time.perf_counter() - started)

    def _is_empty(self, station: Station, due_ms: int) -> None:
        station.ready = station.closed = False
        station.until_ms, station.due_ms = 0, self._here(station, due_ms)
        self._starved()

    def _here(self, station: Station, due_ms: int) -> int:
        """Converts a time of a queue's server to the clock of this worker; 0 stays 0."""
        return due_ms and max(1, self._clock() + due_ms - station.broker.clock())

    def _note(self, station: Station, claimed: Claimed, asked: int, wakes: int) -> None:
        """Learns from a reply whether to claim again."""
        station.until_ms = 0
        station.due_ms = self._here(station, claimed.due_ms)
        station.closed = claimed.closed
        if claimed.orphans:
            log.warning(
                "queue %s: dropped ids without a job: %s",
                station.broker.queue,
                ", ".join(claimed.orphans[:10]),
            )
        if claimed.limited_ms:
            station.ready = False
            station.until_ms = self._clock() + min(claimed.limited_ms, LIMITED)
            self._set_alarm()
            self._starved()  # there may be room for the jobs of other queues
        elif len(claimed.jobs) < asked and not (claimed.more or claimed.repeated) and station.wakes == wakes:
            # Fewer than asked for: the queue is empty, unless large payloads cut the batch short.
            full = not claimed.closed and _bytes(claimed) >= self._ask.max_bytes
            station.ready = full and not station.retired
            if not station.ready:
                self._starved()

    def _set_alarm(self) -> None:
        """Sets the timer to the end of the first rate limit."""
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        times = [station.until_ms for station in self._stations if station.until_ms and not station.ready]
        if times and self._claiming:
            wait = max(0, min(times) - self._clock()) / 1000
            self._alarm = asyncio.get_running_loop().call_later(wait + 0.001, self._ring)

    def _ring(self) -> None:
        now = self._clock()
        for station in self._stations:
            if 0 < station.until_ms <= now:
                station.until_ms = 0
                station.wake()
        self._set_alarm()  # for the other limits, and if this clock is behind the loop's
        self._pump_soon()


def _with_count(ask: Ask, count: int, lanes: tuple[str, ...]) -> Ask:
    limits = (ask.limit_max, ask.limit_duration, ask.max_bytes, ask.spell_us)
    return Ask(count, ask.lock_ms, ask.worker, *limits, ask.metrics, lanes, ask.version, ask.isolates)


def _bytes(claimed: Claimed) -> int:
    return sum(len(job.payload) for job in claimed.jobs)
