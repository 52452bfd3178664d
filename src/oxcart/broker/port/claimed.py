"""The engine's view of a claimed job."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from oxcart.model.job import Job
from oxcart.model.options import JobOptions

if TYPE_CHECKING:
    from oxcart.broker.sealing import Sealer


class ClaimedJob(Protocol):
    """A job under a worker's lease, as it was before the claim.

    Each protocol has a class of its own that keeps the stored record and decodes a member when it is read: a
    plain job needs few of them.

    Attributes:
        id: The job's id.
        token: The lease; new for every claim.
        starts: How often the job was started, this time included: the fencing number.
        started_ms: When this start was, by the server's clock.
    """

    id: str
    token: str
    starts: int
    started_ms: int

    @property
    def name(self) -> str:
        """The name of the job's handler."""

    @property
    def payload(self) -> bytes:
        """The payload as it is stored: JSON, perhaps sealed."""

    @property
    def fault(self) -> str:
        """The field that cannot be decoded and why; empty if all can. The payload is not checked."""

    @property
    def options(self) -> JobOptions:
        """The job's options, with its tags, correlation id and callback URL."""

    @property
    def tags(self) -> dict[str, str]:
        """The job's labels."""

    @property
    def correlation_id(self) -> str | None:
        """The id that ties the job to others, to logs and traces."""

    @property
    def callback_url(self) -> str | None:
        """The address of the webhook that follows the job's end."""

    @property
    def idempotency_key(self) -> str | None:
        """The idempotency key that the job was added with."""

    @property
    def created_ms(self) -> int:
        """When the job was added; 0 if its record lacks the time."""

    @property
    def ready_ms(self) -> int | None:
        """When the job became ready for this start; None if its record lacks the time."""

    @property
    def attempts_made(self) -> int:
        """Attempts that have ended."""

    @property
    def stalls(self) -> int:
        """How often the job was recovered from a lost worker."""

    @property
    def shared_stalls(self) -> int:
        """How often it was lost beside other jobs after its first stall; such losses are no stalls."""

    @property
    def forgiven_starts(self) -> int:
        """Starts before the last manual retry of the job."""

    @property
    def excused_starts(self) -> int:
        """Starts that ended without being an attempt, for example in a snooze."""

    @property
    def has_conditions(self) -> bool:
        """Whether it has a lifetime, a request to cancel it, a deferred failure or stalls."""

    @property
    def expires_ms(self) -> int | None:
        """When the job's lifetime expires; None without a lifetime."""

    @property
    def cancel_reason(self) -> str | None:
        """The reason of a request to cancel the job; None without a request."""

    @property
    def deferred_failure(self) -> str | None:
        """The failure that the next worker records instead of running the job."""

    @property
    def stacktrace(self) -> list[str]:
        """The stack traces of earlier attempts, newest last."""

    @property
    def checkpoint(self) -> bytes | None:
        """The checkpoint that the handler saved last, as it is stored."""

    def set_checkpoint(self, body: bytes) -> None:
        """Replaces ``checkpoint`` after a handler saved another one."""

    @property
    def steps(self) -> dict[str, bytes]:
        """The records of the durable steps that earlier runs recorded, by their names."""

    @property
    def schedule_id(self) -> str | None:
        """The schedule that the job is a run of."""

    @property
    def advances_schedule(self) -> bool:
        """Whether the worker that claims this run creates the next one."""

    def to_job(self, queue: str, worker_id: str, sealer: Sealer | None) -> Job:
        """Returns the running job as a value of the model.

        Args:
            queue: The name of the queue, or of the lane.
            worker_id: The worker that runs it.
            sealer: Opens sealed values.

        Raises:
            DecryptionError: A sealed value does not open.
        """
