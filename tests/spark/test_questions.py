"""The example of a data person runs as its docstring says."""

from __future__ import annotations

import ast
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import redis

from oxcart.spark.options import QueueSelection, ServerAddress
from tests.test_examples import EXAMPLES, run

pytest.importorskip("pyspark")

from oxcart.spark.pipeline import Pipeline, Plan

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_three_questions(spark: SparkSession, url: str, store: redis.Redis, tmp_path: Path) -> None:
    lake = str(tmp_path / "lake")
    example = str(EXAMPLES / "questions.py")
    assert run(sys.executable, example, "trade", url=url) == "no address\nno address\n"
    # As `oxcart pipeline run --once` does, in the session that these tests share.
    plan = Plan(Path(lake), ServerAddress(url=url), QueueSelection(pattern="*"), samples=False)
    Pipeline(spark, plan).once()
    answers = dict(
        line.split("? ") for line in run(sys.executable, example, "ask", lake, url=url).splitlines()
    )
    assert {question: ast.literal_eval(answer) for question, answer in answers.items()} == {
        "Which jobs are slow": [("render", 5, True), ("send", 6, False)],
        "Why did jobs fail for good": [("no address", 2)],
        "What did retries cost": [("send", 2, 4)],
    }
