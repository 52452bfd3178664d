"""Parts that all sections of docs/performance.md share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

Figures = dict[str, Any]


def source(part: dict[str, Any]) -> str:
    """Returns where figures come from, as a sentence."""
    return f"Measured at {part['commit']} ({part['day']}), {part['machine']}."


def table(head: list[str], rows: list[list[str]]) -> Iterator[str]:
    """Returns the lines of a table."""
    yield f"| {' | '.join(head)} |"
    yield f"|{'---|' * len(head)}"
    for row in rows:
        yield f"| {' | '.join(row)} |"
