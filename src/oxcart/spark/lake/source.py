"""The tables of a lake as a report asks for them, in Spark."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from oxcart.spark.views.dialect import SPARK

if TYPE_CHECKING:
    from oxcart.spark.lake.tables import Tables
    from oxcart.spark.lake.versions import Version


class SparkSource:
    """A version of a lake, limited to some days.

    Args:
        tables: The tables.
        version: The version.
        days: The days.
    """

    dialect = SPARK

    def __init__(self, tables: Tables, version: Version, days: Sequence[str]) -> None:
        self._tables = tables
        self._version = version
        self._days = days

    def rows(self, text: str, **parameters: Any) -> list[dict[str, Any]]:
        """Runs one query."""
        self._tables.register(self._version, text, days=self._days)
        return [row.asDict() for row in self._tables.spark.sql(text, args=parameters).collect()]

    def close(self) -> None:
        """Does nothing: the session is the caller's."""
