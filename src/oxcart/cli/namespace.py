"""``oxcart namespace``: a Bridge namespace at a glance, by the specification's monitoring list."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from oxcart.cli import output, settings
from oxcart.cli.settings import JsonOption, Settings

if TYPE_CHECKING:
    from oxcart.broker.port import ServedBroker
    from oxcart.broker.port.parts import Namespace
    from oxcart.broker.port.results import NamespaceStats
    from oxcart.broker.workers import WorkerRecord
    from oxcart.model.job import Job

DEFAULT_NAMESPACE = "bridge"
#: Jobs of other clients that one page shows at most.
SHOWN = 10_000


def namespace(ctx: typer.Context, as_json: JsonOption = False) -> None:
    """Show a Bridge namespace: jobs by state, workers and whether they are alive, running jobs by type."""
    using = settings.of(ctx)
    seen, workers = settings.run(_look(using))
    if as_json:
        import msgspec

        facts = msgspec.to_builtins(seen)
        output.document({**facts, "workers": msgspec.to_builtins(workers)})
        return
    output.facts(
        {
            "namespace": using.namespace or DEFAULT_NAMESPACE,
            "scheduled": seen.waiting,
            "running": seen.active,
            "delayed": seen.delayed,
            "cron": seen.cron,
            "dead letters": seen.dead,
            "processed": seen.processed,
            "failed": seen.failed,
        }
    )
    if seen.concurrent:
        output.table(["type", "running#"], seen.concurrent.items())
    if workers:
        output.table(
            ["worker", "alive", "stack", "region", "capabilities", "takes", "host"],
            (
                [
                    one.id,
                    "yes" if one.alive else "no",
                    ", ".join(one.stack),
                    ", ".join(one.region),
                    ", ".join(one.capabilities),
                    ", ".join(one.queues) or None,
                    f"{one.hostname}/{one.pid}",
                ]
                for one in workers
            ),
        )


async def _look(using: Settings) -> tuple[NamespaceStats, list[WorkerRecord]]:
    broker = open_broker(using, "any")
    try:
        return await part_of(broker).stats(every_type=True), await workers_of(broker)
    finally:
        await broker.close()


async def names_of_types(using: Settings) -> list[str]:
    """Returns the job types of a namespace that it has noted."""
    broker = open_broker(using, "any")
    try:
        return await part_of(broker).types()
    finally:
        await broker.close()


async def overview(using: Settings, names: list[str]) -> list[dict[str, Any]]:
    """Returns the job types of a namespace, with the counts of their jobs in each state, of all clients."""
    from oxcart.jobs import LISTABLE

    broker = open_broker(using, "any")
    try:
        known, foreign = await part_of(broker).types(), await part_of(broker).unnoted_ends()
    finally:
        await broker.close()
    known = sorted({*known, *foreign})
    rows = []
    for name in names or known:
        of_type = open_broker(using, name)
        try:
            counts = {**await of_type.counts()}
            paused = await of_type.is_paused()
        finally:
            await of_type.close()
        counts["completed"] += len(foreign.get(name, ()))
        if name in known or paused or any(counts.values()):
            rows.append(
                {
                    "queue": name,
                    "counts": {state: sum(counts[key] for key in keys) for state, keys in LISTABLE.items()},
                    "paused": paused,
                    "version": None,
                }
            )
    return rows


async def completed_elsewhere(using: Settings, job_type: str) -> list[Job]:
    """Returns jobs that workers of other clients completed and no worker recorded, newest first."""
    broker = open_broker(using, job_type)
    try:
        ids = (await part_of(broker).unnoted_ends()).get(job_type, [])
        found = await broker.look(ids[: -SHOWN - 1 : -1], lenient=True)
        return [job for job in found if job is not None]
    finally:
        await broker.close()


def open_broker(using: Settings, job_type: str) -> ServedBroker:
    """Returns a broker of a job type in the selected namespace."""
    from oxcart.broker.factory import make_broker

    namespace = using.namespace or DEFAULT_NAMESPACE
    return make_broker("bridge", using.server, job_type, prefix=namespace, reconnect=using.reconnect)


async def workers_of(broker: ServedBroker) -> list[WorkerRecord]:
    """Returns the registered workers of the namespace, those that are gone too."""
    return [] if broker.registry is None else await broker.registry.everyone()


def part_of(broker: ServedBroker) -> Namespace:
    """Returns the namespace that a broker's job type belongs to."""
    return broker.capabilities.part(broker.namespace, "stats")
