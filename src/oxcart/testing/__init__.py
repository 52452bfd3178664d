"""Tools for the tests of your own code: run jobs at once, drain a queue, assert what was enqueued.

Without a server, jobs run as they are added:

    with inline(emails):
        job = await welcome.enqueue(to="ada@example.com", name="Ada")
        assert await job.result() == {"sent": True}

or when the test drains the queue:

    with manual(emails):
        await sign_up("ada@example.com")
        await assert_enqueued(emails, "welcome", data={"to": "ada@example.com"})
        report = await drain(emails)
        assert report.counts == {"completed": 1}

To test workers, leases or events without a server, keep queues in memory. A clock of your own moves time:

    server = MemoryServer(clock=lambda: now)
    emails = Queue("emails", broker=server)
    async with Worker(emails).running(): ...

With a server, ``drain`` runs a real worker until the queue is empty. A private server for a test session:

    @pytest.fixture(scope="session")
    def server():
        with embedded_server() as url:
            yield url

All functions take queues of ``oxcart`` and of ``oxcart.sync``. For the latter, leave out ``await``.

Inline and manual mode share with a worker: encoding, checks of the payload, retries by the job's policy,
failure categories, control values, middleware, ``job.state``, progress, logs, lifetimes, and execution
timeouts of async handlers. They differ in this:

- No job waits: they skip delays, backoffs, snoozes and sleeps. A job that waits for a signal stays until the
  test sends it; in manual mode it runs in the next ``drain``. Priorities count only in ``drain``.
- Plain functions run in the test's own thread and context, so they see its database transaction. They have
  no time limit. Handlers with ``run="process"`` run in the test's process.
- Jobs run one by one, so a batch handler receives one job a call.
- Dependencies with the scope ``worker`` are opened for every job.
- A job that a handler enqueues runs before that handler continues.
- Nothing limits concurrency or rate, and ``callback_url``, ``deduplication``, ``group``, ``history``,
  ``limit_key`` and ``target`` have no effect. ``queue.events()`` and ``Worker(queue)`` are refused: use a
  ``MemoryServer``.
"""

from oxcart.broker.memory import MemoryServer
from oxcart.testing._drain import DrainTimeout, drain
from oxcart.testing._driver import EndlessJobs
from oxcart.testing._enqueued import assert_enqueued, enqueued, refute_enqueued
from oxcart.testing._modes import inline, manual
from oxcart.testing._overrides import override
from oxcart.testing._report import Attempt, Report
from oxcart.testing._server import embedded_server, reset

__all__ = [
    "Attempt",
    "DrainTimeout",
    "EndlessJobs",
    "MemoryServer",
    "Report",
    "assert_enqueued",
    "drain",
    "embedded_server",
    "enqueued",
    "inline",
    "manual",
    "override",
    "refute_enqueued",
    "reset",
]
