"""Payloads that only those with the key can read. Run it: ``python examples/sealed.py``."""

import asyncio
import os

from oxcart import Queue
from oxcart.encryption import KeyRing
from oxcart.testing import drain

# In production the keys come with the environment; here one is made for the show.
if not os.environ.get("OXCART_KEYS"):
    os.environ["OXCART_KEYS"] = f"2026-11:{KeyRing.generate()}"
queue = Queue("emails", key_ring=KeyRing.from_env())


@queue.job
async def reset_password(to: str, token: str) -> str:
    """Its handler sees what was added."""
    return f"{to} may come in with {token}"


async def main() -> None:
    """Adds a job, shows what everybody else sees of it, and runs it."""
    async with queue, Queue("emails") as without_the_key:
        job = await reset_password.enqueue(to="ada@example.com", token="s3cret")
        seen = await without_the_key.jobs.get(job.id)
        assert seen is not None
        print("everybody else sees", list(seen.data), "sealed with", seen.data["$sealed"]["key"])
        await drain(queue)
        print(await job.result(timeout=20))
        await queue.jobs.obliterate()


if __name__ == "__main__":
    asyncio.run(main())
