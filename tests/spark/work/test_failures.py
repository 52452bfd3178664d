"""Spark's exceptions become failures with a category."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")

from oxcart.engine.process_child import portable
from oxcart.engine.processes import HandlerCrashed
from oxcart.model.failure import Category, PermanentError, TemporaryError, classify
from oxcart.spark.work.failures import mapped

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def failing(error: Exception) -> Callable[[Any], Any]:
    def fail(batches: Any) -> Any:
        raise error

    return fail


WAYS: dict[str, tuple[Callable[[SparkSession], Any], Category, str]] = {
    "column": (
        lambda spark: spark.range(1).select("nowhere").collect(),
        Category.PERMANENT,
        "UNRESOLVED_COLUMN.WITH_SUGGESTION",
    ),
    "syntax": (lambda spark: spark.sql("SELECT 1 +"), Category.PERMANENT, "PARSE_SYNTAX_ERROR"),
    "path": (lambda spark: spark.read.parquet("/no/such/path"), Category.PERMANENT, "PATH_NOT_FOUND"),
    "task": (
        lambda spark: spark.range(1).mapInArrow(failing(OSError("busy")), "id bigint").collect(),
        Category.TEMPORARY,
        "",
    ),
    "bad row": (
        lambda spark: spark.range(1).mapInArrow(failing(PermanentError("bad row")), "id bigint").collect(),
        Category.PERMANENT,
        "",
    ),
    "busy row": (
        lambda spark: spark.range(1).mapInArrow(failing(TemporaryError("later")), "id bigint").collect(),
        Category.TEMPORARY,
        "",
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_an_error_of_spark_has_a_category(spark: SparkSession, way: str) -> None:
    run, category, code = WAYS[way]
    with pytest.raises(Exception) as raised:  # noqa: PT011
        run(spark)
    failure = mapped(raised.value)
    assert classify(failure) is category, failure
    assert portable(failure) is failure
    if code:
        assert getattr(failure, "code", None) == code


def test_lost_executors_are_tried_again() -> None:
    from pyspark.errors import PySparkException

    text = "Job aborted due to stage failure: ExecutorLostFailure (executor 1 exited)"
    failure = mapped(PySparkException(text))
    assert isinstance(failure, TemporaryError)
    assert failure.code == "executor-lost"


def test_a_jvm_that_is_gone_is_a_crash() -> None:
    from py4j.protocol import Py4JNetworkError  # type: ignore[import-untyped]

    assert isinstance(mapped(Py4JNetworkError("Answer from Java side is empty")), HandlerCrashed)


def test_an_error_of_the_handler_itself_stays_as_it_is() -> None:
    error = KeyError("x")
    assert mapped(error) is error
