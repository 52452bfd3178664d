"""Retry policies: how long a job waits before its next attempt.

Peers understand two policies, ``fixed`` and ``exponential`` without a cap, and a Node worker crashes on any
other type. So `Backoff.wire` returns the nearest of the two. If that differs (`Backoff.exact_on_wire`), the
job also carries the exact policy in a separate field (`Backoff.to_field`).
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Mapping
from typing import Any, Literal, cast

import msgspec

from oxcart.model.duration import MAX_MS, Duration, parse_ms
from oxcart.model.errors import ValidationError

BackoffType = Literal["fixed", "exponential", "linear", "custom"]

#: A custom strategy: (failed attempt, base delay ms, cap ms) -> ms, or -1 to give up.
Strategy = Callable[[int, int, int | None], float]

#: The default cap: an hour.
DEFAULT_CAP = 3_600_000

_TYPES = ("fixed", "exponential", "linear", "custom")
_KEYS = ("type", "delay", "multiplier", "cap", "jitter", "jitter_mode", "name")


class Backoff(msgspec.Struct, frozen=True):
    """A retry policy.

    The constructor checks nothing, because a peer's job may contain anything; `parse` checks.

    Attributes:
        type: ``fixed``, ``exponential``, ``linear`` or ``custom``.
        delay: Wait before the first retry, in milliseconds.
        multiplier: Factor between retries of an exponential policy.
        cap: Longest wait in milliseconds of an exponential or linear policy; None is no cap, as in Node.
        jitter: How much of the wait is random, from 0 to 1.
        jitter_mode: ``both`` spreads by ± jitter, ``down`` only shortens, as Node does.
        name: The name of a custom strategy in the worker's options.
    """

    type: BackoffType = "exponential"
    delay: int = 1000
    multiplier: float = 2.0
    cap: int | None = DEFAULT_CAP
    jitter: float = 0.0
    jitter_mode: Literal["both", "down"] = "both"
    name: str | None = None

    @classmethod
    def parse(cls, value: Backoff | Duration | Mapping[str, Any], field: str = "backoff") -> Backoff:
        """Parses and checks a policy in any form that users write.

        A plain duration is a fixed wait (a number is seconds, as in every option). The name of a type is that
        policy with a delay of one second. A mapping is BullMQ's form: plain numbers of `delay` and `cap` are
        milliseconds, so ``{"type": "exponential", "delay": 1000}`` means the same as in Node.

        Raises:
            ValidationError: The policy is invalid, or a part of it is outside its bound.
        """
        if isinstance(value, Backoff):
            return value._checked(field)
        if isinstance(value, Mapping):
            return cls._from_mapping(value, field)
        if isinstance(value, str) and not value.strip()[:1].isdigit():
            return cls(type=_type(value, field))._checked(field)
        return cls(type="fixed", delay=parse_ms(value, field, minimum=1))

    @classmethod
    def _from_mapping(cls, value: Mapping[str, Any], field: str) -> Backoff:
        for key in value:
            if key not in _KEYS:
                close = difflib.get_close_matches(str(key), _KEYS, 1)
                hint = f" (did you mean {close[0]!r}?)" if close else ""
                raise ValidationError(field, f"made of {', '.join(_KEYS)}{hint}", key)
        if "type" not in value:
            raise ValidationError(field, "an object with a type", dict(value))
        parts = dict(value)
        parts["type"] = _type(value["type"], f"{field}.type")
        return cls(**parts)._checked(field)

    def _checked(self, field: str) -> Backoff:
        if self.type not in _TYPES:
            raise ValidationError(f"{field}.type", _type_bound(), self.type)
        delay = _wire_ms(self.delay, f"{field}.delay")
        cap = None if self.cap is None else _wire_ms(self.cap, f"{field}.cap")
        if not _is_number(self.multiplier) or not 1 <= self.multiplier <= 1000:
            raise ValidationError(f"{field}.multiplier", "a number from 1 to 1000", self.multiplier)
        if not _is_number(self.jitter) or not 0 <= self.jitter <= 1:
            raise ValidationError(f"{field}.jitter", "a number from 0 to 1", self.jitter)
        if self.jitter_mode not in ("both", "down"):
            raise ValidationError(f"{field}.jitter_mode", "'both' or 'down'", self.jitter_mode)
        if self.type == "custom" and not (isinstance(self.name, str) and self.name):
            raise ValidationError(f"{field}.name", "the name of the custom strategy", self.name)
        if delay == self.delay and cap == self.cap:
            return self
        return msgspec.structs.replace(self, delay=delay, cap=cap)

    def delay_ms(
        self,
        attempt: int,
        rand: Callable[[], float],
        custom: Mapping[str, Strategy] | None = None,
    ) -> int:
        """Returns the wait after a failed attempt.

        A custom policy whose strategy is unknown to this worker waits the base delay, like a peer that reads
        only the wire: a rolling deploy must not turn a retry into a crash.

        Args:
            attempt: The 1-based number of the attempt that failed.
            rand: Returns uniform numbers in [0, 1).
            custom: The worker's strategies by name.

        Returns:
            Milliseconds. 0 retries at once; -1 (only from a custom strategy) fails the job.
        """
        if self.type == "custom":
            strategy = (custom or {}).get(self.name or "")
            if strategy is None:
                return self.delay
            return _strategy_ms(strategy(attempt, self.delay, self.cap), self.name)
        value = self._plain_ms(attempt)
        if not self.jitter:
            return value
        low = value * (1 - self.jitter)
        high = value * (1 + self.jitter) if self.jitter_mode == "both" else value
        return self._capped(math.floor(low + rand() * (high - low)))

    def _plain_ms(self, attempt: int) -> int:
        """The wait without jitter."""
        if self.type == "linear":
            return self._capped(self.delay * attempt)
        if self.type == "exponential":
            # 64 doublings of a millisecond are past every bound; a larger power would only overflow.
            power = min(max(attempt - 1, 0), 64)
            try:
                grown = self.delay * self.multiplier**power
            except OverflowError:  # only a damaged field has such a multiplier
                grown = math.inf
            return self._capped(_round_half_up(min(grown, MAX_MS)))
        return min(self.delay, MAX_MS)

    def _capped(self, value: int) -> int:
        # Only a growing wait needs a cap: the user chose the length of a fixed one.
        if self.cap is not None and self.type != "fixed":
            value = min(value, self.cap)
        return min(value, MAX_MS)

    def wire(self) -> dict[str, Any]:
        """Returns the nearest policy that every peer understands, as in ``opts.backoff``."""
        grows = self.type == "linear" or (self.type == "exponential" and self.multiplier != 1)
        if grows and (self.cap is None or self.delay < self.cap):
            wire: dict[str, Any] = {"type": "exponential", "delay": self.delay}
        elif grows:
            wire = {"type": "fixed", "delay": self.cap}  # capped from the first retry on
        else:
            wire = {"type": "fixed", "delay": self.delay}
        if self.jitter and self.jitter_mode == "down" and self.type != "custom":
            wire["jitter"] = self.jitter
        return wire

    def exact_on_wire(self, attempts: int) -> bool:
        """Returns whether a peer that reads only `wire` waits the same before every possible retry.

        Args:
            attempts: The job's maximum number of attempts; no wait follows the last one.
        """
        retries = attempts - 1
        if retries <= 0:
            return True
        if self.type == "custom" or (self.jitter and self.jitter_mode != "down"):
            return False
        peer = Backoff.from_wire(self.wire())
        # Both policies keep their form, so more than 64 retries show no new difference.
        return all(peer._plain_ms(n) == self._plain_ms(n) for n in range(1, min(retries, 64) + 1))

    @classmethod
    def from_wire(cls, obj: Any) -> Backoff:
        """Returns the policy that a peer stored, without our default cap.

        A type that is neither ``fixed`` nor ``exponential`` names a strategy of the peer's workers.
        Without a policy the retry is immediate.
        """
        if isinstance(obj, int | float) and not isinstance(obj, bool):
            return cls(type="fixed", delay=_lenient_ms(obj), cap=None)
        if not isinstance(obj, Mapping):
            return NO_BACKOFF
        kind, delay = obj.get("type"), _lenient_ms(obj.get("delay"))
        jitter: Any = obj.get("jitter")
        share = float(min(max(jitter, 0), 1)) if _is_number(jitter) else 0.0
        if kind in ("fixed", "exponential"):
            return cls(type=kind, delay=delay, cap=None, jitter=share, jitter_mode="down")
        return cls(type="custom", delay=delay, cap=None, name=str(kind))

    def to_field(self) -> str:
        """Returns the exact policy as JSON text, without default values."""
        parts: dict[str, Any] = {"type": self.type, "delay": self.delay}
        for key in _KEYS[2:]:
            value = getattr(self, key)
            if value != getattr(_PLAIN, key):
                parts[key] = value
        return msgspec.json.encode(parts).decode()

    @classmethod
    def from_field(cls, text: str | bytes) -> Backoff:
        """Parses a policy that `to_field` wrote.

        Raises:
            ValidationError: The text is no policy.
        """
        try:
            return msgspec.json.decode(text, type=cls)
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            raise ValidationError("backoff", "a policy in JSON", text) from error


_PLAIN = Backoff()

#: The default policy: 1 s, 2 s, 4 s … up to an hour.
DEFAULT_BACKOFF = Backoff(type="exponential", delay=1000)

#: The policy of a peer's job without one: an immediate retry.
NO_BACKOFF = Backoff(type="fixed", delay=0, cap=None)


def _type_bound() -> str:
    return f"one of {', '.join(_TYPES)}"


def _type(value: object, field: str) -> BackoffType:
    if value == "constant":  # the formal model's word for it
        return "fixed"
    if value not in _TYPES:
        raise ValidationError(field, _type_bound(), value)
    return cast(BackoffType, value)


def _wire_ms(value: Any, field: str) -> int:
    """A positive wait whose plain numbers are milliseconds."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return parse_ms(value, field, minimum=1)
    if value != value or value < 1 or value != int(min(value, MAX_MS)):
        raise ValidationError(field, "a whole number of milliseconds, at least 1", value)
    return int(value)


def _is_number(value: Any) -> bool:
    # isfinite() cannot take an int beyond the floats, and an int is finite anyway.
    return type(value) is int or (isinstance(value, float) and math.isfinite(value))


def _lenient_ms(value: Any) -> int:
    return min(max(round(value), 0), MAX_MS) if _is_number(value) else 0


def _round_half_up(value: float) -> int:
    return math.floor(value + 0.5)  # as JavaScript rounds; Python's round() goes to even


def _strategy_ms(value: Any, name: str | None) -> int:
    if not _is_number(value):
        raise ValidationError(f"backoff strategy {name!r}", "a function that returns milliseconds", value)
    return -1 if value < 0 else min(round(value), MAX_MS)
