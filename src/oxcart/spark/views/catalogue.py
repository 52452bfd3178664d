"""The views by name: their columns, the stored tables that they read, and their queries."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import ModuleType

import msgspec

from oxcart.spark.views import anomalies, capacity, changes, costs, critical_paths, schedules, slo
from oxcart.spark.views.dialect import Dialect
from oxcart.spark.views.objectives import Objectives
from oxcart.spark.views.parts import Part, Reach


class View(msgspec.Struct, frozen=True):
    """A table that a query computes.

    Attributes:
        columns: Its columns and their types, as Spark names them.
        sources: The stored tables that it reads.
        text: Returns its query in a dialect.
        parts: Relations that are computed once, before the query. If there are any, they alone read the
            sources.
        reach: Returns which days the parts read for the rows of some days; those days alone unless given.
    """

    columns: str
    sources: tuple[str, ...]
    text: Callable[[Dialect, Objectives], str]
    parts: tuple[Part, ...] = ()
    reach: Reach | None = None


def _view(module: ModuleType) -> View:
    parts = getattr(module, "PARTS", ())
    return View(module.COLUMNS, module.SOURCES, module.text, parts, getattr(module, "days", None))


VIEWS: Mapping[str, View] = {
    "slo": _view(slo),
    "anomalies": _view(anomalies),
    "capacity": _view(capacity),
    "costs": _view(costs),
    "changes": _view(changes),
    "critical_paths": _view(critical_paths),
    "schedules": _view(schedules),
}
