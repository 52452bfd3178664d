"""SQL over the tables of a lake, in DuckDB.

A reader is bound to one version of the lake. A query sees the files that Delta's log names for this version
and no others, so rows that a later version replaced never appear twice. Only tables that the query names are
opened: opening a table reads the footer of each of its files. Times are timestamps in UTC.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, date, timedelta
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import msgspec

from oxcart.history.asked import Days, asked_days
from oxcart.model.errors import MissingExtra, ValidationError
from oxcart.spark.lake.columns import STORED, VIEWED, public, unknown_table
from oxcart.spark.lake.versions import Lake, LakeError, Version
from oxcart.spark.views.catalogue import VIEWS, View
from oxcart.spark.views.dialect import DUCKDB, days_in
from oxcart.spark.views.objectives import load_objectives
from oxcart.spark.views.parts import Part

if TYPE_CHECKING:
    import duckdb

#: The types of columns, by Spark's words.
_TYPES = {
    "string": "VARCHAR",
    "int": "INTEGER",
    "binary": "BLOB",
    "timestamp": "TIMESTAMPTZ",
    "map<string,string>": "MAP(VARCHAR, VARCHAR)",
    "array<string>": "VARCHAR[]",
    "array<struct<ms:bigint,times:bigint>>": "STRUCT(ms BIGINT, times BIGINT)[]",
}
#: Rows that are fetched at once.
_CHUNK = 10_000

#: The values of a query's parameters, in their order or by name.
Parameters = Sequence[Any] | Mapping[str, Any]

#: Nulls sort as in Spark: first, and last in descending order. No variable of this program is a table.
_SETTINGS = (
    "SET default_null_order = 'nulls_first_on_asc_last_on_desc'",
    "SET python_enable_replacements = false",
    "SET TimeZone = 'UTC'",
)


class Answer:
    """The rows of a query.

    Attributes:
        columns: Their names.
    """

    def __init__(self, connection: duckdb.DuckDBPyConnection, text: str, parameters: Parameters) -> None:
        self._connection = connection
        found = connection.execute(text, parameters)
        described = found.description or ()
        self.columns: Sequence[str] = [column[0] for column in described]
        self._times = [at for at, column in enumerate(described) if str(column[1]).startswith("TIMESTAMP")]

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        """Yields the rows, once; the next query of the reader ends it. Times are in UTC.

        Raises:
            LakeError: The version has expired meanwhile.
            ValidationError: A value cannot be computed.
        """
        with _Explained():
            while rows := self._connection.fetchmany(_CHUNK):
                yield from map(self._in_utc, rows) if self._times else rows

    def _in_utc(self, row: tuple[Any, ...]) -> tuple[Any, ...]:
        values = list(row)
        for at in self._times:
            if values[at] is not None:
                values[at] = values[at].replace(tzinfo=UTC)
        return tuple(values)

    def dicts(self) -> list[dict[str, Any]]:
        """Returns the rows by the names of columns."""
        return [dict(zip(self.columns, row, strict=True)) for row in self]


class LakeReader:
    """Reads the tables of one version of a lake; a context manager.

    Args:
        lake: The lake, or its folder.
        version: The version; the newest unless given.
        since_day: Rows of earlier days are left out, and their files are not opened. A flow or a schedule
            crosses days: files of the days that its rows need are opened too.
        days: Only rows of these days; all unless given.

    Raises:
        MissingExtra: DuckDB is not installed.
        LakeError: The lake has no tables yet.
    """

    def __init__(
        self,
        lake: Lake | str | Path,
        version: Version | None = None,
        *,
        since_day: str = "",
        days: Iterable[str] | None = None,
    ) -> None:
        self._lake = lake if isinstance(lake, Lake) else Lake(lake)
        self.version = version or self._lake.head()
        if not self.version.number:
            raise LakeError(f"there are no tables in {self._lake.root} yet")
        self._connection = _connect()
        self._since_day = since_day
        self._days = None if days is None else frozenset(days)
        self._opened: set[str] = set()

    def __enter__(self) -> LakeReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connection to DuckDB."""
        self._connection.close()

    def sql(self, text: str, parameters: Parameters = ()) -> Answer:
        """Runs one query in DuckDB's SQL.

        Args:
            text: The query; ``?`` or ``$name`` stands for a parameter.
            parameters: The values of parameters, in their order or by name.

        Raises:
            ValidationError: It is not one query, or names a table or column that does not exist.
            LakeError: The version has expired meanwhile.
        """
        _check_statement(self._connection, text)
        with _Explained():
            self._open(*_parsed(self._connection, text))
            return Answer(self._connection, text, parameters)

    def write_parquet(self, text: str, path: Path) -> None:
        """Runs one query and writes its rows into a Parquet file.

        Raises:
            ValidationError: It is not one query, or names a table or column that does not exist.
            LakeError: The version has expired meanwhile, or the file cannot be written.
        """
        _check_statement(self._connection, text)
        with _Explained():
            self._open(*_parsed(self._connection, text))
            self._connection.sql(text).write_parquet(str(path), compression="zstd")

    def _open(self, names: Iterable[str], tree: Any = None) -> None:
        """Creates views of some tables, which a query names."""
        for name in sorted(set(names) - self._opened):
            view, asked = VIEWS.get(name), None
            if view is None:
                text = self._stored(name, self._chosen([name]))
            elif view.parts:
                asked = asked_days(tree, name)
                text = self._computed(view, asked)
            else:
                self._open(view.sources)
                text = view.text(DUCKDB, load_objectives(self._lake.root))
            self._connection.execute(f'CREATE OR REPLACE VIEW "{name}" AS {text}')
            if asked is None:  # the next query may ask for other days
                self._opened.add(name)

    def _known_days(self, tables: Iterable[str]) -> set[str]:
        return {file.day for table in tables for file in self.version.of(table)}

    def _chosen(self, tables: Iterable[str]) -> list[str] | None:
        """The days of some tables that the reader is limited to; None for all."""
        if self._days is None and not self._since_day:
            return None
        known = self._known_days(tables) if self._days is None else self._days
        return sorted(day for day in known if day >= self._since_day)

    def _computed(self, view: View, asked: Days | None) -> str:
        """Computes the parts of a view for the days that a query asks for; returns its query."""
        days = needed = None
        if asked is not None or self._days is not None or self._since_day:
            known = sorted(self._known_days(view.sources))
            # A row may be of a day that has no file of a source.
            candidates = _calendar(known) if self._days is None else sorted(self._days)
            days = needed = [
                day for day in candidates if day >= self._since_day and (asked is None or asked(day))
            ]
            if view.reach is not None:
                needed = view.reach(DUCKDB, self._ask, known, days)
        for part in view.parts:
            sources = ", ".join(f'"{name}" AS ({self._stored(name, needed)})' for name in part.sources)
            head = f"WITH {sources} SELECT * FROM" if sources else "FROM"
            self._compute(part, f"{head} ({part.text(DUCKDB)})")
        text = view.text(DUCKDB, load_objectives(self._lake.root))
        return text if days is None else f"SELECT * FROM ({text}) WHERE {days_in(days)}"

    def _compute(self, part: Part, text: str) -> None:
        added = part.adds
        if added is None:
            self._connection.execute(f'CREATE OR REPLACE TEMP TABLE "{part.name}" AS {text}')
            return
        # A function of Python would need numpy.
        names, kinds = zip(*(column.split(" ") for column in added.columns.split(", ")), strict=True)
        rows = self._connection.execute(text).fetchall()
        values = [dict(zip(names, (*row, added.function(*row)), strict=True)) for row in rows]
        form = [dict(zip(names, map(_type, kinds), strict=True))]
        self._connection.execute(
            f'CREATE OR REPLACE TEMP TABLE "{part.name}" AS '
            "SELECT unnest(from_json(?::JSON, ?), recursive := true)",
            [msgspec.json.encode(values).decode(), msgspec.json.encode(form).decode()],
        )

    def _ask(self, text: str, days: Iterable[str]) -> list[tuple[Any, ...]]:
        with LakeReader(self._lake, self.version, days=days) as reader:
            return list(reader.sql(text))

    def _stored(self, table: str, days: Iterable[str] | None) -> str:
        """Returns the query of a stored table; of some days, if they are given."""
        columns = public(table)
        empty = ", ".join(f'NULL::{_type(kind)} AS "{name}"' for name, kind in columns.items())
        rows = f"SELECT {empty} WHERE false"
        paths = self._lake.paths(self.version.of(table, days=days))
        if paths:
            # The empty rows give the types, and columns that files of an older release lack.
            files = ", ".join(map(_quoted, paths))
            rows += (
                f" UNION ALL BY NAME SELECT * FROM read_parquet([{files}], union_by_name = true, "
                "hive_partitioning = false)"
            )
        # DuckDB's timestamps with a zone need a further package in Python. `Answer` adds the zone.
        chosen = ", ".join(
            f'"{name}"::TIMESTAMP AS "{name}"' if kind == "timestamp" else f'"{name}"'
            for name, kind in columns.items()
        )
        return f"SELECT {chosen} FROM ({rows})"


class _Explained:
    """Turns DuckDB's errors into ours."""

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        import duckdb

        if not isinstance(error, duckdb.Error):
            return
        line = _first_line(error)
        if isinstance(error, duckdb.IOException):
            raise LakeError(
                f"a file cannot be read or written ({line}); if it is one of the lake and 'oxcart pipeline "
                "expire' ran meanwhile, ask again"
            ) from error
        raise ValidationError("query", "SQL that DuckDB can run", None, line) from error


def _connect() -> duckdb.DuckDBPyConnection:
    try:
        import duckdb
    except ImportError:
        raise MissingExtra("reading the lake without Spark", "lake") from None
    made = duckdb.connect(config={"autoinstall_known_extensions": "false"})
    for setting in _SETTINGS:
        made.execute(setting)
    return made


def _check_statement(connection: duckdb.DuckDBPyConnection, text: str) -> None:
    """Refuses anything but one query: the lake is only read."""
    import duckdb

    with _Explained():
        found = connection.extract_statements(text)
    kinds = (duckdb.StatementType.SELECT, duckdb.StatementType.EXPLAIN)
    if len(found) != 1 or found[0].type not in kinds:
        shown = " ".join(text.split())
        raise ValidationError("query", "one SELECT", shown)


def _parsed(connection: duckdb.DuckDBPyConnection, text: str) -> tuple[set[str], Any]:
    """Returns the tables of the lake that a query names, and its tree.

    Raises:
        ValidationError: One of them does not exist.
    """
    row = connection.execute("SELECT json_serialize_sql(?::VARCHAR)", [text]).fetchone()
    tree = msgspec.json.decode(row[0] if row else "{}")
    if tree.get("error"):  # no plain SELECT: EXPLAIN, PIVOT
        named, own = set(connection.get_table_names(text)), frozenset[str]()
    else:
        named, own = _named_by(tree)
    found = {name.lower() for name in named}
    # A name that is no word is a file of the user's own.
    unknown = sorted(
        name for name in found - STORED.keys() - VIEWED.keys() - own if re.fullmatch(r"\w+", name)
    )
    if unknown:
        raise unknown_table(unknown[0])
    return found & (STORED.keys() | VIEWED.keys()), tree


def _named_by(tree: Any) -> tuple[set[str], frozenset[str]]:
    """Returns the tables that a parsed query reads, and the names that it gives to its own parts."""
    named: set[str] = set()
    own: set[str] = set()
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict):
            if node.get("type") == "BASE_TABLE" and node.get("schema_name") in ("", "main"):
                named.add(node["table_name"])
            if "cte_map" in node:
                own.update(part["key"].lower() for part in node["cte_map"]["map"])
            waiting += node.values()
        elif isinstance(node, list):
            waiting += node
    return named, frozenset(own)


def _calendar(known: Sequence[str]) -> list[str]:
    """Returns all days from a week before the first known one to the last."""
    if not known:
        return []
    first, last = date.fromisoformat(known[0]) - timedelta(weeks=1), date.fromisoformat(known[-1])
    return [(first + timedelta(days=number)).isoformat() for number in range((last - first).days + 1)]


def _first_line(error: Exception) -> str:
    """Returns the message of DuckDB without its kind, the position in the query, and further lines."""
    return str(error).partition("\n")[0].partition(": ")[2] or str(error).partition("\n")[0]


def _type(kind: str) -> str:
    return _TYPES.get(kind, kind.upper())


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
