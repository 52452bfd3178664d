from typing import Any

import pytest

from oxcart.model.errors import ValidationError
from oxcart.model.names import check_job_id, check_job_name, check_new_id, check_queue_name


@pytest.mark.parametrize("name", ["emails", "{emails}", "video@all;c=gpu", "ünï", " "])
def test_queue_names(name: str) -> None:
    assert check_queue_name(name) == name


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("", "queue name must be a non-empty string, got ''"),
        (None, "queue name must be a non-empty string, got None"),
        (b"q", "queue name must be a non-empty string, got b'q'"),
        ("a:b", "queue name must be without ':', got 'a:b'"),
        ("\ud800", "queue name must be text that UTF-8 can hold"),
    ],
)
def test_bad_queue_names(name: Any, message: str) -> None:
    with pytest.raises(ValidationError) as caught:
        check_queue_name(name)
    assert message in str(caught.value)


def test_job_names() -> None:
    assert check_job_name("send:email") == "send:email"
    for bad in ("", None, 5, "\udfff"):
        with pytest.raises(ValidationError, match="job name must be "):
            check_job_name(bad)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "job_id", ["user-42", "1a", "a:b:c", "repeat:x:17000", "0x10", "1.5", "Infinity", "é"]
)
def test_job_ids(job_id: str) -> None:
    assert check_job_id(job_id) == job_id


@pytest.mark.parametrize(
    ("job_id", "message"),
    [
        ("", "job_id must be a non-empty string"),
        (7, "job_id must be a non-empty string, got 7"),
        ("0", "job_id must be an id that does not look like an integer, got '0'"),
        ("12", "job_id must be an id that does not look like an integer"),
        ("-12", "job_id must be an id that does not look like an integer"),
        ("NaN", "job_id must be an id that does not look like an integer"),
        ("0:a:b", "job_id must be an id that does not start with '0:'"),
        ("0:1", "job_id must be an id that does not start with '0:'"),
        ("a:b", "job_id must be without ':', or of exactly three segments, got 'a:b'"),
        ("a:b:c:d", "job_id must be without ':', or of exactly three segments"),
        ("meta", "job_id must be different from the queue's own keys, got 'meta'"),
        ("wait", "job_id must be different from the queue's own keys"),
        ("ox:a:b", "job_id must be different from the queue's own keys"),
        ("metrics:completed:data", "job_id must be different from the queue's own keys"),
        ("\ud800", "job_id must be text that UTF-8 can hold"),
    ],
)
def test_bad_job_ids(job_id: Any, message: str) -> None:
    with pytest.raises(ValidationError) as caught:
        check_job_id(job_id)
    assert message in str(caught.value)


def test_ids_of_a_flow_differ_within_a_queue() -> None:
    seen: set[tuple[str, str, str]] = set()
    for queue in (("bull", "a"), ("bull", "b")):
        check_new_id("one", queue, "flow", seen)
        check_new_id(None, queue, "flow", seen)
    assert seen == {("bull", "a", "one"), ("bull", "b", "one")}
    with pytest.raises(ValidationError, match="different for every job of a flow"):
        check_new_id("one", ("bull", "a"), "flow", seen)
