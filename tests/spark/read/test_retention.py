"""Trimmed entries: a Node ``Queue`` resets the limit, and every lost entry is counted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest
import pytest_asyncio
import redis

from oxcart import Queue
from oxcart.spark.options import QueueSelection, ServerAddress
from oxcart.spark.read.attachment import attach
from tests.nodes import NodeDriver, node_driver, node_missing

pytest.importorskip("pyspark")

from oxcart.spark.pipeline import Pipeline, Plan
from oxcart.spark.transforms.gaps import gaps as gaps_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [
    pytest.mark.node,
    pytest.mark.skipif(node_missing() is not None, reason=str(node_missing())),
]

EVENTS, META = "bull:q:events", "bull:q:meta"
KEEP = 40_000
#: The limit that Node's constructor sets.
NODE_KEEPS = 10_000


@pytest_asyncio.fixture
async def node(url: str) -> AsyncIterator[NodeDriver]:
    """BullMQ 5.62.0, whose constructors reset ``opts.maxLenEvents``."""
    async with node_driver("v5", url) as driver:
        await driver.call("openQueue", queue="q")
        yield driver


def write(store: redis.Redis, count: int) -> list[str]:
    pipe = store.pipeline(transaction=False)
    for number in range(count):
        pipe.xadd(EVENTS, {"event": "progress", "jobId": str(number), "data": "1"})
    return [str(entry_id) for entry_id in pipe.execute()]


def limit(store: redis.Redis) -> int:
    return int(cast(Any, store.hget(META, "opts.maxLenEvents")))


async def forget(node: NodeDriver, store: redis.Redis) -> None:
    """Starts services: a constructor resets the limit, and commands trim 10 000 entries each.

    A pipeline that reads meanwhile raises the limit whenever it finds it low, so one start may trim nothing.
    """
    while int(store.xlen(EVENTS)) > NODE_KEEPS + 200:
        await node.call("openQueue", queue="q")
        await node.call("add", queue="q", name="n", data={}, opts={})


def entries(pipeline: Pipeline, life: int = 1) -> list[tuple[int, str]]:
    rows = pipeline.tables.read("events").filter(f"kind = 'entry' and stream = 'events' and life = {life}")
    return sorted((row.ordinal, row.entry_id) for row in rows.select("ordinal", "entry_id").collect())


def gaps(pipeline: Pipeline, *, built: bool = False) -> list[tuple[Any, ...]]:
    """Returns the rows of the table, or the rows that a build would write."""
    found = pipeline.tables.read("gaps") if built else gaps_of(pipeline.tables.read("events"))
    rows = found.filter("stream = 'events'").orderBy("life", "first_lost")
    return [tuple(row) for row in rows.select("cause", "life", "first_lost", "last_lost", "count").collect()]


def check_every_entry_once(pipeline: Pipeline, added: int) -> int:
    """Checks that bronze and gaps together are the whole stream. Returns the number of lost entries."""
    kept = [ordinal for ordinal, _ in entries(pipeline)]
    lost: list[int] = []
    for cause, life, first, last, count in gaps(pipeline):
        assert (cause, life, count) == ("trimmed", 1, last - first + 1)
        lost += range(first, last + 1)
    assert sorted([*kept, *lost]) == list(range(1, added + 1))
    return len(lost)


def added(store: redis.Redis) -> int:
    return int(cast(Any, store.xinfo_stream(EVENTS))["entries-added"])


@pytest.mark.parametrize("spooled", [False, True], ids=["server", "spool"])
async def test_entries_trimmed_by_a_node_constructor_are_in_gaps(
    spooled: bool, node: NodeDriver, spark: SparkSession, url: str, store: redis.Redis, tmp_path: Path
) -> None:
    address = ServerAddress(url=url)
    spool = tmp_path / "spool" if spooled else None
    plan = Plan(
        tmp_path / "lake",
        address,
        QueueSelection(("q",)),
        max_rows=6000,
        samples=False,
        spool=spool,
        keep=KEEP,
    )
    pipeline = Pipeline(spark, plan)
    await node.call("add", queue="q", name="n", data={}, opts={})
    await asyncio.to_thread(attach, address, "q", "main", keep=KEEP)
    write(store, 2000)
    await asyncio.to_thread(pipeline.ingest)
    at = added(store)
    assert len(entries(pipeline)) == at

    # The gap is known: every entry between the last read and the first kept one.
    write(store, 15_000)
    assert limit(store) == KEEP
    await forget(node, store)
    assert limit(store) == NODE_KEEPS
    known = added(store) - int(store.xlen(EVENTS)) - at
    assert known > 4000
    await asyncio.to_thread(pipeline.ingest)
    assert gaps(pipeline) == [("trimmed", 1, at + 1, at + known, known)]
    assert check_every_entry_once(pipeline, added(store)) == known

    # And in the middle of reading, whenever that is.
    await asyncio.to_thread(attach, address, "q", "main", keep=KEEP)
    write(store, 15_000)
    reading = asyncio.create_task(asyncio.to_thread(pipeline.ingest))
    await forget(node, store)
    await reading
    await asyncio.to_thread(pipeline.once)
    check_every_entry_once(pipeline, added(store))
    assert gaps(pipeline, built=True) == gaps(pipeline)


async def test_a_call_of_ours_raises_the_limit_again_before_anything_is_lost(
    node: NodeDriver, queue: Queue, url: str, store: redis.Redis
) -> None:
    await queue.add("n")
    await asyncio.to_thread(attach, ServerAddress(url=url), "q", "main", keep=KEEP)
    write(store, 25_000)
    await node.call("openQueue", queue="q")
    assert limit(store) == NODE_KEEPS
    await queue.add("n")
    assert limit(store) == KEEP
    await node.call("add", queue="q", name="n", data={}, opts={})
    assert int(store.xlen(EVENTS)) == added(store), "nothing was trimmed"


@pytest.mark.parametrize("attached", [True, False], ids=["attached", "unattached"])
async def test_obliterated_and_recreated_queue_is_reported(
    attached: bool, node: NodeDriver, spark: SparkSession, url: str, store: redis.Redis, tmp_path: Path
) -> None:
    address = ServerAddress(url=url)
    pipeline = Pipeline(spark, Plan(tmp_path / "lake", address, QueueSelection(("q",)), samples=False))
    await node.call("add", queue="q", name="n", data={}, opts={})
    if attached:
        await asyncio.to_thread(attach, address, "q", "main", keep=KEEP)
    write(store, 500)
    await asyncio.to_thread(pipeline.ingest)
    first = entries(pipeline)
    await node.call("obliterate", queue="q")
    await node.call("openQueue", queue="q")
    await node.call("add", queue="q", name="n", data={}, opts={})
    if attached:
        # So many that by its count the stream looks like the old one after a trim.
        write(store, 2000)
        store.xtrim(EVENTS, maxlen=100, approximate=False)
    await asyncio.to_thread(pipeline.ingest)
    assert entries(pipeline) == first, "the rows of the old stream are unchanged"
    fresh = [(entry_id) for entry_id, _ in cast(Any, store.xrange(EVENTS))]
    gone = added(store) - len(fresh)
    assert entries(pipeline, 2) == [(gone + 1 + at, entry_id) for at, entry_id in enumerate(fresh)]
    actual = gaps(pipeline)
    assert actual[0] == ("recreated", 1, len(first) + 1, None, None)
    assert actual[1:] == ([("trimmed", 2, 1, gone, gone)] if gone else [])
