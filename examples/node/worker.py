"""A Python worker for jobs that ``producer.js`` adds. It runs until it is interrupted."""

import asyncio
import signal

from oxcart import Queue, Worker

greetings = Queue("greetings")


@greetings.job
async def greet(name: str) -> str:
    """Greets; the fields of Node's payload are the parameters."""
    return f"Hello {name}, from Python"


async def main() -> None:
    """Runs until SIGINT or SIGTERM; running jobs may end."""
    worker = Worker(greetings, concurrency=10)
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, worker.stop)
    await worker.run()


if __name__ == "__main__":
    asyncio.run(main())
