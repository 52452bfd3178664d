"""Publishes application events in a queue's stream."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from oxcart.broker.bullmq.keys import Keys
from oxcart.compat.bullmq.queue_keys import NAMES
from oxcart.compat.bullmq.redis_connection import check_backend, client_of, server_of
from oxcart.queue import Queue as OxcartQueue


class QueueEventsProducer:
    """Publishes events.

    Args:
        name: The queue.
        opts: ``connection``, ``prefix``.
    """

    def __init__(self, name: str, opts: Mapping[str, Any] | None = None) -> None:
        self.opts = dict(opts or {})
        check_backend(self.opts)
        self.name = name
        self.prefix: str = self.opts.get("prefix") or "bull"
        self.inner = OxcartQueue(name, server=server_of(self.opts.get("connection")), prefix=self.prefix)
        keys = Keys(name, self.prefix, self.inner._core.server.is_cluster)
        self.qualifiedName = keys.base
        self.keys = {suffix: keys.key(suffix) for suffix in NAMES}
        self.closing = False
        self._client: Any = None

    @property
    def client(self) -> Any:
        """A client of redis-py on the same server, for programs that read keys themselves."""
        if self._client is None:
            self._client = client_of(self.opts.get("connection"), self.inner._core.server)
        return self._client

    async def publishEvent(self, args: Mapping[str, Any], maxEvents: int | None = None) -> None:
        """Adds an event.

        Args:
            args: Its ``eventName``, and its fields.
            maxEvents: About how many events of the queue stay; by default the queue's own setting.

        Raises:
            ValueError: It has no name, or a name of the queue's own events.
        """
        if "eventName" not in args:
            raise ValueError("publishEvent requires an 'eventName' key")
        fields = {name: value for name, value in args.items() if name != "eventName"}
        await self.inner.events.publish(args["eventName"], maxEvents, **fields)

    async def close(self) -> None:
        """Closes the connection."""
        if not self.closing:
            self.closing = True
            if self._client is not None and self._client is not self.opts.get("connection"):
                await self._client.aclose()
            await self.inner.close()
