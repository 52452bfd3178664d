"""A Bridge namespace as a whole: the monitoring list of the specification."""

from __future__ import annotations

from collections.abc import Iterable

from oxcart.broker.bridge.part import TypePart
from oxcart.broker.bridge.rescue import rescue
from oxcart.broker.port.parts import Namespace
from oxcart.broker.port.results import NamespaceStats, Rescued
from oxcart.broker.progress import OnProgress, silent
from oxcart.broker.replies import texts


class BridgeNamespace(TypePart, Namespace):
    """The namespace of one job type."""

    @property
    def name(self) -> str:
        return self._broker.keys.namespace

    async def stats(self, *, every_type: bool = False) -> NamespaceStats:
        keys, caller = self._broker.keys, self._broker.caller
        waiting, active, delayed, cron, dead, processed, failed, seen = await caller.pipeline(
            [
                ("LLEN", keys.waiting()),
                ("SCARD", keys.active()),
                ("ZCARD", keys.delayed()),
                ("ZCARD", keys.cron()),
                ("LLEN", keys.dead_letters()),
                ("GET", keys.processed()),
                ("GET", keys.failed()),
                ("SMEMBERS", keys.types()),
            ]
        )
        if every_type:
            types = await self.types()
        else:
            types = sorted(texts(seen))
        running = await caller.pipeline([("GET", keys.concurrent(kind)) for kind in types])
        return NamespaceStats(
            waiting,
            active,
            delayed,
            cron,
            dead,
            {one.id: one.alive for one in await self._broker.registry.everyone()},
            {kind: _count(raw) for kind, raw in zip(types, running, strict=True)},
            _count(processed),
            _count(failed),
        )

    async def types(self) -> list[str]:
        return await self._broker.census.types()

    async def unnoted_ends(self) -> dict[str, list[str]]:
        return await self._broker.census.unnoted_ends()

    async def entries_without_job(self) -> int:
        census, count = self._broker.census, 0
        async for ids in census.pages("waiting"):
            count += sum(kind is None for kind in await census.kinds(ids))
        return count

    async def rescue(
        self, types: Iterable[str] = (), *, dry_run: bool = False, progress: OnProgress = silent
    ) -> dict[str, Rescued]:
        return await rescue(self._broker, types, dry_run=dry_run, progress=progress)


def _count(raw: bytes | None) -> int:
    """Reads a counter as any client may have stored it."""
    try:
        return int(raw or 0)
    except ValueError:
        return 0
