"""A small reference model of one queue, and random commands that drive it and the real server.

Every command compares the two. Each job has the expected formal state, is in exactly one place, has only
allowed transitions in its history, used no more attempts than allowed, and has a reason once it has ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

import redis
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from oxcart.broker.bullmq import gates
from oxcart.broker.bullmq.broker import BullMQBroker
from oxcart.broker.connection import Server
from oxcart.broker.port import Ask, Code, Outcome
from oxcart.engine.running import RunningJob
from oxcart.engine.verdict import Verdict
from oxcart.model.errors import JobError
from oxcart.model.failure import Category, PermanentError, TemporaryError
from oxcart.model.graph import Edge, Existing, Kind, Node, effect
from oxcart.model.options import JobOptions
from oxcart.model.outcome import Cancel, Snooze
from oxcart.model.state import TERMINAL, State
from tests.broker.bullmq.making import Clock
from tests.formal.test_history import check
from tests.servers import ValkeyServer

T = TypeVar("T")

#: Real ms that a lease lasts here: longer than any run. Only a crash removes it.
LEASE = 3_600_000
#: Ms that the worker of a running job has after the job's lifetime.
GRACE = 5_000
MAX_STALLED = 1

#: How a handler may end.
WAYS = ("ok", "temporary", "at once", "permanent", "timeout", "system", "cancel", "snooze", "back")

LISTS = ("wait", "paused", "active")
SETS = ("prioritized", "delayed", "waiting-children", "completed", "failed")


@dataclass
class Expected:
    """A job in the reference model."""

    id: str
    attempts: int
    state: State
    due: int = 0
    life: int | None = None
    over: int | None = None
    retry_timeout: bool = True
    retry_system: bool = True
    ended: int = 0
    stalls: int = 0
    starts: int = 0
    runs: int = 0
    asked: bool = False
    doomed: bool = False
    lost: bool = False
    delay: int = 0
    after: list[str] = field(default_factory=list)
    after_any: list[str] = field(default_factory=list)

    @property
    def used(self) -> int:
        return self.ended + self.stalls

    def fail(self, category: Category, now: int, delay: int | None = None) -> None:
        """Applies a failed attempt by the rules of the specification."""
        self.ended += 1
        retried = {Category.TIMEOUT: self.retry_timeout, Category.SYSTEM: self.retry_system}.get(
            category, True
        )
        if category is Category.PERMANENT:
            self.state = State.FAILED
        elif category is Category.CANCELLED:
            self.state = State.CANCELLED
        elif self.used >= self.attempts:
            self.state = State.DEAD_LETTER
        elif not retried:
            self.state = State.FAILED
        elif delay == 0:
            self.state = State.SCHEDULED
        else:
            self.state = State.RETRYING
            self.due = now + (1000 * 2 ** (self.ended - 1) if delay is None else delay)


@dataclass
class Held:
    """A claim of a worker, which may be dead."""

    job: RunningJob
    starts: int
    crashed: bool = False
    over: bool = field(default=False)


class Life(RuleBasedStateMachine):
    """Random commands on jobs."""

    server: ClassVar[ValkeyServer]
    steps: ClassVar[int] = 0
    seen: ClassVar[set[tuple[State, State]]] = set()

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.store: redis.Redis = self.server.client()
        self.store.flushall()
        self.clock = Clock()
        self.expected: dict[str, Expected] = {}
        self.keys: dict[str, str] = {}
        self.held: list[Held] = []
        self.paused = False
        self.number = 0
        self.verdict = Verdict(clock=self.clock, rand=lambda: 0.5)

    @initialize()
    def open(self) -> None:
        self.broker = BullMQBroker(Server(self.server.url), "q", clock=self.clock)
        self.keeper = gates.GateKeeper(self.broker)

    def teardown(self) -> None:
        if hasattr(self, "broker"):
            self.do(self.broker.close())
        self.runner.close()
        self.store.close()

    def do(self, doing: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(doing)

    def pick(self, number: int) -> Expected | None:
        jobs = list(self.expected.values())
        return jobs[number % len(jobs)] if jobs else None

    # -- producers

    @rule(
        delay=st.sampled_from([0, 0, 700]),
        priority=st.sampled_from([0, 0, 3]),
        attempts=st.integers(1, 3),
        history=st.booleans(),
        lifetime=st.sampled_from([None, None, 4]),
        key=st.sampled_from([None, None, "k1", "k2"]),
        retry_timeout=st.booleans(),
        retry_system=st.booleans(),
    )
    def add(self, delay: int, attempts: int, lifetime: int | None, key: str | None, **more: Any) -> None:
        self.number += 1
        options = JobOptions.build(
            job_id=f"j{self.number}",
            delay=delay / 1000,
            attempts=attempts,
            lifetime=lifetime,
            idempotency_key=key,
            **more,
        )
        (added,) = self.do(self.broker.add([self.broker.encode("n", self.number, options)]))
        owner = self.keys.get(key or "")
        if owner in self.expected:
            assert (added.id, added.created, added.duplicate) == (owner, False, True)
            return
        assert (added.id, added.created, added.duplicate) == (options.job_id, True, False)
        if key:
            self.keys[key] = added.id
        self.expected[added.id] = Expected(
            added.id,
            attempts,
            State.DELAYED if delay else State.SCHEDULED,
            due=self.clock.now + delay,
            life=None if lifetime is None else lifetime * 1000,
            over=None if lifetime is None else self.clock.now + lifetime * 1000,
            retry_timeout=more["retry_timeout"],
            retry_system=more["retry_system"],
        )

    @precondition(lambda self: self.expected)
    @rule(
        numbers=st.lists(st.integers(0, 50), min_size=1, max_size=3),
        kind=st.sampled_from([Kind.AFTER, Kind.AFTER, Kind.AFTER_ANY]),
        delay=st.sampled_from([0, 0, 700]),
        attempts=st.integers(1, 3),
        history=st.booleans(),
    )
    def depend(self, numbers: list[int], kind: Kind, delay: int, attempts: int, history: bool) -> None:
        """Adds a job that depends on others in any state."""
        self.number += 1
        ids = list(dict.fromkeys(one.id for number in numbers if (one := self.pick(number))))
        options = JobOptions.build(
            job_id=f"j{self.number}", delay=delay / 1000, attempts=attempts, history=history
        )
        edges = tuple(Edge(Existing("bull", "q", one), kind) for one in ids)
        node = Node("q", "bull", "n", self.number, options, edges)
        (added,) = self.do(self.broker.graphs.add([node]))
        assert added.created
        one = Expected(added.id, attempts, State.PENDING, delay=delay)
        if kind is Kind.AFTER:
            one.after = ids
        else:
            one.after_any = ids
        self.expected[one.id] = one
        self.propagate()

    def propagate(self) -> None:
        """Applies the ended jobs to their dependents, by the specification's table."""
        changed = True
        while changed:
            changed = False
            for one in self.expected.values():
                if one.state is State.PENDING:
                    changed = self.met(one) or changed

    def met(self, one: Expected) -> bool:
        for other in list(one.after):
            if (ended := self.ended_as(other)) is None:
                continue
            one.after.remove(other)
            if (state := effect(Kind.AFTER, ended)) is not None:
                one.state = state
                return True
        if any(self.ended_as(other) for other in one.after_any):
            one.after_any = []
        if one.after or one.after_any:
            return False
        one.state, one.due = (State.DELAYED if one.delay else State.SCHEDULED), self.clock.now + one.delay
        return True

    def ended_as(self, job_id: str) -> State | None:
        """How a job has ended; a removed job counts as cancelled."""
        one = self.expected.get(job_id)
        if one is None:
            return State.CANCELLED
        return one.state if one.state in TERMINAL else None

    # -- workers

    @rule(count=st.integers(1, 3))
    def claim(self, count: int) -> None:
        claimed = self.do(self.broker.claim(Ask(count, LEASE, "w")))
        assert not (self.paused and claimed.jobs)
        for claim in claimed.jobs:
            one = self.expected[claim.id]
            self.let_through(one)
            assert one.state is State.SCHEDULED, (one, "was handed out")
            one.state, one.lost = State.RUNNING, False
            one.starts += 1
            assert claim.starts == one.starts
            job = RunningJob(self.broker, claim, "w", None)
            early = self.verdict.before_start(job)
            self.start(one)
            assert (early is None) == (one.state is State.RUNNING), (one, early)
            if early is None:
                one.runs += 1
                self.held.append(Held(job, one.starts))
            else:
                assert self.finish(early) == 1
                self.propagate()

    @precondition(lambda self: self.expected)
    @rule(count=st.integers(1, 3), how=st.sampled_from(WAYS))
    def work(self, count: int, how: str) -> None:
        """A worker claims jobs and finishes them."""
        before = len(self.held)
        self.claim(count)
        for _ in range(len(self.held) - before):
            self.end(len(self.held) - 1, how)

    @precondition(lambda self: self.expected)
    @rule(
        count=st.integers(1, 3),
        step=st.sampled_from([1500, 4000]),
        how=st.sampled_from(["temporary", "timeout", "system", "snooze"]),
        again=st.sampled_from(WAYS),
    )
    def work_again(self, count: int, step: int, how: str, again: str) -> None:
        """A worker delays the jobs that it claims, and another claims them when they are due."""
        self.work(count, how)
        self.time_passes(step)
        self.work(count, again)

    def start(self, one: Expected) -> None:
        """Ends a job at once if it must not run."""
        if one.over is not None and one.over <= self.clock.now:
            one.ended += 1
            one.state = State.DEAD_LETTER
        elif one.asked:
            one.fail(Category.CANCELLED, self.clock.now)
        elif one.doomed or (one.stalls and (not one.retry_system or one.used >= one.attempts)):
            one.ended += 1
            one.state = State.DEAD_LETTER if one.used >= one.attempts else State.FAILED

    @precondition(lambda self: self.held)
    @rule(number=st.integers(0, 50), how=st.sampled_from(WAYS))
    def end(self, number: int, how: str) -> None:
        held = self.held.pop(number % len(self.held))
        one = self.expected.get(held.job.id)
        outcome = self.outcome(held.job, how)
        code = self.finish(outcome)
        if one is None or one.state is not State.RUNNING or one.starts != held.starts:
            assert isinstance(code, int), (one, code)
            assert code < 0, (one, code)
            return
        assert code == 1, (one, how, code)
        now, one.lost = self.clock.now, False
        if how == "ok":
            one.ended += 1
            one.state = State.COMPLETED
        elif how == "back":
            one.runs -= 1
            one.state = State.SCHEDULED
        elif how == "snooze":
            one.runs -= 1
            one.state, one.due = (State.RETRYING if one.ended else State.DELAYED), now + 300
        else:
            words = {"at once": "temporary", "cancel": "cancelled"}
            one.fail(Category(words.get(how, how)), now, 0 if how == "at once" else None)
        self.propagate()

    def outcome(self, job: RunningJob, how: str) -> Outcome:
        verdict = self.verdict
        if how == "ok":
            return verdict.of_result(job, {"fine": True})
        if how == "cancel":
            return verdict.of_result(job, Cancel("not wanted"))
        if how == "snooze":
            return verdict.of_result(job, Snooze("300ms"))
        if how == "back":
            return verdict.given_back(job)
        if how == "permanent":
            return verdict.of_error(job, PermanentError("never", code="E1"))
        if how in ("timeout", "system"):
            return verdict.of_error(job, RuntimeError(how), Category(how))
        return verdict.of_error(job, TemporaryError("busy", retry_after=0 if how == "at once" else None))

    def finish(self, outcome: Outcome) -> Code:
        codes, _ = self.do(self.broker.finish([outcome], Ask(0)))
        return codes[0]

    @precondition(lambda self: any(not held.crashed for held in self.held))
    @rule(number=st.integers(0, 50))
    def crash(self, number: int) -> None:
        """A worker is lost: its lease expires. The claim stays, so that it can return as a slow worker."""
        alive = [held for held in self.held if not held.crashed]
        held = alive[number % len(alive)]
        held.crashed = True
        one = self.expected.get(held.job.id)
        if one is not None and one.state is State.RUNNING and one.starts == held.starts:
            self.store.delete(f"bull:q:{one.id}:lock")
            one.lost = True

    @rule()
    def recover(self) -> None:
        for _ in range(2):  # the first check notes the active jobs, the second finds those without a lease
            self.store.delete("bull:q:stalled-check")
            self.do(self.broker.recover(max_stalled=MAX_STALLED, interval_ms=60_000))
        for one in self.expected.values():
            if one.state is State.RUNNING and one.lost:
                one.state, one.lost = State.SCHEDULED, False
                one.stalls += 1
                one.doomed = one.doomed or one.stalls > MAX_STALLED

    @precondition(lambda self: any(not held.crashed for held in self.held))
    @rule(number=st.integers(0, 50), how=st.sampled_from(WAYS))
    def come_back(self, number: int, how: str) -> None:
        """A worker that was only slow reports its end after another worker may have claimed the job."""
        self.crash(number)
        self.recover()
        self.claim(3)
        self.end(next(place for place, held in enumerate(self.held) if held.crashed), how)

    # -- time

    @rule(step=st.sampled_from([1, 300, 700, 1500, 4000, 6000, -500]))
    def time_passes(self, step: int) -> None:
        """Advances the clock, or sets it back a little, and runs the maintenance."""
        self.clock.now += step
        self.do(self.broker.promote())
        for one in self.expected.values():
            self.let_through(one)
        self.do(self.broker.expire(grace_ms=GRACE))
        for one in self.expected.values():
            if one.over is None or one.over > self.clock.now or one.state in TERMINAL:
                continue
            if one.state is not State.RUNNING or one.lost or self.clock.now - one.over >= GRACE:
                one.ended += one.state is State.RUNNING
                one.state = State.DEAD_LETTER

    def let_through(self, one: Expected) -> None:
        if one.state in (State.DELAYED, State.RETRYING) and one.due <= self.clock.now:
            one.state = State.SCHEDULED

    # -- operators

    @rule(number=st.integers(0, 50), force=st.booleans())
    def cancel(self, number: int, force: bool) -> None:
        one = self.pick(number)
        if one is None:
            return
        (code,) = self.do(self.broker.cancelling.cancel([one.id], "not wanted", force=force))
        if one.state in TERMINAL:
            assert code == -3
        elif one.state is not State.RUNNING:
            assert code == 1
            one.state = State.CANCELLED
        elif force:
            assert code == 1
            one.ended += 1
            one.state = State.CANCELLED
        else:
            assert code == 2
            one.asked = True

    @rule(number=st.integers(0, 50), reset=st.booleans())
    def replay(self, number: int, reset: bool) -> None:
        one = self.pick(number)
        if one is None:
            return
        place = "completed" if one.state is State.COMPLETED else "failed"
        try:
            self.do(self.broker.retry_job(one.id, place, reset=reset))
        except JobError:
            assert one.state not in TERMINAL
            return
        assert one.state in TERMINAL
        one.state, one.runs, one.asked, one.doomed = State.SCHEDULED, 0, False, False
        if one.life is not None:
            one.over = self.clock.now + one.life
        if reset:
            one.ended = one.stalls = 0

    @rule(number=st.integers(0, 50))
    def remove(self, number: int) -> None:
        one = self.pick(number)
        if one is not None and number % 4 == 0:  # seldom
            self.take_away(one)

    @precondition(lambda self: self.waited_for())
    @rule(number=st.integers(0, 50))
    def remove_dependency(self, number: int) -> None:
        waited_for = self.waited_for()
        if number % 2 == 0:
            self.take_away(self.expected[waited_for[number % len(waited_for)]])

    def waited_for(self) -> list[str]:
        """Returns the jobs that others depend on."""
        waiting = [one for one in self.expected.values() if one.state is State.PENDING]
        found = {other for one in waiting for other in (*one.after, *one.after_any)}
        return sorted(found & self.expected.keys())

    def take_away(self, one: Expected) -> None:
        try:
            self.do(self.broker.remove_job(one.id))
        except JobError:
            assert one.state is State.RUNNING
            assert not one.lost
            return
        assert one.state is not State.RUNNING or one.lost
        del self.expected[one.id]

    @rule(number=st.integers(0, 50))
    def run_now(self, number: int) -> None:
        one = self.pick(number)
        if one is None:
            return
        self.let_through_really(one)
        try:
            self.do(self.broker.promote_job(one.id))
        except JobError:
            assert one.state not in (State.DELAYED, State.RETRYING)
            return
        assert one.state in (State.DELAYED, State.RETRYING)
        one.state = State.SCHEDULED

    def let_through_really(self, one: Expected) -> None:
        """Accepts a due job in either state, because the server decides when to promote it."""
        if not self.store.zscore("bull:q:delayed", one.id):
            self.let_through(one)

    @rule(pause=st.sampled_from([False, False, False, True]))
    def pause(self, pause: bool) -> None:
        self.do(self.broker.pause() if pause else self.broker.resume())
        self.paused = pause

    # -- the comparison

    @invariant()
    def equals_the_model(self) -> None:
        if not hasattr(self, "broker"):
            return
        Life.steps += 1
        self.do(self.keeper.tick())
        self.propagate()
        places = self.places()
        assert sorted(places) == sorted(self.expected), "a job is lost, or in two places"
        for one, job in zip(
            self.expected.values(), self.do(self.broker.look(list(self.expected))), strict=True
        ):
            assert job is not None
            self.let_through_really(one)
            assert job.state is one.state, (one, job)
            assert (job.attempts_made, job.stalled_count, job.attempts_started) == (
                one.ended,
                one.stalls,
                one.starts,
            ), one
            assert one.runs <= one.attempts, one
            check(job)
            Life.seen |= {(change.source, change.target) for change in job.transitions}
            if one.state in TERMINAL:
                assert job.finished_on is not None
                assert job.transitions[-1].target is one.state
                if one.state is State.COMPLETED:
                    assert job.return_value == {"fine": True}
                else:
                    assert job.failed_reason
                    assert job.category in set(Category)
            leased = self.store.exists(f"bull:q:{one.id}:lock")
            assert bool(leased) == (one.state is State.RUNNING and not one.lost), one

    def places(self) -> list[str]:
        found: list[str] = []
        for name in LISTS:
            found += map(str, self.store.lrange(f"bull:q:{name}", 0, -1))
        for name in SETS:
            found += map(str, self.store.zrange(f"bull:q:{name}", 0, -1))
        return found
