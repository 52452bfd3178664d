"""A pipeline in a process of its own, to be killed: ``python -m tests.spark.driver JSON``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from oxcart.spark.options import QueueSelection, ServerAddress
from oxcart.spark.session import QUICK_SETTINGS, open_session


def main(given: dict[str, Any]) -> None:
    """Reads to the current end of the streams, and builds the tables on request."""
    spark = open_session(
        given.get("master", "local[1]"), settings={**QUICK_SETTINGS, **given.get("settings", {})}
    )
    from oxcart.spark.pipeline import Pipeline, Plan

    plan = Plan(
        Path(given["lake"]),
        ServerAddress(url=given["url"]),
        QueueSelection(("q",)),
        max_rows=given["rows"],
        samples=False,
    )
    pipeline = Pipeline(spark, plan)
    if given.get("build"):
        pipeline.once()
    else:
        pipeline.ingest()
    spark.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
