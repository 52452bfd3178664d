"""Drives the real scripts along a path of the model, and compares the states after every action."""

from __future__ import annotations

import random
from typing import Any

import redis

from oxcart.broker.bullmq.broker import BullMQBroker
from oxcart.broker.bullmq.scripts import load
from oxcart.model.graph import Edge, Node
from oxcart.model.options import JobOptions
from tests.explorer.actions import Action, Rules, apply, finish_on_server, possible
from tests.explorer.state import DEPENDENT, JOBS, State, initial

#: Longer than a replay: leases end when the model says so.
LEASE = 3_600_000
PREFIX = "bull:q:"


class Replay:
    """A queue with the jobs of the model, and workers that call the scripts by themselves.

    Args:
        client: A client of an empty server.
        raw: A client of it that does not decode, because a claim replies in MessagePack.
        workers: How many workers there are.
    """

    def __init__(self, client: redis.Redis, raw: redis.Redis, workers: int) -> None:
        self._client: Any = client
        self._raw: Any = raw
        self._loaded: dict[str, str] = {}
        self.state = initial(workers)
        self._calls = 0
        self._lives = list(range(workers))
        self._last: list[tuple[str, list[str]]] = [("", [])] * workers
        self._tokens: dict[tuple[int, int], str] = {}

    async def add(self, broker: BullMQBroker) -> None:
        """Adds the jobs."""
        nodes = [
            Node("q", "bull", "n", job, JobOptions.build(job_id=f"j{job}"), edges)
            for job, edges in ((0, ()), (1, ()), (2, (Edge(0), Edge(1))))
        ]
        await broker.graphs.add(nodes)
        self.compare("add")

    def walk(self, dice: random.Random, steps: int) -> list[Action]:
        """Goes a random path; returns it."""
        way = []
        for _ in range(steps):
            action = dice.choice(list(possible(self.state, most_starts=6, most_crashes=3)))
            way.append(action)
            self.step(action)
            assert self.state == self.seen(), "\n".join(map(str, way))
        return way

    def step(self, action: Action) -> None:
        """Does an action on the server and in the model."""
        recovered = getattr(self, f"_{action.name}")(action)
        self.state = apply(self.state, action, Rules())
        if recovered:  # a check finds its suspects in the order of a set
            self.state = self.state._replace(wait=(*self.state.wait[: -len(recovered)], *recovered))

    def compare(self, what: str) -> None:
        """Compares the server with the model."""
        assert self.state == self.seen(), what

    # -- the scripts

    def _call(self, verb: str, *arguments: object) -> Any:
        if verb not in self._loaded:
            self._loaded[verb] = self._raw.script_load(load(verb).text)
        return self._raw.evalsha(self._loaded[verb], 1, f"{PREFIX}meta", *map(str, arguments))

    def _once(self, worker: int, verb: str, arguments: list[str]) -> Any:
        """A call that can be repeated."""
        self._calls += 1
        given = [f"slot-{self._lives[worker]}", str(self._calls), *arguments]
        self._last[worker] = (verb, given)
        return self._call(verb, *given)

    def _claim(self, action: Action) -> None:
        token = f"token-{self._calls + 1}"
        ready = self.state.wait
        if ready:
            self._tokens[ready[-1], self.state.starts[ready[-1]] + 1] = token
        self._once(action.worker, "claim", _asked(1, token))

    def _finish(self, action: Action) -> None:
        start = next(start for job, start in self.state.workers[action.worker].held if job == action.job)
        token = self._tokens[action.job, start]
        attempt = [f"j{action.job}", str(start)]
        ending = ["1", "c", "1", token, "", "-1::", "", *attempt, str(start)]
        if action.end == "r":
            ending = ["1", "r", "1", token, "", "", "", *attempt, "not yet", ""]
        asked = _asked(0, token)
        if action.claims:
            asked = _asked(1, f"token-{self._calls + 1}")
            server, _ = finish_on_server(self.state, action.job, start, Rules(), action.end)
            for job in server.wait[-1:]:
                self._tokens[job, server.starts[job] + 1] = asked[2]
        self._once(action.worker, "finish", [*asked, *ending, ""])

    def _repeat(self, action: Action) -> None:
        verb, given = self._last[action.worker]
        lost = self.state.workers[action.worker].lost
        assert lost is not None
        reply = self._call(verb, *given)
        if verb == "finish":
            assert reply[0] == [lost.code], (action, reply)

    def _renew(self, action: Action) -> None:
        held = self.state.workers[action.worker].held
        leases = [text for job, start in held for text in (f"j{job}", self._tokens[job, start], str(start))]
        refused = {_job_of(job.decode()) for job in self._call("renew", "", "", LEASE, *leases)}
        after = apply(self.state, action, Rules()).workers[action.worker].held
        assert refused == {job for job, _ in held} - {job for job, _ in after}

    def _recover(self, action: Action) -> list[int]:
        self._client.delete(f"{PREFIX}stalled-check")  # the interval is over
        phase, _, *recovered = self._call("recover", "", "", "start", "", 1000, 60_000, 1000, 0, "", "")
        assert phase == b""
        lost = [job for job in self.state.noted & self.state.active if not self.state.locks[job]]
        found = [_job_of(job.decode()) for job in recovered]
        assert sorted(found) == sorted(lost)
        return found

    def _expire(self, action: Action) -> None:
        self._client.delete(f"{PREFIX}j{action.job}:lock")

    def _crash(self, action: Action) -> None:
        self._lives[action.worker] += len(self._lives)

    def _settle(self, action: Action) -> None:
        self._call("settle", "", "", "", "bull:q~gates", 100, 0, 100)

    # -- the state of the server

    def seen(self) -> State:
        """Returns what is on the server; what workers know is the model's."""
        client = self._client
        hashes = [client.hmget(f"{PREFIX}j{job}", "ats", "stc", "returnvalue") for job in JOBS]
        starts = tuple(int(ats or 0) for ats, _, _ in hashes)
        locks = tuple(self._start_of(job, client.get(f"{PREFIX}j{job}:lock"), starts[job]) for job in JOBS)
        completed = sorted(_job_of(job) for job in client.zrange(f"{PREFIX}completed", 0, -1))
        ends = [client.hmget(f"{PREFIX}j{job}", "atm", "attemptsMade") for job in JOBS]
        dependencies = client.smembers(f"{PREFIX}j{DEPENDENT}:dependencies")
        is_pending = client.zscore(f"{PREFIX}waiting-children", f"j{DEPENDENT}") is not None
        active = client.lrange(f"{PREFIX}active", 0, -1)
        assert len(set(active)) == len(active), active
        events = [fields for _, fields in client.xrange(f"{PREFIX}events")]
        released = sum(
            one.get("prev") == "waiting-children" and one["jobId"] == f"j{DEPENDENT}" for one in events
        )
        ended = [int(atm or 0) + int(old or 0) for atm, old in ends]
        attempts = [*self.state.completed, *self.state.retried]
        assert ended == [sum(one == job for one, _ in attempts) for job in JOBS]
        return self.state._replace(
            wait=tuple(_job_of(job) for job in client.lrange(f"{PREFIX}wait", 0, -1)),
            active=frozenset(map(_job_of, active)),
            pending=frozenset(map(_job_of, dependencies)) if is_pending else None,
            completed=tuple((job, int(hashes[job][2])) for job in completed),
            starts=starts,
            locks=locks,
            stalls=tuple(int(stalls or 0) for _, stalls, _ in hashes),
            noted=frozenset(_job_of(job) for job in client.smembers(f"{PREFIX}stalled")),
            releases=released,
        )

    def _start_of(self, job: int, token: str | None, starts: int) -> int:
        """Returns the start that a lease belongs to; -1 for an unknown token."""
        if token is None:
            return 0
        return next((start for start in range(1, starts + 1) if self._tokens.get((job, start)) == token), -1)


def _asked(count: int, token: str) -> list[str]:
    return ["", str(count), token, str(LEASE), "", "", "", "1000000", "", ""]


def _job_of(name: str) -> int:
    """Returns the job of an id, or of the key of its gate."""
    return int(name.rpartition(":")[2].removeprefix("j"))
