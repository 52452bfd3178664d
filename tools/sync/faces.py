"""The classes that get a twin, and the head of the package."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Face:
    """A class that gets a twin.

    Attributes:
        module: Where it is.
        name: Its name, which is also the twin's.
        public: Whether ``oxcart.sync`` exports the twin.
        without: Public members that the twin lacks.
        seams: Private members that it has all the same.
    """

    module: str
    name: str
    public: bool = False
    without: tuple[str, ...] = ()
    seams: tuple[str, ...] = ()


#: The queue's twin has more to do than others: it owns the connection.
QUEUE = "Queue"

FACES = (
    Face("oxcart.queue", QUEUE, public=True),
    Face("oxcart.dead_letters", "DeadLetters"),
    Face("oxcart.deduplication", "Deduplication"),
    Face("oxcart.events", "Events"),
    Face("oxcart.events", "QueueEvents", public=True),
    Face("oxcart.flow", "Flow", public=True, without=("of",)),
    Face("oxcart.flow", "FlowHandle"),
    Face("oxcart.flow", "Flows"),
    Face("oxcart.graph", "Graph", public=True),
    Face("oxcart.graph", "GraphJob"),
    Face("oxcart.handle", "JobHandle", public=True),
    Face("oxcart.jobs", "Jobs"),
    Face("oxcart.groups", "Groups"),
    Face("oxcart.lanes", "Lanes"),
    Face("oxcart.limits", "Limits"),
    Face("oxcart.partitions", "Partitions"),
    Face("oxcart.schedules", "Schedules"),
    Face("oxcart.task", "Task", public=True),
    Face("oxcart.workers", "Namespace"),
    Face("oxcart.workers", "Workers"),
)

PACKAGE = '''\
"""The queue for code without an event loop: the same face as ``oxcart.Queue``, without ``await``.

    from oxcart.sync import Queue

    emails = Queue("emails")
    job = emails.add("welcome", {"to": "ada@example.com"})
    print(job.result(timeout=10))

One background thread per process runs an event loop for all queues of this package. Any number of threads
may use one queue; their adds share calls. The first call starts the thread, also in a forked child, so a
queue made at import time serves a pre-forking server (gunicorn, uWSGI, Celery's prefork) as it is. The
connections are closed at exit. Callbacks such as ``progress=`` run in the background thread.

A ``Worker`` takes a queue of this package as well; handlers are registered the same way.
"""
'''
