"""Work for the processor: handlers in processes of their own, on all cores, stoppable by force.

Run it: ``python examples/cpu.py``.
"""

import asyncio
import os
import time

from oxcart import Queue, Worker
from oxcart.errors import JobFailed

numbers = Queue("numbers")


@numbers.job(run="process", timeout="20s")
def count_primes(below: int) -> dict[str, int]:
    """Counts primes the slow way; the event loop of the worker never notices."""
    found = sum(all(number % low for low in range(2, int(number**0.5) + 1)) for number in range(2, below))
    return {"primes": found, "pid": os.getpid()}


@numbers.job(run="process", timeout="500ms", attempts=1)
def never_ends() -> None:
    """A handler that hangs is killed with everything it started when its time is up."""
    while True:
        time.sleep(1)


async def main() -> None:
    """Runs four counts on as many processes as there are cores, and one that does not end."""
    async with numbers, Worker(numbers, concurrency=os.cpu_count() or 1).running():
        jobs = [await count_primes.enqueue(below) for below in (10, 1_000, 20_000, 50_000)]
        for job in jobs:
            print(await job.result(timeout=60))
        try:
            await (await never_ends.enqueue()).result(timeout=60)
        except JobFailed as error:
            print(error.category, "-", error.reason)


if __name__ == "__main__":
    asyncio.run(main())
