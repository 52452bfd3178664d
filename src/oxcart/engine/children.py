"""The children of a job, for its handle and for the handler that runs it."""

from __future__ import annotations

from typing import Any

from oxcart.broker.port import Broker
from oxcart.broker.port.flows import Flows
from oxcart.model.errors import ValidationError
from oxcart.model.flow import DependencyCounts, DependencyPage


class Parent:
    """The children of a job."""

    __slots__ = ()

    id: str

    def _storage(self) -> Broker:
        raise NotImplementedError

    @property
    def _flows(self) -> Flows:
        broker = self._storage()
        return broker.capabilities.part(broker.flows, "flows")

    async def children_values(self) -> dict[str, Any]:
        """Returns the results of completed children, by their keys (``bull:images:page-1``)."""
        found = await self._flows.every(self.id, "processed")
        return {key: child.value for key, child in found.items()}

    async def ignored_failures(self) -> dict[str, str]:
        """Returns why children failed whose failure did not fail the job, by their keys."""
        found = await self._flows.every(self.id, "ignored")
        return {key: child.reason or "" for key, child in found.items()}

    async def dependency_counts(self) -> DependencyCounts:
        """Returns how many children the job has, by their states."""
        return await self._flows.counts(self.id)

    async def dependencies(self, kind: str, *, cursor: str = "0", limit: int = 100) -> DependencyPage:
        """Returns a page of the job's children of a kind.

        Args:
            kind: ``processed``, ``unprocessed``, ``ignored`` or ``failed``, as in `DependencyCounts`.
            cursor: The cursor of the page before.
            limit: About how many; few children come in one page.
        """
        if limit < 1:
            raise ValidationError("limit", "at least 1", limit)
        return await self._flows.page(self.id, kind, cursor, limit)
