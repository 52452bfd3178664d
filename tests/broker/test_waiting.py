"""Blocking waits: what a failed wait does before the next one."""

from __future__ import annotations

from typing import Any, cast

import pytest

from oxcart.broker.connection import Server
from oxcart.broker.link import ReplyError
from oxcart.broker.waiting import BlockingPop
from oxcart.model.errors import AccessDenied, BrokerError, BrokerUnavailable, ScriptError


class Refusing:
    """A server and its link; every call fails."""

    is_connected = False

    def __init__(self, error: Exception) -> None:
        self.error = error
        self.forgotten = 0
        self.dropped = 0

    def link(self, slot: int | None, *, client_name: str | None = None) -> Any:
        return self

    async def connect(self) -> None:
        raise self.error

    async def call(self, *args: Any, timeout: float | None = None) -> Any:
        raise self.error

    def drop(self, why: str) -> None:
        self.dropped += 1

    def forget_slots(self) -> None:
        self.forgotten += 1


@pytest.mark.parametrize("error", [BrokerUnavailable("away"), AccessDenied("a node that left the cluster")])
async def test_a_failed_wait_resolves_the_slot_again(error: BrokerError) -> None:
    server = Refusing(error)
    pop = BlockingPop(cast(Server, server), 1)
    with pytest.raises(type(error)):
        await pop.connect()
    assert server.forgotten == 1
    with pytest.raises(type(error)):
        await pop.pop(["marker"], 1.0)
    assert (server.forgotten, server.dropped) == (2, 0)


async def test_a_refused_wait_is_a_typed_error_and_drops_the_connection() -> None:
    server = Refusing(ReplyError("WRONGTYPE not a sorted set"))
    with pytest.raises(ScriptError, match="BZPOPMIN"):
        await BlockingPop(cast(Server, server), 1).pop(["marker"], 1.0)
    assert (server.forgotten, server.dropped) == (1, 1)
