"""A queue with a clock that the test sets."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio

from tests.broker.bullmq.making import Q


@pytest_asyncio.fixture
async def q(url: str) -> AsyncIterator[Q]:
    made = Q(url)
    yield made
    await made.broker.close()
