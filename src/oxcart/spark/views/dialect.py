"""The few words in which the SQL of DuckDB and that of Spark differ."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

_DAY_MS = 86_400_000


class Dialect(msgspec.Struct, frozen=True):
    """How one engine spells what the views need.

    Attributes:
        is_spark: Whether the engine is Spark; DuckDB otherwise.
    """

    is_spark: bool = False

    def ms(self, column: str, *, named: bool = False) -> str:
        """Returns an instant as ms since 1970.

        Args:
            column: Its column by the name in transforms: ``m.start_ms`` is ``m.start_at`` in tables.
            named: Whether `column` is an expression over the names in tables instead.
        """
        return f"{'unix_millis' if self.is_spark else 'epoch_ms'}({column if named else _at(column)})"

    def instant(self, expression: str, name: str) -> str:
        """Returns ms since 1970 as an instant; ``start_ms`` is ``start_at`` in the view."""
        call = "timestamp_millis" if self.is_spark else "make_timestamp_ms"
        return f"{call}(CAST({expression} AS BIGINT)) AS {_at(name)}"

    def day(self, expression: str) -> str:
        """Returns the day of ms since 1970, in UTC."""
        days = f"CAST(floor(({expression}) / {_DAY_MS}) AS INT)"
        return f"date_add(DATE '1970-01-01', {days})" if self.is_spark else f"DATE '1970-01-01' + {days}"

    def percentile(self, column: str, share: float) -> str:
        """Returns an exact percentile, interpolated between two values."""
        return f"{'percentile' if self.is_spark else 'quantile_cont'}({column}, {share})"

    def struct(self, *columns: str) -> str:
        """Returns some columns as one value."""
        if self.is_spark:
            return f"struct({', '.join(columns)})"
        return f"struct_pack({', '.join(f'{name} := {name}' for name in columns)})"

    def last_known(self, column: str) -> str:
        """Returns the window function of the last value that is not null."""
        return self._known("last_value", column)

    def first_known(self, column: str) -> str:
        """Returns the window function of the first value that is not null."""
        return self._known("first_value", column)

    def _known(self, function: str, column: str) -> str:
        if self.is_spark:
            return f"{function}({column}) IGNORE NULLS"
        return f"{function}({column} IGNORE NULLS)"

    def recursive(self, name: str, levels: int) -> str:
        """Returns the head of a recursive part of a query that is as deep as some levels."""
        return f"{name} MAX RECURSION LEVEL {levels}" if self.is_spark else name

    def parameter(self, name: str) -> str:
        """Returns what stands for a parameter."""
        return f":{name}" if self.is_spark else f"${name}"

    def under(self, buckets: str, limit: str) -> str:
        """Returns how many durations are in the buckets below a limit."""
        if self.is_spark:
            return f"aggregate(filter({buckets}, b -> b.ms < {limit}), 0L, (n, b) -> n + b.times)"
        counted = f"list_transform(list_filter({buckets}, lambda b: b.ms < {limit}), lambda b: b.times)"
        return f"CAST(coalesce(list_sum({counted}), 0) AS BIGINT)"

    def all_of(self, buckets: str) -> str:
        """Returns how many durations are in all buckets."""
        if self.is_spark:
            return f"aggregate({buckets}, 0L, (n, b) -> n + b.times)"
        return f"CAST(coalesce(list_sum(list_transform({buckets}, lambda b: b.times)), 0) AS BIGINT)"

    def spread(self, columns: str, buckets: str, source: str) -> str:
        """Returns a query with a row per bucket, whose columns are ``ms`` and ``times``."""
        if self.is_spark:
            return f"SELECT {columns}, inline({buckets}) AS (ms, times) FROM {source}"
        return (
            f"SELECT {columns}, b.ms, b.times FROM (SELECT {columns}, unnest({buckets}) AS b FROM {source})"
        )


def _at(column: str) -> str:
    """The column of an instant in tables and views (`oxcart.spark.lake.columns.public_name`)."""
    table, dot, name = column.rpartition(".")
    return f"{table}{dot}{'occurred' if name == 'at_ms' else name.removesuffix('_ms')}_at"


DUCKDB = Dialect()
SPARK = Dialect(is_spark=True)


def quoted(text: str | None) -> str:
    """Returns a text as a literal of both dialects."""
    if text is None:
        return "CAST(NULL AS STRING)"
    # Spark reads a backslash as an escape, DuckDB does not: no text of ours has one.
    return "'" + text.replace("\\", "").replace("'", "''") + "'"


def days_in(days: Iterable[str]) -> str:
    """Returns the condition that a row is of one of some days."""
    literals = ", ".join(f"DATE '{day}'" for day in days)
    return f"day IN ({literals or 'NULL'})"
