"""A job in memory."""

from __future__ import annotations

from dataclasses import dataclass, field

from oxcart.model.options import JobOptions
from oxcart.model.state import State, formal_state

#: The states in which a job is ready for a worker.
READY = ("wait", "prioritized")
#: The states in which a job has ended.
ENDED = ("completed", "failed")


@dataclass(slots=True, eq=False)
class Record:
    """One job of a `Store`.

    Attributes:
        body: The payload as JSON, sealed if the queue seals payloads; so are result, progress and checkpoint.
        state: ``wait``, ``prioritized``, ``delayed``, ``active``, ``completed`` or ``failed``.
        place: Sorts the jobs of one state: the first one is claimed, due or removed first.
        since_ms: When the lifetime began: at the add, or at the latest retry by an operator.
        token: The lease of the latest claim.
        lease_ms: When that lease expires.
        deferred: A failure that the next worker records without running the job.
        excused: Starts that ended without being an attempt.
        forgiven: Starts before the latest retry that reset the job.
        steps: The records of durable steps, by their names.
        signals: Names and data of signals that the job has not received, the oldest first.
        waits: The signal that the job waits for; empty for none.
        unhandled: The latest start whose worker had no handler for the job's name.
    """

    id: str
    name: str
    body: bytes
    options: JobOptions
    priority: int = 0
    delay: int = 0
    created_ms: int = 0
    since_ms: int = 0
    state: str = ""
    place: tuple[int, int] = (0, 0)
    attempts_made: int = 0
    starts: int = 0
    stalls: int = 0
    excused: int = 0
    forgiven: int = 0
    token: str = ""
    lease_ms: int = 0
    worker: str | None = None
    started_ms: int | None = None
    finished_ms: int | None = None
    ready_ms: int | None = None
    moved_ms: int | None = None
    result: bytes | None = None
    progress: bytes | None = None
    checkpoint: bytes | None = None
    reason: str | None = None
    stack: bytes = b""
    category: str = ""
    code: str = ""
    dead: str = ""
    deferred: str | None = None
    log: list[str] = field(default_factory=list)
    steps: dict[str, bytes] = field(default_factory=dict)
    signals: list[tuple[str, bytes]] = field(default_factory=list)
    waits: str = ""
    unhandled: int | None = None

    @property
    def expires_ms(self) -> int | None:
        """When the lifetime of a job that has not ended expires."""
        lifetime = self.options.lifetime
        return None if lifetime is None or self.state in ENDED else self.since_ms + lifetime

    @property
    def formal_state(self) -> State:
        """The state in the words of the formal model."""
        return formal_state(
            "waiting" if self.state == "wait" else self.state,
            attempts_made=self.attempts_made,
            attempts=self.options.attempts,
            stalled=self.stalls,
            category=self.category or None,
            lifetime_over=bool(self.dead),
            delay=self.delay,
        )

    def restart(self, now: int, *, reset: bool) -> None:
        """Clears how the job ended, so that it can run again."""
        self.steps = {
            name: record
            for name, record in self.steps.items()
            if self.state != "completed" and not record.startswith(b"timeout\t")
        }
        self.finished_ms = self.started_ms = None
        self.reason = self.result = None
        self.category = self.code = self.dead = ""
        self.since_ms = self.ready_ms = now
        if reset:
            self.attempts_made = self.stalls = self.excused = 0
            self.forgiven = self.starts
