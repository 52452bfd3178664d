"""Samples many queues at once for a dashboard: lengths, the oldest ready job, and the newest events.

Queues of one place share a call (``broker.sampling``), so the cost does not depend on who watches.
Every read is bounded: lengths are counters, and a queue yields at most so many events.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence

from oxcart.broker.port import ServedBroker
from oxcart.broker.port.codes import STATES
from oxcart.broker.port.sampling import Crew, Sample, SampledEvent, Sampling, Start

#: The states whose jobs are ready.
READY = ("wait", "paused", "prioritized")
#: The last number of an event within a millisecond.
_LAST = 2**64 - 1


async def sample(
    brokers: Sequence[ServedBroker], since: Sequence[str], most: int, lanes_since: Sequence[int] | None = None
) -> list[Sample]:
    """Samples queues.

    Args:
        brokers: The queues.
        since: The id of the last event seen of each; empty to read the newest ones.
        most: How many events of one queue to read at most.
        lanes_since: From which time on to read the events of the lanes of each, in ms; None to read none.
    """
    flat: list[ServedBroker] = []
    parts: list[list[int]] = []  # the indexes of a queue's partitions, or its own
    starts: list[Start] = []
    for number, broker in enumerate(brokers):
        spread = broker.partitions
        if spread is not None:
            await spread.ready()
        own = [broker] if spread is None else spread.brokers()
        parts.append([*range(len(flat), len(flat) + len(own))])
        flat += own
        lanes = None if lanes_since is None else lanes_since[number]
        starts += [Start(since[number], max(1, most // len(own)), lanes)] * len(own)
    found: dict[int, Sample] = {}
    for members in _by_place(flat):
        queues = [one for _, one in members]
        rows = await queues[0].sample(queues, [starts[number] for number, _ in members])
        found.update(zip((number for number, _ in members), rows, strict=True))
    for number, broker in enumerate(flat):
        if number not in found:
            found[number] = await sample_by_verbs(broker)
    return [
        found[own[0]] if broker.partitions is None else _merged([found[number] for number in own])
        for broker, own in zip(brokers, parts, strict=True)
    ]


def _merged(parts: Sequence[Sample]) -> Sample:
    """Returns the sample of a queue from those of its partitions."""
    now = min(part.at_ms for part in parts)
    made = Sample(at_ms=now, counts={state: sum(part.counts[state] for part in parts) for state in STATES})
    made.paused = all(part.paused for part in parts)
    made.version = parts[0].version
    made.oldest_ms = min((part.oldest_ms for part in parts if part.oldest_ms is not None), default=None)
    # One position has to do for all: events from the first partition's sample on are left for the next one.
    made.position = f"{now - 1}-{_LAST}"
    entries = [entry for part in parts for entry in part.events if entry.at_ms < now]
    made.events = sorted(entries, key=lambda entry: entry.at_ms)
    made.cut = any(part.cut for part in parts)
    made.partitions = [part.counts for part in parts]
    return made


def event_ms(entry_id: str) -> int:
    """Returns the time of an event in ms, from its id."""
    return int(entry_id.partition("-")[0])


async def crews(brokers: Sequence[ServedBroker]) -> list[Crew]:
    """Returns the live workers of queues, ours and those of peers."""
    found: dict[int, Crew] = {}
    for members in _by_place(brokers):
        queues = [one for _, one in members]
        rows = await queues[0].crews(queues)
        found.update(zip((number for number, _ in members), rows, strict=True))
    for number, broker in enumerate(brokers):
        if number not in found:
            found[number] = Crew(workers=await broker.workers())
    return [found[number] for number in range(len(brokers))]


def _by_place(brokers: Sequence[ServedBroker]) -> Iterable[list[tuple[int, Sampling]]]:
    """Returns the queues that can be sampled together, with their indexes."""
    places: dict[Hashable, list[tuple[int, Sampling]]] = {}
    for number, broker in enumerate(brokers):
        if broker.sampling is not None:
            places.setdefault(broker.sampling.place, []).append((number, broker.sampling))
    return places.values()


async def sample_by_verbs(broker: ServedBroker) -> Sample:
    """Samples a queue by the verbs that every broker has, without its events."""
    counts = await broker.counts_over_lanes()
    made = Sample(at_ms=await broker.now(), counts=counts, paused=await broker.is_paused())
    made.has_lanes = await broker.has_targets()
    for place in READY:
        for job in await broker.page(place, 0, 0, oldest=True) if counts.get(place) else ():
            at = int((job.scheduled_at or job.created_at).timestamp() * 1000)
            made.oldest_ms = at if made.oldest_ms is None else min(made.oldest_ms, at)
    return made


def events_command(key: str, since: str, most: int) -> tuple[str | int, ...]:
    """Returns the command that reads the events of a stream behind an id, or else the newest ones."""
    if since:
        return ("XRANGE", key, f"({since}", "+", "COUNT", most)
    return ("XREVRANGE", key, "+", "-", "COUNT", most)


def sampled_event(entry_id: str, fields: Mapping[bytes, bytes]) -> SampledEvent:
    """Reads an event as far as a dashboard counts it."""
    name, job_id = fields.get(b"event", b""), fields.get(b"jobId", b"")
    return SampledEvent(
        entry_id, event_ms(entry_id), name.decode("utf-8", "replace"), job_id.decode("utf-8", "replace")
    )
