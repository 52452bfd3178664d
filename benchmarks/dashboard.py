"""Measures what pages of the dashboard cost the server: `make bench-dashboard`.

The overview is opened with 200 queues and a million jobs, and pages of jobs with a million of them in one
state. Printed are the commands of a page, the time that the server spent on them at most (by its own count),
and the CPU time of this process, which holds the dashboard and the client. Other processes do not count.
Then viewers watch the overview, one and many: they share one poller.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from typing import Any

import httpx
import redis
from tests.servers import ValkeyServer

from benchmarks.report import make_console
from oxcart import Queue
from oxcart.http.application import app
from oxcart.http.server import Server

#: Jobs of one state, and queues.
JOBS, QUEUES = 1_000_000, 200
#: How many watch the overview, and for how many seconds.
VIEWERS, SECONDS = (1, 10, 100), 10


#: Stores jobs as BullMQ does: a hash each, and their ids in a list or a set. ARGV: queue, state, first, last.
FILL = """
local base, state = 'bull:' .. ARGV[1] .. ':', ARGV[2]
for number = tonumber(ARGV[3]), tonumber(ARGV[4]) do
  local id, at = state .. '-' .. number, 1700000000000 + number
  redis.call('HSET', base .. id, 'name', 'send', 'data', '{"to":"ada"}', 'opts', '{"attempts":3}',
    'timestamp', 1700000000000, 'atm', 3, 'finishedOn', string.format('%d', at))
  if state == 'wait' or state == 'active' then
    redis.call('LPUSH', base .. state, id)
  else
    redis.call('ZADD', base .. state, at, id)
  end
end
"""


def fill(store: redis.Redis, queue: str, state: str, count: int) -> None:
    """Puts jobs into a list of the wire; ten thousand per call, because the script holds the server."""
    for first in range(0, count, 10_000):
        store.eval(FILL, 0, queue, state, first, min(first + 10_000, count) - 1)


def spent(store: redis.Redis) -> tuple[int, float]:
    """Returns the commands so far, and at most how many ms the server spent on them.

    Commands inside of scripts count twice, within their script and by themselves: hence "at most".
    """
    rows: dict[str, Any] = store.info("commandstats")
    own = [row for name, row in rows.items() if name not in ("cmdstat_info", "cmdstat_config|resetstat")]
    return sum(int(row["calls"]) for row in own), sum(float(row["usec"]) for row in own) / 1000


async def measure(jobs: int, queues: int) -> None:
    """Fills a server and opens the pages."""
    console = make_console()
    with ValkeyServer() as valkey:
        store = valkey.client()
        opened = [Queue(f"queue-{number:03}", url=valkey.url) for number in range(queues)]
        console.print(f"filling {jobs:,} jobs per state …")
        for state in ("wait", "completed", "failed", "delayed"):
            await asyncio.to_thread(fill, store, "queue-000", state, jobs)
        async with (
            Server(app(opened, keys=False)) as server,
            httpx.AsyncClient(base_url=server.url, timeout=60) as client,
        ):
            for name, path in (
                ("overview, first paint", "/"),
                ("overview again", "/"),
                ("ready, first page", "/jobs?state=ready&queue=queue-000"),
                ("ready, last page", f"/jobs?state=ready&queue=queue-000&first={jobs - 50}"),
                ("completed, first page", "/jobs?state=completed&queue=queue-000"),
                ("completed, in the middle", f"/jobs?state=completed&queue=queue-000&first={jobs // 2}"),
                ("failed, first page", "/jobs?state=failed&queue=queue-000"),
                ("completed of all queues", "/jobs?state=completed"),
                ("failed with a filter", "/jobs?state=failed&queue=queue-000&type=other"),
                ("dead letters by state", "/jobs?state=dead_letter&queue=queue-000"),
                ("cancelled, of which none is", "/jobs?state=cancelled&queue=queue-000"),
                ("retrying, first page", "/jobs?state=retrying&queue=queue-000"),
                ("dead letters over the API", "/api/v1/jobs?state=dead_letter&limit=50"),
                ("failures by cause", "/failures"),
                ("dead letters", "/dead?queue=queue-000"),
            ):
                calls, ms = spent(store)
                begin = time.process_time()
                answer = await client.get(path)
                took = (time.process_time() - begin) * 1000
                after, ms_after = spent(store)
                console.print(
                    f"{name:26} {answer.status_code}  {after - calls:6,} commands  "
                    f"{ms_after - ms:8.1f} ms of the server  {took:8.1f} ms of CPU"
                )
            for viewers in VIEWERS:
                rate, busy = await watch(store, server.url, viewers)
                console.print(
                    f"{viewers:4} viewers  {rate:6,.0f} commands a second  {busy:6.1f} ms of CPU a second"
                )
        for queue in opened:
            await queue.close()


async def watch(store: redis.Redis, url: str, viewers: int) -> tuple[float, float]:
    """Returns commands and ms of CPU per second while so many watch the overview."""
    host, _, port = url.removeprefix("http://").rpartition(":")

    async def follow() -> None:
        reader, writer = await asyncio.open_connection(host, int(port))
        try:
            writer.write(f"GET /events HTTP/1.1\r\nhost: {host}:{port}\r\n\r\n".encode())
            while await reader.read(1 << 20):
                pass
        finally:
            writer.close()

    tasks = [asyncio.create_task(follow()) for _ in range(viewers)]
    await asyncio.sleep(3)
    calls, began = spent(store)[0], time.process_time()
    await asyncio.sleep(SECONDS)
    took, after = time.process_time() - began, spent(store)[0]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return (after - calls) / SECONDS, 1000 * took / SECONDS


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=JOBS)
    parser.add_argument("--queues", type=int, default=QUEUES)
    given = parser.parse_args()
    asyncio.run(measure(given.jobs, given.queues))
