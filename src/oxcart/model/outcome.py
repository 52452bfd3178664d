"""What a handler may return instead of a value, to say what shall become of its job."""

from __future__ import annotations

import msgspec

from oxcart.model.duration import Duration, parse_ms
from oxcart.model.errors import ValidationError


class Retry(msgspec.Struct, frozen=True):
    """Return it to end this attempt as failed for now; it uses up an attempt.

    Attributes:
        after: How long to wait; None leaves it to the job's backoff.
        reason: Why, for the job's record.
    """

    after: Duration | None = None
    reason: str = ""

    def __post_init__(self) -> None:
        if self.after is not None:
            parse_ms(self.after, "after")
        _check_reason(self.reason)

    @property
    def after_ms(self) -> int | None:
        """The wait in milliseconds, or None."""
        return None if self.after is None else parse_ms(self.after, "after")


class Cancel(msgspec.Struct, frozen=True):
    """Return it to end the job as cancelled; it is not tried again.

    Attributes:
        reason: Why, for the job's record.
    """

    reason: str

    def __post_init__(self) -> None:
        _check_reason(self.reason)


class Snooze(msgspec.Struct, frozen=True):
    """Return it to run the job again later; it uses up no attempt.

    Attributes:
        delay: How long to wait, at least a millisecond.
    """

    delay: Duration

    def __post_init__(self) -> None:
        parse_ms(self.delay, "delay", minimum=1)

    @property
    def delay_ms(self) -> int:
        """The wait in milliseconds."""
        return parse_ms(self.delay, "delay", minimum=1)


class WaitForChildren(msgspec.Struct, frozen=True):
    """Return it to run the job again when its children have ended; it uses up no attempt.

    A job that has none to wait for runs again at once.
    """


Outcome = Retry | Cancel | Snooze | WaitForChildren


def _check_reason(value: object) -> None:
    if not isinstance(value, str):
        raise ValidationError("reason", "a string", value)
