"""The errors that Oxcart raises, and the scripts' reply codes.

Three families share the root `OxcartError`: `ValidationError` (an argument is wrong, nothing was written),
`JobError` (the job's state does not allow the call) and `BrokerError` (the server or the connection). Every
error can be pickled, because handlers may run in another process.
"""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import ClassVar

_MIB = 1024 * 1024

_repr = reprlib.Repr()
_repr.maxstring = _repr.maxother = 80


class OxcartError(Exception):
    """The root of every error that Oxcart raises on purpose."""


# --- arguments ------------------------------------------------------------------------------------


class ValidationError(OxcartError, ValueError):
    """A value is outside its bound; nothing was written.

    The value is shortened in the message, because payloads may be large or private.

    Attributes:
        field: The name of the option or field, as the caller wrote it.
        bound: What the value must be, e.g. ``"at least 1"``.
        value: The invalid value.
    """

    def __init__(self, field: str, bound: str, value: object, message: str | None = None) -> None:
        # Unpickling calls the class with Exception.args, so they must be all arguments.
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
    """Data that JSON cannot express (NaN, a cycle, an unknown type), or invalid JSON."""


class Undecodable(PayloadError):
    """A field of a stored job cannot be decoded. The worker that claims the job quarantines it."""


class PayloadTooLarge(PayloadError):
    """The encoded data and options are over the limit.

    Attributes:
        size: Size in bytes of data and options together.
        limit: The limit in bytes.
    """

    def __init__(self, size: int, limit: int) -> None:
        if limit >= _MIB:
            # As many digits as the two numbers need to differ; one byte shows in the sixth or seventh.
            shown = (tuple(f"{n / _MIB:.{digits}f}" for n in (size, limit)) for digits in range(1, 8))
            large, bound = next((pair for pair in shown if pair[0] != pair[1]), (str(size), str(limit)))
            text = f"{large} MB exceeds limit of {bound} MB"
        else:  # "0.0 MB exceeds limit of 0.0 MB" would not help
            text = f"{size} bytes exceeds limit of {limit} bytes"
        super().__init__("data", f"at most {limit} bytes", size, f"Job payload size {text}")
        self.args = (size, limit)
        self.size = size
        self.limit = limit


class NotSupported(OxcartError):
    """A queue's protocol lacks a feature; nothing was written.

    Attributes:
        protocol: The protocol, ``bridge`` for example.
        feature: The feature's name in the table of capabilities.
        words: The feature in plain words.
        alternative: What to use instead, or an empty text.
    """

    def __init__(self, protocol: str, feature: str, words: str, alternative: str = "") -> None:
        super().__init__(protocol, feature, words, alternative)
        self.protocol = protocol
        self.feature = feature
        self.words = words
        self.alternative = alternative

    def __str__(self) -> str:
        instead = self.alternative or "there is no alternative"
        return f"the {self.protocol} protocol does not support {self.words} ({self.feature}): {instead}"


# --- the state of a job ---------------------------------------------------------------------------


class ReplyCode(IntEnum):
    """A script's reply for one job: zero or more is success, a negative code is a refusal."""

    #: Nothing to do: a job of the id exists, or there are no children to wait for.
    NOTHING_TO_DO = 0
    DONE = 1
    #: Done, but the script could not notify the job's parent.
    DONE_WITHOUT_PARENT = 2
    JOB_NOT_FOUND = -1
    LEASE_GONE = -2
    WRONG_STATE = -3
    CHILDREN_PENDING = -4
    PARENT_NOT_FOUND = -5
    LEASE_OF_ANOTHER = -6
    PARENT_CONFLICT = -7
    OWNED_BY_SCHEDULE = -8
    CHILD_FAILED = -9
    RUN_EXISTS = -10
    RUNS_TAKEN = -11
    TREE_TOO_LARGE = -12
    PARENT_CYCLE = -13
    CANNOT_CANCEL = -14
    UNKNOWN_DEPENDENCY = -15
    CHAIN_TOO_LONG = -16


class JobError(OxcartError):
    """The job's state does not allow the call.

    Attributes:
        job_id: The job.
        code: The script's `ReplyCode` as a number, or None if no script was called.
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
    """The job does not exist: it was never added, was removed, or exceeded the retention."""

    default_code = ReplyCode.JOB_NOT_FOUND
    reason = "it does not exist"


class AmbiguousId(JobError):
    """Several jobs have ids that begin with the given text.

    Attributes:
        job_id: The given text.
        candidates: Some of these ids.
    """

    def __init__(self, job_id: str, candidates: Sequence[str], more: bool = False) -> None:
        shown = ", ".join(candidates) + (", …" if more else "")
        super().__init__(job_id, f"id {job_id} is ambiguous: it may be {shown}; write more of it")
        self.args = (job_id, candidates, more)
        self.candidates = tuple(candidates)


class LeaseLost(JobError):
    """The caller's lease on the job is gone (-2), or another worker has the lease (-6)."""

    default_code = ReplyCode.LEASE_GONE
    reason = "the lease is gone"


class WrongState(JobError):
    """The job is not in the state that the call starts from."""

    default_code = ReplyCode.WRONG_STATE
    reason = "it is not in the state this needs"


class PendingChildren(JobError):
    """The job still waits for children."""

    default_code = ReplyCode.CHILDREN_PENDING
    reason = "it has children that have not ended"


class ParentMissing(JobError):
    """The parent named for the job does not exist."""

    default_code = ReplyCode.PARENT_NOT_FOUND
    reason = "its parent does not exist"


class ParentConflict(JobError):
    """A job of this id already belongs to another parent that still waits."""

    default_code = ReplyCode.PARENT_CONFLICT
    reason = "it already belongs to another parent"


class SchedulerOwned(JobError):
    """The job is the next run of a schedule: remove the schedule, not the job."""

    default_code = ReplyCode.OWNED_BY_SCHEDULE
    reason = "it is the next run of a schedule"


class FailedChildren(JobError):
    """A child of the job failed, so the job cannot continue."""

    default_code = ReplyCode.CHILD_FAILED
    reason = "at least one of its children failed"


class TreeTooLarge(JobError):
    """The job has more descendants or generations than one call may change."""

    default_code = ReplyCode.TREE_TOO_LARGE
    reason = "there are too many jobs below it"


class CannotCancel(JobError):
    """A peer's worker runs the job and cannot receive a request. ``force=True`` ends the job anyway."""

    default_code = ReplyCode.CANNOT_CANCEL
    reason = "its worker is a peer's and cannot be asked to stop; force ends the job and refuses its result"


class UnknownDependency(JobError):
    """The dependency does not exist: it was never added, or was removed when it ended."""

    default_code = ReplyCode.UNKNOWN_DEPENDENCY
    reason = "the dependency does not exist"


class ChainTooLong(JobError):
    """A chain of dependencies would have more than 100 jobs."""

    default_code = ReplyCode.CHAIN_TOO_LONG
    reason = "its chain of dependencies would have more than 100 jobs"


class JobLocked(JobError):
    """A worker runs the job right now, so it cannot be removed or moved."""

    reason = "a worker runs it"


class QueueBusy(OxcartError):
    """Workers run jobs of the queue, so it cannot be removed.

    Attributes:
        queue: The queue's name.
        active: The number of active jobs.
    """

    def __init__(self, queue: str, active: int) -> None:
        super().__init__(queue, active)
        self.queue = queue
        self.active = active

    def __str__(self) -> str:
        running = "a job" if self.active == 1 else f"{self.active} jobs"
        return f"workers run {running} of queue {self.queue}; stop them first, or remove it by force"


class PartitionNotEmpty(OxcartError):
    """Partitions that should be given up still have jobs or schedules.

    Attributes:
        queue: The queue's name.
        left: How many jobs and schedules, by the number of each partition.
    """

    def __init__(self, queue: str, left: dict[int, int]) -> None:
        super().__init__(queue, left)
        self.queue = queue
        self.left = left

    def __str__(self) -> str:
        several = ", ".join(f"{self.queue}#{number}: {many}" for number, many in self.left.items())
        return f"partitions still have jobs or schedules ({several}); let them end and clean them first"


#: The error of every refusal, and its own words where the class's do not fit.
_REFUSALS: dict[int, tuple[type[JobError], str | None]] = {
    ReplyCode.JOB_NOT_FOUND: (JobNotFound, None),
    ReplyCode.LEASE_GONE: (LeaseLost, None),
    ReplyCode.WRONG_STATE: (WrongState, None),
    ReplyCode.CHILDREN_PENDING: (PendingChildren, None),
    ReplyCode.PARENT_NOT_FOUND: (ParentMissing, None),
    ReplyCode.LEASE_OF_ANOTHER: (LeaseLost, "another worker holds the lease"),
    ReplyCode.PARENT_CONFLICT: (ParentConflict, None),
    ReplyCode.OWNED_BY_SCHEDULE: (SchedulerOwned, None),
    ReplyCode.CHILD_FAILED: (FailedChildren, None),
    ReplyCode.RUN_EXISTS: (JobError, "a job for this run of the schedule already exists"),
    ReplyCode.RUNS_TAKEN: (JobError, "this run of the schedule and the next one are both taken"),
    ReplyCode.TREE_TOO_LARGE: (TreeTooLarge, None),
    ReplyCode.PARENT_CYCLE: (
        ParentConflict,
        "its parent is itself or one of its children, so they would wait for each other",
    ),
    ReplyCode.CANNOT_CANCEL: (CannotCancel, None),
    ReplyCode.UNKNOWN_DEPENDENCY: (UnknownDependency, None),
    ReplyCode.CHAIN_TOO_LONG: (ChainTooLong, None),
}


def error_for_code(code: int, job_id: str, verb: str, state: str = "") -> JobError:
    """Returns the error for a script's refusal.

    Args:
        code: The code below zero that the script returned.
        job_id: The job that the call was about.
        verb: The refused verb in the infinitive: ``"finish"``, ``"promote"``.
        state: The job's state on the wire, if the caller has read it.
    """
    kind, words = _REFUSALS.get(code, (JobError, f"the script answered {code}"))
    # Scripts are named remove_job and change_priority; people remove a job and change the priority of one.
    tried = verb.removesuffix("_job")
    tried = tried.replace("_", " ") + " of" if "_" in tried else tried
    if kind is UnknownDependency:  # the id is that of the dependency
        message = f"cannot {tried} the job: the dependency {job_id} does not exist (code {code})"
        return kind(job_id, message, code)
    if kind is WrongState and state:
        words = f"it is {state}"
    return kind(job_id, f"cannot {tried} job {job_id}: {words or kind.reason} (code {code})", code)


# --- the server and the connection ----------------------------------------------------------------


class BrokerError(OxcartError):
    """A call failed because of the server or the connection."""


class BrokerUnavailable(BrokerError):
    """The server cannot be reached, or the connection was lost before anything was sent."""


class AccessDenied(BrokerError):
    """The server denied access: a wrong password, a user without the right, or TLS on one side only."""


class Unacknowledged(BrokerError):
    """A call was not acknowledged in time.

    Attributes:
        job_ids: The ids of the jobs of an add. Adding them again with the same ``job_id``, or the same
            ``idempotency_key``, is safe: each exists once, whether or not the first add was applied.
    """

    job_ids: tuple[str, ...] = ()

    def of_jobs(self, job_ids: Iterable[str]) -> Unacknowledged:
        """Returns the same error with these ids."""
        other = type(self)(*self.args)
        other.job_ids = tuple(job_ids)
        return other


class BrokerTimeout(Unacknowledged):
    """The call was not sent, or every attempt was refused: the server applied nothing."""


class NeverConnected(BrokerTimeout):
    """No connection could be made in time: the call was never sent."""


class OutcomeUnknown(Unacknowledged):
    """The connection was lost after the call was sent: it may or may not have been applied."""


class NotReplicated(OutcomeUnknown):
    """The master applied the call, but no replica confirmed it in time: a failover may lose it."""


class CrossSlotError(BrokerError):
    """The call needs keys of several cluster slots; nothing was written."""


class ScriptError(BrokerError):
    """The server refused a call: out of memory, a key of the wrong type, read-only replica."""


# --- what a waiting caller sees -------------------------------------------------------------------


class ResultTimeout(OxcartError, TimeoutError):
    """The job did not end within the caller's timeout. The job itself continues."""


class DecryptionError(OxcartError):
    """A sealed value cannot be opened: this key ring lacks its key. Another worker may have it.

    Attributes:
        reason: What is wrong, without any part of the value.
        key_id: The id of the key that sealed the value, if the envelope names one.
    """

    def __init__(self, reason: str, key_id: str | None = None) -> None:
        super().__init__(reason, key_id)
        self.reason = reason
        self.key_id = key_id

    def __str__(self) -> str:
        return self.reason


class SealError(DecryptionError):
    """A stored value was not sealed for this job: it is plaintext, altered, or another job's.

    A retry cannot help: the job fails permanently, and its handler never sees the value.
    """


class JobFailed(OxcartError):
    """The awaited job failed.

    Attributes:
        job_id: The job.
        reason: The failure in one line.
        stacktrace: One text per failed attempt, newest last.
        category: The failure's category, or None if the worker stored none.
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
    """A feature needs a package that is not installed; the message has the pip command.

    Attributes:
        feature: The feature.
        extra: The name of Oxcart's extra.
    """

    def __init__(self, feature: str, extra: str) -> None:
        super().__init__(feature, extra)
        self.feature = feature
        self.extra = extra

    def __str__(self) -> str:
        return f"{self.feature} needs packages that are not installed: pip install 'oxcart[{self.extra}]'"
