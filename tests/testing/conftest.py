"""Queues that would fail if they used a server."""

from __future__ import annotations

import pytest

from oxcart import (
    Queue,
    sync,
)

#: No server listens there, so that every use of a server fails.
NOWHERE = "redis://127.0.0.1:1/0"


@pytest.fixture
def emails() -> Queue:
    return Queue("emails", url=NOWHERE, add_timeout=0.01)


@pytest.fixture
def letters() -> sync.Queue:
    return sync.Queue("letters", url=NOWHERE, add_timeout=0.01)
