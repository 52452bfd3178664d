"""``oxcart pipeline query``: an SQL question over the tables, in DuckDB or in Spark."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from oxcart.cli import answers, output
from oxcart.cli.exits import USAGE, CommandError
from oxcart.cli.settings import JsonOption
from oxcart.cli.spark_options import (
    LAKE,
    ConfOption,
    LakeOption,
    MasterOption,
    MemoryOption,
    RemoteOption,
    SparkChoice,
    check_lake,
)

if TYPE_CHECKING:
    from oxcart.spark.pipeline import Pipeline


def query(
    ctx: typer.Context,
    text: Annotated[str, typer.Argument(metavar="SQL", help="For example: SELECT * FROM jobs LIMIT 10")],
    lake: LakeOption = LAKE,
    in_spark: Annotated[
        bool, typer.Option("--spark", help="Run it in Spark, in Spark's SQL, instead of DuckDB.")
    ] = False,
    master: MasterOption = None,
    remote: RemoteOption = None,
    conf: ConfOption = None,
    driver_memory: MemoryOption = None,
    as_json: JsonOption = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV with a head.")] = False,
    parquet: Annotated[
        Path | None, typer.Option("--parquet", metavar="FILE", help="Write a Parquet file.")
    ] = None,
) -> None:
    """Ask the tables a question; --master and --remote run it in Spark."""
    if as_json + as_csv + (parquet is not None) > 1:
        raise CommandError("--json, --csv and --parquet exclude each other: give one of them", USAGE)
    check_lake(lake)
    choice = SparkChoice.read(master, remote, conf, driver_memory)
    if in_spark or choice:
        from oxcart.cli.pipeline import open_pipeline

        _ask_spark(open_pipeline(ctx, lake, choice), text, as_json, as_csv, parquet)
        return
    from oxcart.history.reader import LakeReader

    with LakeReader(lake) as reader:
        if parquet is not None:
            _write(parquet, lambda: reader.write_parquet(text, parquet))
        else:
            found = reader.sql(text)
            _show(found.columns, found, as_json, as_csv)


def _ask_spark(pipeline: Pipeline, text: str, as_json: bool, as_csv: bool, parquet: Path | None) -> None:
    from pyspark.errors import PySparkException

    from oxcart.spark.errors import explained_query

    # It would print the trace of a wrong query, which we report in one line.
    logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)
    try:
        found = pipeline.query(text)
        if parquet is not None:
            from pyarrow import parquet as files

            _write(parquet, lambda: files.write_table(found.toArrow(), parquet, compression="zstd"))
            return
        rows = [[_bare(value) for value in row] for row in found.collect()]
    except PySparkException as error:
        raise explained_query(error) from None
    _show(found.columns, rows, as_json, as_csv)


def _bare(value: Any) -> Any:
    """Returns a value of Spark without its rows: structs are dictionaries, and times are in UTC."""
    if isinstance(value, datetime):  # Spark's are in the zone of this machine
        return value.astimezone(UTC)
    if hasattr(value, "asDict"):
        return {name: _bare(item) for name, item in value.asDict().items()}
    if isinstance(value, list):
        return [_bare(item) for item in value]
    if isinstance(value, dict):
        return {name: _bare(item) for name, item in value.items()}
    return value


def _show(columns: Sequence[str], rows: Iterable[Sequence[Any]], as_json: bool, as_csv: bool) -> None:
    shown = answers.print_json if as_json else answers.print_csv if as_csv else answers.print_rows
    shown(columns, rows)


def _write(path: Path, write: Callable[[], None]) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write()
    except OSError as error:
        raise CommandError(f"cannot write {path}: {error.strerror or error}") from error
    output.text(f"written: {path}")
