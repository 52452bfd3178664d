"""A discrete-event simulation of a fleet: workers that claim batches from masters (docs/scaling.md).

A worker is one process with one processor. It has slots, and calls one master after another: a call commits
the attempts that have ended and claims into all free slots. A call waits for the worker's processor, the way
to the master and the master's processor, in that order. Handlers wait without using a processor. They start
one after another, so the jobs of one call do not end at once, and later calls are smaller.

Time is in seconds.
"""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any

import simpy

#: Jobs that one call finishes and claims at most, as in ``oxcart.engine.claims``.
BATCH = 50
#: Calls that claim from one master before a worker turns to the next.
TURN = 10
#: Seconds between two moments at which a worker's event loop looks at its timers: epoll counts whole ms.
TICK = 0.001
#: Seconds without work after which the caches of a processor are cold.
COLD = 0.0005

Steps = Generator[Any, Any, None]


@dataclass(frozen=True)
class Costs:
    """What a call and a job cost, in seconds of a processor.

    Attributes:
        server_call: The server, per call.
        server_job: The server, per job of a call: to claim and to finish it.
        server_add: The server, per added job.
        worker_call: The worker, per call.
        worker_job: The worker, per job: decoding, handler, encoding.
        server_cold: The server, for the first work after a pause, beside its other costs.
        worker_cold: The same of a worker.
        server_idle: A server, per worker and second: waits, signs of life and elections.
    """

    server_call: float
    server_job: float
    server_add: float
    worker_call: float
    worker_job: float
    server_cold: float = 0.0
    worker_cold: float = 0.0
    server_idle: float = 0.0


@dataclass(frozen=True)
class Plan:
    """A fleet.

    Attributes:
        workers: Worker processes.
        masters: Masters; jobs are spread evenly over them.
        concurrency: Slots of each worker.
        handler: Seconds for which a handler waits.
        way: Seconds from a worker to a master and back.
        rate: Jobs added per second over all masters; None for more than can be processed.
        cores: Processors that all share, as on one machine; None if each process has its own.
        parts: Parts of a claimed batch whose handlers start and end one after another.
    """

    workers: int = 1
    masters: int = 1
    concurrency: int = 100
    handler: float = 0.0
    way: float = 0.0002
    rate: float | None = None
    cores: int | None = None
    parts: int = 4


@dataclass
class Result:
    """What a simulation predicts.

    Attributes:
        throughput: Jobs a second.
        calls: Calls per job.
        server_load: The part of the time in which a master is busy, the mean of all.
        worker_load: The same of a worker.
        wait_mean: Seconds from an add to the claim, the mean; 0 without a rate.
        wait_p50: The same for half of the jobs.
        wait_p90: The same for 9 of 10.
        wait_p99: The same for 99 of 100.
    """

    throughput: float
    calls: float
    server_load: float
    worker_load: float
    wait_mean: float
    wait_p50: float
    wait_p90: float
    wait_p99: float


@dataclass
class _Master:
    processor: simpy.Resource
    waiting: deque[float] = field(default_factory=deque)
    busy: float = 0.0
    idle_since: float = -1.0


class Fleet:
    """One run of a plan.

    Args:
        plan: The fleet.
        costs: What its work costs.
        seed: Of the arrivals.
    """

    def __init__(self, plan: Plan, costs: Costs, seed: int = 1) -> None:
        self._plan, self._costs = plan, costs
        self._env = simpy.Environment()
        self._dice = random.Random(seed)
        self._arrivals = random.Random(seed)  # the same whatever else is random
        self._cores = simpy.Resource(self._env, plan.cores) if plan.cores else None
        self._masters = [_Master(simpy.Resource(self._env)) for _ in range(plan.masters)]
        self._idle: deque[simpy.Event] = deque()  # workers that wait for a marker of any master
        self._done = self._calls = 0
        self._worked = 0.0
        self._waits: list[float] = []

    def run(self, seconds: float, warm: float = 0.2) -> Result:
        """Simulates the fleet, and counts after a time in which it warms up."""
        plan, env = self._plan, self._env
        for number in range(plan.workers):
            env.process(self._worker(number))
            if self._costs.server_idle:
                env.process(self._presence())
        if plan.rate is not None:
            for master in self._masters:
                env.process(self._producer(master, plan.rate / plan.masters))
        env.run(warm)
        self._done = self._calls = 0
        self._worked, self._waits = 0.0, []
        for master in self._masters:
            master.busy = 0.0
        env.run(warm + seconds)
        waits = sorted(self._waits) or [0.0]
        return Result(
            throughput=self._done / seconds,
            calls=self._calls / max(1, self._done),
            server_load=sum(one.busy for one in self._masters) / plan.masters / seconds,
            worker_load=self._worked / plan.workers / seconds,
            wait_mean=sum(waits) / len(waits),
            wait_p50=waits[len(waits) // 2],
            wait_p90=waits[len(waits) * 9 // 10],
            wait_p99=waits[len(waits) * 99 // 100],
        )

    def _presence(self) -> Steps:
        """What a worker costs every master although it has nothing to do."""
        yield self._env.timeout(self._dice.random())
        while True:
            for master in self._masters:
                yield from self._use(self._costs.server_idle, master=master)
            yield self._env.timeout(1.0)

    def _producer(self, master: _Master, rate: float) -> Steps:
        """Adds jobs one by one at random times, which costs the master its part."""
        batch = max(1, round(rate / 5_000))  # of a fast queue several arrive together
        while True:
            yield self._env.timeout(self._arrivals.expovariate(rate / batch))
            self._env.process(self._add(master, batch))

    def _add(self, master: _Master, jobs: int) -> Steps:
        yield from self._use(self._costs.server_add * jobs, master=master)
        master.waiting.extend([self._env.now] * jobs)
        if self._idle:
            self._idle.popleft().succeed()

    def _use(self, seconds: float, *, worker: _Worker | None = None, master: _Master | None = None) -> Steps:
        """Takes the processor of a worker or of a master; no piece of work takes as long as the last one."""
        processor = (master or worker).processor  # type: ignore[union-attr]
        with processor.request() as mine:
            yield mine
            used = master or worker
            assert used is not None
            if self._env.now - used.idle_since > COLD:
                seconds += self._costs.worker_cold if master is None else self._costs.server_cold
            seconds *= 0.5 + self._dice.random()
            if self._cores is None:
                yield self._env.timeout(seconds)
            else:
                with self._cores.request() as core:
                    yield core
                    yield self._env.timeout(seconds)
        used.idle_since = self._env.now
        if master is None:
            self._worked += seconds
        else:
            master.busy += seconds

    def _worker(self, number: int) -> Steps:
        env, plan = self._env, self._plan
        state = _Worker(simpy.Resource(env), plan.concurrency, number % plan.masters, env.event())
        most = -(-plan.concurrency // BATCH)
        while True:
            while state.calls < most and (state.ended or (state.free > 0 and not state.empty)):
                state.calls += 1
                ended = min(BATCH, state.ended)
                claimed = min(BATCH, state.free)
                state.ended -= ended
                state.free -= claimed
                self._env.process(self._call(state, ended, claimed))
            if state.empty and state.free > 0 and not state.is_waiting:
                state.is_waiting = True
                env.process(self._wait(state))
            yield state.changed
            state.changed = env.event()

    def _call(self, state: _Worker, ended: int, claimed: int) -> Steps:
        plan, costs, env = self._plan, self._costs, self._env
        yield from self._use(costs.worker_call, worker=state)
        yield env.timeout(plan.way / 2)
        master = self._masters[state.master]
        found = claimed
        if plan.rate is not None:
            found = min(claimed, len(master.waiting))
            self._waits += [env.now - master.waiting.popleft() for _ in range(found)]
        work = costs.server_call + costs.server_job * (ended + found) / 2
        yield from self._use(work, master=master)
        yield env.timeout(plan.way / 2)
        self._calls += 1
        self._done += ended
        state.calls -= 1
        state.free += claimed - found
        state.empty = claimed > 0 and found < claimed
        state.turn += 1
        if plan.masters > 1 and (state.turn % TURN == 0 or state.empty):
            state.master = (state.master + 1) % plan.masters
        state.tell()
        if found:
            env.process(self._handle(state, found))

    def _handle(self, state: _Worker, jobs: int) -> Steps:
        if not self._plan.handler:
            yield from self._use(self._costs.worker_job * jobs, worker=state)
            self._end(state, jobs)
            return
        part = -(-jobs // self._plan.parts)
        for first in range(0, jobs, part):
            some = min(part, jobs - first)
            yield from self._use(self._costs.worker_job * some, worker=state)
            self._env.process(self._sleep(state, some))

    def _sleep(self, state: _Worker, jobs: int) -> Steps:
        ends = self._env.now + self._plan.handler
        yield self._env.timeout(math.ceil(ends / TICK) * TICK - self._env.now)
        self._end(state, jobs)

    @staticmethod
    def _end(state: _Worker, jobs: int) -> None:
        state.ended += jobs
        state.free += jobs
        state.tell()

    def _wait(self, state: _Worker) -> Steps:
        """Waits for a marker of any master, as a blocking call over all of them does."""
        master = next((one for one in self._masters if one.waiting), None)
        if master is None:
            woken = self._env.event()
            self._idle.append(woken)
            yield woken
            yield self._env.timeout(self._plan.way / 2)
            master = next((one for one in self._masters if one.waiting), None)
        else:
            yield self._env.timeout(self._plan.way)
        if master is not None:
            state.master = self._masters.index(master)
        state.empty = state.is_waiting = False
        state.tell()


@dataclass
class _Worker:
    processor: simpy.Resource
    free: int
    master: int
    changed: simpy.Event
    ended: int = 0
    calls: int = 0
    turn: int = 0
    empty: bool = False
    is_waiting: bool = False
    idle_since: float = -1.0

    def tell(self) -> None:
        if not self.changed.triggered:
            self.changed.succeed()
