"""Return values of a handler that decide the next state of its job."""

from __future__ import annotations

import msgspec

from oxcart.model.duration import Duration, parse_ms
from oxcart.model.errors import ValidationError


class Retry(msgspec.Struct, frozen=True):
    """Fails this attempt and retries the job; it uses an attempt.

    Attributes:
        after: How long to wait; None uses the job's backoff.
        reason: The reason, for the job's record.
    """

    after: Duration | None = None
    reason: str = ""

    def __post_init__(self) -> None:
        if self.after is not None:
            parse_ms(self.after, "after")
        _check_reason(self.reason)

    @property
    def after_ms(self) -> int | None:
        """Returns the wait in milliseconds, or None."""
        return None if self.after is None else parse_ms(self.after, "after")


class Cancel(msgspec.Struct, frozen=True):
    """Ends the job as cancelled; it is not retried.

    Attributes:
        reason: The reason, for the job's record.
    """

    reason: str

    def __post_init__(self) -> None:
        _check_reason(self.reason)


class Snooze(msgspec.Struct, frozen=True):
    """Runs the job again later; it uses no attempt.

    Attributes:
        delay: How long to wait, at least a millisecond.
    """

    delay: Duration

    def __post_init__(self) -> None:
        parse_ms(self.delay, "delay", minimum=1)

    @property
    def delay_ms(self) -> int:
        """Returns the wait in milliseconds."""
        return parse_ms(self.delay, "delay", minimum=1)


class WaitForChildren(msgspec.Struct, frozen=True):
    """Runs the job again when its children have ended; it uses no attempt.

    A job without pending children runs again at once.
    """


Outcome = Retry | Cancel | Snooze | WaitForChildren


def _check_reason(value: object) -> None:
    if not isinstance(value, str):
        raise ValidationError("reason", "a string", value)
