"""For the tests of your own code: run jobs on the spot, drain a queue, assert what was enqueued.

Without a server, jobs run as they are added:

    with inline(emails):
        job = await welcome.enqueue(to="ada@example.com", name="Ada")
        assert await job.result() == {"sent": True}

or wait until you say so:

    with manual(emails):
        await sign_up("ada@example.com")
        await assert_enqueued(emails, "welcome", data={"to": "ada@example.com"})
        report = await drain(emails)
        assert report.counts == {"completed": 1}

With a server, ``drain`` runs a real worker until the queue is empty. A private one for a test session:

    @pytest.fixture(scope="session")
    def server():
        with embedded_server() as url:
            yield url

Everything takes queues of ``oxcart`` and of ``oxcart.sync``; for the latter, leave out ``await``.

What inline and manual mode do as a worker does: encoding, checks of the payload, retries by the job's
policy, failure categories, control values, middleware, ``job.state``, progress, logs, execution timeouts of
async handlers. What they do otherwise:

- Nothing waits: delays, backoffs and snoozes are skipped. Priorities count only in ``drain``.
- Plain functions run in the test's own thread and context, so they see its database transaction; there is
  no time limit for them. Handlers with ``run="process"`` run in the test's process.
- A job that is enqueued by a handler runs before that handler goes on.
- There are no leases, no stalls, no limits of concurrency or rate, no event stream and no other clients:
  ``queue.events()`` and ``Worker(queue)`` need a server. Use one to test these.

May touch: ``inline`` and ``manual`` nothing, ``drain`` and the assertions the queue's server,
``embedded_server`` processes and a temporary folder.
"""

from oxcart.testing._drain import DrainTimeout, drain
from oxcart.testing._enqueued import assert_enqueued, enqueued, refute_enqueued
from oxcart.testing._memory import EndlessJobs
from oxcart.testing._modes import inline, manual
from oxcart.testing._report import Attempt, Report
from oxcart.testing._server import embedded_server, reset

__all__ = [
    "Attempt",
    "DrainTimeout",
    "EndlessJobs",
    "Report",
    "assert_enqueued",
    "drain",
    "embedded_server",
    "enqueued",
    "inline",
    "manual",
    "refute_enqueued",
    "reset",
]
