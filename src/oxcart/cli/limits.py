"""``oxcart limits …``: how many jobs of a queue, a type or a key run at once and per time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from oxcart.cli import output, settings
from oxcart.cli.exits import USAGE, CommandError
from oxcart.cli.settings import JsonOption, QueueArgument

if TYPE_CHECKING:
    from oxcart.limits import Limit, Usage
    from oxcart.queue import Queue

    Work = Callable[[Queue], Awaitable[None]]

app = settings.group("limits", "Show and change the limits of a queue.")


@app.command()
def show(ctx: typer.Context, queue: QueueArgument, as_json: JsonOption = False) -> None:
    """Show a queue's limits, and for how long they block the next start."""
    _show(ctx, queue, as_json)


@app.command("set")
def set_(
    ctx: typer.Context,
    queue: QueueArgument,
    concurrency: Annotated[int | None, typer.Option(help="How many jobs may run at once.")] = None,
    rate: Annotated[
        str | None, typer.Option(metavar="N/TIME", help="How many may start in a time: 100/1m, 1/500ms.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Limit a queue as a whole, over all its workers."""
    if concurrency is None and rate is None:
        raise CommandError("pass --concurrency, --rate or both", USAGE)
    # Everything is read before anything is written.
    if concurrency is not None and concurrency < 1:
        raise CommandError(f"concurrency must be at least 1, got {concurrency}", USAGE)
    pace = None if rate is None else _rate(rate)

    async def work(source: Queue) -> None:
        if concurrency is not None:
            await source.limits.set_concurrency(concurrency)
        if pace is not None:
            await source.limits.set_rate(pace[0], per=pace[1])

    _show(ctx, queue, as_json, work)


Concurrent = Annotated[int | None, typer.Option(min=1, help="How many may run at once.")]
PerMinute = Annotated[int | None, typer.Option(min=1, help="How many may start in a minute.")]
Remove = Annotated[bool, typer.Option("--remove", help="Remove the limit.")]


@app.command("type")
def type_(
    ctx: typer.Context,
    queue: QueueArgument,
    name: Annotated[str, typer.Argument(help="The name of the jobs.", show_default=False)],
    concurrent: Concurrent = None,
    per_minute: PerMinute = None,
    remove: Remove = False,
    as_json: JsonOption = False,
) -> None:
    """Limit the jobs of one type; other jobs overtake them. Node's workers ignore such limits."""
    _one_of(remove, concurrent, per_minute)

    def work(source: Queue) -> Awaitable[None]:
        if remove:
            return source.limits.remove_type_limit(name)
        return source.limits.set_type_limit(name, concurrent=concurrent, per_minute=per_minute)

    _show(ctx, queue, as_json, work)


@app.command()
def key(
    ctx: typer.Context,
    queue: QueueArgument,
    concurrent: Concurrent = None,
    per_minute: PerMinute = None,
    remove: Remove = False,
    as_json: JsonOption = False,
) -> None:
    """Limit the jobs of each limit_key; other jobs overtake them. Node's workers ignore such limits."""
    _one_of(remove, concurrent, per_minute)

    def work(source: Queue) -> Awaitable[None]:
        if remove:
            return source.limits.remove_key_limit()
        return source.limits.set_key_limit(concurrent=concurrent, per_minute=per_minute)

    _show(ctx, queue, as_json, work)


def _one_of(remove: bool, concurrent: int | None, per_minute: int | None) -> None:
    if remove == (concurrent is not None or per_minute is not None):
        raise CommandError("pass --concurrent, --per-minute or both; or --remove", USAGE)


@app.command()
def clear(
    ctx: typer.Context,
    queue: QueueArgument,
    concurrency: Annotated[bool, typer.Option("--concurrency", help="Remove the concurrency limit.")] = False,
    rate: Annotated[bool, typer.Option("--rate", help="Remove the rate limit.")] = False,
    hold: Annotated[bool, typer.Option("--hold", help="End a hold, and restart the rate's window.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Remove the limits of a whole queue; all of them by default."""
    every = not (concurrency or rate or hold)

    async def work(source: Queue) -> None:
        if concurrency or every:
            await source.limits.remove_concurrency()
        if rate or every:
            await source.limits.remove_rate()
        if hold or every:
            await source.limits.release()

    _show(ctx, queue, as_json, work)


@app.command()
def hold(
    ctx: typer.Context,
    queue: QueueArgument,
    duration: Annotated[str, typer.Argument(help="For how long: 30s, 5m.", show_default=False)],
    as_json: JsonOption = False,
) -> None:
    """Block all starts for a time; running jobs continue."""
    _show(ctx, queue, as_json, lambda source: source.limits.hold(duration))


def _show(ctx: typer.Context, queue: str, as_json: bool, work: Work | None = None) -> None:
    """Changes the limits of a queue, and prints them."""

    async def act(source: Queue) -> dict[str, Any]:
        if work is not None:
            await work(source)
        rate = await source.limits.rate()
        return {
            "queue": queue,
            "concurrency": await source.limits.concurrency(),
            "rate": None if rate is None else {"most": rate.most, "per_ms": rate.per_ms},
            "wait_ms": await source.limits.wait_ms(),
            "types": {name: await _of_type(source, name) for name in await source.limits.type_limits()},
            "keys": await _of_keys(source),
        }

    found = settings.on_queue(ctx, queue, act)
    if as_json:
        output.document(found)
        return
    rate = found["rate"]
    output.facts(
        {
            "concurrency": "any" if found["concurrency"] is None else found["concurrency"],
            "rate": "any" if rate is None else f"{rate['most']:,} in {output.span(rate['per_ms'] / 1000)}",
            "held for": output.span(found["wait_ms"] / 1000) if found["wait_ms"] else None,
            **{f"type {name}": _describe(limit) for name, limit in found["types"].items()},
            **({"each key": _describe(found["keys"])} if found["keys"] else {}),
        }
    )


async def _of_type(source: Queue, name: str) -> dict[str, Any]:
    limits = await source.limits.type_limits()
    return _with_use(limits[name], await source.limits.type_usage(name))


async def _of_keys(source: Queue) -> dict[str, Any] | None:
    limit = await source.limits.key_limit()
    return None if limit is None else _with_use(limit, await source.limits.key_usage())


def _with_use(limit: Limit, used: Usage) -> dict[str, Any]:
    import msgspec

    return msgspec.structs.asdict(limit) | msgspec.structs.asdict(used)


def _describe(limit: dict[str, Any]) -> str:
    bounds = []
    if limit["concurrent"] is not None:
        bounds.append(f"{limit['concurrent']:,} at once")
    if limit["per_minute"] is not None:
        bounds.append(f"{limit['per_minute']:,} per minute")
    return f"{', '.join(bounds)}; {limit['running']:,} hold a place, {limit['held_back']:,} held back"


def _rate(text: str) -> tuple[int, str]:
    from oxcart.model.duration import parse_ms
    from oxcart.model.errors import ValidationError

    count, _, time = text.partition("/")
    try:
        most = int(count)
        parse_ms(time, "rate", minimum=1)
        if most < 1:
            raise ValueError(count)
    except (ValueError, ValidationError):
        raise CommandError(f"rate must be N/TIME such as 100/1m, got {text!r}", USAGE) from None
    return most, time
