"""Doubles are kept out: four kinds of windows. Run it: ``python examples/deduplicate.py``."""

import asyncio

from oxcart import Queue

search = Queue("search-index")


async def main() -> None:
    """Adds the same work twice or three times in each kind of window; nothing runs here."""
    async with search:
        # Until the first one has ended.
        simple = [await search.add("rebuild", n, deduplication="rebuild") for n in (1, 2)]
        # For a time, whatever becomes of the first one.
        throttled = [
            await search.add("ping", n, deduplication={"id": "ping", "ttl": "5s"}) for n in (1, 2, 3)
        ]
        # The last one counts, as long as the first is still delayed.
        rule = {"id": "page-7", "ttl": "5s", "replace": True, "extend": True}
        debounced = [await search.add("index", n, delay="5s", deduplication=rule) for n in (1, 2, 3)]
        for kind, jobs in (("simple", simple), ("throttled", throttled), ("debounced", debounced)):
            print(kind, [job.created for job in jobs], "owner:", (await jobs[-1].get()).data)
        print(await search.deduplication.release("rebuild"), await search.deduplication.owner("rebuild"))


if __name__ == "__main__":
    asyncio.run(main())
