from datetime import timedelta
from typing import Any

import pytest
from msgspec import UNSET

from oxcart.model.backoff import DEFAULT_BACKOFF, Backoff
from oxcart.model.errors import ValidationError
from oxcart.model.options import DEFAULT_OPTIONS, MAX_PRIORITY, JobOptions, check_together, merge
from oxcart.model.retention import KEEP, REMOVE, Retention


def test_defaults() -> None:
    options = JobOptions.build()
    assert options.attempts == 3
    assert options.backoff == DEFAULT_BACKOFF
    assert options.timeout is UNSET
    assert options is JobOptions.build()
    assert options is DEFAULT_OPTIONS


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("attempts", 1, 1),
        ("backoff", "fixed", Backoff("fixed", 1000)),
        ("backoff", 2, Backoff("fixed", 2000)),
        ("delay", "5m", 300_000),
        ("delay", 0, 0),
        ("priority", 0, 0),
        ("priority", MAX_PRIORITY, MAX_PRIORITY),
        ("lifo", True, True),
        ("remove_on_complete", True, REMOVE),
        ("remove_on_fail", False, KEEP),
        ("remove_on_fail", {"count": 5}, Retention(count=5)),
        ("remove_on_fail", None, None),
        ("job_id", "user-42", "user-42"),
        ("job_id", None, None),
        ("timestamp", 0, 0),
        ("timestamp", 1_700_000_000_000, 1_700_000_000_000),
        ("keep_logs", 1, 1),
        ("timeout", "30s", 30_000),
        ("timeout", timedelta(hours=1), 3_600_000),
        ("timeout", None, None),
        ("timeout", UNSET, UNSET),
        ("stack_trace_limit", 0, 0),
        ("size_limit", 16 * 2**20, 16 * 2**20),
    ],
)
def test_accepted(name: str, value: Any, expected: Any) -> None:
    assert getattr(JobOptions.build(**{name: value}), name) == expected


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("attempts", 0, "attempts must be at least 1, got 0"),
        ("attempts", -3, "attempts must be at least 1, got -3"),
        ("attempts", True, "attempts must be an integer, at least 1, got True"),
        ("attempts", "3", "attempts must be an integer, at least 1, got '3'"),
        ("attempts", 2**31, "attempts must be at most 2147483647, got 2147483648"),
        ("delay", -1, "delay must be at least 0, got -1"),
        ("priority", -1, "priority must be at least 0, got -1"),
        ("priority", 2_097_152, "priority must be an integer from 0 to 2097151, got 2097152"),
        ("priority", 1.0, "priority must be an integer from 0 to 2097151, got 1.0"),
        ("priority", "high", "names need a queue with formal priorities), got 'high'"),
        ("lifo", 1, "lifo must be True or False, got 1"),
        ("backoff", "x", "backoff must be one of fixed, exponential, linear, custom, got 'x'"),
        ("remove_on_complete", -1, "remove_on_complete must be True, False, an integer of at least 0"),
        ("remove_on_fail", -1, "remove_on_fail must be True, False, an integer of at least 0"),
        ("job_id", "12", "job_id must be an id that does not look like an integer, got '12'"),
        ("timestamp", -1, "timestamp must be an integer from 0 to"),
        ("keep_logs", 0, "keep_logs must be at least 1, got 0"),
        ("keep_logs", "9", "keep_logs must be an integer, at least 1, got '9'"),
        ("timeout", 0, "timeout must be at least 1 ms, got 0"),
        ("stack_trace_limit", -1, "stack_trace_limit must be at least 0, got -1"),
        ("size_limit", 16 * 2**20 + 1, "size_limit must be an integer from 1 to 16777216, got 16777217"),
        ("size_limit", 0, "size_limit must be an integer from 1 to 16777216, got 0"),
        ("attemts", 3, "unknown option 'attemts': did you mean attempts"),
        ("removeOnComplete", 3, "unknown option 'removeOnComplete': did you mean remove_on_complete"),
        ("xyzzy", 3, "unknown option 'xyzzy': known are after, attempts, backoff, callback_url"),
    ],
)
def test_refused(name: str, value: Any, message: str) -> None:
    with pytest.raises(ValidationError) as caught:
        JobOptions.build(**{name: value})
    assert message in str(caught.value)
    assert caught.value.field.startswith(name)


def test_replace_changes_only_what_it_names() -> None:
    options = JobOptions.build(attempts=5, delay="1s").replace(delay=0)
    assert (options.attempts, options.delay) == (5, 0)
    assert options.replace() is options


def test_merge_lets_the_call_overrule_the_defaults() -> None:
    defaults = JobOptions.build(attempts=7, timeout="1m")
    assert merge(defaults, timeout=None).timeout is None
    assert merge(defaults, timeout=None).attempts == 7
    assert merge(defaults) is defaults
    assert merge(None) is DEFAULT_OPTIONS


def test_options_can_be_remembered_by_value() -> None:
    assert hash(JobOptions.build(attempts=4)) == hash(JobOptions.build(attempts=4))
    assert JobOptions.build(attempts=4) == JobOptions.build(attempts=4)


def test_a_delay_may_be_as_long_as_the_lifetime() -> None:
    for fine in (
        JobOptions(delay=3_600_000, lifetime=3_600_000),
        JobOptions(delay=5),
        JobOptions(lifetime=5),
    ):
        check_together(fine)
    with pytest.raises(ValidationError, match="delay must be within the lifetime"):
        check_together(JobOptions(delay=61, lifetime=60))


def test_an_idempotency_key_has_up_to_256_characters() -> None:
    assert JobOptions.build(idempotency_key="x" * 256).idempotency_key == "x" * 256
    for bad in ("", "x" * 257):
        with pytest.raises(ValidationError, match="idempotency_key must be a string of 1 to 256 characters"):
            JobOptions.build(idempotency_key=bad)


@pytest.mark.parametrize("names", [["ValueError"], ("ValueError",), {"ValueError"}])
def test_names_of_errors_are_a_list(names: Any) -> None:
    assert JobOptions.build(skip_on=names).skip_on == ("ValueError",)


@pytest.mark.parametrize("names", ["ValueError", 5, [""], [5], None])
def test_what_is_no_list_of_names_is_refused(names: Any) -> None:
    with pytest.raises(ValidationError, match="skip_on"):
        JobOptions.build(skip_on=names)


def test_options_are_shared_only_without_facts_of_one_job() -> None:
    assert JobOptions.build(attempts=5).is_shared
    for own in ({"idempotency_key": "k"}, {"job_id": "j-1"}, {"limit_key": "k"}, {"tags": {"a": "b"}}):
        assert not JobOptions.build(**own).is_shared


def test_options_are_named_and_unset_at_first() -> None:
    assert JobOptions().priority == 0
    with pytest.raises(TypeError):
        JobOptions(5)  # type: ignore[call-arg, arg-type]
