"""The first job: a queue, a handler, a worker and a result. Run it: ``python examples/quickstart.py``."""

import asyncio

from oxcart import Queue, RunningJob, TemporaryError, Worker

emails = Queue("emails")  # on OXCART_URL, or on an embedded Valkey


@emails.job(attempts=5, timeout="30s")
async def welcome(job: RunningJob, to: str, name: str = "you") -> dict[str, str]:
    """Sends a mail; the signature is the payload."""
    await job.log(f"sending to {to}")
    if job.attempt == 1:
        raise TemporaryError("the mail server is busy", retry_after="200ms")
    return {"to": to, "text": f"Hello {name}!"}


async def main() -> None:
    """Adds two jobs beside a running worker and waits for their results."""
    async with emails, Worker(emails, concurrency=10).running():
        ada = await welcome.enqueue(to="ada@example.com", name="Ada")
        bob = await emails.add("welcome", {"to": "bob@example.com"}, delay="300ms", priority=5)
        print(await ada.result(timeout=10), await bob.result(timeout=10))


if __name__ == "__main__":
    asyncio.run(main())
