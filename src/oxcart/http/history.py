"""The routes of history: what the lake knows about jobs, also about removed ones."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import msgspec
from litestar import get
from litestar.params import FromPath, FromQuery, QueryParameter
from msgspec import Meta

from oxcart.http import values
from oxcart.http.errors import ApiError, not_found
from oxcart.http.routes import Api, answers
from oxcart.http.service import Service
from oxcart.model.access import Role
from oxcart.model.errors import MissingExtra
from oxcart.model.moment import parse_moment
from oxcart.spark.lake.versions import LakeError

if TYPE_CHECKING:
    from oxcart.history.reader import LakeReader

T = TypeVar("T")

Since = Annotated[str, QueryParameter(description="What ended since then: 2h, 2026-11-15T12:00Z.")]


class Generations(msgspec.Struct):
    """The generations of a job, the first one first: its row, attempts and transitions in the tables."""

    generations: Annotated[
        list[dict[str, Any]], Meta(description="job, attempts and transitions of each generation.")
    ]


class Causes(msgspec.Struct):
    """Failures by cause, most first."""

    causes: list[dict[str, Any]]


class Slow(msgspec.Struct):
    """Run times by job type, and the longest runs."""

    names: list[dict[str, Any]]
    runs: list[dict[str, Any]]


async def _ask(service: Service, since_ms: int | None, question: Callable[[LakeReader], T]) -> T:
    if service.lake is None:
        raise ApiError(404, "not_found", "the server was started without a lake (--lake)")
    folder = service.lake

    def answer() -> T:
        from oxcart.history.reader import LakeReader

        day = "" if since_ms is None else time.strftime("%Y-%m-%d", time.gmtime(since_ms / 1000))
        with LakeReader(folder, since_day=day) as reader:
            return question(reader)

    async with service.lake_turns:
        try:
            return await asyncio.to_thread(answer)
        except (MissingExtra, LakeError) as error:
            raise ApiError(404, "not_found", str(error)) from error


def _since(text: str) -> int:
    return parse_moment(text, "since", now_ms=int(time.time() * 1000))


def _allowed(service: Service, row: Any) -> bool:
    return str(row["queue"]) in service.queues


@get(
    "/api/v1/history/jobs/{job_id:str}",
    summary="Read the history of a job",
    responses=answers(404, ok=(200, Generations, "Every attempt and transition.")),
    opt={"role": Role.OBSERVER},
)
async def job(service: Api, job_id: FromPath[str]) -> Generations:
    """Returns every generation of a job with its attempts and transitions, also of a removed job."""
    from oxcart.history.questions import job_history

    found = await _ask(service, None, lambda reader: job_history(reader, job_id))
    rows = [
        {"job": _plain(one.job), "attempts": _plain(one.attempts), "transitions": _plain(one.transitions)}
        for one in found
        if _allowed(service, one.job)
    ]
    if not rows:
        raise not_found(f"job {job_id} in the lake")
    return Generations(rows)


@get(
    "/api/v1/history/queues/{name:str}/failures",
    summary="Group past failures of a queue by cause",
    responses=answers(404, ok=(200, Causes, "The causes, most failures first.")),
    opt={"role": Role.OBSERVER},
)
async def failures(
    service: Api, name: FromPath[str], since: Since = "1d", limit: FromQuery[int] = 20
) -> Causes:
    """Groups failed attempts of a queue by cause, over days."""
    from oxcart.history.questions import failure_causes

    values.check_page_size(limit, 100)
    at, queue = _since(since), service.queue(name).name
    found = await _ask(service, at, lambda reader: failure_causes(reader, at, queue))
    return Causes([msgspec.to_builtins(one) for one in found[:limit]])


@get(
    "/api/v1/history/queues/{name:str}/slowest",
    summary="Read how long jobs of a queue ran",
    responses=answers(404, ok=(200, Slow, "Percentiles by type, and the longest runs.")),
    opt={"role": Role.OBSERVER},
)
async def slow(service: Api, name: FromPath[str], since: Since = "1d", limit: FromQuery[int] = 20) -> Slow:
    """Returns percentiles of run times by job type, and the longest runs."""
    from oxcart.history.questions import slowest

    values.check_page_size(limit, 100)
    at, queue = _since(since), service.queue(name).name
    found = await _ask(service, at, lambda reader: slowest(reader, at, queue, most=limit))
    return Slow(_plain(found.names), _plain(found.runs))


def _plain(value: Any) -> Any:
    """Returns rows of the lake as JSON values: days and times as text."""
    return msgspec.to_builtins(value, str_keys=True)


ROUTES = [job, failures, slow]
