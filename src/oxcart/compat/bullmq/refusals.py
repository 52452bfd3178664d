"""The errors of refused calls, which users of PyPI's package catch, and users of Oxcart too."""

from __future__ import annotations

import sys
from collections.abc import Awaitable
from typing import TypeVar

from oxcart.compat.bullmq.custom_errors import UnrecoverableError
from oxcart.model.errors import JobError, PayloadError, ReplyCode, ValidationError

T = TypeVar("T")


class CodedError(TypeError):
    """A call that the state of a job does not allow; ``code`` is the script's reply code."""

    def __init__(self, message: str, code: int | None) -> None:
        super().__init__(message)
        self.code = code


class NotJson(PayloadError, TypeError):
    """Data of a type that JSON cannot express; PyPI's package raises a ``TypeError``."""


class NotAName(ValidationError, TypeError):
    """A name that is no text; PyPI's package raises a ``TypeError``."""


def bad_cron(error: ValidationError) -> ValidationError:
    """Returns the error for an unreadable cron expression.

    PyPI's package raises croniter's ``CroniterBadCronError``. A program that catches it has imported
    croniter: then the error is also an instance of that class.
    """
    known = getattr(sys.modules.get("croniter"), "CroniterBadCronError", None)
    if not isinstance(known, type) or isinstance(error, known):
        return error
    kind = type("BadCron", (type(error), known), {"__doc__": error.__doc__})
    made: ValidationError = kind(error.field, error.bound, error.value, str(error))
    return made


_WORDS: dict[int, str] = {
    ReplyCode.JOB_NOT_FOUND: "Missing key for job {id}. {command}",
    ReplyCode.LEASE_GONE: "Missing lock for job {id}. {command}",
    ReplyCode.WRONG_STATE: "Job {id} is not in the {state} state. {command}",
    ReplyCode.CHILDREN_PENDING: "Job {id} has pending dependencies. {command}",
    ReplyCode.PARENT_NOT_FOUND: "Missing key for parent job {parent}. {command}",
    ReplyCode.LEASE_OF_ANOTHER: "Lock mismatch for job {id}. Cmd {command} from {state}",
    ReplyCode.PARENT_CONFLICT: "The parent job {id} cannot be replaced. {command}",
    ReplyCode.CHILD_FAILED: "Cannot complete job {id} because it has at least one failed child. {command}",
    ReplyCode.RUN_EXISTS: "Cannot create job scheduler iteration - job ID already exists. {command}",
    ReplyCode.RUNS_TAKEN: (
        "Cannot create job scheduler iteration - current and next time slots already have jobs. {command}"
    ),
}


def refusal(
    code: int | None, command: str, job_id: str | None, state: str | None = None, parent: str | None = None
) -> Exception:
    """Returns the error for a script's reply code, in the words of PyPI's package."""
    words = _WORDS.get(code or 0, f"Unknown code {code} error for {{id}}. {{command}}")
    text = words.format(id=job_id, command=command, state=state, parent=parent)
    return UnrecoverableError(text) if code == ReplyCode.CHILD_FAILED else CodedError(text, code)


async def translate_refusal(
    doing: Awaitable[T],
    command: str,
    job_id: str | None,
    state: str | None = None,
    parent: str | None = None,
) -> T:
    """Awaits a call about a job, and raises the error of PyPI's package if the call is refused."""
    try:
        return await doing
    except JobError as error:
        raise refusal(error.code, command, job_id, state, parent) from error
