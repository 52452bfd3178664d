"""The checks of ``oxcart doctor`` for a Bridge namespace."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from oxcart.cli.checks import Finding, routes, worker_clocks
from oxcart.cli.namespace import DEFAULT_NAMESPACE, open_broker, part_of, workers_of
from oxcart.cli.queue_checks import judge, read_facts

if TYPE_CHECKING:
    from oxcart.broker.workers import WorkerRecord
    from oxcart.cli.settings import Settings


async def examine(using: Settings) -> list[Finding]:
    """Checks the job types of a namespace, its workers, and jobs that no worker will take."""
    broker = open_broker(using, "any")
    try:
        namespace = part_of(broker)
        types, seen = await namespace.types(), await namespace.stats()
        entries = await workers_of(broker)
        found = [
            Finding("namespace", "ok", using.namespace or DEFAULT_NAMESPACE),
            Finding("job types", "ok", ", ".join(types) or "none yet"),
            *_workers(entries),
            *worker_clocks((one.id, one.hostname, one.skew_ms) for one in entries if one.alive),
            *_entries(await namespace.entries_without_job()),
        ]
        if seen.dead:
            count = f"{seen.dead:,} in all job types"
            found.append(Finding("dead letters", "note", count, "oxcart dead list TYPE"))
    finally:
        await broker.close()
    lost: dict[str, Mapping[str, int]] = {}
    for name in types:
        async with using.queue(name) as queue:
            facts = await read_facts(queue)
        found += judge(facts)
        if facts.unroutable:
            lost[name] = facts.unroutable
    return [*found, *routes(lost)]


def _workers(entries: list[WorkerRecord]) -> list[Finding]:
    living = [one.id for one in entries if one.alive]
    gone = [one.id for one in entries if not one.alive]
    found = [Finding("workers", "ok", ", ".join(living) or "none")]
    if gone:
        shown = f"{', '.join(gone)}: no sign of life for 30 s; other workers recover their jobs"
        found.append(Finding("workers that are gone", "note", shown, "oxcart workers"))
    return found


def _entries(count: int) -> list[Finding]:
    if not count:
        return []
    shown = f"{count:,} entries of the waiting list have no record; workers drop them when they meet them"
    return [Finding("entries without a record", "warning", shown, "oxcart doctor --rescue")]
