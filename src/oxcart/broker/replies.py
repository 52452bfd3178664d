"""Replies of plain commands as Python values."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def text(raw: bytes) -> str:
    """Returns a key or an id; bytes that are no UTF-8 become escapes, which encode to the same bytes."""
    return raw.decode("utf-8", "surrogateescape")


def texts(raws: Iterable[bytes]) -> list[str]:
    """Returns keys or ids."""
    return [text(raw) for raw in raws]


def pairs(flat: Sequence[bytes]) -> dict[bytes, bytes]:
    """Returns a flat reply of names and values as a dictionary."""
    both = iter(flat)
    return dict(zip(both, both, strict=True))


def number(raw: bytes | None) -> int:
    """Returns a number as any client may have stored it; 0 for none and for what is no number."""
    try:
        return int(float(raw)) if raw else 0
    except (ValueError, OverflowError):
        return 0
