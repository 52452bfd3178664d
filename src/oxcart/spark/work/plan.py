"""What the tasks of `run_jobs` receive: Spark ships and may show it, so it holds no secret."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from oxcart import sync
from oxcart.broker.location import location_from_env
from oxcart.engine.checks import check_count
from oxcart.model.duration import Duration, parse_ms
from oxcart.model.errors import ValidationError
from oxcart.queue import Queue
from oxcart.spark.options import ServerAddress, read_keys
from oxcart.task import Task

if TYPE_CHECKING:
    import pyarrow as pa

#: Arguments of ``Worker`` that `run_jobs` sets, or that mean nothing in a task.
_RESERVED = frozenset({"concurrency", "name", "abilities", "observer", "schedules", "clock", "rand"})

_SECRET = (
    "the url of queue {!r} has a password, which a Spark plan must not carry: put the whole url into an "
    "environment variable of the executors and name it by url_env, or the password alone by password_env"
)


@dataclass(frozen=True)
class Plan:
    """How a task runs jobs.

    Attributes:
        address: Where the server is, without a secret.
        queue: The queue.
        formal: Whether its priorities are names.
        keys_env: The executors' environment variable with the keys that open payloads, or None.
        handler: The function.
        name: The job name it runs; None for every name.
        batch: The most jobs of one call of an Arrow handler; None for a handler of one job.
        schema: The payload's columns for an Arrow handler; None for the payload as text.
        within: How long the first job of a batch waits for others.
        concurrency: How many jobs the task has at once.
        drain: Whether the task ends when the queue is empty.
        seconds: How long it runs at most; None for no limit.
        linger: Seconds for which a drain waits for a retry.
        worker: Further arguments of ``Worker``.
    """

    address: ServerAddress
    queue: str
    formal: bool
    keys_env: str | None
    handler: Callable[..., Any]
    name: str | None
    batch: int | None
    schema: pa.Schema | None
    within: float
    concurrency: int
    drain: bool
    seconds: float | None
    linger: float
    worker: Mapping[str, Any]

    def open(self) -> Queue:
        """Opens the queue with the secrets of this process's environment.

        Raises:
            ValidationError: A variable that the plan names is not set here.
        """
        address = self.address
        return Queue(
            self.queue,
            server=address.server(),
            prefix=None if address.namespace else address.prefix,
            protocol="bridge" if address.namespace else "bullmq",
            namespace=address.namespace,
            key_ring=read_keys(self.keys_env),
            priorities="formal" if self.formal else None,
        )


def make_plan(
    queue: Queue | sync.Queue | str,
    handler: Callable[..., Any],
    *,
    name: str | None,
    batch: int | None,
    schema: pa.Schema | None,
    within: Duration,
    concurrency: int,
    drain: bool,
    duration: Duration | None,
    linger: Duration,
    url_env: str | None,
    password_env: str | None,
    keys_env: str | None,
    worker: Mapping[str, Any],
) -> Plan:
    """Checks the arguments of `run_jobs`.

    Raises:
        ValidationError: An argument is wrong, or the queue's password could not reach the executors.
    """
    if isinstance(queue, str):
        address = ServerAddress(url_env=url_env or "OXCART_URL")
        queue = Queue(queue, server=address.server())
    core = (queue.asynchronous if isinstance(queue, sync.Queue) else queue)._core
    if core.brokers is not None:
        raise ValidationError("queue", "on a server: executors cannot reach a queue in memory", core.name)
    if not drain and duration is None:
        raise ValidationError("duration", "given with drain=False: the run would never end", None)
    if schema is not None and batch is None:
        raise ValidationError("schema", "left out without batch", schema)
    for argument in sorted(_RESERVED & worker.keys()):
        raise ValidationError(
            argument, "left out of run_jobs, which sets it for every task", worker[argument]
        )
    check_count(concurrency, "concurrency", 1)
    if isinstance(handler, Task):
        name, handler = name or handler.name, handler.__wrapped__
    if not callable(handler):
        raise ValidationError("handler", "a function", handler)
    return Plan(
        address=_address_of(queue, url_env, password_env),
        queue=core.name,
        formal=core.priorities == "formal",
        keys_env=_checked_keys(queue, keys_env),
        handler=handler,
        name=name,
        batch=batch,
        schema=schema,
        within=parse_ms(within, "within", minimum=1) / 1000,
        concurrency=concurrency,
        drain=drain,
        seconds=None if duration is None else parse_ms(duration, "duration", minimum=1) / 1000,
        linger=parse_ms(linger, "linger") / 1000,
        worker=dict(worker),
    )


def _address_of(queue: Queue | sync.Queue, url_env: str | None, password_env: str | None) -> ServerAddress:
    core = (queue.asynchronous if isinstance(queue, sync.Queue) else queue)._core
    place = {"namespace" if core.protocol == "bridge" else "prefix": core.prefix}
    location = core.server.location
    if url_env is not None:
        return ServerAddress(url_env=url_env, **place)
    if location is None:
        return ServerAddress(folder=str(core.server.folder), **place)
    if password_env is not None and not location.sentinel_password:
        bare = replace(location, password=None)
        return ServerAddress(url=bare.url, password_env=password_env, **place)
    if not location.password and not location.sentinel_password:
        return ServerAddress(url=location.url, **place)
    if location == location_from_env():
        return ServerAddress(**place)  # the executors read OXCART_URL, as this process did
    raise ValidationError("queue", "without a password in its url", str(location), _SECRET.format(core.name))


def _checked_keys(queue: Queue | sync.Queue, keys_env: str | None) -> str | None:
    core = (queue.asynchronous if isinstance(queue, sync.Queue) else queue)._core
    if core.key_ring is None:
        return keys_env
    if keys_env is None:
        raise ValidationError(
            "keys_env",
            "given for a sealed queue",
            None,
            f"queue {core.name!r} is sealed: put its keys into an environment variable of the executors and "
            "name it by keys_env",
        )
    ring = read_keys(keys_env)
    if ring is None or ring.fingerprint != core.key_ring.fingerprint:
        raise ValidationError("keys_env", f"a variable with the keys of queue {core.name!r}", keys_env)
    return keys_env
