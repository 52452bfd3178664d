"""The events of a queue, as events of an emitter."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from typing import Any

from oxcart.broker.bullmq.keys import Keys
from oxcart.broker.events import EventReader
from oxcart.compat.bullmq.event_emitter import EventEmitter
from oxcart.compat.bullmq.queue_keys import NAMES
from oxcart.compat.bullmq.record import loads
from oxcart.compat.bullmq.redis_connection import check_backend, client_of, server_of
from oxcart.queue import Queue as OxcartQueue

#: Fields that are JSON on the wire, by event.
_JSON = {"progress": "data", "completed": "returnvalue"}


class QueueEvents(EventEmitter):
    """Listens to a queue.

    ``on("completed", fn)`` calls ``fn(fields, event_id)``, and so does ``on("completed:<job id>", fn)`` for
    one job.

    Args:
        name: The queue.
        opts: ``connection``, ``prefix``, ``lastEventId`` (``$`` for only new events), ``autorun``,
            ``blockingTimeout``.
    """

    def __init__(self, name: str, opts: Mapping[str, Any] | None = None) -> None:
        super().__init__()
        self.opts: dict[str, Any] = {
            "blockingTimeout": 10000,
            "lastEventId": "$",
            "autorun": True,
            **(opts or {}),
        }
        check_backend(self.opts)
        self.name = name
        self.prefix: str = self.opts.get("prefix") or "bull"
        self.inner = OxcartQueue(name, server=server_of(self.opts.get("connection")), prefix=self.prefix)
        keys = Keys(name, self.prefix, self.inner._core.server.is_cluster)
        self.qualifiedName = keys.base
        self.keys = {suffix: keys.key(suffix) for suffix in NAMES}
        self._client: Any = None
        self.running = self.closing = self.closed = False
        self._task: asyncio.Future[Any] | None = None
        self._events: EventReader | None = None
        #: The id of the last event read; ``$`` until the reader has begun at the end.
        self._position: str = self.opts.get("lastEventId") or "$"
        if self.opts.get("autorun"):
            self._task = asyncio.ensure_future(self._run_by_itself())

    @property
    def client(self) -> Any:
        """A client of redis-py on the same server, for programs that read keys themselves."""
        if self._client is None:
            self._client = client_of(self.opts.get("connection"), self.inner._core.server)
        return self._client

    async def _run_by_itself(self) -> None:
        try:
            await self.run()
        except Exception as error:
            self._emit_safely("error", error)

    async def run(self) -> None:
        """Reads until closed.

        Raises:
            Exception: It already reads.
        """
        if self.running:
            raise Exception("QueueEvents is already running.")
        if self._task is None:
            self._task = asyncio.current_task()
        self.running = True
        block = max(1, int(self.opts["blockingTimeout"])) / 1000
        try:
            events = self._events = EventReader(self.inner._core.broker)
            if self._position == "$":
                self._position = await events.last_id()
            while not self.closing:
                for entry_id, fields in await events.read_entries(self._position, block):
                    self._position = entry_id
                    self._dispatch(entry_id, {_text(name): _text(value) for name, value in fields.items()})
        finally:
            self.running = False

    def _dispatch(self, entry_id: str, fields: dict[str, str]) -> None:
        event = fields.pop("event", None)
        if not event:
            return
        if event == "drained":
            self._emit_safely(event, entry_id)
            return
        args: dict[str, Any] = dict(fields)
        json = _JSON.get(event)
        if json in args:
            args[json] = loads(args[json])
        self._emit_safely(event, args, entry_id)
        if args.get("jobId"):
            self._emit_safely(f"{event}:{args['jobId']}", args, entry_id)

    async def close(self) -> None:
        """Stops reading and closes the connection."""
        if self.closing:
            return
        self.closing = True
        task, self._task = self._task, None
        if task is not None and not task.done() and task is not asyncio.current_task():
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await task
        if self._events is not None:
            await self._events.close()
        if self._client is not None and self._client is not self.opts.get("connection"):
            await self._client.aclose()
        await self.inner.close()
        self.closed = True


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")
