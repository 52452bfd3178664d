"""What a processor raises to say how its job goes on, and what a refused call raises.

May touch: nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TypeVar

from oxcart.model.errors import JobError

T = TypeVar("T")


class UnrecoverableError(Exception):
    """The job failed for good: the only error that is not tried again."""


class DelayedError(Exception):
    """The job was moved to delayed by its processor."""


class WaitingChildrenError(Exception):
    """The job was made to wait for its children by its processor."""


class WaitingError(Exception):
    """The job was given back by its processor, as Node has it."""


class RateLimitError(Exception):
    """The job is given back because of a rate limit, without having used an attempt; as Node has it."""

    def __init__(self, message: str = "bullmq:rateLimitExceeded") -> None:
        super().__init__(message)


class CodedError(TypeError):
    """A call that the state of a job does not allow; ``code`` is the number that scripts answer with."""

    def __init__(self, message: str, code: int | None) -> None:
        super().__init__(message)
        self.code = code


_WORDS = {
    -1: "Missing key for job {id}. {command}",
    -2: "Missing lock for job {id}. {command}",
    -3: "Job {id} is not in the {state} state. {command}",
    -4: "Job {id} has pending dependencies. {command}",
    -5: "Missing key for parent job {parent}. {command}",
    -6: "Lock mismatch for job {id}. Cmd {command} from {state}",
    -7: "The parent job {id} cannot be replaced. {command}",
    -9: "Cannot complete job {id} because it has at least one failed child. {command}",
    -10: "Cannot create job scheduler iteration - job ID already exists. {command}",
    -11: "Cannot create job scheduler iteration - current and next time slots already have jobs. {command}",
}


def refusal(
    code: int | None, command: str, job_id: str | None, state: str | None = None, parent: str | None = None
) -> Exception:
    """The error for a script's answer, in the words that users of PyPI's package know."""
    words = _WORDS.get(code or 0, f"Unknown code {code} error for {{id}}. {{command}}")
    text = words.format(id=job_id, command=command, state=state, parent=parent)
    return UnrecoverableError(text) if code == -9 else CodedError(text, code)


async def told(
    doing: Awaitable[T],
    command: str,
    job_id: str | None,
    state: str | None = None,
    parent: str | None = None,
) -> T:
    """Does something with a job, and raises what PyPI's package would where it is refused."""
    try:
        return await doing
    except JobError as error:
        raise refusal(error.code, command, job_id, state, parent) from error
