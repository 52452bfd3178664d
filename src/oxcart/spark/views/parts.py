"""Parts of a view: relations that are computed once before its query, and the days that they read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from oxcart.spark.views.dialect import Dialect

#: Runs a query over the stored tables of some days; returns its rows.
Ask = Callable[[str, Sequence[str]], Sequence[Sequence[Any]]]
#: Returns which of the known days a view reads for its rows of some days. It takes the dialect, what runs a
#: query, the known days, and the days of the rows, both in their order.
Reach = Callable[[Dialect, Ask, Sequence[str], Sequence[str]], list[str]]


class Column(msgspec.Struct, frozen=True):
    """A column that a function of Python computes from the other columns of a row.

    Attributes:
        columns: All columns of the part and their types, as Spark names them; this one is the last.
        function: Takes the other columns in their order.
    """

    columns: str
    function: Callable[..., Any]


class Part(msgspec.Struct, frozen=True):
    """A relation that is computed once.

    Attributes:
        name: Its name in the queries of the view and of later parts.
        sources: The stored tables that it reads.
        text: Returns its query in a dialect.
        adds: A further column.
    """

    name: str
    sources: tuple[str, ...]
    text: Callable[[Dialect], str]
    adds: Column | None = None
