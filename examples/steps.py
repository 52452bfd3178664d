"""A job that adds its own children and waits for them. Run it: ``python examples/steps.py``."""

import asyncio

from oxcart import Queue, RunningJob, WaitForChildren, Worker

totals = Queue("totals")


@totals.job
async def count(text: str) -> int:
    """One part of the work."""
    return len(text.split())


@totals.job
async def count_all(job: RunningJob, texts: list[str]) -> int | WaitForChildren:
    """Splits the work on its first run, and puts it together on its second."""
    if not (await job.dependency_counts()).total:
        # Ids that follow from the job's own: should this run be repeated, the children are the same ones.
        parts = (count.using(job_id=f"{job.id}-{n}").flow(text) for n, text in enumerate(texts))
        await job.add_children(*parts)
        return WaitForChildren()
    return int(sum((await job.children_values()).values()))


async def main() -> None:
    """Counts the words of three texts."""
    async with totals, Worker(totals, concurrency=4).running():
        job = await count_all.enqueue(["to be or not to be", "that is the question", "whether it is nobler"])
        print(await job.result(timeout=30), "words")


if __name__ == "__main__":
    asyncio.run(main())
