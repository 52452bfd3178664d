import pickle

import pytest

from oxcart.model import errors
from oxcart.model.errors import (
    FailedChildren,
    JobError,
    JobFailed,
    JobLocked,
    JobNotFound,
    LeaseLost,
    MissingExtra,
    OxcartError,
    ParentConflict,
    ParentMissing,
    PayloadError,
    PayloadTooLarge,
    PendingChildren,
    ResultTimeout,
    SchedulerOwned,
    SealError,
    ValidationError,
    WrongState,
    error_for_code,
)
from oxcart.model.failure import PermanentError, TemporaryError


def test_validation_names_field_bound_and_value() -> None:
    error = ValidationError("attempts", "at least 1", 0)
    assert str(error) == "attempts must be at least 1, got 0"
    assert (error.field, error.bound, error.value) == ("attempts", "at least 1", 0)
    assert isinstance(error, ValueError)


def test_validation_does_not_print_a_whole_payload() -> None:
    assert len(str(ValidationError("data", "JSON", "x" * 10_000))) < 150


@pytest.mark.parametrize(
    ("size", "limit", "message"),
    [
        (int(12.3 * 2**20), 10 * 2**20, "Job payload size 12.3 MB exceeds limit of 10.0 MB"),
        (17 * 2**20, 16 * 2**20, "Job payload size 17.0 MB exceeds limit of 16.0 MB"),
        (10 * 2**20 + 1, 10 * 2**20, "Job payload size 10.000001 MB exceeds limit of 10.000000 MB"),
        (int(10.02 * 2**20), 10 * 2**20, "Job payload size 10.02 MB exceeds limit of 10.00 MB"),
        (2000, 1000, "Job payload size 2000 bytes exceeds limit of 1000 bytes"),
    ],
)
def test_payload_too_large(size: int, limit: int, message: str) -> None:
    error = PayloadTooLarge(size, limit)
    assert str(error) == message
    assert (error.size, error.limit) == (size, limit)
    assert isinstance(error, PayloadError)
    assert isinstance(error, ValidationError)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (-1, JobNotFound),
        (-2, LeaseLost),
        (-3, WrongState),
        (-4, PendingChildren),
        (-5, ParentMissing),
        (-6, LeaseLost),
        (-7, ParentConflict),
        (-8, SchedulerOwned),
        (-9, FailedChildren),
        (-10, JobError),
        (-11, JobError),
        (-99, JobError),
    ],
)
def test_every_code_has_its_error(code: int, kind: type[JobError]) -> None:
    error = error_for_code(code, "j1", "finish")
    assert type(error) is kind
    assert (error.job_id, error.code) == ("j1", code)
    assert str(error).startswith("cannot finish job j1: ")
    assert str(error).endswith(f"(code {code})")


def test_a_lost_lease_reports_whether_another_worker_has_it() -> None:
    assert "gone" in str(error_for_code(-2, "j", "finish"))
    assert "another worker" in str(error_for_code(-6, "j", "finish"))


def test_errors_made_without_a_script_know_their_code() -> None:
    assert JobNotFound("j").code == -1
    assert JobLocked("j").code is None
    assert str(JobLocked("j")) == "job j: a worker runs it"


def test_job_failed() -> None:
    error = JobFailed("j", "boom", ["trace"], "permanent")
    assert str(error) == "job j failed (permanent): boom"
    assert (error.reason, error.stacktrace, error.category) == ("boom", ["trace"], "permanent")
    assert JobFailed("j", "boom").stacktrace == []


def test_missing_extra_names_the_pip_command() -> None:
    error = MissingExtra("tracing", "otel")
    assert "pip install 'oxcart[otel]'" in str(error)
    assert isinstance(error, ImportError)


def test_result_timeout_is_a_timeout() -> None:
    assert issubclass(ResultTimeout, TimeoutError)


EXAMPLES = [
    ValidationError("a", "at least 1", 0),
    PayloadTooLarge(2, 1),
    SealError("altered", "k1"),
    error_for_code(-6, "j", "finish"),
    JobFailed("j", "boom", ["t"], "system"),
    MissingExtra("x", "y"),
    TemporaryError("later", ValueError("x"), "5s"),
    PermanentError("never", None, "E1"),
    errors.OutcomeUnknown("sent"),
]


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda e: type(e).__name__)
def test_errors_cross_process_boundaries(error: OxcartError) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert {k: v for k, v in vars(copy).items() if k != "cause"} == {
        k: v for k, v in vars(error).items() if k != "cause"
    }


def test_every_error_has_the_one_root() -> None:
    kinds = [v for v in vars(errors).values() if isinstance(v, type) and issubclass(v, Exception)]
    assert len(kinds) > 20
    assert all(issubclass(kind, OxcartError) for kind in kinds)
