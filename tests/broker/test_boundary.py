"""Redis commands and the wire's field names stay in ``oxcart.broker``: other packages call its methods.

Values of the model cross the port. A name of the wire elsewhere ties a caller to one protocol, and makes the
others forge it.
"""

from __future__ import annotations

import ast
import re
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

#: Our fields and keys on the wire.
OURS = re.compile(r"(?<![A-Za-z])ox:")
#: Names of BullMQ's fields of jobs, options and events that no other word of ours equals.
FIELDS = frozenset(
    {
        *("atm", "ats", "attemptsMade", "cpof", "de", "defa", "deid", "failedReason", "finishedOn", "fpof"),
        *("idof", "jobId", "kl", "opts", "parentKey", "pb", "processedOn", "queueKey", "rdof"),
        *("removeOnComplete", "removeOnFail", "repeatJobKey", "returnvalue", "rjk", "sizeLimit"),
        *("stackTraceLimit", "stc", "tm"),
    }
)
#: Fields whose names are plain words: only as bytes are they fields of the wire.
WORDS = frozenset(
    {"data", "delay", "event", "name", "prev", "priority", "progress", "stacktrace", "timestamp"}
)

#: Modules outside of the broker that read the wire by themselves, and why.
READERS = {
    # The drop-in for PyPI's bullmq offers records and events as that package does.
    "compat",
    # The executors of a pipeline decode streams and records into columns, without a broker.
    "spark/read/entries.py",
    # The policies of a child, as the stored parent names them.
    "spark/transforms/flows.py",
    # Ids that would be keys of a queue: no user may choose them.
    "model/names.py",
}

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


ELSEWHERE = [
    path.relative_to(SOURCE)
    for path in sorted(SOURCE.rglob("*.py"))
    if (place := path.relative_to(SOURCE)).parts[0] not in {"broker", *READERS}
    and place.as_posix() not in READERS
]


def wire_names(text: str) -> Iterator[str]:
    """Yields the names of the wire in a module's code; docstrings and comments may have them."""
    tree = ast.parse(text)
    prose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Constant) or id(node) in prose:
            continue
        if isinstance(node.value, bytes):
            name, known = node.value.decode("latin-1"), FIELDS | WORDS
        elif isinstance(node.value, str):
            name, known = node.value, FIELDS
        else:
            continue
        if name in known or OURS.search(name):
            yield f"{node.value!r} in line {node.lineno}"


@pytest.mark.parametrize("path", ELSEWHERE, ids=str)
def test_names_of_the_wire_stay_in_the_broker(path: Path) -> None:
    assert list(wire_names((SOURCE / path).read_text())) == []


def test_names_of_the_wire_are_found() -> None:
    code = """a = job["ox:category"]; f(x=f"P:ox:{a}"); b = fields[b"event"], event["failedReason"]"""
    assert len(list(wire_names(code))) == 4
    assert not list(wire_names("'''The field ``ox:idem``.'''\nclass Box: event = 'event'  # ox:\n"))


@pytest.mark.parametrize("reader", sorted(READERS))
def test_every_reader_of_the_wire_is_one(reader: str) -> None:
    found = SOURCE / reader
    assert any(
        list(wire_names(path.read_text())) for path in ([found] if found.is_file() else found.rglob("*.py"))
    )
