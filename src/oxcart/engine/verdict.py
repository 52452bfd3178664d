"""Decides the outcome of an ended attempt: completed, retried now or later, failed for good, returned.

All of the retry policy is here. Used attempts are ended attempts plus stalls. A job that a peer added
without a number of attempts has one attempt, and stalls do not count against it (as with peers).
"""

from __future__ import annotations

import logging
import math
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from oxcart.broker.port import LIFETIME_OVER, UNDECODABLE, Code, Outcome, OutcomeKind
from oxcart.engine.running import RunningJob
from oxcart.engine.steps import Suspension
from oxcart.engine.suspects import runs_alone_last
from oxcart.model import payload
from oxcart.model.backoff import Strategy
from oxcart.model.duration import parse_ms
from oxcart.model.errors import FailedChildren, PayloadError, ReplyCode, Undecodable
from oxcart.model.failure import (
    Category,
    Classifier,
    JobCancelled,
    PermanentError,
    RateLimited,
    TemporaryError,
)
from oxcart.model.outcome import Cancel, Retry, Snooze, WaitForChildren
from oxcart.model.retention import Retention

log = logging.getLogger("oxcart.worker")
#: Only failed attempts, so that their level can be set separately.
failures = logging.getLogger("oxcart.worker.failures")

#: A longer trace is cut in the middle; its ends matter most.
LONGEST_TRACE = 16_384
#: The same for a reason: the job and an event store it, and clients that list failed jobs load it.
LONGEST_REASON = 16_384
#: A reason in the log is cut here.
LONGEST_LINE = 300
#: The reason that peers write too.
STARTED_TOO_OFTEN = "job started more than allowable limit"
#: How often a job may be started without ending, unless the worker has another bound. Only starts whose
#: worker was lost or returned the job count; starts that ended in a result, a failure or a snooze do not.
MOST_UNENDED = 1000
#: The reason of a job beyond that bound.
NEVER_ENDED = "job started {} times without ending: its workers were lost or gave it back"
#: How many traces are kept if the job has no number.
TRACES = 10

#: Why the end of an attempt is refused, by the code.
REFUSALS: dict[int, str] = {
    ReplyCode.JOB_NOT_FOUND: "the job is gone",
    ReplyCode.LEASE_GONE: "its lease has expired",
    ReplyCode.WRONG_STATE: "the job is no longer active",
    ReplyCode.LEASE_OF_ANOTHER: "another worker has its lease",
}

_NOUNS = {OutcomeKind.COMPLETED: "result", OutcomeKind.FAILED: "failure"}

# Read once: on Python 3.11 a member of an enum costs 0.2 µs, for every job.
_COMPLETED = OutcomeKind.COMPLETED

#: Results that say what becomes of the job instead of completing it.
_CONTROLS = frozenset((Snooze, WaitForChildren, Cancel, Retry, RateLimited))

_json = msgspec.json.Encoder()


class Verdict:
    """Turns results and exceptions into outcomes.

    Args:
        classifier: Returns the category of an exception.
        strategies: Backoff functions by name, for jobs whose policy is ``custom``.
        remove_on_complete: Retention of completed jobs that have none of their own.
        remove_on_fail: The same for failed jobs.
        max_started: How often a job may be started, every start included; None for no limit. By default a
            job may be started `MOST_UNENDED` times without ending.
        rand: Randomness for jitter, from 0 to 1.
        clock: The time in ms, for tests; by default the server's clock decides when attempts and lifetimes
            end.
    """

    def __init__(
        self,
        *,
        clock: Callable[[], int] | None = None,
        rand: Callable[[], float],
        classifier: Classifier | None = None,
        strategies: Mapping[str, Strategy] | None = None,
        remove_on_complete: Retention | None = None,
        remove_on_fail: Retention | None = None,
        max_started: int | UnsetType | None = UNSET,
    ) -> None:
        self._clock = clock
        self._rand = rand
        self._classifier = classifier or Classifier.default()
        self._strategies = strategies or {}
        self._completed = remove_on_complete
        self._failed = remove_on_fail
        self._max_started = max_started
        #: Starts that are never too many.
        self._few = math.inf if max_started is None else MOST_UNENDED if max_started is UNSET else max_started

    def of_result(self, job: RunningJob, result: Any) -> Outcome:
        """Returns the outcome of a handler that returned."""
        kind = type(result)
        if kind in _CONTROLS or job.suspension is not None:
            return self._of_control(job, result, kind)
        try:
            value = payload.encode(result, field="return value")
        except PayloadError as error:
            return self.of_error(job, error)
        claim = job.claim
        kept = claim.options.remove_on_complete
        return Outcome(
            _COMPLETED,
            job.id,
            job.token,
            job.fencing,
            0 if self._clock is None else self._clock(),
            value,
            retention=self._completed if kept is None else kept,
            claim=claim,
        )

    def _of_control(self, job: RunningJob, result: Any, kind: type) -> Outcome:
        if job.suspension is not None:
            if kind is not Suspension:
                log.warning(
                    "job %s sleeps or waits, but its handler went on and returned: it runs again",
                    job.id,
                    extra=job.log_fields(),
                )
            return self.suspended(job, job.suspension)
        if kind is Snooze:
            return self.snoozed(job, parse_ms(result.delay, "delay"))
        if kind is WaitForChildren:
            return Outcome(
                OutcomeKind.AWAIT_CHILDREN, job.id, job.token, job.fencing, self._time(), counts=False
            )
        if kind is Cancel:
            return self._final(job, result.reason or "cancelled", Category.CANCELLED, None)
        if kind is Retry:
            after = None if result.after is None else parse_ms(result.after, "after")
            return self._retry(job, result.reason or "retry asked for", Category.TEMPORARY, None, after)
        return self.limited(job, result)

    def of_error(self, job: RunningJob, error: BaseException, category: Category | None = None) -> Outcome:
        """Returns the outcome of a handler that raised."""
        if isinstance(error, Undecodable):
            return self.quarantined(job, str(error))
        if isinstance(error, RateLimited):
            return self.limited(job, error)
        after = None
        try:
            reason = _reason_of(error)
            if category is None:
                category = self._classifier.classify(error)
            if isinstance(error, TemporaryError) and error.retry_after is not None:
                after = parse_ms(error.retry_after, "retry_after")
        except Exception as broken:  # an error whose description fails must still end its attempt
            reason = f"{type(error).__name__}, whose description failed with {type(broken).__name__}"
            category = category or Category.TEMPORARY
        final = category in (Category.PERMANENT, Category.CANCELLED) or not self._is_retried(job, category)
        if final or (job.options.skip_on and _is_named(error, job.options.skip_on)):
            return self._final(job, reason, category, error)
        return self._retry(job, reason, category, error, after)

    def quarantined(self, job: RunningJob, why: str) -> Outcome:
        """The outcome of a job that cannot be decoded: a dead letter whose fields stay as they are.

        Reads no field of the job. Retention does not apply: an operator must be able to look at it.

        Args:
            job: The job.
            why: Which field cannot be decoded, and why.
        """
        return Outcome(
            OutcomeKind.FAILED,
            job.id,
            job.token,
            job.fencing,
            self._time(),
            _text(_cut(f"the job cannot be decoded: {why}", LONGEST_REASON)),
            attempts=1,
            category=Category.SYSTEM.value,
            code=Undecodable.__name__,
            dead=UNDECODABLE,
        )

    def before_start(self, job: RunningJob) -> Outcome | None:
        """Returns the outcome of a job that must not run at all, or None if it may run."""
        claim = job.claim
        has_conditions = claim.has_conditions
        if has_conditions:
            if self.life_left(job) == 0:
                return self.expired(job)
            reason = claim.cancel_reason
            if reason is not None:  # the worker that received the request is lost, or returned the job
                return self._final(job, reason, Category.CANCELLED, None)
            reason = claim.deferred_failure
            if reason is not None:
                category = Category.SYSTEM if reason.startswith("job stalled") else Category.PERMANENT
                return self._final(job, reason, category, PermanentError(reason))
        if job.fencing > self._few and (too_often := self._started_too_often(job)):
            return self._final(job, too_often, Category.SYSTEM, PermanentError(too_often))
        if has_conditions and claim.stalls and job.options.attempts > 0:
            used = job.attempts_made + job.stalls
            if not self._is_retried(job, Category.SYSTEM):
                return self._final(
                    job, "its worker was lost, which this job does not try again", Category.SYSTEM, None
                )
            if used >= job.options.attempts:
                if runs_alone_last(job):
                    return None
                reason = f"attempts exhausted: {used} of {job.options.attempts}, the last by a lost worker"
                return self._final(job, reason, Category.SYSTEM, None)
        return None

    def _started_too_often(self, job: RunningJob) -> str:
        """Returns why a job was started too often; empty if it was not."""
        bound = self._max_started
        starts = job.fencing - job.claim.forgiven_starts
        if bound is None:
            return ""
        if bound is not UNSET:
            return STARTED_TOO_OFTEN if starts > bound else ""
        unended = starts - 1 - job.claim.excused_starts - job.attempts_made
        return NEVER_ENDED.format(unended) if unended >= MOST_UNENDED else ""

    def cancelled(self, job: RunningJob, error: BaseException | None = None) -> Outcome:
        """Returns the outcome of an attempt that ended because its job was cancelled."""
        if error is not None and not isinstance(error, JobCancelled):
            cause, error = error, JobCancelled(job.cancel_text)
            error.__cause__ = cause
        return self._final(job, job.cancel_text or "cancelled", Category.CANCELLED, error)

    def _time(self) -> int:
        """Returns the end of an attempt that ends now; 0 for the server's time."""
        return 0 if self._clock is None else self._clock()

    def life_left(self, job: RunningJob) -> int | None:
        """Returns the ms until the job's lifetime expires, at least 0; None if it has no lifetime."""
        expires_ms = job.claim.expires_ms
        if expires_ms is None:
            return None
        now = job.server_ms() if self._clock is None else self._clock()
        return max(0, expires_ms - now)

    def expired(self, job: RunningJob, error: BaseException | None = None) -> Outcome:
        """Returns the outcome of a job whose lifetime has expired: a dead letter."""
        outcome = self._final(job, LIFETIME_OVER, Category.TIMEOUT, error)
        outcome.dead = "lifetime"
        return outcome

    @staticmethod
    def goes_on(result: Any) -> bool:
        """Returns whether a handler's result makes its job run again; a cancelled job does not."""
        return isinstance(result, Retry | Snooze | WaitForChildren | RateLimited | Suspension)

    def snoozed(self, job: RunningJob, delay_ms: int) -> Outcome:
        """Returns the outcome of a job that is delayed without using an attempt."""
        return Outcome(
            OutcomeKind.DELAY, job.id, job.token, job.fencing, self._time(), delay_ms=delay_ms, counts=False
        )

    def suspended(self, job: RunningJob, suspension: Suspension) -> Outcome:
        """Returns the outcome of a job that sleeps or waits for a signal, without using an attempt."""
        outcome = self.snoozed(job, suspension.delay_ms)
        outcome.waits = suspension.signal
        return outcome

    def given_back(self, job: RunningJob) -> Outcome:
        """Returns a job to the front of the queue, as if it had not been claimed."""
        return Outcome(OutcomeKind.GIVE_BACK, job.id, job.token, job.fencing, self._time())

    def limited(self, job: RunningJob, limit: RateLimited) -> Outcome:
        """Returns a job to the front of the queue, which is held for a while."""
        log.info("queue %s is held for %d ms: %s", job.queue, limit.after_ms, limit, extra=job.log_fields())
        return Outcome(
            OutcomeKind.HOLD_QUEUE,
            job.id,
            job.token,
            job.fencing,
            self._time(),
            delay_ms=limit.after_ms,
            counts=False,
        )

    def children_not_ready(self, job: RunningJob, code: int) -> Outcome:
        """Returns a failure for a completion that was refused because of the job's children."""
        pending = (
            "the job has children that have not ended; a handler returns WaitForChildren() to wait for them"
        )
        reason = "a child of the job failed" if code == ReplyCode.CHILD_FAILED else pending
        return self._final(job, reason, Category.PERMANENT, FailedChildren(job.id))

    @staticmethod
    def _is_retried(job: RunningJob, category: Category) -> bool:
        options = job.options
        return {Category.TIMEOUT: options.retry_timeout, Category.SYSTEM: options.retry_system}.get(
            category, True
        )

    def _retry(
        self, job: RunningJob, reason: str, category: Category, error: BaseException | None, after: int | None
    ) -> Outcome:
        options = job.options
        used = job.attempts_made + 1 + (job.stalls if options.attempts > 0 else 0)
        if used >= options.attempts:
            return self._final(job, reason, category, error)
        delay = after
        if delay is None:
            try:
                delay = options.backoff.delay_ms(job.attempts_made + 1, self._rand, self._strategies)
            except Exception as broken:
                return self._final(job, f"{reason} (no retry: {broken})", category, error)
        if delay < 0:
            return self._final(job, reason, category, error)
        return Outcome(
            OutcomeKind.DELAY if delay else OutcomeKind.RETRY,
            job.id,
            job.token,
            job.fencing,
            self._time(),
            _text(_cut(reason, LONGEST_REASON)),
            self._stack(job, reason, error),
            category=category.value,
            code=_code(error),
            delay_ms=delay,
            lifo=options.lifo,
            claim=job.claim,
            error=error,
        )

    def _final(
        self, job: RunningJob, reason: str, category: Category, error: BaseException | None
    ) -> Outcome:
        options = job.options
        kept = options.remove_on_fail
        ended = job.attempts_made + 1
        used = ended + (job.stalls if options.attempts > 0 else 0)
        return Outcome(
            OutcomeKind.FAILED,
            job.id,
            job.token,
            job.fencing,
            self._time(),
            _text(_cut(reason, LONGEST_REASON)),
            self._stack(job, reason, error),
            self._failed if kept is None else kept,
            # Peers compare only ended attempts; if stalls used up the rest, the last ended attempt was the
            # final one.
            attempts=min(options.attempts, ended) if used >= options.attempts else options.attempts,
            category=category.value,
            code=_code(error),
            claim=job.claim,
            error=error,
        )

    def _stack(self, job: RunningJob, reason: str, error: BaseException | None) -> bytes:
        limit = job.options.stack_trace_limit
        if limit is None:
            limit = TRACES
        traces = job.claim.stacktrace
        trace = reason if error is None else "".join(traceback.format_exception(error)).rstrip()
        traces.append(_cut(trace, LONGEST_TRACE))
        kept = traces[-limit:] if limit else []
        return _json.encode([_text(trace).decode() for trace in kept])


def log_failure(job: RunningJob, outcome: Outcome) -> None:
    """Logs a failed attempt in one line, with its traceback and the facts of its job as fields."""
    if outcome.category == Category.CANCELLED.value:
        return  # a client requested it
    if outcome.dead == UNDECODABLE:
        log.error(
            "queue %s: job %s is quarantined: %s",
            job.queue,
            job.id,
            outcome.value.decode("utf-8", "replace"),
            extra={**job.facts(), "category": outcome.category},
        )
        return
    final = outcome.kind == OutcomeKind.FAILED
    if not failures.isEnabledFor(level := logging.WARNING if final else logging.INFO):
        return
    first = outcome.value.decode("utf-8", "replace").partition("\n")[0]
    failures.log(
        level,
        "queue %s: job %s (%s) failed%s, attempt %d of %d, %s: %s",
        job.queue,
        job.id,
        job.name,
        " for good" if final else f" and is tried again in {outcome.delay_ms / 1000:,g} s",
        job.attempt,
        max(job.options.attempts, 1),
        outcome.category,
        first if len(first) <= LONGEST_LINE else first[:LONGEST_LINE] + "…",
        extra={**job.log_fields(), "category": outcome.category, "traceback": _last_trace(outcome)},
    )


def log_refusal(job: RunningJob, outcome: Outcome, code: Code) -> None:
    """Logs an outcome that the server refused, unless its job was cancelled by force."""
    if job.cancel_reason == Category.CANCELLED.value and outcome.category == Category.CANCELLED.value:
        return
    log.warning(
        "queue %s: the %s of job %s was refused: %s",
        job.queue,
        _NOUNS.get(outcome.kind, "return"),
        job.id,
        REFUSALS.get(code, code) if isinstance(code, int) else code,
        extra=job.log_fields(),
    )


def _last_trace(outcome: Outcome) -> str:
    traces = msgspec.json.decode(outcome.stack) if outcome.stack else []
    return traces[-1] if traces else ""


def _reason_of(error: BaseException) -> str:
    """Returns the message of an error; with its class where the message is only a key, or empty."""
    name = type(error).__name__
    text = str(error)
    if text and type(error).__str__ is KeyError.__str__:
        return f"{name}: {text}"
    return text or name


def _is_named(error: BaseException, names: Sequence[str]) -> bool:
    """Returns whether the names include an error's code, its class or a base of it."""
    kinds = {kind.__name__ for kind in type(error).__mro__} | {_code(error)}
    return not kinds.isdisjoint(names)


def _code(error: BaseException | None) -> str:
    """Returns the application's own word for a failure, else the class of the error."""
    if error is None:
        return ""
    code = getattr(error, "code", None)
    return code if isinstance(code, str) and code else type(error).__name__


def _cut(text: str, longest: int) -> str:
    """Returns a text without its middle, if it is too long."""
    if len(text) <= longest:
        return text
    half = longest // 2
    return f"{text[:half]}\n… {len(text) - 2 * half} characters left out …\n{text[-half:]}"


def _text(text: str) -> bytes:
    """Returns UTF-8 of any text; half of a surrogate pair, which has no UTF-8, is written as its escape."""
    return text.encode("utf-8", "backslashreplace")
