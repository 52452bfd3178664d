import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oxcart.model.backoff import DEFAULT_BACKOFF, NO_BACKOFF, Backoff
from oxcart.model.duration import MAX_MS
from oxcart.model.errors import ValidationError

HOUR = 3_600_000


def half() -> float:
    return 0.5


def delays(backoff: Backoff, count: int) -> list[int]:
    return [backoff.delay_ms(n, half) for n in range(1, count + 1)]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("exponential", Backoff("exponential", 1000)),
        ("fixed", Backoff("fixed", 1000)),
        ("constant", Backoff("fixed", 1000)),
        ("linear", Backoff("linear", 1000)),
        (5, Backoff("fixed", 5000)),
        (0.5, Backoff("fixed", 500)),
        ({"type": "exponential", "delay": 1000, "cap": "1m"}, Backoff("exponential", 1000, cap=60_000)),
        ({"type": "fixed", "delay": 1}, Backoff("fixed", 1)),
        ({"type": "exponential", "multiplier": 1}, Backoff("exponential", 1000, multiplier=1)),
        ({"type": "exponential", "multiplier": 1000}, Backoff("exponential", 1000, multiplier=1000)),
        ({"type": "fixed", "jitter": 1}, Backoff("fixed", 1000, jitter=1)),
        ({"type": "exponential", "delay": "2s", "cap": 9000}, Backoff("exponential", 2000, cap=9000)),
        ("30s", Backoff("fixed", 30_000)),
        ({"type": "exponential", "delay": 1000}, Backoff("exponential", 1000)),
        ({"type": "constant", "delay": "2s"}, Backoff("fixed", 2000)),
        ({"type": "linear", "delay": "1m", "cap": "10m"}, Backoff("linear", 60_000, cap=600_000)),
        ({"type": "exponential", "cap": None}, Backoff("exponential", 1000, cap=None)),
        ({"type": "custom", "name": "mine"}, Backoff("custom", 1000, name="mine")),
        (Backoff("linear", 7), Backoff("linear", 7)),
    ],
)
def test_forms(value: Any, expected: Backoff) -> None:
    assert Backoff.parse(value) == expected


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("quadratic", "backoff must be one of fixed, exponential, linear, custom, got 'quadratic'"),
        ({"type": "x"}, "backoff.type must be one of fixed, exponential, linear, custom, got 'x'"),
        ({"type": ["x"]}, "backoff.type must be one of"),
        ({"delay": 5}, "backoff must be an object with a type, got {'delay': 5}"),
        (
            {"type": "fixed", "delay": 0},
            "backoff.delay must be a whole number of milliseconds, at least 1, got 0",
        ),
        ({"type": "fixed", "delay": -1}, "backoff.delay must be a whole number of milliseconds, at least 1"),
        ({"type": "fixed", "delay": 0.5}, "backoff.delay must be a whole number of milliseconds, at least 1"),
        ({"type": "fixed", "delay": float("nan")}, "backoff.delay must be a whole number of milliseconds"),
        ({"type": "fixed", "delay": True}, "backoff.delay must be a duration"),
        ({"type": "fixed", "delay": "0s"}, "backoff.delay must be at least 1 ms, got '0s'"),
        ({"type": "fixed", "dealy": 1}, "did you mean 'delay'?), got 'dealy'"),
        (
            {"type": "linear", "cap": 0},
            "backoff.cap must be a whole number of milliseconds, at least 1, got 0",
        ),
        (
            {"type": "exponential", "multiplier": 0.5},
            "backoff.multiplier must be a number from 1 to 1000, got 0.5",
        ),
        (
            {"type": "exponential", "multiplier": "2"},
            "backoff.multiplier must be a number from 1 to 1000, got '2'",
        ),
        ({"type": "fixed", "jitter": 1.1}, "backoff.jitter must be a number from 0 to 1, got 1.1"),
        ({"type": "fixed", "jitter": -0.1}, "backoff.jitter must be a number from 0 to 1, got -0.1"),
        ({"type": "fixed", "jitter_mode": "up"}, "backoff.jitter_mode must be 'both' or 'down', got 'up'"),
        ("custom", "backoff.name must be the name of the custom strategy, got None"),
        ({"type": "custom", "name": ""}, "backoff.name must be the name of the custom strategy, got ''"),
        (0, "backoff must be at least 1 ms, got 0"),
        (None, "backoff must be a duration"),
        (True, "backoff must be a duration"),
        (Backoff("fixed", 0), "backoff.delay must be a whole number of milliseconds, at least 1, got 0"),
    ],
)
def test_refused(value: Any, message: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Backoff.parse(value)
    assert message in str(caught.value)


def test_an_instance_is_brought_to_milliseconds() -> None:
    assert Backoff.parse(Backoff("fixed", "2s")) == Backoff("fixed", 2000)  # type: ignore[arg-type]


def test_default_figures() -> None:
    assert delays(DEFAULT_BACKOFF, 5) == [1000, 2000, 4000, 8000, 16_000]
    assert DEFAULT_BACKOFF.delay_ms(10, half) == 512_000
    assert DEFAULT_BACKOFF.delay_ms(12, half) == 2_048_000
    assert DEFAULT_BACKOFF.delay_ms(13, half) == HOUR


def test_attempt_15_waits_an_hour_and_not_four_and_a_half() -> None:
    assert DEFAULT_BACKOFF.delay_ms(15, half) == HOUR
    assert DEFAULT_BACKOFF.delay_ms(20, half) == HOUR
    assert DEFAULT_BACKOFF.delay_ms(10**9, half) == HOUR


@pytest.mark.parametrize(
    ("backoff", "expected"),
    [
        (Backoff("fixed", 700), [700, 700, 700, 700]),
        (Backoff("linear", 500), [500, 1000, 1500, 2000]),
        (Backoff("linear", 500, cap=1200), [500, 1000, 1200, 1200]),
        (Backoff("exponential", 100, multiplier=3), [100, 300, 900, 2700]),
        (Backoff("exponential", 3, multiplier=1.5), [3, 5, 7, 10]),
        (Backoff("exponential", 100, cap=250), [100, 200, 250, 250]),
        (Backoff("fixed", 7_200_000), [7_200_000] * 4),
        (NO_BACKOFF, [0, 0, 0, 0]),
    ],
)
def test_figures(backoff: Backoff, expected: list[int]) -> None:
    assert delays(backoff, 4) == expected


def test_jitter_both_ways_spreads_around_the_delay() -> None:
    backoff = Backoff("fixed", 1000, jitter=0.1)
    assert backoff.delay_ms(1, lambda: 0.0) == 900
    assert backoff.delay_ms(1, half) == 1000
    assert 1099 <= backoff.delay_ms(1, lambda: 0.999999) <= 1100


def test_jitter_down_is_nodes() -> None:
    backoff = Backoff("exponential", 1000, jitter=0.5, jitter_mode="down")
    assert backoff.delay_ms(2, lambda: 0.0) == 1000
    assert backoff.delay_ms(2, half) == 1500
    assert backoff.delay_ms(2, lambda: 0.999999) == 1999


def test_jitter_never_passes_the_cap() -> None:
    backoff = Backoff("exponential", 1000, jitter=1.0)
    assert backoff.delay_ms(15, lambda: 0.999999) == HOUR


def test_custom() -> None:
    backoff = Backoff("custom", 500, cap=9000, name="mine")
    calls: list[Any] = []

    def mine(attempt: int, delay: int, cap: int | None) -> float:
        calls.append((attempt, delay, cap))
        return attempt * 10.4

    assert backoff.delay_ms(3, half, {"mine": mine}) == 31
    assert calls == [(3, 500, 9000)]
    assert backoff.delay_ms(1, half, {"mine": lambda *_: -1}) == -1
    assert backoff.delay_ms(1, half, {"mine": lambda *_: 1e300}) == MAX_MS


def test_an_unknown_custom_strategy_waits_the_base_delay() -> None:
    backoff = Backoff("custom", 500, name="mine")
    assert backoff.delay_ms(3, half) == 500
    assert backoff.delay_ms(3, half, {"other": lambda *_: 1}) == 500


@pytest.mark.parametrize("value", [None, "5s", float("nan"), True])
def test_a_custom_strategy_must_return_a_number(value: Any) -> None:
    with pytest.raises(ValidationError, match="backoff strategy 'mine' must be a function that returns mill"):
        Backoff("custom", 500, name="mine").delay_ms(1, half, {"mine": lambda *_: value})


@pytest.mark.parametrize(
    ("backoff", "wire"),
    [
        (DEFAULT_BACKOFF, {"type": "exponential", "delay": 1000}),
        (Backoff("fixed", 5), {"type": "fixed", "delay": 5}),
        (Backoff("linear", 5), {"type": "exponential", "delay": 5}),
        (Backoff("exponential", 5, multiplier=3), {"type": "exponential", "delay": 5}),
        (Backoff("exponential", 5, multiplier=1), {"type": "fixed", "delay": 5}),
        (Backoff("exponential", 5, cap=5), {"type": "fixed", "delay": 5}),
        (Backoff("exponential", 9, cap=5), {"type": "fixed", "delay": 5}),
        (Backoff("custom", 5, name="x"), {"type": "fixed", "delay": 5}),
        (Backoff("fixed", 5, jitter=0.5), {"type": "fixed", "delay": 5}),
        (
            Backoff("fixed", 5, jitter=0.5, jitter_mode="down"),
            {"type": "fixed", "delay": 5, "jitter": 0.5},
        ),
    ],
)
def test_wire(backoff: Backoff, wire: dict[str, Any]) -> None:
    assert backoff.wire() == wire


@pytest.mark.parametrize(
    ("backoff", "attempts", "exact"),
    [
        (DEFAULT_BACKOFF, 3, True),
        (DEFAULT_BACKOFF, 13, True),
        (DEFAULT_BACKOFF, 14, False),
        (Backoff("exponential", 1000, cap=None), 60, True),
        (Backoff("fixed", 1000), 10**9, True),
        (Backoff("fixed", 7_200_000), 10, True),
        (Backoff("linear", 1000), 3, True),
        (Backoff("linear", 1000), 4, False),
        (Backoff("exponential", 1000, multiplier=3), 2, True),
        (Backoff("exponential", 1000, multiplier=3), 3, False),
        (Backoff("exponential", 1000, cap=1000), 50, True),
        (Backoff("fixed", 1000, jitter=0.1), 3, False),
        (Backoff("fixed", 1000, jitter=0.1, jitter_mode="down"), 3, True),
        (Backoff("custom", 1000, name="x"), 2, False),
        (Backoff("custom", 1000, name="x"), 1, True),
    ],
)
def test_exact_on_wire(backoff: Backoff, attempts: int, exact: bool) -> None:
    assert backoff.exact_on_wire(attempts) is exact


def node_delay(wire: dict[str, Any], attempt: int) -> int:
    """The formula of Node's built-in strategies, written down a second time."""
    return wire["delay"] if wire["type"] == "fixed" else int(2 ** (attempt - 1) * wire["delay"])


backoffs = st.builds(
    Backoff,
    type=st.sampled_from(["fixed", "exponential", "linear"]),
    delay=st.integers(1, 10_000),
    multiplier=st.sampled_from([1.0, 1.5, 2.0, 3.0]),
    cap=st.one_of(st.none(), st.integers(1, 100_000)),
)


@given(backoffs, st.integers(1, 12))
def test_exact_means_that_node_waits_the_same(backoff: Backoff, attempts: int) -> None:
    wire = backoff.wire()
    same = all(node_delay(wire, n) == backoff.delay_ms(n, half) for n in range(1, attempts))
    assert backoff.exact_on_wire(attempts) is same


@pytest.mark.parametrize(
    ("obj", "expected"),
    [
        (None, NO_BACKOFF),
        ("nonsense", NO_BACKOFF),
        (True, NO_BACKOFF),
        (500, Backoff("fixed", 500, cap=None)),
        (10**400, Backoff("fixed", MAX_MS, cap=None)),
        (1e999, NO_BACKOFF),
        ({"type": "fixed", "delay": 5}, Backoff("fixed", 5, cap=None, jitter_mode="down")),
        ({"type": "exponential"}, Backoff("exponential", 0, cap=None, jitter_mode="down")),
        (
            {"type": "exponential", "delay": 5.4, "jitter": 2},
            Backoff("exponential", 5, cap=None, jitter=1.0, jitter_mode="down"),
        ),
        ({"type": "theirs", "delay": "x"}, Backoff("custom", 0, cap=None, name="theirs")),
    ],
)
def test_from_wire(obj: Any, expected: Backoff) -> None:
    assert Backoff.from_wire(obj) == expected


def test_a_job_of_node_obeys_node_without_our_cap() -> None:
    assert Backoff.from_wire({"type": "exponential", "delay": 1000}).delay_ms(15, half) == 16_384_000
    assert Backoff.from_wire({"type": "exponential", "delay": 1000}).delay_ms(5000, half) == MAX_MS


@given(backoffs)
def test_the_exact_policy_survives_its_field(backoff: Backoff) -> None:
    assert Backoff.from_field(backoff.to_field()) == backoff


def test_the_field_contains_only_differences() -> None:
    assert json.loads(Backoff("linear", 1000).to_field()) == {"type": "linear", "delay": 1000}
    uncapped = Backoff("linear", 1000, cap=None)
    assert Backoff.from_field(uncapped.to_field().encode()) == uncapped


@pytest.mark.parametrize("text", ["", "{", "[]", '{"type":"x"}', '{"delay":"1"}', b"\xff"])
def test_a_damaged_field_is_refused(text: str | bytes) -> None:
    with pytest.raises(ValidationError, match="backoff must be a policy in JSON"):
        Backoff.from_field(text)


def test_a_senseless_multiplier_in_a_field_does_not_overflow() -> None:
    assert Backoff("exponential", 1, multiplier=1e300, cap=None).delay_ms(9, half) == MAX_MS


def test_a_custom_strategy_may_retry_at_once() -> None:
    policy = Backoff("custom", 1000, name="mine")
    assert policy.delay_ms(1, lambda: 0.5, {"mine": lambda attempt, delay, cap: 0}) == 0
    assert policy.delay_ms(1, lambda: 0.5, {"mine": lambda attempt, delay, cap: -5}) == -1
