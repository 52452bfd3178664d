"""Deduplication: adds of one name within a window are one job."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from oxcart.model.duration import MAX_MS, Duration, parse_ms
from oxcart.model.errors import ValidationError

_FIELDS = ("id", "ttl", "extend", "replace", "keep_last_if_active")


class Deduplication(msgspec.Struct, frozen=True):
    """Which window a job belongs to, and what happens to an add that finds it open.

    The job that opens a window owns it. Without a time the window closes when its owner ends; with one it
    closes when the time is over, whatever becomes of the owner. `build` reads what a user writes.

    Attributes:
        id: The name of the window.
        ttl: How long the window is open, in milliseconds; None is until the owner has ended.
        extend: An add that finds the window open makes it last for another `ttl`.
        replace: An add that finds the owner still delayed takes its place: the last one counts. Any other
            owner stays.
        keep_last_if_active: An add that finds the owner running is kept, and becomes a job when the owner has
            ended. Only the last one is kept.
    """

    id: str
    ttl: int | None = None
    extend: bool = False
    replace: bool = False
    keep_last_if_active: bool = False

    @classmethod
    def build(
        cls,
        id: str,
        ttl: Duration | None = None,
        *,
        extend: bool = False,
        replace: bool = False,
        keep_last_if_active: bool = False,
    ) -> Deduplication:
        """Reads a rule as a user writes it.

        Raises:
            ValidationError: A value is outside its bound.

        Example:
            >>> Deduplication.build("user-42", "5s").ttl
            5000
        """
        if not isinstance(id, str) or not id:
            raise ValidationError("deduplication id", "a non-empty string", id)
        flags = {"extend": extend, "replace": replace, "keep_last_if_active": keep_last_if_active}
        for name, value in flags.items():
            if not isinstance(value, bool):
                raise ValidationError(name, "True or False", value)
        millis = None if ttl is None else parse_ms(ttl, "ttl", minimum=1)
        if extend and millis is None:
            raise ValidationError("extend", "False for a window without a ttl", extend)
        return cls(id, millis, extend, replace, keep_last_if_active)

    @classmethod
    def parse(cls, value: Any, field: str = "deduplication") -> Deduplication:
        """Reads a name, or a mapping of the arguments of `build`.

        Raises:
            ValidationError: It is neither, or a value is outside its bound.
        """
        if isinstance(value, Deduplication):
            return value
        if isinstance(value, str):
            return cls.build(value)
        if not isinstance(value, Mapping) or "id" not in value:
            raise ValidationError(field, "a name, or a mapping with an id", value)
        unknown = set(value) - set(_FIELDS)
        if unknown:
            raise ValidationError(field, f"a mapping of {', '.join(_FIELDS)}", sorted(map(str, unknown)))
        return cls.build(**value)

    def wire(self) -> dict[str, Any]:
        """The rule as ``opts.de`` has it."""
        found: dict[str, Any] = {"id": self.id}
        if self.ttl is not None:
            found["ttl"] = self.ttl
        if self.extend:
            found["extend"] = True
        if self.replace:
            found["replace"] = True
        if self.keep_last_if_active:
            found["keepLastIfActive"] = True
        return found

    @classmethod
    def from_wire(cls, value: Any) -> Deduplication | None:
        """Reads ``opts.de`` as a peer wrote it; None where it makes no sense."""
        if not isinstance(value, dict) or not isinstance(value.get("id"), str):
            return None
        ttl = value.get("ttl")
        return cls(
            value["id"],
            int(ttl) if isinstance(ttl, int | float) and 0 <= ttl <= MAX_MS else None,
            bool(value.get("extend")),
            bool(value.get("replace")),
            bool(value.get("keepLastIfActive")),
        )
