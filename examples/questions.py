"""Three questions of a data person: jobs become tables, and SQL answers without a server or Spark.

    python examples/questions.py trade                  # runs some jobs
    oxcart pipeline run --once --lake lake              # their history becomes tables; needs Java
    python examples/questions.py ask lake               # asks the files

Needs ``pip install 'oxcart[spark,lake]'``.
"""

import asyncio
import sys

from oxcart import PermanentError, Queue, TemporaryError, Worker
from oxcart.errors import JobFailed
from oxcart.history.reader import LakeReader

QUESTIONS = {
    "Which jobs are slow?": """
        SELECT name, count(*), min(run_ms) >= 50 FROM attempts GROUP BY name ORDER BY name
    """,
    "Why did jobs fail for good?": """
        SELECT reason, count(*) FROM jobs WHERE state = 'failed' GROUP BY reason
    """,
    "What did retries cost?": """
        SELECT name, sum(retries), count(*) FROM jobs GROUP BY name HAVING sum(retries) > 0
    """,
}

shop = Queue("shop", attempts=3, backoff=0.01)
busy = {"ada", "bob"}


@shop.job
async def render(page: int) -> None:
    """Takes its time."""
    await asyncio.sleep(0.06)


@shop.job
async def send(to: str) -> None:
    """Fails for good without an address, and the first time for now."""
    if not to:
        raise PermanentError("no address")
    if to in busy:
        busy.remove(to)
        raise TemporaryError("the mail server is busy")


async def trade() -> None:
    """Runs nine jobs."""
    async with shop, Worker(shop, concurrency=10).running():
        jobs = [await render.enqueue(page=page) for page in range(5)]
        jobs += [await send.enqueue(to=to) for to in ("ada", "bob", "", "")]
        for job in jobs:
            try:
                await job.result(timeout=30)
            except JobFailed as error:
                print(error.reason)


def ask(folder: str) -> None:
    """Asks the tables."""
    with LakeReader(folder) as lake:
        for question, text in QUESTIONS.items():
            print(question, [tuple(row) for row in lake.sql(text)])


if __name__ == "__main__":
    if sys.argv[1] == "trade":
        asyncio.run(trade())
    else:
        ask(sys.argv[2])
