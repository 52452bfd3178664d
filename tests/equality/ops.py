"""The elements of a sequence: operations, their outcomes, and a view of the database."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from tests.equality.dump import Dump

PREFIX = "bull"
QUEUE = "q"
PARENTS = "p"
QUEUES = (QUEUE, PARENTS)

# The real BullMQ runs these on both sides, because Oxcart has no such operation but must handle its effects.
# Other operations may be run by it too (`by`).
PEER_KINDS = frozenset(
    {
        "add_auto",
        "add_peer",
        "clear_logs",
    }
)
# Done by hand on both sides: expiries by the server's clock, and the wake-up of a blocked worker.
SERVER_KINDS = frozenset(
    {
        "expire_lock",
        "expire_limiter",
        "expire_stalled_check",
        "expire_deduplication",
        "pop_marker",
    }
)


@dataclass(frozen=True, slots=True)
class Op:
    """One operation: its kind, its time and its arguments."""

    kind: str
    now: int
    args: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> str:
        return json.dumps({"kind": self.kind, "now": self.now, **self.args}, ensure_ascii=False)

    @classmethod
    def from_json(cls, line: str) -> Op:
        args = json.loads(line)
        return cls(args.pop("kind"), args.pop("now"), args)

    @property
    def queue(self) -> str:
        return str(self.args.get("queue", QUEUE))


@dataclass(frozen=True, slots=True)
class Outcome:
    """The reply to an operation: a value, or an error with BullMQ's code."""

    value: Any = None
    code: int | None = None
    error: str | None = None

    @property
    def failed(self) -> bool:
        return self.error is not None


@dataclass(frozen=True, slots=True)
class Claim:
    """A job that a worker claimed and believes to hold."""

    queue: str
    job_id: str
    token: str
    worker: dict[str, Any]
    by: str | None = None
    doomed: str | None = None


class View:
    """The generator's view of a database."""

    def __init__(self, dump: Dump) -> None:
        self._dump = dump

    def ids(self, queue: str, *states: str) -> list[str]:
        found: list[str] = []
        for state in states:
            entry = self._dump.get(f"{PREFIX}:{queue}:{state}")
            if entry is not None and not isinstance(entry.value, str):
                found += [item[0] if entry.kind == "zset" else item for item in entry.value]
        return found

    def has(self, key: str) -> bool:
        return key in self._dump

    def exists(self, queue: str, key: str) -> bool:
        return self.has(f"{PREFIX}:{queue}:{key}")

    def meta(self, queue: str) -> dict[str, Any]:
        entry = self._dump.get(f"{PREFIX}:{queue}:meta")
        return entry.value if entry is not None and isinstance(entry.value, dict) else {}

    def hash(self, queue: str, job_id: str) -> dict[str, Any]:
        entry = self._dump.get(f"{PREFIX}:{queue}:{job_id}")
        return entry.value if entry is not None and isinstance(entry.value, dict) else {}

    def lock(self, queue: str, job_id: str) -> str | None:
        entry = self._dump.get(f"{PREFIX}:{queue}:{job_id}:lock")
        return entry.value if entry is not None and isinstance(entry.value, str) else None

    def locked(self, queue: str) -> list[str]:
        return self._with_suffix(queue, ":lock")

    def logged(self, queue: str) -> list[str]:
        return self._with_suffix(queue, ":logs")

    def deduplication(self, queue: str) -> list[str]:
        head = f"{PREFIX}:{queue}:de:"
        return sorted(key[len(head) :] for key in self._dump if key.startswith(head))

    def owner(self, queue: str, name: str) -> str | None:
        entry = self._dump.get(f"{PREFIX}:{queue}:de:{name}")
        return entry.value if entry is not None and isinstance(entry.value, str) else None

    def is_held(self, queue: str) -> bool:
        """Whether the queue is held by a rate limit that Node ignores because no rate is configured."""
        entry = self._dump.get(f"{PREFIX}:{queue}:limiter")
        return entry is not None and entry.value == "9007199254740991" and "max" not in self.meta(queue)

    def schedulers(self, queue: str) -> dict[str, int]:
        """The next time of each schedule."""
        entry = self._dump.get(f"{PREFIX}:{queue}:repeat")
        places: list[Any] = [] if entry is None else list(entry.value)
        return {name: int(float(score)) for name, score in places}

    def next_due(self, queue: str) -> int | None:
        entry = self._dump.get(f"{PREFIX}:{queue}:delayed")
        return int(float(entry.value[0][1]) // 4096) if entry is not None else None  # type: ignore[index]

    def _with_suffix(self, queue: str, tail: str) -> list[str]:
        head = f"{PREFIX}:{queue}:"
        found = (key for key in self._dump if key.startswith(head) and key.endswith(tail))
        return sorted(key[len(head) : -len(tail)] for key in found)
