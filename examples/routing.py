"""Jobs that ask for workers that can do them: `python examples/routing.py`."""

import asyncio

from oxcart import Abilities, Queue, RunningJob, Target, Worker

video = Queue("video")
done: asyncio.Queue[str] = asyncio.Queue()


async def work(job: RunningJob) -> None:
    """Says what it did."""
    await done.put(job.name)


async def main() -> None:
    """Runs what the one worker can do; the rest waits, and is seen to."""
    video.fallback(work)
    worker = Worker(video, name="render-3", abilities=Abilities(capabilities=["gpu"], region="us-east"))
    async with video, worker.running():
        await video.add("render", {"clip": 7}, target=Target(capabilities="gpu", region=["us-east", "eu"]))
        await video.add("report", target="any;c=pdf,latex")  # the same as text: --target on the command line
        await video.add("flush", target=Target(server="render-3"))  # one worker, by its name
        print("done:", *sorted([await done.get(), await done.get()]))
        print("nobody can:", await video.workers.unroutable())
        worker.abilities = Abilities(region="us-east")  # takes effect at once


if __name__ == "__main__":
    asyncio.run(main())
