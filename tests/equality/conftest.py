"""Two private servers for each test process: one for the real BullMQ, one for whom it is compared with."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.nodes import node_missing
from tests.servers import ValkeyServer


@pytest.fixture(scope="session")
def servers() -> Iterator[tuple[ValkeyServer, ValkeyServer]]:
    missing = node_missing()
    if missing is not None:
        pytest.skip(missing)
    with ValkeyServer() as one, ValkeyServer() as other:
        yield one, other
