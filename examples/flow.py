"""A flow: a report that is assembled after its pages are rendered. Run it: ``python examples/flow.py``."""

import asyncio
from typing import Any

from oxcart import Queue, RunningJob, Worker

reports, images = Queue("reports"), Queue("images")


@images.job(attempts=2, backoff="100ms")
async def render(page: int) -> str:
    """Makes one page; the last one cannot be made."""
    if page == 4:
        raise ValueError("page 4 is empty")
    return f"<page {page}>"


@reports.job
async def assemble(job: RunningJob, month: str) -> dict[str, Any]:
    """Runs when all pages have ended, with their results."""
    pages = await job.children_values()
    missing = await job.ignored_failures()
    return {"month": month, "pages": sorted(pages.values()), "missing": list(missing.values())}


async def main() -> None:
    """Adds the tree in one step, looks at it, and waits for the job at its top."""
    flow = assemble.flow(month="May").after(
        render.flow(page=1),
        render.flow(page=2),
        render.using(priority=1).flow(page=3),
        render.flow(page=4).on_failure("ignore"),
    )
    async with reports, images, Worker(reports, images, concurrency=4).running():
        report = await flow.add()
        print(await report.result(timeout=30))
        print(await report.dependency_counts())


if __name__ == "__main__":
    asyncio.run(main())
