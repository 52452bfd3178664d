"""After an outage: run failed jobs again, and tidy up. Run it: ``python examples/operate.py``."""

import asyncio
from datetime import UTC, datetime, timedelta

from oxcart import Queue, Worker
from oxcart.jobs import Progress
from oxcart.testing import drain

mail = Queue("mail-after-outage")
outage = True


@mail.job(attempts=1)
async def send(to: str) -> str:
    """Fails while the outage lasts."""
    if outage:
        raise ConnectionError("the mail server is away")
    return f"sent to {to}"


def show(at: Progress) -> None:
    """Prints the progress after every step."""
    print(at.done, "of", at.total, "will run again")


async def main() -> None:
    """Five jobs fail, run again and are removed. Listeners receive each event."""
    global outage
    async with mail:
        jobs = await mail.add_many([("send", {"to": f"user{number}"}) for number in range(5)])
        await drain(mail)
        outage = False
        yesterday = datetime.now(UTC) - timedelta(days=1)
        again = await mail.jobs.retry_all(since=yesterday, reset=True, progress=show)
        async with Worker(mail, metrics=60 * 24 * 14, max_started=100).running() as worker:
            for job in jobs:
                await job.result(timeout=20)
            await worker.pause()
        series = await mail.jobs.metrics("completed")
        print(series.count, "completed")
        print(await mail.jobs.clean("completed"), "removed")
        await mail.events.publish("recovered", jobs=again)
        await mail.jobs.obliterate()


if __name__ == "__main__":
    asyncio.run(main())
