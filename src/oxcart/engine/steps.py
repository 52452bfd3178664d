"""Durable steps of a running job: remembers results, sleeps and waits, and ends the run while it waits.

`Suspended` ends a handler that sleeps or waits for a signal, and its worker is free. The job runs again when
its time or its signal has come. Its handler begins anew and finds the results of its steps.
"""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import msgspec

from oxcart.broker.sealed_steps import open_step
from oxcart.model import payload
from oxcart.model.duration import Duration, parse_ms
from oxcart.model.steps import (
    MOST_BYTES,
    MOST_STEPS,
    SignalTimeout,
    Step,
    StepError,
    check_step_name,
    read_step,
)

if TYPE_CHECKING:
    from oxcart.engine.running import RunningJob

#: A longer sleep or wait looks again after this time, in ms: the wire holds no delay beyond the year 2039.
LOOK_AGAIN = 30 * 86_400_000

_WAITS = ("wait", "signal", "timeout")


class Suspension(msgspec.Struct, frozen=True):
    """The result of a handler that sleeps or waits for a signal.

    Attributes:
        delay_ms: For how long its job is delayed.
        signal: The signal that ends the delay early; empty for none.
    """

    delay_ms: int
    signal: str = ""


class Suspended(BaseException):
    """Ends a handler that sleeps or waits for a signal.

    It is no `Exception`, so that handlers do not catch it by accident.
    """


class RunSteps:
    """The steps of one run.

    Args:
        job: The running job.
    """

    def __init__(self, job: RunningJob) -> None:
        self._job = job
        self._records = job.claim.steps
        self._bytes = sum(map(len, self._records.values()))
        self._used: set[str] = set()
        self._sleeps = 0
        self._last = max((_number(name, raw) for name, raw in self._records.items()), default=0)

    def begin(self, name: str, *kinds: str) -> bytes | None:
        """Begins a step; returns its record, or None if no earlier run recorded it.

        Raises:
            StepError: The name is malformed, was used in this run, or an earlier run recorded something
                else under it, or the job has no room for it.
            JobCancelled: The attempt should stop.
        """
        check_step_name(name)
        self._job.raise_if_cancelled()
        if name in self._used:
            text = f"step {name!r} is used twice in this run: give each a name of its own, f'{name}-{{i}}'"
            raise StepError("step", "used once in a run", name, text)
        self._used.add(name)
        raw = self._records.get(name)
        if raw is None:
            self._check_room(0)  # before the step has an effect
            return None
        kind = _kind(name, raw)
        if kind not in kinds:
            text = f"step {name!r} was recorded as a {kind} and is a {kinds[0]} now: give it another name"
            raise StepError("step", f"a {kind}, as an earlier run recorded it", kinds[0], text)
        return raw

    def value_of(self, name: str, raw: bytes) -> bytes:
        """Returns the value of a record, as JSON.

        Raises:
            DecryptionError: It does not open.
        """
        return open_step(self._job.sealer, self._job.id, name, raw)[1]

    async def end(self, name: str, body: bytes, took_ms: int) -> None:
        """Records the result of a step.

        Raises:
            StepError: The job has too many steps, or their results are too large; nothing was written.
            LeaseLost: Another worker now runs the job; nothing was written.
        """
        if (sealer := self._job.sealer) is not None:
            body = sealer.seal("step", self._job.id, body, name)
        await self._keep(self._new(name, "step", took_ms=took_ms), body)

    async def sleep(self, duration: Duration, name: str | None) -> Suspension | None:
        """Begins or continues a sleep; returns None if it is over."""
        length = parse_ms(duration, "duration", minimum=1)
        if name is None:
            self._sleeps += 1
            name = f"sleep-{self._sleeps}"
        self._check_suspends()
        raw, now = self.begin(name, "sleep"), self._job.server_ms()
        if raw is None:
            until = now + length
            await self._keep(self._new(name, "sleep", until_ms=until), b"null")
        else:
            until = 0 if self._job.skips_waits else read_step(name, raw)[0].until_ms or 0
        return None if until <= now else Suspension(min(until - now, LOOK_AGAIN))

    async def wait(self, signal: str, timeout: Duration | None, name: str | None) -> bytes | Suspension:
        """Begins or continues a wait; returns the data of the signal as JSON, if it has arrived.

        Raises:
            SignalTimeout: It did not arrive in time.
        """
        check_step_name(signal, "signal")
        limit = None if timeout is None else parse_ms(timeout, "timeout", minimum=1)
        name = signal if name is None else name
        self._check_suspends()
        job, raw = self._job, self.begin(name, *_WAITS)
        if raw is None or _kind(name, raw) == "wait":
            now = job.server_ms()
            if raw is None:
                step = self._new(name, "wait", until_ms=None if limit is None else now + limit, signal=signal)
                self._check_room(len(step.header()))
            else:
                step = read_step(name, raw)[0]
            over = msgspec.structs.replace(step, kind="signal", at_ms=now, took_ms=max(0, now - step.at_ms))
            over = msgspec.structs.replace(over, start=job.fencing, signal=signal)
            is_late = raw is not None and step.until_ms is not None and step.until_ms <= now
            raw = await job.broker_steps.receive(
                job.id,
                job.token,
                name,
                signal,
                wait=step.header(),
                arrived=over.header(),
                late=msgspec.structs.replace(over, kind="timeout").header() if is_late else b"",
            )
            self._remember(name, raw)
        kind = _kind(name, raw)
        if kind == "timeout":
            raise SignalTimeout(signal)
        if kind == "signal":
            return self.value_of(name, raw)
        until = read_step(name, raw)[0].until_ms
        left = LOOK_AGAIN if until is None else until - job.server_ms()
        return Suspension(min(max(1, left), LOOK_AGAIN), signal)

    def _check_suspends(self) -> None:
        handler = self._job.handler
        if handler is not None and handler.batch is not None:
            raise StepError("handler", "one without batch= to sleep or wait for signals", handler.name)

    def _new(self, name: str, kind: Any, **facts: Any) -> Step:
        self._last += 1
        return Step(name, kind, self._last, self._job.server_ms(), start=self._job.fencing, **facts)

    async def _keep(self, step: Step, body: bytes) -> None:
        record = step.header() + b"\n" + body
        self._check_room(len(record))
        await self._job.broker_steps.keep(self._job.id, self._job.token, step.name, record)
        self._remember(step.name, record)

    def _remember(self, name: str, record: bytes) -> None:
        self._bytes += len(record) - len(self._records.get(name, b""))
        self._records[name] = record

    def _check_room(self, size: int) -> None:
        if len(self._records) >= MOST_STEPS:
            raise StepError("steps", f"at most {MOST_STEPS} in a job", len(self._records) + 1)
        if self._bytes + size > MOST_BYTES:
            bound = f"at most {MOST_BYTES} bytes with their results in a job"
            raise StepError("steps", bound, self._bytes + size)


@functools.cache
def step_threads() -> ThreadPoolExecutor:
    """Returns the threads for plain functions of steps; the concurrency of workers bounds their use."""
    return ThreadPoolExecutor(1024, thread_name_prefix="oxcart-step")


def returned(function: Callable[..., Any], body: bytes, name: str) -> Any:
    """Returns a step's result from JSON, as the type that its function is annotated to return.

    It is the same in the run that called the function and in later ones.

    Raises:
        StepError: It does not fit the annotation.
    """
    value = payload.decode_stored(body, f"step {name}")
    hint = _hint(function)
    if hint in (Any, None, type(None)):
        return value
    try:
        return msgspec.convert(value, hint, str_keys=True)
    except msgspec.ValidationError as error:
        text = f"the result of step {name!r} does not fit its annotation: {error}"
        raise StepError("step", f"a result that fits {hint}", name, text) from error
    except (TypeError, ValueError, RecursionError):  # a type that msgspec does not know: plain JSON
        return value


def suspension_of(job: RunningJob, error: BaseException) -> Suspension:
    """Returns the suspension that ended a handler.

    Raises:
        BaseException: The error itself, if it is not only a suspension.
    """
    if isinstance(error, BaseExceptionGroup) and error.split(Suspended)[1] is not None:
        raise error
    if job.suspension is None:  # a handler's own
        raise error
    return job.suspension


def _hint(function: Callable[..., Any]) -> Any:
    inner = function.func if isinstance(function, functools.partial) else function
    if not inspect.isroutine(inner):
        inner = type(inner).__call__  # an object that can be called
    try:
        return typing.get_type_hints(inner).get("return")
    except Exception:  # a name that exists only for the type checker
        return None


def _number(name: str, raw: bytes) -> int:
    try:
        return read_step(name, raw)[0].number
    except ValueError:
        return 0


def _kind(name: str, raw: bytes) -> str:
    try:
        return read_step(name, raw)[0].kind
    except ValueError as error:
        raise StepError("step", "a record that can be read", name, f"step {name!r}: {error}") from error
