"""A client written from the Bridge document alone: plain Redis commands, no script, no Oxcart.

It adds jobs, runs them, fires schedules and recovers the jobs of dead workers, one command after another, as
a client in any language might.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable
from typing import Any

import redis

LOCK = 30
RESULT = 24 * 3600


class DocumentClient:
    """One server of the document: a producer, a worker and a scheduler."""

    def __init__(
        self,
        store: redis.Redis,
        server_id: str,
        *,
        namespace: str = "bridge",
        stack: str = "other",
        region: str = "us-east",
        capabilities: tuple[str, ...] = (),
    ) -> None:
        self.store: Any = store
        self.id = server_id
        self.ns = namespace
        self.stack, self.region, self.capabilities = stack, region, list(capabilities)

    def key(self, *parts: str) -> str:
        return ":".join((self.ns, *parts))

    # -- the registry

    def register(self) -> None:
        about = {
            "serverId": self.id,
            "stack": self.stack,
            "region": self.region,
            "capabilities": self.capabilities,
            "lastSeen": _now(),
            "pid": 1,
            "hostname": "elsewhere",
        }
        self.store.set(self.key("workers", self.id), json.dumps(about))
        self.store.sadd(self.key("workers", "active"), self.id)
        self.heartbeat()

    def heartbeat(self) -> None:
        self.store.set(self.key("workers", "heartbeat", self.id), _now(), ex=30)

    # -- producing

    def dispatch(self, job_type: str, payload: Any, **more: Any) -> str:
        job_id = str(uuid.uuid4())
        job = {
            "jobId": job_id,
            "type": job_type,
            "payload": payload,
            "createdAt": _now(),
            "attempts": 0,
            **more,
        }
        self.store.set(self.key("jobs", "data", job_id), json.dumps(job))
        delay = job.get("schedule", {}).get("delay")
        if delay:
            self.store.set(self.key("jobs", "status", job_id), "delayed")
            self.store.zadd(self.key("jobs", "delayed"), {job_id: _now() + delay})
        else:
            self.store.set(self.key("jobs", "status", job_id), "waiting")
            push = self.store.lpush if job.get("priority", 5) >= 7 else self.store.rpush
            push(self.key("jobs", "waiting"), job_id)
        return job_id

    def result(self, job_id: str) -> dict[str, Any] | None:
        raw = self.store.get(self.key("jobs", "result", job_id))
        return json.loads(raw) if raw else None

    # -- working

    def claim(self) -> dict[str, Any] | None:
        for job_id in self.store.lrange(self.key("jobs", "waiting"), 0, 99):
            lock = self.key("jobs", "lock", job_id)
            if not self.store.set(lock, self.id, nx=True, ex=LOCK):
                continue
            raw = self.store.get(self.key("jobs", "data", job_id))
            job = json.loads(raw) if raw else None
            if (
                job is None
                or not self._may(job)
                or not self.store.lrem(self.key("jobs", "waiting"), 1, job_id)
            ):
                self.store.delete(lock)
                continue
            self.store.sadd(self.key("jobs", "active"), job_id)
            self.store.incr(self.key("ratelimit", "concurrent", job["type"]))
            self.store.set(self.key("jobs", "status", job_id), "active")
            job["attempts"] = job.get("attempts", 0) + 1
            self.store.set(self.key("jobs", "data", job_id), json.dumps(job))
            return dict(job)
        return None

    def _may(self, job: dict[str, Any]) -> bool:
        if self.store.sismember(self.key("queues", "paused"), job["type"]):
            return False
        most = job.get("rateLimit", {}).get("maxConcurrent")
        running = int(self.store.get(self.key("ratelimit", "concurrent", job["type"])) or 0)
        if most and running >= most:
            return False
        target = job.get("target") or {}
        if target.get("server"):
            return bool(target["server"] == self.id)
        checks = []
        if target.get("stack"):
            checks.append(self.stack in target["stack"])
        if target.get("capabilities"):
            wanted = [one in self.capabilities for one in target["capabilities"]]
            checks.append(all(wanted) if target.get("mode") == "all" else any(wanted))
        if target.get("region"):
            checks.append(self.region in target["region"])
        return not checks or (all(checks) if target.get("mode") == "all" else any(checks))

    def work(self, handler: Callable[[dict[str, Any]], Any]) -> str | None:
        """Claims and runs one job. Returns its id, or None if there was no job."""
        job = self.claim()
        if job is None:
            return None
        began = _now()
        try:
            ended = {"success": True, "data": handler(job)}
        except Exception as error:
            ended = {
                "success": False,
                "error": {"message": str(error), "stack": "", "name": type(error).__name__},
            }
        ended |= {"completedAt": _now(), "processingTime": _now() - began}
        self._end(job, ended)
        return str(job["jobId"])

    def _end(self, job: dict[str, Any], ended: dict[str, Any]) -> None:
        job_id = job["jobId"]
        status = self.key("jobs", "status", job_id)
        if ended["success"]:
            self.store.set(self.key("jobs", "result", job_id), json.dumps(ended), ex=RESULT)
            self.store.set(status, "completed")
            self.store.incr(self.key("metrics", "jobs", "processed"))
        elif job["attempts"] < job.get("retry", {}).get("attempts", 3):
            self.store.set(status, "delayed")
            self.store.zadd(self.key("jobs", "delayed"), {job_id: _now() + 10})
        else:
            self.store.set(self.key("jobs", "result", job_id), json.dumps(ended), ex=RESULT)
            self.store.set(status, "dead")
            self.store.lpush(self.key("jobs", "deadletter"), job_id)
            self.store.incr(self.key("metrics", "jobs", "failed"))
        self._release(job)

    def _release(self, job: dict[str, Any]) -> None:
        if self.store.get(self.key("jobs", "lock", job["jobId"])) == self.id:
            self.store.delete(self.key("jobs", "lock", job["jobId"]))
            self.store.srem(self.key("jobs", "active"), job["jobId"])
            self.store.decr(self.key("ratelimit", "concurrent", job["type"]))

    # -- the scheduler

    def process_delayed(self) -> int:
        due = self.store.zrangebyscore(self.key("jobs", "delayed"), 0, _now(), start=0, num=100)
        for job_id in due:
            if self.store.zrem(self.key("jobs", "delayed"), job_id):
                self.store.rpush(self.key("jobs", "waiting"), job_id)
        return len(due)

    def recover(self) -> list[str]:
        """Moves the active jobs of workers without a heartbeat back to the waiting queue."""
        back = []
        for job_id in self.store.smembers(self.key("jobs", "active")):
            holder = self.store.get(self.key("jobs", "lock", job_id))
            if holder and not self.store.exists(self.key("workers", "heartbeat", holder)):
                self.store.delete(self.key("jobs", "lock", job_id))
                self.store.srem(self.key("jobs", "active"), job_id)
                self.store.set(self.key("jobs", "status", job_id), "waiting")
                self.store.rpush(self.key("jobs", "waiting"), job_id)
                back.append(job_id)
        return back


def _now() -> int:
    return int(time.time() * 1000)
