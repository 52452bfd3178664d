"""From workers of two versions to the tables about the service: one way through all parts."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from oxcart import PermanentError, Queue, Worker
from oxcart.spark.options import QueueSelection, ServerAddress
from oxcart.spark.read.attachment import attach

pytest.importorskip("pyspark")
pytest.importorskip("duckdb")

from oxcart.history.alerts import Alerts
from oxcart.history.reader import LakeReader
from oxcart.history.service import changes, costs, objectives
from oxcart.spark.pipeline import Pipeline, Plan
from oxcart.spark.views.objectives import FILE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OBJECTIVES = '[objectives.paid]\nqueue = "q"\nsuccess = 0.95\n[alerts]\nqueue = "ops"\n'
LIMIT = 60.0


async def deploy(url: str, version: str, broken: bool) -> None:
    """A version of the program runs 100 jobs of two tenants, and fails half of them if it is broken."""
    async with Queue("q", url=url) as queue:

        @queue.fallback
        async def charge(job: Any) -> None:
            if broken and job.data % 2:
                raise PermanentError("no")

        tenants = ("acme", "else")
        added = [
            await queue.add("charge", n, limit_key=tenants[n % 4 == 0], tags={"plan": "pro"})
            for n in range(100)
        ]
        async with Worker(queue, version=version, concurrency=20).running():
            await asyncio.gather(*(job.result(LIMIT) for job in added), return_exceptions=True)


def test_workers_of_two_versions_are_compared_and_alert(
    spark: SparkSession, url: str, one_day: None, tmp_path: Path
) -> None:
    lake, address = tmp_path / "lake", ServerAddress(url=url)
    lake.mkdir()
    (lake / FILE).write_text(OBJECTIVES, encoding="utf-8")
    reported: dict[str, Any] = {}
    alerts = Alerts(lake, lambda queue, report, job_id: reported.update({job_id: (queue, report)}))
    plan = Plan(lake, address, QueueSelection(("q",)))
    asyncio.run(_make(url))
    attach(address, "q", "main")
    asyncio.run(deploy(url, "1.0", broken=False))
    asyncio.run(deploy(url, "1.1", broken=True))
    Pipeline(spark, plan, built=alerts.check).once()
    with LakeReader(lake) as reader:
        found = {row["version"]: row for row in changes(reader, "2026-01-01")}
        spent = {row["tenant"]: row["attempts"] for row in costs(reader, "2026-01-01")}
        tagged = sum(row["attempts"] for row in costs(reader, "2026-01-01", tag="plan"))
        (paid,) = objectives(reader)
    assert (found["1.1"]["previous"], found["1.1"]["failing"], found["1.1"]["failure_share"]) == (
        "1.0",
        "more",
        0.5,
    )
    assert (spent, tagged) == ({"acme": 150, "else": 50}, 200)
    assert (paid["total_30d"], paid["bad_30d"], paid["burn_1h"]) == (200, 50, pytest.approx(5))
    assert reported == {}, "a burn of 5 is below both bounds"
    (lake / FILE).write_text(OBJECTIVES + "burn = [4, 4]\n", encoding="utf-8")
    assert alerts.check() == ["burn:paid"]
    ((queue, report),) = reported.values()
    assert (queue, report["objective"]) == ("ops", "paid")


async def _make(url: str) -> None:
    async with Queue("q", url=url) as queue:
        await (await queue.add("first")).cancel()
