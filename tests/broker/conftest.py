"""A folder for an embedded server, and its users."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from oxcart.broker.embedded import Embedded
from tests.broker.folder_users import Users, processes
from tests.servers import wait_until


@pytest.fixture
def users() -> Iterator[Users]:
    users = Users()
    yield users
    users.close()


@pytest.fixture
def folder() -> Iterator[Path]:
    # Not pytest's own folder: its path is so long that every test would run over loopback.
    with tempfile.TemporaryDirectory(prefix="oxcart-") as place:
        path = Path(os.path.realpath(place)) / "data"
        yield path
        wait_until(lambda: not processes(path), "the last test's processes have ended")


@pytest.fixture
def embedded(folder: Path) -> Iterator[Embedded]:
    embedded = Embedded(folder)
    yield embedded
    embedded.release(wait=10)
