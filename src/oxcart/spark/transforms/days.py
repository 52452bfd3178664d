"""The day of a time, in UTC whatever the session's time zone is.

Spark turns a timestamp into a date by the zone of the session. In any other zone than UTC the rows around
midnight would get a day that no build writes, and would be lost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as fn

if TYPE_CHECKING:
    from pyspark.sql import Column

DAY_MS = 86_400_000


def day_of(at_ms: Column | str) -> Column:
    """Returns the day of a time in ms; null for null."""
    at = fn.col(at_ms) if isinstance(at_ms, str) else at_ms
    return fn.date_from_unix_date(fn.floor(at / fn.lit(DAY_MS)).cast("int"))
