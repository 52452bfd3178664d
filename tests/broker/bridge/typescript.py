"""A worker that behaves like the TypeScript client (commit 629ec12), one command after another.

It differs from the document: it never writes ``jobs:active`` but removes from it, it counts a run when that
fails, so that a job runs once more than its attempts, it knows no targets, limits or dependencies, and it
leaves the result of every failure. Its first heartbeat comes ten seconds after it registers.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import redis


class TypeScriptClient:
    """One server of that client.

    Args:
        store: The Redis server.
        server_id: Its id.
        between: Runs between the release of a job's lock and its removal from ``jobs:active``.
    """

    def __init__(
        self,
        store: redis.Redis,
        server_id: str = "node-1",
        *,
        namespace: str = "bridge",
        capabilities: tuple[str, ...] = (),
        between: Callable[[], None] = lambda: None,
    ) -> None:
        self.store: Any = store
        self.id = server_id
        self.ns = namespace
        self.capabilities = capabilities
        self.between = between

    def key(self, *parts: str) -> str:
        return ":".join((self.ns, *parts))

    def register(self) -> None:
        about = {
            "serverId": self.id,
            "stack": "node",
            "region": "eu",
            "capabilities": list(self.capabilities),
            "lastSeen": now(),
            "pid": 7,
            "hostname": "elsewhere",
        }
        self.store.set(self.key("workers", self.id), json.dumps(about))
        self.store.sadd(self.key("workers", "active"), self.id)

    def beat(self) -> None:
        self.store.set(self.key("workers", "heartbeat", self.id), now(), ex=30)

    def take(self) -> dict[str, Any] | None:
        """Claims the head of the list. None if the list is empty or another worker holds the job."""
        job_id = self.store.lpop(self.key("jobs", "waiting"))
        raw = self.store.get(self.key("jobs", "data", job_id)) if job_id else None
        if raw is None:
            return None
        if not self.store.set(self.key("jobs", "lock", job_id), self.id, nx=True, ex=30):
            self._push(job_id)
            return None
        self.store.set(self.key("jobs", "status", job_id), "active")
        job: dict[str, Any] = json.loads(raw)
        return job

    def complete(self, job: dict[str, Any], value: Any = None) -> None:
        self._result(job, {"success": True, "data": value})
        self.store.set(self.key("jobs", "status", job["jobId"]), "completed")
        self._let_go(job)

    def fail(self, job: dict[str, Any], reason: str = "boom") -> None:
        job_id = job["jobId"]
        self._result(job, {"success": False, "error": {"message": reason, "stack": "", "name": "Error"}})
        if job["attempts"] < job["retry"]["attempts"]:
            job["attempts"] += 1
            self.store.set(self.key("jobs", "data", job_id), json.dumps(job, separators=(",", ":")))
            self._push(job_id)
        else:
            self.store.lpush(self.key("jobs", "deadletter"), job_id)
            self.store.set(self.key("jobs", "status", job_id), "dead")
        self._let_go(job)

    def _push(self, job_id: str) -> None:
        self.store.rpush(self.key("jobs", "waiting"), job_id)
        self.store.set(self.key("jobs", "status", job_id), "waiting")

    def _result(self, job: dict[str, Any], ended: dict[str, Any]) -> None:
        ended |= {"completedAt": now(), "processingTime": 1}
        self.store.set(self.key("jobs", "result", job["jobId"]), json.dumps(ended), ex=86_400)

    def _let_go(self, job: dict[str, Any]) -> None:
        lock = self.key("jobs", "lock", job["jobId"])
        if self.store.get(lock) == self.id:
            self.store.delete(lock)
        self.between()
        self.store.srem(self.key("jobs", "active"), job["jobId"])


def now() -> int:
    return int(time.time() * 1000)
