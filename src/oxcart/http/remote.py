"""A queue behind an HTTP API: ``Queue("emails", url="https://jobs.example")``.

It has the methods of a queue, for services without access to Redis. What the API does not have is refused
with `NotSupported`: workers, event streams of single queues, flows with children, checkpoints.
An add makes the id of its job, so it is repeated until the API answers or ``add_timeout`` is over, and adds
one job all the same.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Unpack, cast
from urllib.parse import quote, urlsplit, urlunsplit

import msgspec

from oxcart._core import Core
from oxcart.broker.capabilities import BULLMQ, Capabilities
from oxcart.broker.clock import time_left
from oxcart.broker.port import ServedBroker
from oxcart.dead_letters import DeadLetters
from oxcart.engine.running import carry
from oxcart.engine.tracing import Tracing, traced_options, traced_rows
from oxcart.flow import Flows
from oxcart.graph import Dependency
from oxcart.groups import Groups
from oxcart.handle import JobHandle
from oxcart.http.client import Client
from oxcart.http.ids import new_id
from oxcart.http.refused import ApiRefused, unsupported
from oxcart.http.remote_dead import RemoteDeadLetters
from oxcart.http.remote_groups import RemoteGroups
from oxcart.http.remote_jobs import RemoteHandle, RemoteJobs
from oxcart.http.remote_parts import RemoteFlows, RemoteLimits, RemoteWorkers
from oxcart.http.remote_schedules import RemoteSchedules
from oxcart.http.rows import fields_of
from oxcart.http.values import BatchAnswer, JobBody
from oxcart.jobs import Jobs
from oxcart.limits import Limits
from oxcart.model import payload
from oxcart.model.duration import Duration
from oxcart.model.errors import (
    BrokerTimeout,
    BrokerUnavailable,
    OutcomeUnknown,
    ValidationError,
)
from oxcart.model.options import DEFAULT_OPTIONS, Durability, JobOptions, OptionKwargs
from oxcart.model.trace_context import carrier_of, read_carrier
from oxcart.queue import ADD_TIMEOUT, Queue
from oxcart.schedules import Schedules
from oxcart.workers import Workers

if TYPE_CHECKING:
    import httpx

T = TypeVar("T")

#: The variable with the API key, unless the URL has one: ``https://:KEY@jobs.example``.
KEY_VARIABLE = "OXCART_API_KEY"
#: Jobs of one request.
CHUNK = 1000
#: Seconds between the first two attempts of an add, doubling up to the second number.
PAUSE, LONGEST_PAUSE = 0.1, 2.0

#: Options that a request has, and those that mean nothing to a client.
_SENT = frozenset(
    {
        "attempts",
        "backoff",
        "callback_url",
        "correlation_id",
        "delay",
        "group",
        "idempotency_key",
        "job_id",
        "lifetime",
        "lifo",
        "limit_key",
        "partition_key",
        "priority",
        "tags",
        "target",
        "timeout",
        "trace_context",
    }
)
#: Arguments of queues on a server, which mean nothing here.
_OF_SERVERS = (
    "prefix",
    "namespace",
    "folder",
    "durability",
    "server",
    "broker",
    "key_ring",
    "webhooks",
    "keep_events",
    "partitions",
)


class Remote:
    """Stands where a queue opens its broker: everything that needs one is refused."""

    capabilities: Capabilities = BULLMQ

    def open(self, queue: str, **_: Any) -> ServedBroker:
        """Refuses.

        Raises:
            NotSupported: Always.
        """
        raise unsupported("broker", f"this call on queue {queue}")


class RemoteQueue(Queue):
    """A queue behind an HTTP API.

    Args:
        name: The queue's name.
        url: The API, with the path below which it is mounted.
        add_timeout: Seconds after which an unacknowledged add fails.
        default_lifetime: The lifetime of jobs that do not set their own.
        priorities: ``"formal"``: priorities are names. Otherwise they are the numbers that the API takes.
        tracing: Makes a span of each add, whose trace the jobs continue.
        **more: Options of jobs that do not set their own. Arguments of other queues are refused.
    """

    def __init__(
        self,
        name: str,
        *,
        url: str | None = None,
        add_timeout: float = ADD_TIMEOUT,
        default_lifetime: Duration | None = None,
        priorities: Literal["formal"] | None = None,
        tracing: Tracing | None = None,
        **more: Any,
    ) -> None:
        for field in _OF_SERVERS:
            if more.pop(field, None) is not None:
                raise ValidationError(field, "left out with the URL of an HTTP API", "a value")
        if more.pop("protocol", "bullmq") != "bullmq":
            raise ValidationError("protocol", "left out with the URL of an HTTP API", "a value")
        self._core = Core(
            name,
            url=None,
            prefix=None,
            protocol="bullmq",
            namespace=None,
            folder=None,
            add_timeout=add_timeout,
            durability=None,
            default_lifetime=default_lifetime,
            server=None,
            broker=Remote(),
            priorities=priorities,
            key_ring=None,
            webhooks=None,
            tracing=tracing,
            keep_events=None,
            defaults=cast(OptionKwargs, more),
        )
        self._core.is_remote = True
        self.url, self._key = _split(url or os.environ.get("OXCART_URL", ""))
        self._clients: dict[asyncio.AbstractEventLoop, Client] = {}

    @property
    def client(self) -> Client:
        """The client of the running event loop."""
        loop = asyncio.get_running_loop()
        found = self._clients.get(loop)
        if found is None:
            for known in [one for one in self._clients if one.is_closed()]:
                del self._clients[known]
            found = self._clients[loop] = Client(self.url, token=self._key)
        return found

    @property
    def path(self) -> str:
        """The path of the queue below ``/api/v1``."""
        return f"/queues/{quote(self.name, safe='')}"

    async def close(self) -> None:
        """Closes the connections of the running event loop."""
        client = self._clients.pop(asyncio.get_running_loop(), None)
        if client is not None:
            await client.close()

    # -- adding

    async def add(
        self,
        name: str,
        data: Any = None,
        *,
        after: Iterable[Dependency] = (),
        after_any: Iterable[Dependency] = (),
        durability: Durability | None = None,
        **options: Unpack[OptionKwargs],
    ) -> JobHandle[Any]:
        """Adds a job; see `Queue.add`.

        Raises:
            ApiRefused: The API refused it; nothing was written.
            NotSupported: The API lacks an option; nothing was written.
        """
        kinds = [(kind, _ids(given)) for kind, given in (("AFTER", after), ("AFTER_ANY", after_any))]
        kinds = [(kind, ids) for kind, ids in kinds if ids]
        if len(kinds) > 1:
            raise unsupported("after_any", "after and after_any of one job", "use one of the two")
        waits = {"dependency_type": kinds[0][0], "depends_on": kinds[0][1]} if kinds else {}
        read = carry(self._core.prepare(name, data, options))
        return await self._add_one(name, data, read, durability, waits=waits)

    async def _add_row(self, row: dict[str, Any], context: str | None) -> JobHandle[Any]:
        send = partial(self.client.send, "POST", "/jobs", row, headers=_headers_of(context))
        answer = await self._repeat(send, [row["id"]])
        body = msgspec.json.decode(answer.content, type=JobBody)
        return RemoteHandle(self, body.id, row["type"], answer.status_code == 201, body.id != row["id"])

    async def _add_one(
        self,
        name: str,
        data: Any,
        options: JobOptions,
        durability: Durability | None = None,
        *,
        traced: bool = False,
        waits: Mapping[str, Any] = {},
    ) -> JobHandle[Any]:
        tracing = self._core.tracing
        if tracing is None or traced:
            return await self._add_row(
                {**self._row(name, data, options, durability), **waits}, options.trace_context
            )
        span = tracing.add(self.capabilities.protocol, self.name, (name,))
        add = partial(
            self._add_one,
            name,
            data,
            traced_options(options, span.context),
            durability,
            traced=True,
            waits=waits,
        )
        if span.is_silent:
            return await add()
        with span:
            handle = await add()
            span.added([handle.id], int(handle.created))
            return handle

    async def _add(
        self,
        jobs: Iterable[tuple[str, Any, JobOptions]],
        durability: Durability | None = None,
        *,
        traced: bool = False,
    ) -> list[JobHandle[Any]]:
        jobs, tracing = list(jobs), self._core.tracing
        if tracing is not None and not traced:
            span = tracing.add(self.capabilities.protocol, self.name, [name for name, _, _ in jobs])
            jobs = list(traced_rows(jobs, span.context))
            if not span.is_silent:
                with span:
                    made = await self._add(jobs, durability, traced=True)
                    span.added([one.id for one in made], sum(one.created for one in made))
                    return made
        rows = [self._row(name, data, options, durability) for name, data, options in jobs]
        contexts = [options.trace_context for _, _, options in jobs]
        if len(rows) == 1:
            return [await self._add_row(rows[0], contexts[0])]
        ids, handles = [row["id"] for row in rows], list[JobHandle[Any]]()
        for start, end in _chunks(contexts):
            part, headers = rows[start:end], _headers_of(contexts[start])
            answer = await self._repeat(partial(self._send_batch, part, headers), ids)
            results = msgspec.json.decode(answer.content, type=BatchAnswer).results
            for row, one in zip(part, results, strict=True):
                job_id = row["id"] if one.job is None else one.job.id
                is_own = job_id == row["id"]
                handles.append(RemoteHandle(self, job_id, row["type"], is_own, not is_own))
        return handles

    async def _send_batch(
        self, rows: list[dict[str, Any]], headers: Mapping[str, str] | None
    ) -> httpx.Response:
        send = partial(self.client.send, "POST", "/jobs/batch", headers=headers)
        # Not atomic, as little as an add of a queue on a server: jobs of several partitions need steps.
        try:
            return await send({"jobs": rows, "strict": True})
        except ApiRefused as error:
            if error.status != 400 or "unknown field `strict`" not in str(error):
                raise
            # A server of an earlier version knows only atomic batches, and has written nothing.
            return await send({"jobs": rows, "atomic": True})

    async def _repeat(self, send: Callable[[], Awaitable[T]], ids: Sequence[str]) -> T:
        """Repeats a request that is safe to repeat until it is answered or the time is over."""
        left, pause, lost = time_left(self._core.add_timeout), PAUSE, False
        while True:
            try:
                return await send()
            except (BrokerUnavailable, BrokerTimeout, OutcomeUnknown) as error:
                lost = lost or isinstance(error, OutcomeUnknown)
                if (left() or 0) <= pause:
                    if lost:
                        raise OutcomeUnknown(str(error)).of_jobs(ids) from error
                    raise
            except ApiRefused as error:
                if error.status != 429 or (left() or 0) <= pause:
                    raise
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    def _row(
        self, name: str, data: Any, options: JobOptions, durability: Durability | None
    ) -> dict[str, Any]:
        if durability == "replicated":
            raise unsupported("durability", "durability='replicated'", "set it on the queue of the API")
        for field in options.__struct_fields__:
            if field not in _SENT and getattr(options, field) != getattr(DEFAULT_OPTIONS, field):
                raise unsupported(field, f"the option {field}")
        row: dict[str, Any] = {
            "id": options.job_id or new_id(self.name),
            "queue": self.name,
            "type": name,
            "payload": msgspec.Raw(payload.encode(data)),
            **fields_of(options),
        }
        if self._core.priorities is not None or options.priority != DEFAULT_OPTIONS.priority:
            row["priority"] = options.priority
        return row

    # -- the queue as a whole

    async def counts(self) -> dict[str, int]:
        """Returns how many jobs are in each state, those of lanes included."""
        found: dict[str, int] = (await self._queue())["counts"]
        return found

    async def pause(self) -> None:
        """Blocks claims until ``resume``. Running jobs continue."""
        await self.client.send("POST", f"{self.path}/pause")

    async def resume(self) -> None:
        """Allows claims again."""
        await self.client.send("POST", f"{self.path}/resume")

    async def is_paused(self) -> bool:
        """Returns whether the queue is paused."""
        return bool((await self._queue())["paused"])

    async def _queue(self) -> dict[str, Any]:
        found: dict[str, Any] = await self.client.call("GET", self.path, dict[str, Any])
        return found

    # -- parts

    @property
    def jobs(self) -> Jobs:
        """Jobs that exist: get, search, retry, cancel and remove one or all of them."""
        return RemoteJobs(self)

    @property
    def dead_letters(self) -> DeadLetters:
        """Jobs that used up their attempts or their lifetime: list, replay and purge them."""
        return RemoteDeadLetters(self)

    @property
    def groups(self) -> Groups:
        """The groups of jobs that take turns: their settings, their jobs, pause and clear."""
        return RemoteGroups(self)

    @property
    def limits(self) -> Limits:
        """How many jobs run at once and per time, over all workers."""
        return RemoteLimits(self)

    @property
    def flows(self) -> Flows:
        """The trees of jobs below a job, and the jobs that wait for one."""
        return RemoteFlows(self)

    @property
    def workers(self) -> Workers:
        """The live workers, and the jobs that none of them can take."""
        return RemoteWorkers(self)

    @property
    def schedules(self) -> Schedules:
        """Rules that make jobs at intervals or by cron expressions: set, list and remove them."""
        return RemoteSchedules(self)


def _split(url: str) -> tuple[str, str | None]:
    """Returns the address without a key, and the key: that of the URL or of the environment."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValidationError("url", "an address such as https://jobs.example", "another text")
    place = parts.netloc.rpartition("@")[2]
    key = parts.password or os.environ.get(KEY_VARIABLE) or None
    return urlunsplit((parts.scheme, place, parts.path.rstrip("/"), "", "")), key


def _headers_of(context: str | None) -> dict[str, str] | None:
    """Returns the headers of a request whose jobs continue a trace."""
    carrier = None if context is None else carrier_of(read_carrier(context))
    if carrier is not None and not all(value.isascii() and value.isprintable() for value in carrier.values()):
        del carrier["tracestate"]
    return carrier


def _chunks(contexts: Sequence[str | None]) -> Iterator[tuple[int, int]]:
    """Yields the places of jobs that one request adds: they continue the same trace."""
    start = 0
    for _, same in groupby(contexts):
        end = start + sum(1 for _ in same)
        yield from ((at, min(at + CHUNK, end)) for at in range(start, end, CHUNK))
        start = end


def _ids(given: Iterable[Dependency]) -> list[str]:
    if isinstance(given, str | JobHandle):
        raise ValidationError("after", "a list of jobs", given)
    found = []
    for one in given:
        if not isinstance(one, str | JobHandle):
            raise ValidationError("after", "handles or ids over HTTP", one)
        found.append(one if isinstance(one, str) else one.id)
    return found
