"""A pipeline in a process of its own, to be killed: ``python -m tests.spark.driver LAKE URL ROWS``."""

from __future__ import annotations

import sys
from pathlib import Path

from oxcart.spark.access import Access, Choice
from oxcart.spark.session import QUICK_SETTINGS, open_session


def main(lake: str, url: str, rows: str) -> None:
    """Reads to the present end of the streams, in batches of so many rows."""
    spark = open_session("local[1]", settings=QUICK_SETTINGS)
    from oxcart.spark.pipeline import Pipeline, Plan

    plan = Plan(Path(lake), Access(url=url), Choice(("q",)), max_rows=int(rows), samples=False)
    Pipeline(spark, plan).ingest()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
