"""The views by name: their columns, the stored tables that they read, and their queries."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import ModuleType

import msgspec

from oxcart.spark.views import anomalies, capacity, changes, costs, slo
from oxcart.spark.views.dialect import Dialect
from oxcart.spark.views.objectives import Objectives


class View(msgspec.Struct, frozen=True):
    """A table that a query computes.

    Attributes:
        columns: Its columns and their types, as Spark names them.
        sources: The stored tables that it reads.
        text: Returns its query in a dialect.
    """

    columns: str
    sources: tuple[str, ...]
    text: Callable[[Dialect, Objectives], str]


def _view(module: ModuleType) -> View:
    return View(module.COLUMNS, module.SOURCES, module.text)


VIEWS: Mapping[str, View] = {
    "slo": _view(slo),
    "anomalies": _view(anomalies),
    "capacity": _view(capacity),
    "costs": _view(costs),
    "changes": _view(changes),
}
