"""Layered Mermaid diagrams as boxes of HTML: the site draws them without a script from elsewhere."""

from __future__ import annotations

import html
import re

_BLOCK = re.compile(r"^```mermaid\nflowchart TD\n(.*?)^```\n", re.MULTILINE | re.DOTALL)
_BOX = re.compile(r'^\s*(\w+)\["([^"]+)"\]\s*$', re.MULTILINE)


def drawn(text: str) -> str:
    """Returns a page with its layered flowcharts as boxes; other diagrams stay text."""
    return _BLOCK.sub(_boxes, text)


def _boxes(found: re.Match[str]) -> str:
    labels = dict(_BOX.findall(found[1]))
    chains = [line.split("-->") for line in found[1].splitlines() if "-->" in line]
    if len(chains) != 1:
        return found[0]
    rows = [[name.strip() for name in level.split("&")] for level in chains[0]]
    drawn_rows = (
        "<div>" + "".join(f"<span>{html.escape(labels.get(name, name))}</span>" for name in row) + "</div>"
        for row in rows
    )
    return '<div class="layers">' + "".join(drawn_rows) + "</div>\n"
