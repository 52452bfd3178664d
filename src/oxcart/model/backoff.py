"""How long a job waits before its next attempt, exactly for our workers and nearly for every other.

Peers understand two policies, ``fixed`` and ``exponential`` without a cap, and a Node worker dies on any
other type. So `Backoff.wire` gives the nearest of the two, and where that is not the same thing
(`Backoff.exact_on_wire`) the exact policy travels as a field of its own (`Backoff.to_field`).
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

#: A strategy of the user's: (attempt that failed, base delay ms, cap ms) -> ms, or -1 to give up.
Strategy = Callable[[int, int, int | None], float]

#: The longest wait of a policy that says nothing: an hour.
DEFAULT_CAP = 3_600_000

_TYPES = ("fixed", "exponential", "linear", "custom")
_KEYS = ("type", "delay", "multiplier", "cap", "jitter", "jitter_mode", "name")


class Backoff(msgspec.Struct, frozen=True):
    """A retry policy.

    Constructing one checks nothing, because a peer's job may carry anything; `parse` checks.

    Attributes:
        type: ``fixed``, ``exponential``, ``linear`` or ``custom``.
        delay: Wait before the first retry, in milliseconds.
        multiplier: Factor between retries of an exponential policy.
        cap: Longest wait in milliseconds of an exponential or linear policy; None is no cap, as in Node.
        jitter: How much of the wait is random, from 0 to 1.
        jitter_mode: ``both`` spreads by ± jitter, ``down`` only shortens, as Node does.
        name: The name under which a worker knows a custom strategy.
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
        """Read and check a policy in any of the forms a user may write.

        A bare duration is a fixed wait (a number is seconds, as in every option); a type's name is that
        policy from one second; a mapping is BullMQ's form, in which plain numbers of `delay` and `cap`
        are milliseconds, so that ``{"type": "exponential", "delay": 1000}`` means what it means in Node.

        Raises:
            ValidationError: The policy is not one, or a part of it is outside its bound.
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
        """How long to wait after a failed attempt.

        A custom policy whose strategy this worker does not know waits the base delay, as a peer that
        sees only the wire would: a rolling deploy must not turn a retry into a crash.

        Args:
            attempt: The 1-based number of the attempt that failed.
            rand: Uniform numbers in [0, 1).
            custom: The worker's strategies by name.

        Returns:
            Milliseconds; 0 is at once, -1 (only from a custom strategy) is to fail now.
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
        # A fixed wait is what the user asked for, however long; a growing one needs an end.
        if self.cap is not None and self.type != "fixed":
            value = min(value, self.cap)
        return min(value, MAX_MS)

    def wire(self) -> dict[str, Any]:
        """The nearest policy that every peer understands, as it stands in ``opts.backoff``."""
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
        """Whether a peer that reads only `wire` waits the same before every retry that can happen.

        Args:
            attempts: How many attempts the job may make; the last one is not followed by a wait.
        """
        retries = attempts - 1
        if retries <= 0:
            return True
        if self.type == "custom" or (self.jitter and self.jitter_mode != "down"):
            return False
        peer = Backoff.from_wire(self.wire())
        # Both grow without change of kind, so past 64 retries there is nothing new to compare.
        return all(peer._plain_ms(n) == self._plain_ms(n) for n in range(1, min(retries, 64) + 1))

    @classmethod
    def from_wire(cls, obj: Any) -> Backoff:
        """The policy a peer stored: obeyed to the letter, so without our cap.

        A type that is neither ``fixed`` nor ``exponential`` names a strategy of the peer's workers.
        No policy at all means an immediate retry.
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
        """The exact policy as JSON text, without what equals the defaults."""
        parts: dict[str, Any] = {"type": self.type, "delay": self.delay}
        for key in _KEYS[2:]:
            value = getattr(self, key)
            if value != getattr(_PLAIN, key):
                parts[key] = value
        return msgspec.json.encode(parts).decode()

    @classmethod
    def from_field(cls, text: str | bytes) -> Backoff:
        """The policy that `to_field` wrote.

        Raises:
            ValidationError: The text is something else.
        """
        try:
            return msgspec.json.decode(text, type=cls)
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            raise ValidationError("backoff", "a policy in JSON", text) from error


_PLAIN = Backoff()

#: What a job gets that says nothing: 1 s, 2 s, 4 s … up to an hour.
DEFAULT_BACKOFF = Backoff(type="exponential", delay=1000)

#: What a peer's job has that says nothing: it is retried at once.
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
