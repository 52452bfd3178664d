"""Code blocks of Markdown pages, for the tests that run them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
_BLOCK = re.compile(r"^```(\w+)?([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A code block.

    Attributes:
        language: The first word behind the fence.
        options: The others, ``title="shop.py"`` for instance.
        text: The code.
    """

    language: str
    options: dict[str, str]
    text: str


def blocks(page: Path) -> Iterator[Block]:
    """Yields the code blocks of a page."""
    for language, options, text in _BLOCK.findall(page.read_text()):
        yield Block(language, dict(re.findall(r'(\w+)="([^"]*)"', options)), text)
