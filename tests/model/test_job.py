from typing import Any

import msgspec
import pytest

from oxcart.model.errors import ValidationError
from oxcart.model.job import Job
from oxcart.model.options import JobOptions
from oxcart.model.progress import check_progress
from oxcart.model.state import State


def job(**fields: Any) -> Job:
    return Job(id="1", name="n", queue="q", **fields)


@pytest.mark.parametrize(
    ("fields", "attempt", "used", "left"),
    [
        ({}, 1, 0, 3),
        ({"attempts_made": 1}, 2, 1, 2),
        ({"attempts_made": 1, "stalled_count": 1}, 3, 2, 1),
        ({"attempts_made": 1, "finished_on": 5}, 1, 1, 2),
        ({"attempts_made": 3, "finished_on": 5}, 3, 3, 0),
        ({"attempts_made": 9}, 10, 9, 0),
        ({"finished_on": 5}, 1, 0, 3),
        # returned at shutdown: started twice, no attempt used
        ({"attempts_started": 2}, 1, 0, 3),
        ({"options": JobOptions(attempts=0)}, 1, 0, 1),
    ],
)
def test_attempts(fields: dict[str, Any], attempt: int, used: int, left: int) -> None:
    subject = job(**fields)
    assert (subject.attempt, subject.attempts_used, subject.attempts_left) == (attempt, used, left)


def test_a_snapshot_does_not_change() -> None:
    with pytest.raises(AttributeError):
        job().progress = 5  # type: ignore[misc]
    assert job().stacktrace is not job().stacktrace


def test_a_snapshot_is_json() -> None:
    subject = job(data={"a": 1}, options=JobOptions.build(timeout="1s"))
    assert msgspec.json.decode(msgspec.json.encode(subject), type=Job) == subject


@pytest.mark.parametrize("value", [0, 100, 42, 0.5, {}, {"step": 3}])
def test_progress(value: Any) -> None:
    assert check_progress(value) == value


@pytest.mark.parametrize(
    ("value", "stored"),
    [
        (50, {"percent": 50, "message": "halfway"}),
        ({"step": 2}, {"step": 2, "message": "halfway"}),
        ({"message": "old"}, {"message": "halfway"}),
    ],
)
def test_a_progress_with_a_message_is_an_object(value: Any, stored: Any) -> None:
    assert check_progress(value, message="halfway") == stored


@pytest.mark.parametrize("message", ["", "x" * 1001, 5, b"x"])
def test_a_bad_message_of_a_progress(message: Any) -> None:
    with pytest.raises(ValidationError, match="message must be text of 1 to 1000 characters"):
        check_progress(50, message=message)


@pytest.mark.parametrize("value", [-1, 101, 100.1, float("nan"), float("inf"), True, "50", None, [50]])
def test_bad_progress(value: Any) -> None:
    with pytest.raises(ValidationError, match="progress must be a number from 0 to 100 or an object, got"):
        check_progress(value)


class TestTimesInOrder:
    """The times of one job never decrease, whichever client wrote them."""

    def test_a_peer_whose_clock_is_ahead_added_it(self) -> None:
        found = job(
            timestamp=5_000_000,
            processed_on=1_000_000,
            finished_on=1_200_000,
            attempts_started=1,
            state=State.COMPLETED,
        )
        assert [change.at for change in found.transitions] == [1_000_000, 1_000_000, 1_200_000]
        assert found.scheduled_at is not None
        assert found.started_at is not None
        assert found.created_at <= found.scheduled_at <= found.started_at <= found.updated_at

    def test_the_clock_of_the_server_was_set_back(self) -> None:
        lines = ["900\tpending\tscheduled\t\tadded", "1000\tscheduled\trunning\tw\tx"]
        lines.append("400\trunning\tcompleted\tw\ty")
        attempt = '[1,1000,400,"w","completed","","","",""]\n'
        found = job(
            timestamp=900,
            processed_on=1000,
            finished_on=400,
            attempts_started=1,
            state=State.COMPLETED,
            transition_records="\n".join(lines) + "\n",
            attempt_records=attempt,
        )
        assert [change.at for change in found.transitions] == [900, 1000, 1000]
        assert [(one.started, one.ended) for one in found.past_attempts] == [(1000, 1000)]
        assert found.started_at is not None
        assert found.completed_at is not None
        assert found.created_at < found.started_at <= found.completed_at == found.updated_at


def test_a_new_job_has_nothing_but_zeros() -> None:
    new = job()
    assert (new.progress, new.delay, new.timestamp, new.priority) == (0, 0, 0, 0)
    assert new.attempt_id is None


def test_its_properties_are_values() -> None:
    subject = job(attempts_started=2, options=JobOptions.build(tags={"a": "b"}, correlation_id="c"))
    assert (subject.type, subject.tags, subject.correlation_id) == ("n", {"a": "b"}, "c")
    assert subject.attempt_id != subject.previous_attempt_id is not None
    assert job(attempts_started=1).previous_attempt_id is None
    assert subject.steps == []


@pytest.mark.parametrize(
    ("fields", "is_put_off"),
    [
        ({}, True),
        ({"unhandled_start": 1}, False),
        ({"finished_on": 5}, False),
        ({"state": State.RUNNING}, False),
        ({"state": State.DELAYED}, True),
    ],
)
def test_a_job_without_a_handler_is_put_off(fields: dict[str, Any], is_put_off: bool) -> None:
    subject = job(**{"attempts_started": 2, "unhandled_start": 2, "worker_id": "w", **fields})
    assert subject.put_off == ("no handler for n in worker w" if is_put_off else None)


def test_a_delay_of_a_millisecond_is_a_transition() -> None:
    delayed = job(timestamp=1, processed_on=9, state=State.RUNNING, options=JobOptions.build(delay="1ms"))
    assert delayed.transitions != job(timestamp=1, processed_on=9, state=State.RUNNING).transitions
