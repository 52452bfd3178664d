"""Where the figures of a report come from: DuckDB, or Spark behind the same interface."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from oxcart.drawing.charts import Row
from oxcart.history.reader import LakeReader
from oxcart.spark.lake.versions import Version
from oxcart.spark.views.dialect import DUCKDB, Dialect

#: The name of a row's stream: its queue, and the lane behind an ``@``. A lane has figures of its own.
STREAM = "concat_ws('@', queue, lane)"


class Source(Protocol):
    """The tables of one version of a lake, limited to some days."""

    @property
    def dialect(self) -> Dialect:
        """How the queries are written."""
        ...

    def rows(self, text: str, **parameters: Any) -> list[Row]:
        """Runs one query.

        Args:
            text: The query.
            parameters: The values of its parameters.
        """
        ...

    def close(self) -> None:
        """Ends the source."""
        ...


#: Opens a version, limited to some days.
Open = Callable[[Version, Sequence[str]], Source]


class DuckdbSource:
    """A lake in DuckDB.

    Args:
        version: The version.
        days: The days.
    """

    dialect = DUCKDB

    def __init__(self, version: Version, days: Sequence[str]) -> None:
        self._reader = LakeReader(version.lake, version, days=days)

    def rows(self, text: str, **parameters: Any) -> list[Row]:
        """Runs one query."""
        return self._reader.sql(text, parameters).dicts()

    def close(self) -> None:
        """Closes the connection."""
        self._reader.close()
