"""How values of the model show themselves in logs and tracebacks: without what users put into their jobs."""

from __future__ import annotations

import msgspec

#: What stands in the place of a value.
MASK = "…"


def masked(value: msgspec.Struct, *hidden: str) -> str:
    """The form of a struct for people, with some of its fields masked unless they are empty."""
    parts = []
    for name in value.__struct_fields__:
        held = getattr(value, name)
        parts.append(f"{name}={MASK}" if name in hidden and held else f"{name}={held!r}")
    return f"{type(value).__name__}({', '.join(parts)})"
