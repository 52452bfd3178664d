"""Deduplication windows: while one is open, further adds of its id create no job."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from oxcart.model.duration import MAX_MS, Duration, parse_ms
from oxcart.model.errors import ValidationError

_FIELDS = ("id", "ttl", "extend", "replace", "keep_last_if_active")


class Deduplication(msgspec.Struct, frozen=True):
    """The deduplication window of a job, and its effect on adds while it is open.

    The job that opens a window owns it. Without a `ttl` the window closes when its owner ends; with one it
    closes after that time, even if the owner still runs. `build` parses what a user writes.

    Attributes:
        id: The name of the window.
        ttl: How long the window is open, in milliseconds; None is until the owner has ended.
        extend: An add while the window is open extends it by another `ttl`.
        replace: An add replaces an owner that is still delayed, so the last add counts. Any other owner
            stays.
        keep_last_if_active: The last add while the owner runs becomes a job when the owner has ended.
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
        """Parses and checks a user's arguments.

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
        """Parses a name, or a mapping of the arguments of `build`.

        Raises:
            ValidationError: The value is neither, or a part is outside its bound.
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
        """Returns the window in the form of ``opts.de``."""
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
        """Parses a peer's ``opts.de``, or returns None if it is invalid."""
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
