"""A graph: a nightly run whose jobs wait for each other. Run it: ``python examples/graph.py``."""

import asyncio

from oxcart import Graph, JobHandle, PermanentError, Queue, RunningJob, Worker

night = Queue("night")
mail = Queue("mail")


@night.job
async def extract(source: str) -> int:
    """Counts the rows of a source; one of them is not there."""
    if source == "lost":
        raise PermanentError(f"no source {source!r}")
    return len(source)


@night.job
async def load(job: RunningJob) -> int:
    """Runs when all it waits for have completed, and can read their results."""
    return sum((await job.children_values()).values())


@mail.job
async def notify(what: str) -> str:
    """Sends a message."""
    return f"sent: {what}"


async def main() -> None:
    """Adds all jobs in one step, and one more behind a job that exists."""
    graph = Graph(night)
    sources = [graph.take(extract.flow(source=name)) for name in ("orders", "stock")]
    graph.take(load.flow(), after=sources)
    lost = graph.take(extract.flow(source="lost"))
    graph.take(load.flow(), after=[lost])
    graph.take(notify.flow(what="the night is over"), after_any=[lost])
    async with night, mail, Worker(night, mail, concurrency=4).running():
        *_, loaded, _, broken, over = await graph.add()
        report: JobHandle[str] = await mail.add("notify", {"what": "loaded"}, after=[loaded])
        print(await loaded.result(timeout=30), await report.result(timeout=30))
        print(await over.result(timeout=30))
        print((await broken.get()).state)


if __name__ == "__main__":
    asyncio.run(main())
