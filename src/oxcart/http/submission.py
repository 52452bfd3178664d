"""Adds the jobs of requests: one, many, or all of a batch or none."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from oxcart._core import Core
from oxcart.graph import Graph, GraphJob
from oxcart.handle import JobHandle
from oxcart.http import values
from oxcart.http.errors import ApiError, problem_of
from oxcart.http.service import Service, look
from oxcart.http.times import parse_go_ms, parse_time_ms
from oxcart.model.errors import OxcartError, Unacknowledged, ValidationError
from oxcart.model.job import Job
from oxcart.model.names import check_job_name
from oxcart.model.options import JobOptions
from oxcart.model.partitions import routing_key
from oxcart.model.state import State
from oxcart.model.trace_context import carrier_of
from oxcart.queue import Queue

_AFTER = ("AFTER", "CHAIN")
_KINDS = (*_AFTER, "AFTER_ANY")
_STRATEGIES = {"constant": "fixed", "fixed": "fixed", "linear": "linear", "exponential": "exponential"}


class Order(msgspec.Struct, kw_only=True):
    """A checked job that is to be added.

    Attributes:
        queue: Its queue.
        name: Its type.
        data: Its payload.
        options: Its options, as `Queue.add` takes them.
        prepared: The same, read and over those of its handler.
        is_named: Whether the caller chose its id.
        after: The jobs that must have completed before it runs.
        after_any: The jobs of which one must have ended before it runs.
    """

    queue: Queue
    name: str
    data: Any
    options: dict[str, Any]
    prepared: JobOptions
    is_named: bool
    after: list[JobHandle[Any]]
    after_any: list[JobHandle[Any]]

    @property
    def waits(self) -> bool:
        """Whether it waits for other jobs."""
        return bool(self.after or self.after_any)

    def join(self, graph: Graph) -> GraphJob:
        """Adds the job to a graph; one with a target goes to its lane.

        Raises:
            ValidationError: It has a target, and waits for other jobs.
        """
        options, queue = dict(self.options), self.queue
        target = options.pop("target", None)
        if target is not None:
            if self.waits:
                raise ValidationError("target", "that of a job without depends_on", str(target))
            queue = queue.lanes.get(target)
        return graph.job(
            self.name, self.data, queue=queue, after=self.after, after_any=self.after_any, **options
        )


async def read(service: Service, body: values.Submit, headers: Mapping[str, str]) -> Order:
    """Checks everything of a job but its size, which `check` and `add` do.

    Args:
        service: The service.
        body: The job.
        headers: Those of the request, whose trace the job continues.

    Raises:
        ValidationError: A field is wrong.
        ApiError: A job to wait for does not exist.
    """
    name = check_job_name(body.type, "type")
    queue = service.queue_of_type(name, body.queue)
    options: dict[str, Any] = {
        "attempts": body.max_attempts,
        "callback_url": body.callback_url,
        "correlation_id": body.correlation_id,
        "group": body.group,
        "idempotency_key": body.idempotency_key,
        "limit_key": body.limit_key,
        "lifo": body.lifo or None,
        "partition_key": body.partition_key,
        "priority": body.priority,
        "tags": body.tags or None,
        "target": body.target,
        "trace_context": carrier_of(headers),
        "timeout": None if body.timeout is None else parse_go_ms(body.timeout, "timeout", minimum=1) / 1000,
        "backoff": None if body.backoff is None else _backoff(body.backoff),
    }
    delay_ms = await _delay_ms(queue, body)
    if delay_ms:
        options["delay"] = delay_ms / 1000
    lifetime_ms = _lifetime_ms(service, queue, body, delay_ms)
    if lifetime_ms is not None:
        options["lifetime"] = lifetime_ms / 1000
    after, after_any = await _dependencies(service, body)
    options = {field: value for field, value in options.items() if value is not None}
    options["job_id"] = service.new_id(queue) if body.id is None else body.id
    with _in_words_of_the_api():
        prepared = queue._core.prepare(name, body.payload, options)  # type: ignore[arg-type]
    return Order(
        queue=queue,
        name=name,
        data=body.payload,
        options=options,
        prepared=prepared,
        is_named=body.id is not None,
        after=after,
        after_any=after_any,
    )


def check(order: Order) -> Order:
    """Encodes a job as an add does, so that what an add would refuse is refused before anything is written.

    Raises:
        ValidationError: A field is wrong, or the job is too large.
    """
    with _in_words_of_the_api():
        order.queue._core.broker.encode(order.name, order.data, order.prepared)
    return order


@contextlib.contextmanager
def _in_words_of_the_api() -> Iterator[None]:
    try:
        yield
    except ValidationError as error:
        ours = {"attempts": "max_attempts", "data": "payload", "job_id": "id", "job id": "id"}
        if error.field in ours and type(error) is ValidationError:
            raise ValidationError(ours[error.field], error.bound, error.value) from error
        raise


async def _delay_ms(queue: Queue, body: values.Submit) -> int:
    if body.scheduled_at is None:
        return 0 if body.delay is None else parse_go_ms(body.delay, "delay")
    if body.delay is not None:
        raise ValidationError("delay", "left out with scheduled_at", body.delay)
    at = parse_time_ms(body.scheduled_at, "scheduled_at")
    return max(0, at - await queue._core.broker.now())


def _lifetime_ms(service: Service, queue: Queue, body: values.Submit, delay_ms: int) -> int | None:
    if body.lifetime is not None:
        return parse_go_ms(body.lifetime, "lifetime", minimum=1)
    if service.lifetime_ms is None or queue._core.defaults.lifetime is not None:
        return None
    # Not every protocol has lifetimes, and what a client does not ask for is not refused.
    if not queue.capabilities.can("lifetime"):
        return None
    return delay_ms + service.lifetime_ms


def _backoff(body: values.Backoff) -> dict[str, Any]:
    if body.strategy not in _STRATEGIES:
        raise ValidationError("backoff.strategy", f"one of {', '.join(_STRATEGIES)}", body.strategy)
    made: dict[str, Any] = {"type": _STRATEGIES[body.strategy], "delay": 1000}
    if body.initial_delay is not None:
        made["delay"] = parse_go_ms(body.initial_delay, "backoff.initial_delay", minimum=1)
    if body.max_delay is not None:
        made["cap"] = parse_go_ms(body.max_delay, "backoff.max_delay", minimum=1)
    if body.multiplier is not None:
        made["multiplier"] = body.multiplier
    return made


async def _dependencies(
    service: Service, body: values.Submit
) -> tuple[list[JobHandle[Any]], list[JobHandle[Any]]]:
    kind = body.dependency_type or "AFTER"
    if kind not in _KINDS:
        raise ValidationError("dependency_type", f"one of {', '.join(_KINDS)}", kind)
    ids = list(dict.fromkeys(body.depends_on or ()))
    if len(ids) > 1000:
        raise ValidationError("depends_on", "at most 1000 jobs", len(ids))
    found: list[JobHandle[Any]] = []
    for job_id in ids:
        try:
            queue, _ = await service.find(job_id)
        except ApiError:
            raise ValidationError("depends_on", "ids of existing jobs", job_id) from None
        found.append(queue.jobs.handle(job_id))
    return (found, []) if kind in _AFTER else ([], found)


async def add(order: Order) -> tuple[Job, bool]:
    """Adds a job; returns it, and whether it is new."""
    queue = order.queue
    with _in_words_of_the_api():
        if order.waits:
            handle = await queue.add(
                order.name, order.data, after=order.after, after_any=order.after_any, **order.options
            )
        else:
            (handle,) = await queue._add([(order.name, order.data, order.prepared)])
            if handle.created:
                return _fresh(handle, order), True  # what was just written need not be read
    return await look(order.queue, handle.id) or _unread(handle, order), handle.created


async def add_all(orders: list[Order]) -> list[Job]:
    """Adds all jobs or none.

    Jobs of one queue and target are one call, and so are those of one namespace of Bridge, where one script
    adds jobs of every type. Others are one graph without edges: one script adds them to all their queues and
    lanes. Bridge has no graphs: there a batch over several namespaces, or with jobs that wait for others,
    takes a call for each part, and a server that is lost between two calls leaves the first part.
    """
    first = orders[0].queue
    if len({_place(order) for order in orders}) == 1 and not any(order.waits for order in orders):
        handles = await _add_whole(orders)
    elif first.capabilities.can("graphs"):
        graph = Graph(first)
        for order in orders:
            order.join(graph)
        handles = await graph.add()
    else:
        handles = await _add_by_queue(orders)
    return await all_shown(handles, orders)


def _place(order: Order) -> tuple[str, ...]:
    """Returns where one script can add a job together with others."""
    core = order.queue._core
    if core.broker.namespace is None:
        return order.queue.name, str(order.options.get("target") or "")
    server = core.server
    return server.location.url if server.location else str(server.folder), core.prefix


async def add_each(orders: list[Order]) -> list[Job]:
    """Adds jobs in as few calls as their queues need."""
    return await all_shown(await _add_by_queue(orders), orders)


async def _add_whole(orders: list[Order]) -> list[JobHandle[Any]]:
    """Adds jobs of one queue and target, or of one namespace of Bridge, by one script."""
    queue, target = orders[0].queue, orders[0].options.get("target")
    core = queue._core
    where = core if target is None else core.lane(target)
    if core.broker.partitions is not None:
        await core.broker.partitions.ready()
        orders = _together(orders)
    jobs = [order.queue._core.broker.encode(order.name, order.data, order.prepared) for order in orders]
    partitions = core.broker.partitions
    if partitions is not None and len(set(map(partitions.number_of, jobs))) > 1:
        raise ValidationError("partition_key", "one for all jobs of an atomic batch", "several partitions")
    watched: dict[Core, list[str]] = {}
    for job, order in zip(jobs, orders, strict=True):
        if order.prepared.callback_url is not None:
            watched.setdefault(order.queue._core, []).append(job[0])
    for own, ids in watched.items():
        await own.expect_webhooks(ids)
    added = await where.broker.add_each(
        jobs, timeout=core.add_timeout, replicated=core.is_replicated(None), whole=True
    )
    handles: list[JobHandle[Any]] = []
    for one, order in zip(added, orders, strict=True):
        if isinstance(one, OxcartError):
            raise one.of_jobs(job[0] for job in jobs) if isinstance(one, Unacknowledged) else one
        handles.append(JobHandle(order.queue, one.id, order.name, one.created, one.duplicate))
    return handles


def _together(orders: list[Order]) -> list[Order]:
    """Lets jobs that may go to any partition go to that of the others: a script writes to one alone."""
    keys = [routing_key(order.prepared) for order in orders]
    free = [
        key == order.options["job_id"] and not order.is_named for key, order in zip(keys, orders, strict=True)
    ]
    shared = next((key for key, is_free in zip(keys, free, strict=True) if not is_free), keys[0])
    return [
        msgspec.structs.replace(order, prepared=order.prepared.replace(partition_key=shared))
        if is_free
        else order
        for order, is_free in zip(orders, free, strict=True)
    ]


async def _add_by_queue(orders: list[Order]) -> list[JobHandle[Any]]:
    handles: dict[int, JobHandle[Any]] = {}
    groups: dict[str, list[int]] = {}
    for place, order in enumerate(orders):
        if order.waits:
            handles[place] = await order.queue.add(
                order.name, order.data, after=order.after, after_any=order.after_any, **order.options
            )
        else:
            groups.setdefault(order.queue.name, []).append(place)
    for places in groups.values():
        queue = orders[places[0]].queue
        rows = [(orders[place].name, orders[place].data, orders[place].options) for place in places]
        handles |= dict(zip(places, await queue.add_many(rows), strict=True))
    return [handles[place] for place in range(len(orders))]


async def all_shown(handles: list[JobHandle[Any]], orders: list[Order]) -> list[Job]:
    """Reads the added jobs, in one call per queue."""
    by_queue: dict[str, list[int]] = {}
    for place, order in enumerate(orders):
        by_queue.setdefault(order.queue.name, []).append(place)
    shown: dict[int, Job] = {}
    for places in by_queue.values():
        broker = orders[places[0]].queue._core.broker
        jobs = await broker.look([handles[place].id for place in places], lenient=True)
        for place, job in zip(places, jobs, strict=True):
            shown[place] = job or _unread(handles[place], orders[place])
    return [shown[place] for place in range(len(orders))]


def _fresh(handle: JobHandle[Any], order: Order) -> Job:
    """Returns a job as its add has stored it."""
    options = order.prepared
    return Job(
        id=handle.id,
        name=order.name,
        queue=order.queue.name,
        options=options,
        timestamp=order.queue._core.broker.clock(),
        delay=options.delay,
        priority=options.priority,
        state=State.DELAYED if options.delay else State.SCHEDULED,
    )


def _unread(handle: JobHandle[Any], order: Order) -> Job:
    """Returns a job that was added, and has ended and been removed since."""
    return Job(
        id=handle.id,
        name=order.name,
        queue=order.queue.name,
        options=order.prepared,
        state=State.COMPLETED,
    )


def refusal(index: int, error: Exception) -> values.BatchResult:
    """Returns the result of a refused job of a batch.

    Raises:
        Exception: The error itself, if it is not about this job.
    """
    status, problem = problem_of(error)
    if status >= 500 or not isinstance(error, OxcartError | ApiError):
        raise error
    return values.BatchResult(index=index, success=False, error=problem.message)
