"""docs/protocol.md lists every public method of the pinned Node version."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.nodes import installed

pytestmark = pytest.mark.node

ROOT = Path(__file__).resolve().parent.parent.parent
CLASSES = (
    *("queue", "queue-getters", "job", "worker", "flow-producer"),
    *("queue-events", "queue-events-producer", "job-scheduler"),
)
#: A member of a class in a declaration: no field, and nothing that is private.
MEMBER = re.compile(
    r"^    (?!private|protected)(?:static |get |async )*([a-zA-Z]+)(?:<[^>]*>)?\(", re.MULTILINE
)


def test_every_public_method_of_node_is_in_the_list() -> None:
    folder = installed("v5") / "node_modules" / "bullmq" / "dist" / "esm" / "classes"
    methods = {name for one in CLASSES for name in MEMBER.findall((folder / f"{one}.d.ts").read_text())}
    assert len(methods) > 100  # else the declarations were not read
    text = (ROOT / "docs" / "protocol.md").read_text()
    section = text.partition("## Node's API, and ours")[2].partition("\n## ")[0]
    listed = set(re.findall(r"`([a-zA-Z]+)`", section))
    assert sorted(methods - listed - {"constructor"}) == []
