"""Redis commands are issued in ``oxcart.broker`` alone: the other packages call a broker's methods."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import oxcart

SOURCE = Path(oxcart.__file__).parent
#: Modules that only ``broker/`` may import: connections, and the parser of replies.
CLOSED = ("oxcart.broker.link", "oxcart.broker.caller", "hiredis")
#: Attributes of a broker that lead to its connection.
CONNECTIONS = frozenset({"caller", "link"})

#: Names of something else: a worker's link to the process of a handler, and the system's hard links.
OTHERS = frozenset({"call.link", "os.link"})

OUTSIDE = [
    path.relative_to(SOURCE)
    for path in sorted(SOURCE.rglob("*.py"))
    if path.relative_to(SOURCE).parts[0] != "broker"
]


def breaches(text: str) -> Iterator[str]:
    """Yields the forbidden imports and calls of a module outside of ``broker/``."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in CLOSED)
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)]
            yield from (name for name in names if name in CLOSED)
        elif isinstance(node, ast.Attribute) and node.attr in CONNECTIONS and ast.unparse(node) not in OTHERS:
            yield f"{ast.unparse(node)} in line {node.lineno}"


@pytest.mark.parametrize("path", OUTSIDE, ids=str)
def test_only_the_broker_talks_to_the_server(path: Path) -> None:
    assert list(breaches((SOURCE / path).read_text())) == []


def test_breaches_of_the_boundary_are_found() -> None:
    code = "from oxcart.broker import caller\nimport hiredis\nawait broker.caller.command('PING')"
    assert len(list(breaches(code))) == 3
