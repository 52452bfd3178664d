"""The queue for code without an event loop: the same face as ``oxcart.Queue``, without ``await``.

    from oxcart.sync import Queue

    emails = Queue("emails")
    job = emails.add("welcome", {"to": "ada@example.com"})
    print(job.result(timeout=10))

One background thread per process runs an event loop for all queues of this module. Any number of threads
may use one queue; their adds share calls. The thread is started by the first call, and again in a forked
child, so a queue made at import time serves a pre-forking server (gunicorn, uWSGI, Celery's prefork) as
it is. The connections are closed at exit.

A ``Worker`` takes a queue of this module as well; handlers are registered the same way.

May touch: a thread, and the server through the queue it stands for.
"""

from oxcart.sync._events import QueueEvents
from oxcart.sync._flow import Flow
from oxcart.sync._graph import Graph
from oxcart.sync._handle import JobHandle
from oxcart.sync._queue import Queue
from oxcart.sync._task import Task

__all__ = ["Flow", "Graph", "JobHandle", "Queue", "QueueEvents", "Task"]
