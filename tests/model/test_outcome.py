from datetime import timedelta
from typing import Any

import pytest

from oxcart.model.errors import ValidationError
from oxcart.model.outcome import Cancel, Retry, Snooze


def anything(value: Any) -> Any:
    """Passes values that a caller without a type checker may pass."""
    return value


def test_retry() -> None:
    assert Retry().after_ms is None
    assert Retry(after="5s", reason="busy").after_ms == 5000
    assert Retry(0).after_ms == 0


def test_cancel_and_snooze() -> None:
    assert Cancel("not needed").reason == "not needed"
    assert Snooze(timedelta(minutes=1)).delay_ms == 60_000
    assert Snooze(timedelta(milliseconds=1)).delay_ms == 1


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Retry(after=-1), "after must be at least 0, got -1"),
        (lambda: Retry(reason=anything(5)), "reason must be a string, got 5"),
        (lambda: Cancel(anything(None)), "reason must be a string, got None"),
        (lambda: Snooze(0), "delay must be at least 1 ms, got 0"),
        (lambda: Snooze("later"), "delay must be a duration"),
    ],
)
def test_refused(make: Any, message: str) -> None:
    with pytest.raises(ValidationError) as caught:
        make()
    assert message in str(caught.value)
