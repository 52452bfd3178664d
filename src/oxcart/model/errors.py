"""The errors Oxcart raises, and the one place where a script's answer becomes one of them.

Three families share the root `OxcartError`: `ValidationError` (what the caller gave is wrong, nothing
was written), `JobError` (the job is not in a state that allows the call) and `BrokerError` (the server
or the way to it). Every error can be pickled, because handlers may run in another process.
"""

from __future__ import annotations

import reprlib
from collections.abc import Iterable
from typing import ClassVar

_MIB = 1024 * 1024

_repr = reprlib.Repr()
_repr.maxstring = _repr.maxother = 80


class OxcartError(Exception):
    """The root of every error that Oxcart raises on purpose."""


# --- what the caller gave -------------------------------------------------------------------------


class ValidationError(OxcartError, ValueError):
    """A value is outside its bound; nothing was written.

    The value is shortened in the message, because payloads may be large or private.

    Attributes:
        field: The name of the option or field, as the caller wrote it.
        bound: What the value must be, e.g. ``"at least 1"``.
        value: The value that was given.
    """

    def __init__(self, field: str, bound: str, value: object, message: str | None = None) -> None:
        # All arguments go to Exception.args: that is what unpickling calls the class with.
        super().__init__(field, bound, value, message)
        self.field = field
        self.bound = bound
        self.value = value
        self._message = message

    def __str__(self) -> str:
        if self._message is not None:
            return self._message
        return f"{self.field} must be {self.bound}, got {_repr.repr(self.value)}"


class PayloadError(ValidationError):
    """Data that cannot travel as JSON (NaN, a circle, an unknown type) or JSON that cannot be read."""


class Undecodable(PayloadError):
    """A field of a stored job cannot be decoded. A worker that meets it quarantines the job."""


class PayloadTooLarge(PayloadError):
    """The encoded data and options are over the limit.

    Attributes:
        size: Size in bytes of data and options together.
        limit: The limit in bytes.
    """

    def __init__(self, size: int, limit: int) -> None:
        if limit >= _MIB:
            # As many digits as tell the two apart; a byte more shows in the sixth or seventh.
            shown = (tuple(f"{n / _MIB:.{digits}f}" for n in (size, limit)) for digits in range(1, 8))
            large, bound = next((pair for pair in shown if pair[0] != pair[1]), (str(size), str(limit)))
            text = f"{large} MB exceeds limit of {bound} MB"
        else:  # "0.0 MB exceeds limit of 0.0 MB" would help nobody
            text = f"{size} bytes exceeds limit of {limit} bytes"
        super().__init__("data", f"at most {limit} bytes", size, f"Job payload size {text}")
        self.args = (size, limit)
        self.size = size
        self.limit = limit


class NotSupported(OxcartError):
    """A queue's protocol has no place for what was asked; nothing was written.

    Attributes:
        protocol: The protocol, ``bridge`` for example.
        feature: The feature's name in the table of capabilities.
        words: What that is.
    """

    def __init__(self, protocol: str, feature: str, words: str) -> None:
        super().__init__(protocol, feature, words)
        self.protocol = protocol
        self.feature = feature
        self.words = words

    def __str__(self) -> str:
        return f"the {self.protocol} protocol has no place for {self.words} ({self.feature})"


# --- the state of a job ---------------------------------------------------------------------------


class JobError(OxcartError):
    """A job does not allow what was asked.

    Attributes:
        job_id: The job in question.
        code: The number the script answered with, or None when no script was asked.
    """

    default_code: ClassVar[int | None] = None
    reason: ClassVar[str] = "the call was refused"

    def __init__(self, job_id: str, message: str | None = None, code: int | None = None) -> None:
        super().__init__(job_id, message, code)
        self.job_id = job_id
        self.code = self.default_code if code is None else code
        self._message = message

    def __str__(self) -> str:
        return self._message or f"job {self.job_id}: {self.reason}"


class JobNotFound(JobError):
    """The job does not exist, or no longer: it was removed or fell out of the retention."""

    default_code = -1
    reason = "it does not exist"


class LeaseLost(JobError):
    """The caller's lease on the job is gone (-2) or another worker holds it (-6)."""

    default_code = -2
    reason = "the lease is gone"


class WrongState(JobError):
    """The job is not in the state that the call starts from."""

    default_code = -3
    reason = "it is not in the state this needs"


class PendingChildren(JobError):
    """The job still waits for children."""

    default_code = -4
    reason = "it has children that have not ended"


class ParentMissing(JobError):
    """The parent named for the job does not exist."""

    default_code = -5
    reason = "its parent does not exist"


class ParentConflict(JobError):
    """A job of this id already belongs to another living parent."""

    default_code = -7
    reason = "it already belongs to another parent"


class SchedulerOwned(JobError):
    """The job is the next run of a schedule: remove the schedule, not the job."""

    default_code = -8
    reason = "it is the next run of a schedule"


class FailedChildren(JobError):
    """A child of the job failed, so the job cannot go on."""

    default_code = -9
    reason = "at least one of its children failed"


class TreeTooLarge(JobError):
    """There are more generations or more jobs below the job than one call may touch."""

    default_code = -12
    reason = "there are too many jobs below it"


class CannotCancel(JobError):
    """A worker of a peer runs the job: it cannot be asked to stop, only overruled by force."""

    default_code = -14
    reason = "its worker is a peer's and cannot be asked to stop; force ends the job and refuses its result"


class UnknownDependency(JobError):
    """There is no job of this key to wait for: it never was, or was removed when it ended."""

    default_code = -15
    reason = "there is no such job to wait for"


class ChainTooLong(JobError):
    """More jobs would wait for each other in a row than a chain may have."""

    default_code = -16
    reason = "more than 100 jobs would wait for each other in a row"


class JobLocked(JobError):
    """A worker runs the job right now, so it cannot be removed or moved."""

    reason = "a worker holds it"


class QueueBusy(OxcartError):
    """Workers hold jobs of the queue, so it cannot be removed.

    Attributes:
        queue: The queue.
        active: How many jobs they hold.
    """

    def __init__(self, queue: str, active: int) -> None:
        super().__init__(queue, active)
        self.queue = queue
        self.active = active

    def __str__(self) -> str:
        held = "a job" if self.active == 1 else f"{self.active} jobs"
        return f"workers hold {held} of queue {self.queue}; stop them first, or remove it by force"


#: Every code a script may answer with: the error, and its own words where the class's do not fit.
_CODES: dict[int, tuple[type[JobError], str | None]] = {
    -1: (JobNotFound, None),
    -2: (LeaseLost, None),
    -3: (WrongState, None),
    -4: (PendingChildren, None),
    -5: (ParentMissing, None),
    -6: (LeaseLost, "another worker holds the lease"),
    -7: (ParentConflict, None),
    -8: (SchedulerOwned, None),
    -9: (FailedChildren, None),
    -10: (JobError, "a job for this run of the schedule already exists"),
    -11: (JobError, "this run of the schedule and the next one are both taken"),
    -12: (TreeTooLarge, None),
    -13: (ParentConflict, "its parent is itself or one of its children, so they would wait for each other"),
    -14: (CannotCancel, None),
    -15: (UnknownDependency, None),
    -16: (ChainTooLong, None),
}


def error_for_code(code: int, job_id: str, verb: str) -> JobError:
    """The error for a script's answer; the only place that knows the numbers.

    Args:
        code: The negative number that the script returned.
        job_id: The job the call was about.
        verb: What was tried, in the infinitive: ``"finish"``, ``"promote"``.
    """
    kind, words = _CODES.get(code, (JobError, f"the script answered {code}"))
    # Scripts are named remove_job and change_priority; people remove a job and change the priority of one.
    tried = verb.removesuffix("_job")
    tried = tried.replace("_", " ") + " of" if "_" in tried else tried
    return kind(job_id, f"cannot {tried} job {job_id}: {words or kind.reason} (code {code})", code)


# --- the server and the way to it -----------------------------------------------------------------


class BrokerError(OxcartError):
    """Something is wrong with the server or with the way to it."""


class BrokerUnavailable(BrokerError):
    """The server cannot be reached, or the connection was lost before anything was sent."""


class AccessDenied(BrokerError):
    """The server does not let us in: a wrong password, a user without the right, TLS on one side only."""


class Unacknowledged(BrokerError):
    """A call was not acknowledged in time.

    Attributes:
        job_ids: Of an add: the ids that its jobs have or would have. To add them again with the same
            ``job_id``, or the same ``idempotency_key``, is safe: there is one job of each then, whatever
            became of the first add.
    """

    job_ids: tuple[str, ...] = ()

    def of_jobs(self, job_ids: Iterable[str]) -> Unacknowledged:
        """The same error, told of these jobs."""
        other = type(self)(*self.args)
        other.job_ids = tuple(job_ids)
        return other


class BrokerTimeout(Unacknowledged):
    """The server could not be reached in time: nothing was applied."""


class OutcomeUnknown(Unacknowledged):
    """The connection was lost after the call was sent: it may or may not have been applied."""


class NotReplicated(OutcomeUnknown):
    """The master applied the call, but no replica confirmed it in time: a failover may lose it."""


class CrossSlotError(BrokerError):
    """The call would touch keys of several cluster slots; nothing was written."""


class ScriptError(BrokerError):
    """The server refused a call: out of memory, a key of the wrong type, read-only replica."""


# --- what a waiting caller sees -------------------------------------------------------------------


class ResultTimeout(OxcartError, TimeoutError):
    """The job did not end within the time the caller wanted to wait; the job itself goes on."""


class DecryptionError(OxcartError):
    """A sealed value cannot be opened here: its key is missing or another one. Another worker may have it.

    Attributes:
        reason: What is wrong, without anything of the value.
        key_id: The id of the key that sealed the value, where the envelope names one.
    """

    def __init__(self, reason: str, key_id: str | None = None) -> None:
        super().__init__(reason, key_id)
        self.reason = reason
        self.key_id = key_id

    def __str__(self) -> str:
        return self.reason


class SealError(DecryptionError):
    """A stored value is not what was sealed for this job: plaintext, altered, or another job's.

    No retry mends that: the job fails for good, and its handler never sees the value.
    """


class JobFailed(OxcartError):
    """The job ended in failure; raised where its result was awaited.

    Attributes:
        job_id: The job.
        reason: The failure in one line.
        stacktrace: One text per failed attempt, newest last.
        category: The failure's category, or None if the worker that ran the job did not say.
    """

    def __init__(
        self,
        job_id: str,
        reason: str,
        stacktrace: list[str] | None = None,
        category: str | None = None,
    ) -> None:
        super().__init__(job_id, reason, stacktrace, category)
        self.job_id = job_id
        self.reason = reason
        self.stacktrace = stacktrace or []
        self.category = category

    def __str__(self) -> str:
        kind = f" ({self.category})" if self.category else ""
        return f"job {self.job_id} failed{kind}: {self.reason}"


class MissingExtra(OxcartError, ImportError):
    """A feature needs a package that is not installed; the message says the pip line that brings it.

    Attributes:
        feature: What was asked for.
        extra: The name of Oxcart's extra.
    """

    def __init__(self, feature: str, extra: str) -> None:
        super().__init__(feature, extra)
        self.feature = feature
        self.extra = extra

    def __str__(self) -> str:
        return f"{self.feature} needs packages that are not installed: pip install 'oxcart[{self.extra}]'"
