"""The routes of limits: those of a queue, of its job types and of its keys."""

from __future__ import annotations

from typing import Annotated

import msgspec
from litestar import get, put
from litestar.params import FromPath
from msgspec import UNSET, Meta, UnsetType

from oxcart.http import examples, values
from oxcart.http.access import OPERATE, READ
from oxcart.http.routes import Api, answers
from oxcart.http.times import parse_go_ms
from oxcart.limits import MOST, Limit, Rate
from oxcart.model.errors import ValidationError
from oxcart.queue import Queue


class LimitsBody(msgspec.Struct, kw_only=True):
    """The limits of a queue."""

    concurrency: int | None
    rate: Rate | None
    blocked_ms: Annotated[int, Meta(description="For how long a rate or a hold blocks the next start.")]
    types: dict[str, Limit]
    key: Limit | None


class RateOptions(msgspec.Struct, forbid_unknown_fields=True):
    """How many jobs may start in a time."""

    most: int
    per: values.GoDuration


class SmallLimit(msgspec.Struct, forbid_unknown_fields=True):
    """How many jobs run at once, and start in a minute; at least one of the two."""

    concurrent: int | None = None
    per_minute: int | None = None


class LimitOptions(msgspec.Struct, forbid_unknown_fields=True):
    """The limits to change; null removes one."""

    concurrency: int | UnsetType | None = UNSET
    rate: RateOptions | UnsetType | None = UNSET
    types: Annotated[
        dict[str, SmallLimit | None] | UnsetType, Meta(description="The limits of job types; null removes.")
    ] = UNSET
    key: Annotated[
        SmallLimit | UnsetType | None, Meta(description="The limit of each limit key; null removes it.")
    ] = UNSET


@get(
    "/api/v1/queues/{name:str}/limits",
    summary="Read the limits of a queue",
    responses=answers(404, ok=(200, LimitsBody, "The limits.")),
    opt=READ,
)
async def limits(service: Api, name: FromPath[str]) -> LimitsBody:
    """Returns the limits of a queue, of its job types and of its keys."""
    return await _limits(service.queue(name))


async def _limits(found: Queue) -> LimitsBody:
    of = found.limits
    return LimitsBody(
        concurrency=await of.concurrency(),
        rate=await of.rate(),
        blocked_ms=await of.wait_ms(),
        types=await of.type_limits(),
        key=await of.key_limit(),
    )


@put(
    "/api/v1/queues/{name:str}/limits",
    summary="Change the limits of a queue",
    status_code=200,
    responses=answers(404, ok=(200, LimitsBody, "The limits.")),
    opt=OPERATE,
)
async def set_limits(
    service: Api, name: FromPath[str], data: Annotated[LimitOptions, examples.LIMITS]
) -> LimitsBody:
    """Changes the limits that the body has; null removes one."""
    found = service.queue(name)
    per_ms = parse_go_ms(data.rate.per, "rate.per", minimum=1) if isinstance(data.rate, RateOptions) else 0
    for field, most in (("concurrency", data.concurrency), ("rate.most", getattr(data.rate, "most", None))):
        if isinstance(most, int) and not 1 <= most <= MOST:
            raise ValidationError(field, f"an integer from 1 to {MOST}", most)
    types = {} if data.types is UNSET else data.types
    for name_of, small in (*types.items(), *((("key", data.key),) if data.key is not UNSET else ())):
        _check_small(name_of, small)
    if data.concurrency is None:
        await found.limits.remove_concurrency()
    elif data.concurrency is not UNSET:
        await found.limits.set_concurrency(data.concurrency)
    if data.rate is None:
        await found.limits.remove_rate()
    elif data.rate is not UNSET:
        await found.limits.set_rate(data.rate.most, per=per_ms / 1000)
    for job_type, small in types.items():
        if small is None:
            await found.limits.remove_type_limit(job_type)
        else:
            await found.limits.set_type_limit(
                job_type, concurrent=small.concurrent, per_minute=small.per_minute
            )
    if data.key is None:
        await found.limits.remove_key_limit()
    elif data.key is not UNSET:
        await found.limits.set_key_limit(concurrent=data.key.concurrent, per_minute=data.key.per_minute)
    return await _limits(found)


def _check_small(name: str, small: SmallLimit | None) -> None:
    if small is None:
        return
    if small.concurrent is None and small.per_minute is None:
        raise ValidationError(name, "concurrent, per_minute or both", None)
    for field, most in (("concurrent", small.concurrent), ("per_minute", small.per_minute)):
        if most is not None and not 1 <= most <= MOST:
            raise ValidationError(f"{name}.{field}", f"an integer from 1 to {MOST}", most)


ROUTES = [limits, set_limits]
