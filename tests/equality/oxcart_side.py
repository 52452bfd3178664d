"""Oxcart's side of the comparison: the BullMQ broker, with the clock, ids and tokens of Node.

Not the broker but a worker decides whether a failed attempt is retried. The worker here follows BullMQ's rule
(`Held.verdict`), so that the comparison covers the storage and not the policy.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import msgspec
import redis

from oxcart.broker import port
from oxcart.broker.bullmq import BullMQBroker
from oxcart.broker.bullmq.codec import ParentLink, encode_job, options_of
from oxcart.broker.bullmq.runs import read_repeat
from oxcart.broker.connection import Server
from oxcart.broker.port import Ask, Claimed, Lease
from oxcart.broker.port.results import AddedTree
from oxcart.model.errors import JobError, JobLocked, JobNotFound, ScriptError
from oxcart.model.flow import OnFailure, Tree
from oxcart.model.job import Job
from oxcart.model.options import JobOptions
from oxcart.model.retention import Retention
from oxcart.model.schedule import Scheduler
from tests.broker.bullmq.hashes import hash_of
from tests.equality.dump import Dump, take_dump
from tests.equality.ops import PEER_KINDS, PREFIX, QUEUES, SERVER_KINDS, Op, Outcome
from tests.equality.sides import STATES, NodeSide, expire, known_ids


@dataclass
class Held:
    """A worker's knowledge of a job since the claim."""

    options: JobOptions
    attempts_made: int
    stacks: list[str]

    @classmethod
    def of(cls, fields: dict[bytes, bytes]) -> Held:
        return cls(
            options_of(fields), int(fields.get(b"atm", b"0")), json.loads(fields.get(b"stacktrace", b"[]"))
        )

    def verdict(self, op: Op) -> port.Outcome:
        """Return the outcome of a failure by BullMQ's rule."""
        error, options = op.args["error"], self.options
        if error.get("stack"):
            self.stacks.append(error["stack"])
            limit = options.stack_trace_limit
            if limit is not None:
                self.stacks[:] = self.stacks[-limit:] if limit else []
        ended = self.attempts_made + 1
        final = ended >= options.attempts or error.get("name") == "UnrecoverableError"
        delay = 0 if final else options.backoff.delay_ms(ended, lambda: 0.0)
        outcome = _ended("f" if final else "d" if delay else "r", op)
        outcome.value = error["message"].encode()
        outcome.stack = json.dumps(self.stacks).encode()
        outcome.attempts = options.attempts
        outcome.retention = _retention(options.remove_on_fail, op.args["worker"].get("removeOnFail"))
        outcome.delay_ms = delay
        outcome.lifo = options.lifo
        return outcome


class OxcartSide:
    """Our broker. A peer on the same database runs the operations that only a peer has."""

    def __init__(self, url: str, client: redis.Redis, peer: NodeSide) -> None:
        self._client = client
        self._peer = peer
        self._now = 0
        self._token = ""
        self._brokers = {
            queue: BullMQBroker(
                Server(url), queue, prefix=PREFIX, clock=lambda: self._now, new_token=lambda: self._token
            )
            for queue in QUEUES
        }
        self._held: dict[tuple[str, str, str], Held] = {}

    async def close(self) -> None:
        for broker in self._brokers.values():
            await broker.close()

    async def reset(self, metas: bool) -> None:
        self._held.clear()
        await self._peer.reset(metas)

    def dump(self) -> Dump:
        return take_dump(self._client)

    async def run(self, op: Op) -> Outcome:
        if op.kind in SERVER_KINDS:
            return expire(self._client, op)
        if op.kind in PEER_KINDS or op.args.get("by") == "peer":
            return await self._peer.run(op)
        self._now = op.now
        self._token = op.args.get("token", "")
        try:
            return Outcome(await getattr(self, f"_{op.kind}")(self._brokers[op.queue], op))
        except JobError as error:
            return Outcome(code=error.code, error=str(error))
        except ScriptError as error:
            return Outcome(error=str(error))

    async def read(self, now: int) -> dict[str, Any]:
        self._now = now
        dump = self.dump()
        found: dict[str, Any] = {}
        for queue, broker in self._brokers.items():
            counts = dict(await broker.counts())
            counts["waiting"] = counts.pop("wait")
            found[f"counts {queue}"] = counts
            found[f"schedulers {queue}"] = [
                _described_scheduler(one) for one in await broker.schedules.page(0, -1)
            ]
            for state in STATES:
                for asc in (True, False):
                    page = await broker.page(state, 0, 2, oldest=asc)
                    found[f"page {queue} {state} {asc}"] = [job.id for job in page]
            ids = [*known_ids(dump, queue), "missing"]
            for job_id, state in zip(ids, await broker.states(ids), strict=True):
                found[f"state {queue} {job_id}"] = state
            for job_id, job in zip(ids, await broker.get(ids), strict=True):
                found[f"job {queue} {job_id}"] = _described(job)
                found[f"children {queue} {job_id}"] = await _family(broker, job_id)
        return found

    # ------------------------------------------------------------------------------------- adding

    async def _add(self, broker: BullMQBroker, op: Op) -> str:
        return (await self._add_jobs(broker, [op.args]))[0]

    async def _add_bulk(self, broker: BullMQBroker, op: Op) -> list[str]:
        return await self._add_jobs(broker, op.args["jobs"])

    async def _add_jobs(self, broker: BullMQBroker, jobs: list[dict[str, Any]]) -> list[str]:
        encoded = [broker.encode(job["name"], job["data"], _options(job)) for job in jobs]
        return [added.id for added in await broker.add(encoded)]

    # ------------------------------------------------------------------------------------- flows and windows

    async def _add_flow(self, broker: BullMQBroker, op: Op) -> dict[str, Any]:
        tree = _tree(op.args["flow"])
        added = await self._brokers[tree.queue].flows.add(tree)
        if not added.created and not added.children:
            # A window refused the flow. Node does not report this and returns the tree of the call.
            return _wanted(op.args["flow"])
        return _ids(added)

    async def _add_children(self, broker: BullMQBroker, op: Op) -> list[dict[str, Any]]:
        trees = [_tree(node) for node in op.args["flows"]]
        return [_ids(one) for one in await broker.flows.add_children(op.args["id"], trees)]

    async def _add_child(self, broker: BullMQBroker, op: Op) -> str:
        opts = dict(op.args["opts"])
        above = opts.pop("parent")
        link = ParentLink(above["id"], above["queue"], _FLAGS.get(_policy(opts), ""))
        options = _options({"opts": opts, "id": op.args["id"]})
        job = encode_job(op.args["name"], op.args["data"], options, self._now, parent=link)
        return (await broker.add([job]))[0].id

    async def _add_deduplicated(self, broker: BullMQBroker, op: Op) -> str:
        return await self._add(broker, op)

    async def _remove_deduplication(self, broker: BullMQBroker, op: Op) -> int:
        return int(await broker.deduplication.release(op.args["key"]))

    async def _wait_for_children(self, broker: BullMQBroker, op: Op) -> bool:
        (code,), _ = await broker.finish([_ended("h", op)], _ask(op, 0))
        assert isinstance(code, int), code
        if code < 0:
            raise JobError(op.args["id"], code=code)
        return code == 1

    # ------------------------------------------------------------------------------------- running

    async def _claim(self, broker: BullMQBroker, op: Op) -> dict[str, Any]:
        claimed = await broker.claim(_ask(op, 1))
        await self._schedule(broker, claimed)
        return self._claimed(op, claimed)

    async def _schedule(self, broker: BullMQBroker, claimed: Claimed) -> None:
        """Adds the next runs of schedules, as a worker does before it runs claimed jobs."""
        runs = [job for job in claimed.jobs if job.advances_schedule]
        made = await broker.schedules.advance(runs)
        assert all(isinstance(one, str) for one in made), made

    def _claimed(self, op: Op, claimed: Claimed) -> dict[str, Any]:
        described = None
        for job in claimed.jobs:
            held = Held.of(hash_of(job))
            self._held[op.queue, job.id, job.token] = held
            described = {
                "id": job.id,
                "name": job.name,
                "data": json.loads(job.payload),
                "attempts_made": held.attempts_made,
                "attempts_started": job.starts,
                "deferred_failure": job.deferred_failure,
            }
        return {"job": described, "limited": claimed.limited_ms, "delay_until": claimed.due_ms}

    def _holding(self, op: Op) -> Held:
        """Return the claimed job as its worker holds it; for another worker, as it is stored now."""
        held = self._held.get((op.queue, op.args["id"], op.args["token"]))
        return held or Held.of(self._client.hgetall(f"{PREFIX}:{op.queue}:{op.args['id']}"))  # type: ignore[arg-type]

    async def _finish(self, broker: BullMQBroker, op: Op, outcome: port.Outcome, fetch: bool = False) -> Any:
        (code,), claimed = await broker.finish([outcome], _ask(op, 1 if fetch else 0))
        assert isinstance(code, int), code
        if code < 0:
            raise JobError(outcome.id, code=code)
        await self._schedule(broker, claimed)
        return self._claimed(op, claimed) if fetch else None

    async def _complete(self, broker: BullMQBroker, op: Op) -> Any:
        held = self._holding(op)
        outcome = _ended("c", op)
        outcome.value = json.dumps(op.args["value"]).encode()
        outcome.retention = _retention(
            held.options.remove_on_complete, op.args["worker"].get("removeOnComplete")
        )
        answer = await self._finish(broker, op, outcome, op.args["fetch"])
        held.attempts_made += 1
        return answer

    async def _fail(self, broker: BullMQBroker, op: Op) -> Any:
        held = self._holding(op)
        outcome = held.verdict(op)
        # BullMQ 5.62 fetches the next job only after a final failure.
        answer = await self._finish(broker, op, outcome, op.args["fetch"] and outcome.kind == "f")
        held.attempts_made += 1
        return answer

    async def _move_to_delayed(self, broker: BullMQBroker, op: Op) -> Any:
        outcome = _ended("d", op)
        outcome.delay_ms = max(0, op.args["until"] - op.now)
        outcome.counts = False
        return await self._finish(broker, op, outcome)

    async def _give_back(self, broker: BullMQBroker, op: Op) -> Any:
        return await self._finish(broker, op, _ended("w", op))

    async def _give_back_held(self, broker: BullMQBroker, op: Op) -> Any:
        outcome = _ended("l", op)
        outcome.delay_ms = op.args["hold"]
        return await self._finish(broker, op, outcome)

    async def _extend(self, broker: BullMQBroker, op: Op) -> int:
        refused = await broker.renew([Lease(op.args["id"], op.args["token"])], op.args["duration"])
        return 0 if refused else 1

    async def _extend_many(self, broker: BullMQBroker, op: Op) -> list[str]:
        pairs = zip(op.args["ids"], op.args["tokens"], strict=True)
        return await broker.renew([Lease(*pair) for pair in pairs], op.args["duration"])

    async def _recover(self, broker: BullMQBroker, op: Op) -> list[str]:
        worker = op.args["worker"]
        recovered = await broker.recover(
            max_stalled=worker.get("maxStalledCount", 1), interval_ms=worker.get("stalledInterval", 30_000)
        )
        return recovered.ids

    # ----------------------------------------------------------------------------------- schedules and limits

    async def _upsert_scheduler(self, broker: BullMQBroker, op: Op) -> str | None:
        repeat, template = op.args["repeat"], op.args["template"]
        schedule = msgspec.structs.replace(
            read_repeat(repeat),
            immediately=repeat.get("immediately", False),
            offset=repeat.get("offset"),
        )
        data = json.dumps(template.get("data", {}), separators=(",", ":")).encode()
        opts = {"kl" if name == "keepLogs" else name: one for name, one in template.get("opts", {}).items()}
        run = await broker.schedules.write(
            op.args["key"], schedule, template.get("name", op.args["key"]), data, opts
        )
        if run is None and repeat.get("endDate", op.now) < op.now:
            raise ScriptError(
                "Node's queue refuses an end that is past, as ours does; its scheduler does not"
            )
        return None if run is None else run[0]

    async def _remove_scheduler(self, broker: BullMQBroker, op: Op) -> bool:
        return await broker.schedules.remove(op.args["key"])

    async def _set_concurrency(self, broker: BullMQBroker, op: Op) -> None:
        await broker.limits.set_concurrency(op.args["concurrency"])

    async def _remove_concurrency(self, broker: BullMQBroker, op: Op) -> None:
        await broker.limits.remove_concurrency()

    async def _set_rate_limit(self, broker: BullMQBroker, op: Op) -> None:
        await broker.limits.set_rate(op.args["max"], op.args["duration"])

    async def _remove_rate_limit(self, broker: BullMQBroker, op: Op) -> None:
        await broker.limits.remove_rate()

    async def _rate_limit(self, broker: BullMQBroker, op: Op) -> None:
        await broker.limits.hold(op.args["duration"])

    # ------------------------------------------------------------------------------------- the operator

    async def _pause(self, broker: BullMQBroker, op: Op) -> None:
        await broker.pause()

    async def _resume(self, broker: BullMQBroker, op: Op) -> None:
        await broker.resume()

    async def _progress(self, broker: BullMQBroker, op: Op) -> None:
        await broker.set_progress(op.args["id"], op.args["progress"])

    async def _log(self, broker: BullMQBroker, op: Op) -> int:
        return await broker.logs.append(op.args["id"], [op.args["row"]], op.args["keep"] or None)

    async def _update_data(self, broker: BullMQBroker, op: Op) -> None:
        await broker.update_data(op.args["id"], op.args["data"])

    async def _change_priority(self, broker: BullMQBroker, op: Op) -> None:
        await broker.updates.change_priority(op.args["id"], op.args["priority"], lifo=op.args["lifo"])

    async def _change_delay(self, broker: BullMQBroker, op: Op) -> None:
        await broker.change_delay(op.args["id"], op.args["delay"])

    async def _promote(self, broker: BullMQBroker, op: Op) -> None:
        await broker.promote_job(op.args["id"])

    async def _retry(self, broker: BullMQBroker, op: Op) -> None:
        (job,) = await broker.get([op.args["id"]])
        lifo = job is not None and job.options.lifo
        await broker.retry_job(op.args["id"], op.args["state"], lifo=lifo)

    async def _remove_unprocessed(self, broker: BullMQBroker, op: Op) -> None:
        await broker.flows.remove_unprocessed(op.args["id"])

    async def _leave_parent(self, broker: BullMQBroker, op: Op) -> bool:
        return await broker.flows.leave_parent(op.args["id"])

    async def _remove(self, broker: BullMQBroker, op: Op) -> int:
        try:
            await broker.remove_job(op.args["id"], children=op.args["children"])
        except JobLocked:
            return 0
        except JobNotFound:
            # Node reports a missing job as removed, we report it as missing; nothing changes.
            return 1
        return 1


#: Node's words for the policies, ours, and the wire's.
_POLICIES = {
    "failParentOnFailure": OnFailure.FAIL,
    "continueParentOnFailure": OnFailure.CONTINUE,
    "ignoreDependencyOnFailure": OnFailure.IGNORE,
    "removeDependencyOnFailure": OnFailure.REMOVE,
}
_FLAGS = {
    OnFailure.FAIL: "fpof",
    OnFailure.CONTINUE: "cpof",
    OnFailure.IGNORE: "idof",
    OnFailure.REMOVE: "rdof",
}


def _policy(opts: dict[str, Any]) -> OnFailure:
    """Takes the policy out of Node's options."""
    found = [ours for theirs, ours in _POLICIES.items() if opts.pop(theirs, False)]
    return found[0] if found else OnFailure.WAIT


def _tree(node: dict[str, Any]) -> Tree:
    opts = dict(node["opts"])
    policy, job_id = _policy(opts), opts.pop("jobId")
    children = tuple(_tree(child) for child in node.get("children", []))
    options = _options({"opts": opts, "id": job_id})
    return Tree(node["queueName"], PREFIX, node["name"], node["data"], options, policy, children)


def _ids(added: AddedTree) -> dict[str, Any]:
    return {"id": added.id, "children": [_ids(child) for child in added.children]}


def _wanted(node: dict[str, Any]) -> dict[str, Any]:
    return {"id": node["opts"]["jobId"], "children": [_wanted(child) for child in node.get("children", [])]}


async def _family(broker: BullMQBroker, job_id: str) -> dict[str, Any]:
    counts = await broker.flows.counts(job_id)
    found = {kind: await broker.flows.every(job_id, kind) for kind in _KINDS}
    return {
        "processed": {key: child.value for key, child in found["processed"].items()},
        "unprocessed": sorted(found["unprocessed"]),
        "ignored": {key: child.reason for key, child in found["ignored"].items()},
        "failed": list(found["failed"]),
        "counts": {kind: getattr(counts, kind) for kind in _KINDS},
    }


_KINDS = ("processed", "unprocessed", "ignored", "failed")


def _options(job: dict[str, Any]) -> JobOptions:
    names = {
        "removeOnComplete": "remove_on_complete",
        "removeOnFail": "remove_on_fail",
        "keepLogs": "keep_logs",
        "stackTraceLimit": "stack_trace_limit",
    }
    given: dict[str, Any] = {names.get(name, name): value for name, value in job["opts"].items()}
    # A bare number is a duration in seconds here, and milliseconds in Node.
    if "delay" in given:
        given["delay"] = f"{given['delay']}ms"
    if "deduplication" in given:
        rule = dict(given["deduplication"])
        if "ttl" in rule:
            rule["ttl"] = f"{rule['ttl']}ms"
        if "keepLastIfActive" in rule:
            rule["keep_last_if_active"] = rule.pop("keepLastIfActive")
        given["deduplication"] = rule
    return JobOptions.build(**given, job_id=job["id"])


def _ask(op: Op, count: int) -> Ask:
    worker = op.args["worker"]
    limiter = worker.get("limiter", {})
    return Ask(
        count=count,
        lock_ms=worker.get("lockDuration", 30_000),
        worker=worker.get("name", ""),
        limit_max=limiter.get("max"),
        limit_duration=limiter.get("duration"),
        metrics=worker.get("metrics", {}).get("maxDataPoints", 0),
    )


def _ended(kind: str, op: Op) -> port.Outcome:
    # -1: a lease that ran out stays lost, as with Node.
    return port.Outcome(port.OutcomeKind(kind), op.args["id"], op.args["token"], -1, op.now)


def _retention(job: Retention | None, worker: Any) -> Retention | None:
    return Retention.from_wire(worker) if job is None else job


def _described_scheduler(one: Scheduler) -> dict[str, Any]:
    schedule = one.schedule
    named = {
        "key": one.id,
        "name": one.name,
        "next": one.next_ms,
        "iterationCount": one.runs,
        "limit": schedule.limit,
        "startDate": schedule.start,
        "endDate": schedule.end,
        "tz": schedule.tz,
        "pattern": schedule.cron,
        "every": schedule.every,
    }
    return {name: value for name, value in named.items() if value is not None} | {"data": one.data}


def _described(job: Job | None) -> dict[str, Any] | None:
    if job is None:
        return None
    return {
        "name": job.name,
        "data": job.data,
        "timestamp": job.timestamp,
        "delay": job.delay,
        "priority": job.priority,
        "progress": job.progress,
        "returnvalue": job.return_value,
        "failedReason": job.failed_reason,
        "stacktrace": job.stacktrace,
        "attemptsMade": job.attempts_made,
        "attemptsStarted": job.attempts_started,
        "stalledCounter": job.stalled_count,
        "deferredFailure": job.deferred_failure,
        "processedOn": job.processed_on,
        "finishedOn": job.finished_on,
        "processedBy": job.worker_id,
        "parentKey": job.parent_key,
    }
