"""How a payload becomes a handler's arguments."""

from __future__ import annotations

import datetime
import functools
import json
import uuid
from dataclasses import dataclass
from typing import Any, Literal, cast

import msgspec
import pytest

from oxcart import RunningJob
from oxcart.engine.handler import Handler, Handlers, RunKind
from oxcart.model import payload
from oxcart.model.errors import Undecodable, ValidationError
from oxcart.model.failure import PermanentError, classify


class Address(msgspec.Struct):
    street: str
    number: int = 1


@dataclass
class Person:
    name: str
    age: int


class Unknown:
    """A type that msgspec does not know."""


async def welcome(to: str, name: str = "you") -> None: ...


async def with_job(job: RunningJob, to: str) -> None: ...


async def job_by_annotation(running: RunningJob, to: str) -> None: ...


async def only_job(job: RunningJob) -> None: ...


async def nothing() -> None: ...


async def typed(
    when: datetime.datetime,
    ref: uuid.UUID,
    address: Address,
    person: Person,
    kind: Literal["a", "b"],
    tags: list[str],
    raw: bytes = b"",
    maybe: int | None = None,
) -> None: ...


async def untyped(a, b=2): ...  # type: ignore[no-untyped-def]


async def spread(a: int, **rest: Any) -> None: ...


async def all_spread(**rest: Any) -> None: ...


async def keyword_only(*, a: int, b: int = 0) -> None: ...


async def strange(a: Unknown, b: int) -> None: ...


async def optional(n: int = 1) -> None: ...


async def starred(*args: Any, a: int) -> None: ...


def bind(function: Any, data: Any) -> dict[str, Any]:
    return Handler("n", function).arguments(payload.encode(data))


class TestArguments:
    @pytest.mark.parametrize(
        ("function", "data", "arguments"),
        [
            (welcome, {"to": "a"}, {"to": "a"}),
            (welcome, {"to": "a", "name": "b"}, {"to": "a", "name": "b"}),
            (welcome, {"to": "a", "other": 5}, {"to": "a"}),
            (with_job, {"to": "a"}, {"to": "a"}),
            (job_by_annotation, {"to": "a"}, {"to": "a"}),
            (only_job, {"anything": 1}, {}),
            (only_job, [1, 2], {}),
            (nothing, "text", {}),
            (untyped, {"a": [1], "b": None}, {"a": [1], "b": None}),
            (untyped, {"a": 1}, {"a": 1}),
            (spread, {"a": 1, "b": 2, "c": [3]}, {"a": 1, "b": 2, "c": [3]}),
            (all_spread, {"x": 1}, {"x": 1}),
            (all_spread, None, {}),
            (optional, None, {}),
            (keyword_only, {"a": 1}, {"a": 1}),
            (starred, {"a": 1}, {"a": 1}),
        ],
    )
    def test_table(self, function: Any, data: Any, arguments: dict[str, Any]) -> None:
        assert bind(function, data) == arguments

    def test_types_are_made_from_json(self) -> None:
        ref = uuid.uuid4()
        arguments = bind(
            typed,
            {
                "when": "2024-05-06T07:08:09Z",
                "ref": str(ref),
                "address": {"street": "Main"},
                "person": {"name": "Ada", "age": 36},
                "kind": "a",
                "tags": ["x"],
                "raw": b"\x00\x01",
            },
        )
        assert arguments["when"].year == 2024
        assert arguments["ref"] == ref
        assert arguments["address"] == Address("Main")
        assert arguments["person"] == Person("Ada", 36)
        assert arguments["raw"] == b"\x00\x01"
        assert "maybe" not in arguments

    @pytest.mark.parametrize(
        ("function", "data", "message"),
        [
            (welcome, {}, "missing required field `to`"),
            (welcome, {"to": 5}, "Expected `str`, got `int` - at `$.to`"),
            (welcome, {"to": "a", "name": None}, "at `$.name`"),
            (welcome, [1], "Expected `object`, got `array`"),
            (welcome, None, "missing required field `to`"),
            (keyword_only, {"a": "1"}, "Expected `int`, got `str`"),
            (all_spread, [1], "the payload is not an object"),
            (all_spread, 5, "the payload is not an object"),
            (spread, {"b": 2}, "missing required field `a`"),
            (strange, {"a": {"any": "thing"}, "b": 3}, "Expected `Unknown`, got `dict`"),
        ],
    )
    def test_a_payload_that_does_not_fit_is_permanent(self, function: Any, data: Any, message: str) -> None:
        with pytest.raises(PermanentError) as caught:
            bind(function, data)
        assert message in str(caught.value)
        assert classify(caught.value) == "permanent"
        assert caught.value.code == "payload"

    def test_raw_data_that_is_no_json(self) -> None:
        for function in (welcome, all_spread):
            with pytest.raises(Exception) as caught:  # noqa: PT011 - whichever, it must be permanent
                Handler("n", function).arguments(b"undefined")
            assert classify(caught.value) == "permanent"

    def test_bytes_and_spread_together(self) -> None:
        assert bind(spread, {"a": 1, "b": b"\xff"}) == {"a": 1, "b": b"\xff"}

    def test_check_before_it_is_enqueued(self) -> None:
        handler = Handler("n", welcome)
        handler.check({"to": "a"})
        with pytest.raises(ValidationError, match="does not fit its handler"):
            handler.check({"name": "a"})
        Handler("n", nothing).check(object())


class TestSignatures:
    @pytest.mark.parametrize(
        ("function", "takes_job", "takes_data"),
        [
            (welcome, None, True),
            (with_job, "job", True),
            (job_by_annotation, "running", True),
            (only_job, "job", False),
            (nothing, None, False),
            (lambda job: None, "job", False),
            (lambda: None, None, False),
        ],
    )
    def test_signature_decides_the_arguments(
        self, function: Any, takes_job: str | None, takes_data: bool
    ) -> None:
        handler = Handler("n", function)
        assert (handler.takes_job, handler.takes_data) == (takes_job, takes_data)

    def test_parameters_that_cannot_be_given_by_name(self) -> None:
        def positional(a: int, /) -> None: ...

        with pytest.raises(ValidationError, match="a function whose parameters can be given by name"):
            Handler("n", positional)

    @pytest.mark.parametrize("name", ["n", "1st", "class", "with space", "ü", "😀", "", "a:b", "None"])
    def test_any_job_name(self, name: str) -> None:
        assert Handler(name, welcome).arguments(b'{"to":"a"}') == {"to": "a"}

    def test_a_method_a_partial_and_a_callable_object(self) -> None:
        class Sender:
            def __init__(self) -> None:
                self.sent: list[str] = []

            async def send(self, to: str) -> None:
                self.sent.append(to)

            async def __call__(self, to: str) -> None: ...

        sender = Sender()
        assert Handler("n", sender.send).arguments(b'{"to":"a"}') == {"to": "a"}
        assert Handler("n", sender.send).kind == "async"
        assert Handler("n", sender).kind == "async"
        bound = functools.partial(welcome, name="fixed")
        assert Handler("n", bound).kind == "async"
        assert Handler("n", bound).arguments(b'{"to":"a"}') == {"to": "a"}

    def test_a_type_that_exists_only_for_the_type_checker(self) -> None:
        namespace: dict[str, Any] = {}
        exec("async def f(job: 'Missing', to: 'AlsoMissing', n: int): ...", namespace)
        assert Handler("n", namespace["f"]).arguments(b'{"to":1,"n":"x"}') == {"to": 1, "n": "x"}


class TestKinds:
    @pytest.mark.parametrize(
        ("function", "run", "kind"),
        [
            (welcome, None, "async"),
            (welcome, "async", "async"),
            (json.dumps, None, "thread"),
            (lambda: None, "thread", "thread"),
            (lambda: None, "process", "process"),
        ],
    )
    def test_table(self, function: Any, run: RunKind | None, kind: str) -> None:
        assert Handler("n", function, run=run).kind == kind

    @pytest.mark.parametrize(
        ("function", "run", "message"),
        [
            (welcome, "thread", "run must be 'async' for an async function, got 'thread'"),
            (welcome, "process", "run must be 'async' for an async function"),
            (lambda: None, "async", "run must be 'thread' or 'process' for a function that is not async"),
            (lambda: None, "fork", "run must be one of 'async', 'thread', 'process', 'spark', got 'fork'"),
        ],
    )
    def test_refused(self, function: Any, run: str, message: str) -> None:
        with pytest.raises(ValidationError, match=message):
            Handler("n", function, run=cast(RunKind, run))


class TestHandlers:
    def test_by_name_and_for_every_name(self) -> None:
        handlers = Handlers()
        assert not handlers
        one, rest = Handler("one", welcome), Handler("*", nothing)
        handlers.add(one)
        assert handlers
        assert handlers.find("other") is None
        handlers.add(rest, fallback=True)
        assert handlers.find("one") is one
        assert handlers.find("other") is rest
        assert handlers.find("*") is rest
        assert handlers.names == ["one"]

    def test_one_handler_per_name(self) -> None:
        handlers = Handlers()
        handlers.add(Handler("one", welcome))
        handlers.add(Handler("one", welcome))
        with pytest.raises(ValidationError, match="has a handler of this name"):
            handlers.add(Handler("one", nothing))


class TestLenientPayloads:
    """Node writes half an emoji, escaped or raw, which a strict JSON reader refuses."""

    @pytest.mark.parametrize("raw", [rb'{"s":"cut \ud83d","n":1}', b'{"s":"cut \xed\xa0\xbd","n":1}'])
    def test_half_a_surrogate_pair_reaches_a_typed_handler(self, raw: bytes) -> None:
        def work(s: str, n: int = 0) -> None: ...

        def spread(**fields: Any) -> None: ...

        expected = {"s": "cut \ud83d", "n": 1}
        assert Handler("work", work).arguments(raw) == expected
        assert Handler("work", spread).arguments(raw) == expected
        assert payload.encode(expected) == rb'{"s":"cut \ud83d","n":1}', "written as Node reads it"

    def test_it_is_checked_against_the_signature_all_the_same(self) -> None:
        def work(s: int) -> None: ...

        with pytest.raises(PermanentError, match="does not fit its handler"):
            Handler("work", work).arguments(rb'{"s":"cut \ud83d"}')

    def test_integers_of_any_size_stay_exact(self) -> None:
        def work(n: Any, s: str = "") -> None: ...

        number = 7 * 10**400 + 1
        assert Handler("work", work).arguments(b'{"n":%d}' % number) == {"n": number}
        raw = b'{"n":%d,"s":"\\ud83d"}' % number
        assert Handler("work", work).arguments(raw) == {"n": number, "s": "\ud83d"}

    @pytest.mark.parametrize(
        "raw", [b"[" * 100_000 + b"]" * 100_000, b'{"s":' + b"9" * 5000 + b"}", b'{"s":', b"\xff"]
    )
    def test_a_field_that_cannot_be_decoded_is_undecodable(self, raw: bytes) -> None:
        def work(s: Any) -> None: ...

        with pytest.raises(Undecodable, match="data must be"):
            Handler("work", work).arguments(raw)
