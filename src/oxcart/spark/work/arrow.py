"""Arrow batch handlers: many jobs are one table of payloads, and one table of results.

It is a batch handler like any other (docs/decisions/79-batches.md): every row is an attempt of its own, with
its lease, timeout, retries and outcome. A payload that does not fit the columns fails alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from oxcart.engine.sync_running import SyncRunningJob
from oxcart.model import payload
from oxcart.model.errors import ValidationError
from oxcart.model.failure import Category, PermanentError, TemporaryError

#: Columns that are filled from the job instead of its payload, where the schema names them.
JOB_COLUMNS: dict[str, Callable[[SyncRunningJob], Any]] = {
    "ox_id": lambda job: job.id,
    "ox_name": lambda job: job.name,
    "ox_attempt": lambda job: job.attempt,
}
#: Without a schema, the one column of a batch: each payload as JSON.
PAYLOAD = "payload"
#: Columns of a handler's answer that are no fields of its results.
RESULT, ERROR, CATEGORY, CODE = "ox_result", "ox_error", "ox_category", "ox_code"
_KNOWN = (RESULT, ERROR, CATEGORY, CODE)
_PREFIX = "ox_"


def arrow_handler(
    function: Callable[[pa.RecordBatch], pa.RecordBatch | pa.Table | None], schema: pa.Schema | None
) -> Callable[[list[Any], list[SyncRunningJob]], list[Any]]:
    """Returns a function of payloads and jobs, for a batch handler.

    Args:
        function: Takes a batch and returns one row per row, in order; or nothing.
        schema: The columns of a batch; None for one column with the payload as text.
    """
    schema = pa.schema([pa.field(PAYLOAD, pa.string())]) if schema is None else schema
    is_text = schema.names == [PAYLOAD]

    def call(items: list[Any], jobs: list[SyncRunningJob]) -> list[Any]:
        rows = [{PAYLOAD: payload.encode(item).decode()} for item in items] if is_text else items
        batch, places, results = to_batch(rows, jobs, schema)
        if places:
            for place, result in zip(places, to_results(function(batch), len(places)), strict=True):
                results[place] = result
        return results

    return call


def check_schema(schema: pa.Schema) -> pa.Schema:
    """Refuses columns that no payload can fill.

    Raises:
        ValidationError: Two columns have one name, or a name begins with ``ox_`` and is no fact of a job.
    """
    for name in schema.names:
        if name.startswith(_PREFIX) and name not in JOB_COLUMNS:
            raise ValidationError("schema", f"without ox_ columns other than {', '.join(JOB_COLUMNS)}", name)
        if schema.names.count(name) > 1:
            raise ValidationError("schema", "without a name that occurs twice", name)
    if not schema.names:
        raise ValidationError("schema", "at least one column", schema)
    return schema


def to_batch(
    rows: Sequence[Any], jobs: Sequence[SyncRunningJob], schema: pa.Schema
) -> tuple[pa.RecordBatch, list[int], list[Any]]:
    """Makes a batch of all payloads that fit.

    Returns:
        The batch, the places of its rows, and one result per payload: an error for those left out.
    """
    results: list[Any] = [None] * len(rows)
    places = [place for place, row in enumerate(rows) if isinstance(row, dict)]
    for place, row in enumerate(rows):
        if not isinstance(row, dict):
            results[place] = _unfit(f"an object with the fields of the columns, got {type(row).__name__}")
    try:
        return _batch([rows[at] for at in places], [jobs[at] for at in places], schema), places, results
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        fitting = []
        for place in places:  # find those that do not fit; this costs time only where there are some
            try:
                _batch([rows[place]], [jobs[place]], schema)
            except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
                results[place] = _unfit(str(error), error)
            else:
                fitting.append(place)
        made = _batch([rows[at] for at in fitting], [jobs[at] for at in fitting], schema)
        return made, fitting, results


def to_results(answer: pa.RecordBatch | pa.Table | None, count: int) -> list[Any]:
    """Returns one result or error per row of a handler's answer.

    Raises:
        PermanentError: The answer is no table, or has another number of rows, or an unknown ``ox_`` column.
    """
    if answer is None:
        return [None] * count
    if not isinstance(answer, pa.RecordBatch | pa.Table):
        raise PermanentError(
            f"an Arrow handler must return a RecordBatch or a Table, got {type(answer).__name__}",
            code="batch",
        )
    if answer.num_rows != count:
        raise PermanentError(
            f"an Arrow handler must return one row per row, {count}, got {answer.num_rows}", code="batch"
        )
    names = answer.schema.names
    unknown = [name for name in names if name.startswith(_PREFIX) and name not in _KNOWN]
    if unknown:
        raise PermanentError(
            f"column {unknown[0]} is none of {', '.join(_KNOWN)}: results have no ox_ fields", code="batch"
        )
    fields = [name for name in names if name not in _KNOWN]
    return [_result(row, fields) for row in answer.to_pylist()]


def _result(row: dict[str, Any], fields: list[str]) -> Any:
    reason = row.get(ERROR)
    if reason is not None:
        category, code = row.get(CATEGORY) or Category.TEMPORARY.value, row.get(CODE)
        if category == Category.TEMPORARY.value:
            return TemporaryError(str(reason), code=code)
        return PermanentError(str(reason), code=code)
    if RESULT in row:
        return row[RESULT]
    return {name: row[name] for name in fields} if fields else None


def _batch(
    rows: Sequence[dict[str, Any]], jobs: Sequence[SyncRunningJob], schema: pa.Schema
) -> pa.RecordBatch:
    columns = []
    for field in schema:
        of_job = JOB_COLUMNS.get(field.name)
        values = [row.get(field.name) for row in rows] if of_job is None else [of_job(job) for job in jobs]
        if not field.nullable and None in values:
            raise ValueError(f"field {field.name} is missing, and its column is NOT NULL")
        try:
            columns.append(_column(values, field.type))
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise ValueError(f"field {field.name} is no {field.type}: {error}") from error
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _column(values: list[Any], kind: pa.DataType) -> pa.Array:
    # JSON has no times and no decimals: they are texts there.
    if (pa.types.is_temporal(kind) or pa.types.is_decimal(kind)) and any(
        isinstance(one, str) for one in values
    ):
        return pa.array([None if one is None else str(one) for one in values], pa.string()).cast(kind)
    return pa.array(values, kind)


def _unfit(why: str, cause: Exception | None = None) -> PermanentError:
    return PermanentError(f"the payload does not fit the columns: {why}", cause=cause, code="payload")
