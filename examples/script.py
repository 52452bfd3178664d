"""A script without an event loop: schedule, graph, limit, deduplication, cancel and replay.

python examples/script.py
"""

from oxcart import PermanentError, SyncRunningJob
from oxcart.errors import JobFailed
from oxcart.sync import Graph, Queue
from oxcart.testing import drain

night = Queue("script", attempts=1)
outage = True


@night.job
def fetch(source: str) -> int:
    """Counts the rows of a source, which is away for a time."""
    if outage and source == "stock":
        raise PermanentError("the stock is away")
    return len(source)


@night.job
def load(job: SyncRunningJob) -> str:
    """Runs when both sources are there."""
    job.log(f"attempt {job.attempt}")
    return "loaded"


@night.job
def backup() -> str:
    """Is scheduled below."""
    return "saved"


def main() -> None:
    """Prints what happened, line by line."""
    global outage
    with night:
        night.schedules.upsert("nightly", cron="30 2 * * *", tz="Europe/Zurich", name="backup")
        print("schedules:", [one.schedule.cron for one in night.schedules.list()])
        night.schedules.remove("nightly")  # a program would keep it; drain would wait for its next run

        night.limits.set_type_limit("fetch", concurrent=1)  # however many workers there are
        graph = Graph(night)
        orders = graph.take(fetch.flow(source="orders"))
        stock = graph.take(fetch.flow(source="stock"))
        graph.take(load.flow(), after=[orders, stock])
        first, second, last = graph.add()

        twice = [night.add("backup", deduplication="backup") for _ in range(2)]
        print("one backup:", [job.created for job in twice], twice[0].id == twice[1].id)

        later = night.add("backup", delay="1h")
        print("cancelled:", later.cancel("not needed"))

        drain(night)
        print("orders:", first.result(timeout=10))
        try:
            last.result(timeout=10)
        except JobFailed as error:
            print("load:", error.category)

        outage = False
        for job in (second, last):  # first the cause, then the job that failed because of it
            job.retry(reset=True)
            drain(night)
        print("replayed:", second.result(timeout=10), last.result(timeout=10))
        night.jobs.obliterate(force=True)


if __name__ == "__main__":
    main()
