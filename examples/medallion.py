"""A small orchestrator: bronze, silver and gold tables of orders, every night and for days gone by.

Each step is a Spark application of its own, with its retries, timeout, progress and log. A day is a flow:
gold waits for silver, silver for bronze. A backfill is a flow of days. It needs Java 17 and
``pip install 'oxcart[spark]'``.

    python examples/medallion.py --days 30
"""

import argparse
import asyncio
import datetime as dt
import json
import os
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oxcart import Flow, Queue, RunningJob, Worker
from oxcart.spark import SparkJob

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LAKE = Path(os.environ.get("MEDALLION_LAKE", "build/medallion"))
CONF = {
    "spark.driver.memory": "512m",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
}

etl = Queue("etl", attempts=3, backoff="1s")


@etl.job(run="spark", master="local[1]", conf=CONF, timeout="10m")
def bronze(spark: "SparkSession", job: SparkJob, day: str) -> int:
    """Takes a day's files as they came, so that every later step can be repeated without them."""
    from pyspark.sql import functions as f

    lines = spark.read.text(str(LAKE / "landing" / f"{day}.jsonl"))
    taken = lines.withColumnRenamed("value", "line").withColumn("taken_by", f.lit(job.id))
    taken.write.parquet(job.output(LAKE / "bronze" / f"day={day}"))
    return lines.count()


@etl.job(run="spark", master="local[1]", conf=CONF, timeout="10m")
def silver(spark: "SparkSession", job: SparkJob, day: str) -> dict[str, int]:
    """Gives the lines columns and types, one row per order; what cannot be read is counted, not lost."""
    from pyspark.sql import functions as f

    raw = spark.read.parquet(str(LAKE / "bronze" / f"day={day}"))
    read = raw.select(
        f.from_json("line", "order STRING, customer STRING, amount DECIMAL(12,2), at TIMESTAMP").alias("o")
    ).select("o.*")
    good = read.where("order IS NOT NULL AND customer IS NOT NULL AND amount IS NOT NULL")
    orders = good.dropDuplicates(["order"])
    orders.write.parquet(job.output(LAKE / "silver" / f"day={day}"))
    lines, kept = raw.count(), orders.count()
    return {"orders": kept, "refused": lines - good.count(), "doubled": good.count() - kept}


@etl.job(run="spark", master="local[1]", conf=CONF, timeout="10m")
def gold(spark: "SparkSession", job: SparkJob, day: str) -> dict[str, Any]:
    """Sums a day by customer."""
    from pyspark.sql import functions as f

    orders = spark.read.parquet(str(LAKE / "silver" / f"day={day}"))
    sums = orders.groupBy("customer").agg(f.count("*").alias("orders"), f.sum("amount").alias("amount"))
    sums.write.parquet(job.output(LAKE / "gold" / f"day={day}"))
    (total,) = orders.agg(f.sum("amount")).head() or (0,)
    return {"day": day, "amount": str(total)}


@etl.job
async def backfilled(job: RunningJob) -> dict[str, Any]:
    """Runs when all days are done: says what they sum up to."""
    days = [value for value in (await job.children_values()).values() if value]
    return {"days": len(days), "amount": str(round(sum(float(one["amount"]) for one in days), 2))}


@etl.job(cron="15 2 * * *", tz="UTC")
async def daily() -> None:
    """Every night: the day that has just ended."""
    yesterday = dt.datetime.now(dt.UTC).date() - dt.timedelta(days=1)
    await of_day(str(yesterday)).add()


def of_day(day: str) -> Flow:
    """One day's three steps, each after the one before."""
    return gold.flow(day=day).after(silver.flow(day=day).after(bronze.flow(day=day)))


def backfill(first: dt.date, days: int) -> Flow:
    """Many days, as many at once as the workers have slots."""
    return backfilled.flow().after(*(of_day(str(first + dt.timedelta(days=n))) for n in range(days)))


def land(first: dt.date, days: int) -> None:
    """Plays the shop: a file of orders per day, with a line that is broken and one that comes twice."""
    folder = LAKE / "landing"
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(days):
        day, rand = first + dt.timedelta(days=number), random.Random(number)
        lines = [
            json.dumps(
                {
                    "order": f"{day}-{n}",
                    "customer": f"c{rand.randrange(5)}",
                    "amount": f"{n % 7}.50",
                    "at": f"{day}T{n % 24:02}:00:00Z",
                }
            )
            for n in range(100)
        ]
        (folder / f"{day}.jsonl").write_text("\n".join([*lines, "{broken", lines[0]]) + "\n")


async def main(first: dt.date, days: int) -> None:
    """Lands files, adds the backfill and runs it."""
    land(first, days)
    async with etl, Worker(etl, concurrency=2).running():
        flow = await backfill(first, days).add()
        print(await flow.result(timeout=3600))
        print(await flow.dependency_counts())
    for layer in ("bronze", "silver", "gold"):
        print(layer, *sorted(one.name for one in (LAKE / layer).iterdir()))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--first", type=dt.date.fromisoformat, default=dt.date(2026, 10, 1))
    parser.add_argument("--days", type=int, default=30)
    asked = parser.parse_args()
    asyncio.run(main(asked.first, asked.days))
