import dataclasses
import datetime
import decimal
import enum
import uuid
from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oxcart.model.errors import PayloadError, PayloadTooLarge
from oxcart.model.payload import check_size, decode, encode


class Colour(str, enum.Enum):  # noqa: UP042 - the old way of mixing is what is tested
    RED = "red"


class Level(enum.IntEnum):
    LOW = 1


class Text(str):
    pass


class Real(float):
    pass


class Point(NamedTuple):
    x: int
    y: int


@dataclasses.dataclass
class Letter:
    to: str
    body: bytes


class Stamp(msgspec.Struct):
    at: datetime.datetime
    colour: Colour


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "null"),
        (True, "true"),
        (5, "5"),
        ("é", '"é"'),
        ([], "[]"),
        ({}, "{}"),
        ({"a": 1, "b": None, "c": "x"}, '{"a":1,"b":null,"c":"x"}'),
        ({"a": [1.5, {"b": (2, 3)}]}, '{"a":[1.5,{"b":[2,3]}]}'),
        ({1: "x", -2: "y"}, '{"1":"x","-2":"y"}'),
        ({Text("k"): Text("v"), Colour.RED: Real(1.5)}, '{"k":"v","red":1.5}'),
        ({"a": Colour.RED, "b": Level.LOW}, '{"a":"red","b":1}'),
        ({"a": Point(1, 2)}, '{"a":[1,2]}'),
        ({"a": b"\x00\xff"}, '{"a":{"$bytes":"AP8="}}'),
        (bytearray(b"x"), '{"$bytes":"eA=="}'),
        (memoryview(b"x"), '{"$bytes":"eA=="}'),
        ({"d": datetime.date(2024, 2, 29)}, '{"d":"2024-02-29"}'),
        ({"u": uuid.UUID(int=1)}, '{"u":"00000000-0000-0000-0000-000000000001"}'),
        ({"d": decimal.Decimal("1.10")}, '{"d":"1.10"}'),
        (Letter("ada", b"x"), '{"to":"ada","body":{"$bytes":"eA=="}}'),
        (
            Stamp(datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC), Colour.RED),
            '{"at":"2024-01-01T00:00:00Z","colour":"red"}',
        ),
        ({"a": 2**64 - 1, "b": -(2**63)}, '{"a":18446744073709551615,"b":-9223372036854775808}'),
        ("\ud800", '"\\ud800"'),
        ({"a": "\udfff", "b": b"x"}, '{"a":"\\udfff","b":{"$bytes":"eA=="}}'),
    ],
)
def test_encoded_as(value: Any, text: str) -> None:
    assert encode(value).decode() == text


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (float("nan"), "data must be a finite number, got nan"),
        ({"a": float("inf")}, "data.a must be a finite number, got inf"),
        ({"a": [1, {"b": float("-inf")}]}, "data.a[1].b must be a finite number, got -inf"),
        ({"a": Real("nan")}, "data.a must be a finite number"),
        ({"a": 2**64}, "data.a must be an integer of at most 64 bit, got 18446744073709551616"),
        ({"a": [-(2**63) - 1]}, "data.a[0] must be an integer of at most 64 bit"),
        ({"a": object()}, "data.a must be something JSON can hold, got <object"),
        ({"a": lambda: 1}, "data.a must be something JSON can hold"),
        ({"a": 1j}, "data.a must be something JSON can hold, got 1j"),
        ({None: 1}, "data must be an object whose keys are strings or integers, got None"),
        ({"x": {1.5: 1}}, "data.x must be an object whose keys are strings or integers, got 1.5"),
        ({b"k": 1}, "data must be an object whose keys are strings or integers, got b'k'"),
        ({True: 1}, "data must be an object whose keys are strings or integers, got True"),
        ({1: "a", "1": "b"}, "data must be an object without two keys that both read '1'"),
        (Letter(object(), b""), "data must be something JSON can hold"),  # type: ignore[arg-type]
    ],
)
def test_refused_before_anything_is_written(value: Any, message: str) -> None:
    with pytest.raises(PayloadError) as caught:
        encode(value)
    assert message in str(caught.value)


def circles() -> list[Any]:
    a: list[Any] = []
    a.append(a)
    b: dict[str, Any] = {}
    b["b"] = b
    c: dict[Any, Any] = {1: b"x"}
    c["c"] = [c]
    deep: Any = 0
    for _ in range(100_000):
        deep = [deep]
    return [a, b, {"x": {"y": a}}, c, deep]


@pytest.mark.parametrize("value", circles(), ids=["list", "dict", "nested", "unplain", "deep"])
def test_circles(value: Any) -> None:
    with pytest.raises(PayloadError, match="data must be free of circles and not nested too deeply"):
        encode(value)


def test_the_field_is_named() -> None:
    with pytest.raises(PayloadError, match=r"^progress must be a finite number"):
        encode(float("nan"), field="progress")


plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
    | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text().filter(lambda key: key != "$bytes"), inner),
    max_leaves=20,
)


@pytest.mark.slow
@given(plain)
def test_values_survive_a_round_trip(value: Any) -> None:
    raw = encode(value)
    assert decode(raw) == value
    assert decode(raw.decode()) == value


def joined(text: str) -> str:
    """Two adjacent halves of a surrogate pair are one character, in JavaScript as in JSON."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")


# st.text() leaves surrogates out; JavaScript's strings do not.
rough = st.text(st.characters(categories=["Lu", "Cs"]), max_size=5).map(joined)


@given(st.dictionaries(rough, rough | st.binary(max_size=3)))
def test_lone_surrogates_come_back_as_they_were(value: Any) -> None:
    assert decode(encode(value)) == value


@pytest.mark.parametrize(
    ("raw", "value"),
    [
        (b'{"a":1}', {"a": 1}),
        ('{"a":1}', {"a": 1}),
        ('"\\ud83d"', "\ud83d"),
        ("123456789012345678901", 123456789012345678901),
        ('{"$bytes":"eA=="}', b"x"),
        ('{"a":[{"$bytes":""}]}', {"a": [b""]}),
        ('{"$bytes":"not base64!"}', {"$bytes": "not base64!"}),
        ('{"$bytes":"eA==","b":1}', {"$bytes": "eA==", "b": 1}),
        ('{"$bytes":5}', {"$bytes": 5}),
        ('"$bytes"', "$bytes"),
    ],
)
def test_decoded_as(raw: bytes | str, value: Any) -> None:
    assert decode(raw) == value


@pytest.mark.parametrize(
    "raw", ["", "{", "NaN", "[Infinity]", "undefined", b"\xff", b'"\xff"', "[" * 100_000]
)
def test_decode_refuses_invalid_json(raw: bytes | str) -> None:
    with pytest.raises(PayloadError, match="data must be "):
        decode(raw)


def test_size() -> None:
    ten = 10 * 2**20
    check_size(b"x" * (ten - 2), b"{}")
    with pytest.raises(PayloadTooLarge, match=r"size 10\.000001 MB exceeds limit of 10\.000000 MB$"):
        check_size(b"x" * (ten - 1), b"{}")
    with pytest.raises(PayloadTooLarge, match=r"^Job payload size 12\.3 MB exceeds limit of 10\.0 MB$"):
        check_size(b"x" * int(12.3 * 2**20), b"{}")
    check_size(b"x" * int(12.3 * 2**20), b"{}", 16 * 2**20)
