"""The fair groups of a queue behind an HTTP API."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from msgspec import UNSET, UnsetType

from oxcart.broker.port.results import GroupSettings, GroupSummary
from oxcart.groups import Groups, GroupUsage

if TYPE_CHECKING:
    from oxcart.http.remote import RemoteQueue


class RemoteGroups(Groups):
    """The groups of a queue behind an HTTP API."""

    async def _call(
        self, method: str, rest: str = "", body: dict[str, Any] | None = None, **params: Any
    ) -> Any:
        queue = cast("RemoteQueue", self._queue)
        path = f"{queue.path}/groups{rest}"
        return await queue.client.call(method, path, dict[str, Any], body, params=params, extra=60)

    async def set(
        self,
        group: str,
        *,
        concurrent: int | UnsetType | None = UNSET,
        per_minute: int | UnsetType | None = UNSET,
        weight: float | UnsetType | None = UNSET,
    ) -> None:
        """Changes the settings of one group. What is left out stays as it is."""
        await self._set(group, concurrent=concurrent, per_minute=per_minute, weight=weight)

    async def set_all(
        self, *, concurrent: int | UnsetType | None = UNSET, per_minute: int | UnsetType | None = UNSET
    ) -> None:
        """Changes the limits of every group without its own. What is left out stays as it is."""
        await self._set(None, concurrent=concurrent, per_minute=per_minute)

    async def _set(self, group: str | None, **given: Any) -> None:
        changed = {field: value for field, value in given.items() if value is not UNSET}
        await self._call("PUT", "/limits", {"group": group, **changed})

    async def settings(self, group: str | None = None) -> GroupSettings:
        """Returns the settings of one group, or for None the limits of every group without its own."""
        found = await self._call("GET", "/one", group=group or "")
        own = found["all" if group is None else "settings"]
        return GroupSettings(
            own.get("concurrent"), own.get("per_minute"), own.get("weight"), own.get("paused", False)
        )

    async def pause(self, group: str) -> None:
        """Lets no further job of a group through. Those that run, or that are let through, continue."""
        await self._call("POST", "/pause", {"group": group})

    async def resume(self, group: str) -> None:
        """Lets a paused group take turns again."""
        await self._call("POST", "/resume", {"group": group})

    async def usage(self, group: str) -> GroupUsage:
        """Returns how many jobs of a group wait, run, and started in the present minute."""
        found = await self._call("GET", "/one", group=group)
        return GroupUsage(found["waiting"], found["running"], found["started"])

    async def summary(self) -> GroupSummary:
        """Returns the waiting groups in a few numbers, and the largest of them."""
        found = await self._call("GET", limit=1)
        largest = {row["group"]: row["waiting"] for row in found["largest"]}
        return GroupSummary(found["total"], found["waiting"], largest, found["oldest_ms"], found["exact"])

    async def list(self, *, after: str | None = None, limit: int = 100) -> dict[str, int]:
        """Returns groups with waiting jobs in the order of their names, and how many each has."""
        cursor: dict[str, Any] = {} if after is None else {"after": after}
        found = await self._call("GET", limit=limit, **cursor)
        return {row["group"]: row["waiting"] for row in found["groups"]}

    async def clear(self, group: str) -> int:
        """Removes the jobs that wait for a group's turn; returns how many. Running and delayed ones stay."""
        removed: int = (await self._call("POST", "/clear", {"group": group}))["changed"]
        return removed

    async def cancel(self, group: str, reason: str = "", *, force: bool = False) -> int:
        """Cancels the waiting and the running jobs of a group; delayed ones stay."""
        body = {"group": group, "reason": reason, "force": force}
        cancelled: int = (await self._call("POST", "/cancel", body))["changed"]
        return cancelled
