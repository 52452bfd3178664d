"""Masks user data in the ``repr`` of values, because logs and tracebacks show it."""

from __future__ import annotations

import msgspec

#: Replaces a masked value.
MASK = "…"


def masked(value: msgspec.Struct, *hidden: str) -> str:
    """Returns the ``repr`` of a struct with the given fields masked, unless they are empty."""
    parts = []
    for name in value.__struct_fields__:
        part = getattr(value, name)
        parts.append(f"{name}={MASK}" if name in hidden and part else f"{name}={part!r}")
    return f"{type(value).__name__}({', '.join(parts)})"
