"""A worker that opens a pool once for all of its handlers, and a layer around every handler.

oxcart work examples.lifespan:orders --lifespan examples.lifespan:pool --middleware examples.lifespan:timed
"""

import asyncio
import sqlite3
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from oxcart import Queue, RunningJob, Worker

orders = Queue("orders")


@asynccontextmanager
async def pool() -> AsyncIterator[sqlite3.Connection]:
    """Opens what handlers share; its value is ``job.state``."""
    database = sqlite3.connect(":memory:")
    database.execute("CREATE TABLE paid (id INTEGER)")
    yield database
    database.close()


async def timed(job: RunningJob, call_next: Callable[[RunningJob], Awaitable[Any]]) -> Any:
    """Logs how long the handler took."""
    began = time.perf_counter()
    try:
        return await call_next(job)
    finally:
        await job.log(f"{job.name} took {time.perf_counter() - began:.3f} s")


@orders.job
async def pay(job: RunningJob, id: int) -> int:
    """Uses the shared connection."""
    job.state.execute("INSERT INTO paid VALUES (?)", (id,))
    return int(job.state.execute("SELECT count(*) FROM paid").fetchone()[0])


async def main() -> None:
    """Pays three orders."""
    async with orders, Worker(orders, lifespan=pool, middleware=[timed]).running():
        jobs = [await pay.enqueue(id=number) for number in range(3)]
        print([await job.result(timeout=10) for job in jobs], len(await jobs[0].logs()))


if __name__ == "__main__":
    asyncio.run(main())
