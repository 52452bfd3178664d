"""The routes about the whole: health, statistics, metrics and the description of the API."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Container, Iterator
from typing import Annotated, Any

import msgspec
from litestar import Request, Response, get
from litestar.openapi import ResponseSpec
from msgspec import Meta
from prometheus_client.core import Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector, CollectorRegistry

from oxcart.http.access import OPEN, READ
from oxcart.http.counting import QueueStats
from oxcart.http.routes import Api, answers
from oxcart.http.times import rfc3339_ms
from oxcart.model.errors import OxcartError
from oxcart.model.state import State
from oxcart.observe.metrics import Metrics

#: Seconds that a check of the store may take.
PATIENCE = 2.0


class Health(msgspec.Struct):
    """Whether the API works."""

    status: str


class About(msgspec.Struct):
    """The API in brief."""

    name: str
    version: str
    endpoints: dict[str, str]
    features: list[str]


class WorkerStats(msgspec.Struct, kw_only=True):
    """How many workers there are. Fields that a store without a pool of its own cannot know are null."""

    total_workers: int
    capacity: Annotated[int, Meta(description="Jobs that they run at once.")]
    active_workers: int | None = None
    idle_workers: int | None = None
    queued_jobs: Annotated[int, Meta(description="Jobs that a worker could take now.")] = 0
    processed_jobs: Annotated[int, Meta(description="Stored jobs that have ended.")] = 0
    succeeded_jobs: Annotated[int, Meta(description="Stored jobs that have completed.")] = 0
    failed_jobs: Annotated[int, Meta(description="Stored jobs that failed or are dead letters.")] = 0
    retried_jobs: Annotated[int, Meta(description="Jobs that wait for another attempt.")] = 0
    avg_processing_time: int | None = None
    max_processing_time: int | None = None
    p99_processing_time: int | None = None
    processing_ids: list[str] | None = None
    uptime: int | None = None
    healthy: Annotated[bool, Meta(description="Whether there is a worker.")] = False


class Stats(msgspec.Struct):
    """Counts of jobs and workers over all queues."""

    queue: QueueStats
    workers: WorkerStats


@get("/health", summary="Health", opt=OPEN, responses={200: ResponseSpec(Health, False, "The API answers.")})
async def health() -> Health:
    """Answers as long as the process serves requests."""
    return Health("healthy")


@get("/live", summary="Liveness", opt=OPEN, responses={200: ResponseSpec(Health, False, "The API answers.")})
async def live() -> Health:
    """Answers as long as the process serves requests."""
    return Health("live")


@get(
    "/ready",
    summary="Readiness",
    opt=OPEN,
    responses={
        200: ResponseSpec(Health, False, "The store answers."),
        429: answers()[429],
        503: ResponseSpec(Health, False, "The store does not answer."),
    },
)
async def ready(request: Request[Any, Any, Any], service: Api) -> Response[Health]:
    """Answers 200 while the store can be reached."""
    # It asks the store and needs no key, so nobody may ask as often as the server can.
    service.probes.take("" if request.client is None else request.client.host)
    queue = next(iter(service.queues.values()))
    try:
        async with asyncio.timeout(PATIENCE):
            await queue._core.broker.now()
    except (OxcartError, TimeoutError, OSError):
        return Response(Health("the store does not answer"), status_code=503)
    return Response(Health("ready"), status_code=200)


@get("/api/v1", summary="About", opt=READ, responses=answers(ok=(200, About, "The API in brief.")))
async def about(request: Request[Any, Any, Any]) -> About:
    """Names the version and the endpoints."""
    from oxcart import __version__

    paths = sorted({route.path for route in request.app.routes if route.path.startswith("/api/v1/")})
    names = {path.removeprefix("/api/v1/"): path for path in paths}
    return About("oxcart", __version__, names, ["atomic_batches", "sse_resume", "cursor_pages", "roles"])


@get(
    "/api/v1/stats",
    summary="Statistics",
    opt=READ,
    responses=answers(ok=(200, Stats, "Counts over all queues.")),
)
async def stats(service: Api) -> Stats:
    """Counts jobs by formal state, and workers, over all queues."""
    queues = list(service.queues.values())
    counted = await asyncio.gather(*(service.formal.of(queue) for queue in queues))
    total = QueueStats(
        **{state.value: sum(getattr(one, state.value) for one in counted) for state in State},
        total_jobs=sum(one.total_jobs for one in counted),
        exact=all(one.exact for one in counted),
        timestamp=rfc3339_ms(int(time.time() * 1000)),
    )
    workers = {w.id: w for found in await asyncio.gather(*(q.workers.list() for q in queues)) for w in found}
    ended = total.completed + total.failed + total.dead_letter + total.cancelled
    return Stats(
        total,
        WorkerStats(
            total_workers=len(workers),
            capacity=sum(one.concurrency for one in workers.values()),
            queued_jobs=total.scheduled,
            processed_jobs=ended,
            succeeded_jobs=total.completed,
            failed_jobs=total.failed + total.dead_letter,
            retried_jobs=total.retrying,
            healthy=bool(workers),
        ),
    )


#: Metrics that the API knows; the others are those of workers.
_SHOWN = ("bullmq_queue_length", "bullmq_unroutable_jobs", "bullmq_clock_skew_seconds")


class _Lengths(Collector):
    """The metrics of queues alone, of those that the caller may see."""

    def __init__(self, metrics: Metrics, queues: Container[str]) -> None:
        self._metrics = metrics
        self._queues = queues

    def collect(self) -> Iterator[Metric]:
        """Yields them, for a registry."""
        for one in self._metrics.collect():
            if one.name in _SHOWN:
                one.samples = [row for row in one.samples if row.labels.get("queue", "") in self._queues]
                yield one


@get(
    "/metrics",
    summary="Metrics",
    opt=READ,
    media_type="text/plain",
    responses={
        **answers(),
        200: ResponseSpec(
            str, generate_examples=False, description="Prometheus' text.", media_type="text/plain"
        ),
    },
)
async def metrics(service: Api, request: Request[Any, Any, Any]) -> Response[bytes]:
    """Returns queue lengths in Prometheus' text form, or in OpenMetrics if the scraper accepts it."""
    lengths = service.metrics
    await lengths.read_lengths()
    registry = CollectorRegistry()
    registry.register(_Lengths(lengths, service.queues))
    encode, content_type = choose_encoder(request.headers.get("accept", ""))
    return Response(encode(registry), media_type=content_type)


ROUTES = [health, live, ready, about, stats, metrics]
