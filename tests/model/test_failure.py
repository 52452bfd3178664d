import asyncio
import builtins
import errno
import http
import json
import pickle
import sqlite3
import urllib.error
from concurrent.futures.process import BrokenProcessPool
from email.message import Message
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from oxcart.model.errors import BrokerUnavailable, PayloadError, ScriptError, ValidationError
from oxcart.model.failure import (
    DEFAULT_RULES,
    Category,
    Classifier,
    PermanentError,
    Rule,
    TemporaryError,
    classify,
    http_status,
)

T, P, SYSTEM = Category.TEMPORARY, Category.PERMANENT, Category.SYSTEM


class HTTPError(Exception):
    """An error of an HTTP client whose status attribute the test chooses."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__("http")
        for name, value in attributes.items():
            setattr(self, name, value)


def foreign(module: str, name: str, base: type[Exception] = Exception) -> Exception:
    """An error of a package that is not installed."""
    kind: type[Exception] = type(name, (base,), {"__module__": module})
    return kind("boom")


def raised_by(call: Any, *args: Any, **kwargs: Any) -> BaseException:
    with pytest.raises(Exception) as caught:  # noqa: PT011 - whatever it is, it is what we want
        call(*args, **kwargs)
    return caught.value


def with_cause(error: Exception, cause: BaseException) -> Exception:
    error.__cause__ = cause
    return error


class Order(msgspec.Struct):
    total: int


# The cases of the research, in its order and with its names.
CASES: list[tuple[str, BaseException, Category]] = [
    ("network timeout", TimeoutError("timed out"), T),
    ("http 503", HTTPError(status_code=503), T),
    ("http 404", HTTPError(status_code=404), P),
    ("invalid json payload", raised_by(json.loads, "{"), P),
    ("redis connection lost", foreign("redis.exceptions", "ConnectionError"), T),
    ("redis connection lost, as ours", BrokerUnavailable("lost"), T),
    ("redis transaction conflict", foreign("redis.exceptions", "WatchError"), T),
    ("validation error", ValidationError("a", "at least 1", 0), P),
    ("auth error", HTTPError(status_code=401), P),
    # transient, one by one
    ("deadline exceeded", TimeoutError("deadline"), T),
    ("context cancelled", asyncio.CancelledError(), T),
    ("eof", EOFError(), T),
    ("unexpected eof", asyncio.IncompleteReadError(b"", 4), T),
    ("econnreset", ConnectionResetError(errno.ECONNRESET, "reset"), T),
    ("econnrefused", ConnectionRefusedError(errno.ECONNREFUSED, "refused"), T),
    ("etimedout", OSError(errno.ETIMEDOUT, "timed out"), T),
    ("broken pipe", BrokenPipeError(), T),
    ("http 500", HTTPError(status_code=500), T),
    ("http 502", HTTPError(status_code=502), T),
    ("http 504", HTTPError(status_code=504), T),
    ("http 599", HTTPError(status_code=599), T),
    ("database connection", foreign("psycopg.errors", "OperationalError"), T),
    ("database deadlock", foreign("psycopg.errors", "DeadlockDetected"), T),
    ("message queue timeout", foreign("kafka.errors", "KafkaTimeoutError"), T),
    ("cloud storage 503", HTTPError(response={"ResponseMetadata": {"HTTPStatusCode": 503}}), T),
    ("cloud storage 404", HTTPError(response={"ResponseMetadata": {"HTTPStatusCode": 404}}), P),
    ("out of memory", MemoryError(), SYSTEM),
    ("resource temporarily unavailable", BlockingIOError(errno.EAGAIN, "again"), T),
    # permanent, one by one
    ("missing payload field", raised_by(msgspec.convert, {}, Order), P),
    ("invalid data type", raised_by(msgspec.convert, {"total": "x"}, Order), P),
    (
        "schema validation, pydantic",
        foreign("pydantic_core._pydantic_core", "ValidationError", ValueError),
        P,
    ),
    ("schema validation, pydantic 1", foreign("pydantic.error_wrappers", "ValidationError", ValueError), P),
    ("schema validation, jsonschema", foreign("jsonschema.exceptions", "ValidationError"), P),
    ("payload", PayloadError("data", "JSON", "{"), P),
    ("http 403", HTTPError(status_code=403), P),
    ("permission denied", PermissionError(errno.EACCES, "denied"), P),
    ("http 410", HTTPError(status_code=410), P),
    ("missing resource", PermanentError("no such user", code="user_missing"), P),
    ("business rule", PermanentError("the order is already paid"), P),
    ("data integrity", sqlite3.IntegrityError("UNIQUE constraint failed"), P),
    ("data integrity, asyncpg", foreign("asyncpg.exceptions", "IntegrityConstraintViolationError"), P),
    ("unsupported operation", NotImplementedError(), P),
    # the statuses that ask for another attempt
    ("http 400", HTTPError(status_code=400), P),
    ("http 408", HTTPError(status_code=408), T),
    ("http 425", HTTPError(status_code=425), T),
    ("http 429", HTTPError(status_code=429), T),
    ("http 422", HTTPError(status_code=422), P),
    ("http 304", HTTPError(status_code=304), T),
    # unknown means: try again
    ("unknown", RuntimeError("?"), T),
    ("a handler's own ValueError", ValueError("?"), T),
    ("a handler's own TypeError", TypeError("?"), T),
    ("a handler's own KeyError", KeyError("?"), T),
    ("another package's ValidationError", foreign("shop.orders", "ValidationError"), T),
    ("a missing file may still come", FileNotFoundError(errno.ENOENT, "no"), T),
    # the machine
    ("disk full", OSError(errno.ENOSPC, "full"), SYSTEM),
    ("too many files", OSError(errno.EMFILE, "files"), SYSTEM),
    ("worker process died", BrokenProcessPool(), SYSTEM),
    ("exit", SystemExit(1), SYSTEM),
    ("job server refuses", ScriptError("OOM command not allowed"), SYSTEM),
    # raised by the handler, whatever the cause
    ("temporary by word", TemporaryError("later", cause=PermissionError()), T),
    ("permanent by word", PermanentError("never", cause=TimeoutError()), P),
    # behind another error
    ("unknown from 404", with_cause(RuntimeError("x"), HTTPError(status_code=404)), P),
    ("two unknown from 503", with_cause(RuntimeError("x"), with_cause(KeyError(), HTTPError(code=503))), T),
]


@pytest.mark.parametrize(("error", "category"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_classify(error: BaseException, category: Category) -> None:
    assert classify(error) is category
    assert Classifier.default().classify(error) is category


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (HTTPError(status_code=404), 404),
        (HTTPError(status=404), 404),
        (HTTPError(code=404), 404),
        (HTTPError(status=http.HTTPStatus.NOT_FOUND), 404),
        (HTTPError(response=SimpleNamespace(status_code=404)), 404),
        (HTTPError(response=SimpleNamespace(status=404)), 404),
        (HTTPError(response={"ResponseMetadata": {"HTTPStatusCode": 404}}), 404),
        (urllib.error.HTTPError("http://x", 404, "no", Message(), None), 404),
        (HTTPError(status_code=None, response=None), None),
        (HTTPError(status_code="404"), None),
        (HTTPError(status_code=True), None),
        (HTTPError(code=1006), None),
        (HTTPError(code=-6), None),
        (HTTPError(code=lambda: 404), None),
        (HTTPError(response={}), None),
        (HTTPError(response="text"), None),
        (RuntimeError(), None),
    ],
)
def test_where_clients_keep_the_status(error: BaseException, status: int | None) -> None:
    assert http_status(error) == status


def test_a_property_that_raises_does_not_hide_the_failure() -> None:
    class Awkward(Exception):
        @property
        def status(self) -> int:
            raise RuntimeError("not connected")

    assert classify(Awkward()) is T


def test_a_group_is_retried_while_one_member_may_succeed() -> None:
    assert classify(ExceptionGroup("g", [PermissionError(), TimeoutError()])) is T
    assert classify(ExceptionGroup("g", [PermissionError(), PermanentError("no")])) is P


def test_a_circle_of_causes_ends() -> None:
    a, b = RuntimeError("a"), RuntimeError("b")
    a.__cause__, b.__cause__ = b, a
    assert classify(a) is T


def test_rules_in_front_win() -> None:
    strict = Classifier.default().with_rule(
        Rule(category=P, types=(KeyError,)), Rule(category=T, statuses=((404, 404),))
    )
    assert strict.classify(KeyError()) is P
    assert strict.classify(HTTPError(status=404)) is T
    assert strict.classify(HTTPError(status=403)) is P
    assert classify(KeyError()) is T


def test_the_whole_table_can_be_replaced() -> None:
    only = Classifier(rules=(Rule(category=P, names=("shop.Final",)),), unknown=SYSTEM)
    assert only.classify(foreign("shop.orders", "Final")) is P
    assert only.classify(HTTPError(status=404)) is SYSTEM


def test_every_rule_has_a_reason() -> None:
    assert all(rule.why for rule in DEFAULT_RULES)


@pytest.mark.parametrize(
    ("category", "retryable"),
    [("temporary", True), ("permanent", False), ("timeout", True), ("cancelled", False), ("system", True)],
)
def test_categories(category: str, retryable: bool) -> None:
    assert Category(category).retryable is retryable
    assert len(Category) == 5


def test_temporary_error() -> None:
    cause = ValueError("x")
    error = TemporaryError("later", cause=cause, retry_after="5s")
    assert str(error) == "later"
    assert error.__cause__ is cause
    assert error.retry_after_ms == 5000
    assert TemporaryError("later").retry_after_ms is None
    with pytest.raises(ValidationError, match="retry_after must be at least 0, got -1"):
        TemporaryError("later", retry_after=-1)


def test_temporary_error_with_a_code() -> None:
    error = TemporaryError("later", retry_after="5s", code="E42")
    assert (error.code, TemporaryError("later").code) == ("E42", None)
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), copy.code, copy.retry_after_ms) == ("later", "E42", 5000)


def test_permanent_error() -> None:
    error = PermanentError("no", code="E42")
    assert (str(error), error.code, error.cause) == ("no", "E42", None)
    assert pickle.loads(pickle.dumps(error)).code == "E42"


def test_no_builtin_exception_breaks_the_table() -> None:
    kinds = [v for v in vars(builtins).values() if isinstance(v, type) and issubclass(v, BaseException)]
    for kind in kinds:
        try:
            error = kind()
        except TypeError:
            continue
        assert isinstance(classify(error), Category)
