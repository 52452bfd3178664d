"""The pipeline's figures, as ratios in one run: ingest against a plain loop, the sink against ``add_many``.

    python -m benchmarks.pipeline [--events 1000000] [--jobs 50000] [--master local[2]]

Everything is measured warm, against the same private server, one after another:

- ingest: one process that reads pages by XRANGE and writes Parquet, and the pipeline's bronze;
- day: all tables of the day that was read;
- sink: ``Queue.add_many`` from plain Python, and ``df.write.format("oxcart")``.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.servers import ValkeyServer

from oxcart import Queue
from oxcart.spark.access import Access, Choice
from oxcart.spark.entries import page_rows
from oxcart.spark.position import Position
from oxcart.spark.session import open_session
from oxcart.spark.stream import Page, Piece
from oxcart.spark.streams import Streams

#: The bounds that the figures must keep to.
BOUNDS = {"ingest": 0.60, "sink": 0.75, "day_seconds": 60.0}
_LIFE = (
    {"event": "added", "name": "n"},
    {"event": "waiting"},
    {"event": "active", "prev": "waiting"},
    {"event": "completed", "returnvalue": '{"ok":true}', "prev": "active"},
)


def fill(server: ValkeyServer, queue: str, events: int) -> None:
    """Jobs of four events each, as a worker's would be."""
    with server.client() as store:
        store.hset(f"bull:{queue}:meta", "opts.maxLenEvents", str(10 * events))
        for start in range(0, events // 4, 5000):
            pipe = store.pipeline(transaction=False)
            for number in range(start, min(start + 5000, events // 4)):
                for event in _LIFE:
                    fields: Any = {"event": event["event"], "jobId": f"job-{number}", **event}
                    pipe.xadd(f"bull:{queue}:events", fields)
            pipe.execute()


def plain_ingest(access: Access, queue: str, folder: Path) -> int:
    """The limit of one process: pages to Parquet, with the same columns."""
    from pyarrow import parquet

    with Streams(access) as streams:
        stream = streams.at(queue)
        through = stream.end()
        rows = 0
        writer = None
        for part in stream.read(Piece(Position(life=1), through)):
            assert isinstance(part, Page)
            batch = page_rows(part, queue, "events")
            writer = writer or parquet.ParquetWriter(
                folder / "plain.parquet", batch.schema, compression="zstd"
            )
            writer.write_batch(batch)
            rows += batch.num_rows
        assert writer is not None
        writer.close()
    return rows


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds, and the result."""
    started = time.perf_counter()
    result = work()
    return time.perf_counter() - started, result


def main() -> None:
    """Measures and prints; writes build/pipeline.json."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--jobs", type=int, default=50_000)
    parser.add_argument("--master", default="local[2]")
    asked = parser.parse_args()
    found: dict[str, float] = {}
    with ValkeyServer() as server, tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        access = Access(url=server.url)
        fill(server, "warm", 40_000)
        fill(server, "q", asked.events)
        spark = open_session(asked.master)
        from oxcart.spark.pipeline import Pipeline, Plan

        Pipeline(spark, Plan(folder / "warm", access, Choice(("warm",)), samples=False)).once()
        seconds, rows = timed(lambda: plain_ingest(access, "q", folder))
        found["plain_rows_per_s"] = rows / seconds
        pipeline = Pipeline(spark, Plan(folder / "lake", access, Choice(("q",)), samples=False))
        seconds, rows = timed(pipeline.ingest)
        found["ingest_rows_per_s"] = rows / seconds
        found["ingest"] = found["ingest_rows_per_s"] / found["plain_rows_per_s"]
        found["day_seconds"], _ = timed(pipeline.builder.refresh)

        rows_in = [("n", {"i": i}, {"job_id": f"p-{i}"}) for i in range(asked.jobs)]

        async def add() -> None:
            async with Queue("plain", url=server.url) as queue:
                await queue.add_many(rows_in)

        seconds, _ = timed(lambda: asyncio.run(add()))
        found["add_many_per_s"] = asked.jobs / seconds
        df = spark.range(asked.jobs).withColumnRenamed("id", "i").cache()
        df.count()
        writer = (
            df.write.format("oxcart").option("url", server.url).option("queue", "sink").option("name", "n")
        )
        seconds, _ = timed(lambda: writer.option("key", "i").mode("append").save())
        found["sink_per_s"] = asked.jobs / seconds
        found["sink"] = found["sink_per_s"] / found["add_many_per_s"]
        spark.stop()
    for name, value in found.items():
        bound = BOUNDS.get(name)
        said = f" (bound {bound:g})" if bound is not None else ""
        print(f"{name:>20} {value:12,.2f}{said}")
    target = Path("build")
    target.mkdir(exist_ok=True)
    (target / "pipeline.json").write_text(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
