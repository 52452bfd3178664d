"""Arrow batch handlers: payloads become columns, rows become results, and one bad row fails alone."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

pytest.importorskip("pyspark")

import pyarrow as pa
import pyarrow.compute as pc

from oxcart.engine.sync_running import SyncRunningJob
from oxcart.errors import JobFailed, PermanentError, TemporaryError
from oxcart.spark import run_jobs
from oxcart.spark.work.arrow import arrow_handler, to_results
from oxcart.sync import Queue

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def jobs(count: int) -> list[SyncRunningJob]:
    made = [SimpleNamespace(id=f"j{at}", name="n", attempt=at + 1) for at in range(count)]
    return cast(list[SyncRunningJob], made)


def double(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Doubles a number; negative ones are refused for good, and a zero is tried again."""
    n = batch.column("n")
    error = pc.if_else(pc.less(n, 0), "negative", pc.if_else(pc.equal(n, 0), "zero", None))
    category = pc.if_else(pc.less(n, 0), "permanent", None)
    code = pa.array(["sign"] * batch.num_rows)
    columns = [pc.multiply(n, 2), batch.column("ox_id"), error, category, code]
    names = ["double", "of", "ox_error", "ox_category", "ox_code"]
    return pa.RecordBatch.from_arrays(columns, names=names)


def test_one_bad_item_fails_alone(spark: SparkSession, url: str) -> None:
    queue = Queue("q", url=url)
    given: list[Any] = [{"n": 1}, {"n": "two"}, {"n": -3}, "four", {"n": 5, "more": True}, {}, {"n": 0}]
    handles = queue.add_many([("any", data) for data in given], attempts=1)
    done = run_jobs(spark, queue, double, batch=100, schema="n bigint NOT NULL, ox_id string", within=0.2)
    assert (done.completed, done.failed) == (2, 5)
    assert handles[0].result(5) == {"double": 2, "of": handles[0].id}
    assert handles[4].result(5) == {"double": 10, "of": handles[4].id}
    reasons = {}
    for at in (1, 2, 3, 5, 6):
        with pytest.raises(JobFailed) as failed:
            handles[at].result(5)
        reasons[at] = str(failed.value)
    assert "field n is no int64" in reasons[1]
    assert "negative" in reasons[2]
    assert "got str" in reasons[3]
    assert "field n is missing" in reasons[5]
    assert "zero" in reasons[6]
    assert [job.id for job in queue.dead_letters.list()] == [handles[6].id]


def test_texts_become_times_and_decimals() -> None:
    schema = pa.schema(
        [("at", pa.timestamp("us", "UTC")), ("day", pa.date32()), ("sum", pa.decimal128(9, 2))]
    )
    seen: list[Any] = []
    call = arrow_handler(lambda batch: seen.extend(batch.to_pylist()), schema)
    found = call(
        [{"at": "2026-11-02T10:00:00Z", "day": "2026-11-02", "sum": "12.50"}, {"at": "soon"}], jobs(2)
    )
    day = dt.datetime(2026, 11, 2, 10, tzinfo=dt.UTC)
    assert seen == [{"at": day, "day": day.date(), "sum": Decimal("12.50")}]
    assert found[0] is None
    assert isinstance(found[1], PermanentError)
    assert found[1].code == "payload"


def test_without_a_schema_the_payload_is_text() -> None:
    call = arrow_handler(lambda batch: pa.table({"ox_result": batch.column("payload")}), None)
    assert call([{"a": [1, 2]}, 7], jobs(2)) == ['{"a":[1,2]}', "7"]


def test_results_have_one_row_per_row() -> None:
    table = pa.table({"ox_error": [None, "no"], "ox_code": [None, "c"], "value": [1, 2]})
    good, bad = to_results(table, 2)
    assert good == {"value": 1}
    assert isinstance(bad, TemporaryError)
    assert (str(bad), bad.code) == ("no", "c")
    with pytest.raises(PermanentError, match="one row per row, 3, got 2"):
        to_results(table, 3)
    with pytest.raises(PermanentError, match="got list"):
        to_results(cast(Any, [1]), 1)
    with pytest.raises(PermanentError, match="ox_delay"):
        to_results(pa.table({"ox_delay": [1]}), 1)
    assert to_results(None, 2) == [None, None]
