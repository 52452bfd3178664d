"""Samples many queues at once for a dashboard: lengths, the oldest ready job, and the newest events.

Queues of BullMQ on one server share a connection and a pipeline, so the cost does not depend on who watches.
Every read is bounded: lengths are counters, and a queue yields at most so many events.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, cast
from urllib.parse import unquote

import msgspec

from oxcart.broker.bullmq.keys import LISTS, STATES
from oxcart.broker.bullmq.workers import read_records
from oxcart.broker.capabilities import BULLMQ
from oxcart.broker.port import ServedBroker
from oxcart.broker.probe import list_clients
from oxcart.broker.replies import pairs, text
from oxcart.broker.workers import WorkerRecord
from oxcart.model.errors import AccessDenied, ScriptError

if TYPE_CHECKING:
    from oxcart.broker.bullmq.broker import BullMQBroker

#: Queues that one pipeline samples.
CHUNK = 100
#: The lists whose jobs are ready.
_READY = ("wait", "paused", "prioritized")
#: Fields that tell since when a job is ready.
_TIMES = ("timestamp", "ox:ready")

#: Commands that sample one queue: its lengths, its groups and lanes, its settings, its oldest ready jobs, its
#: events.
COMMANDS = len(STATES) + 3 + len(_READY) + 1
#: The last number of an event within a millisecond.
_LAST = 2**64 - 1
#: Events of lanes from which on there may be more than were read.
_MANY = 500
#: Lanes of a queue whose oldest ready jobs are looked at, those with most ready jobs first.
_LANES = 50


class SampledEvent(NamedTuple):
    """One of many events, as far as a dashboard counts them.

    Attributes:
        id: Its id in the stream.
        at_ms: When it was written.
        name: Its name, for example ``completed``.
        job_id: Its job; empty for an event of the queue.
    """

    id: str
    at_ms: int
    name: str
    job_id: str


class Sample(msgspec.Struct, kw_only=True):
    """A queue at one moment.

    Attributes:
        at_ms: The time, by the server's clock.
        counts: How many jobs of it and of its lanes are in each list of the wire.
        paused: Whether it is paused.
        version: The library that wrote its settings, if it left its name.
        oldest_ms: Since when the oldest ready job is ready, or None without one.
        events: Its events since the last sample, oldest first.
        cut: Whether there are more events than were read.
        has_lanes: Whether jobs of the queue may have targets.
        grouped: Jobs that wait for their group's turn. On the wire they are delayed, so they count there too.
        lane_events: Events of its lanes since the last sample, oldest first.
        lanes_cut: Whether there may be more of them than were read.
        partitions: The jobs of each partition in each list of the wire; empty for a queue without partitions.
        position: Where to continue instead of behind the last event; empty for there.
    """

    at_ms: int
    counts: dict[str, int]
    paused: bool = False
    version: str | None = None
    oldest_ms: int | None = None
    events: list[SampledEvent] = msgspec.field(default_factory=list)
    cut: bool = False
    has_lanes: bool = False
    grouped: int = 0
    lane_events: list[SampledEvent] = msgspec.field(default_factory=list)
    lanes_cut: bool = False
    partitions: list[dict[str, int]] = msgspec.field(default_factory=list)
    position: str = ""


class Crew(msgspec.Struct, kw_only=True):
    """The workers of a queue.

    Attributes:
        workers: Those that are registered: ours, and Bridge's.
        peers: Connections of other clients' workers, such as Node's, by the worker's name.
    """

    workers: list[WorkerRecord] = msgspec.field(default_factory=list)
    peers: list[str] = msgspec.field(default_factory=list)


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
    starts: list[tuple[str, int, int | None]] = []
    for number, broker in enumerate(brokers):
        spread = broker.partitions
        if spread is not None:
            await spread.ready()
        own = [broker] if spread is None else spread.brokers()
        parts.append([*range(len(flat), len(flat) + len(own))])
        flat += own
        lanes = None if lanes_since is None else lanes_since[number]
        starts += [(since[number], max(1, most // len(own)), lanes)] * len(own)
    found: dict[int, Sample] = {}
    for members in _groups(flat).values():
        for at in range(0, len(members), CHUNK):
            part = members[at : at + CHUNK]
            rows = await _sample([one for _, one in part], [starts[number] for number, _ in part])
            found.update(zip((number for number, _ in part), rows, strict=True))
    for number, broker in enumerate(flat):
        if number not in found:
            found[number] = await _sample_one(broker, *starts[number][:2])
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
    for members in _groups(brokers).values():
        rows = await _crews([one for _, one in members])
        found.update(zip((number for number, _ in members), rows, strict=True))
    for number, broker in enumerate(brokers):
        if number not in found:
            found[number] = Crew(workers=await broker.workers())
    return [found[number] for number in range(len(brokers))]


def _groups(brokers: Sequence[ServedBroker]) -> dict[Hashable, list[tuple[int, BullMQBroker]]]:
    """Returns BullMQ's queues with their indexes, by the server whose connection they can share."""
    groups: dict[Hashable, list[tuple[int, BullMQBroker]]] = {}
    for number, broker in enumerate(brokers):
        if broker.capabilities is BULLMQ:
            one = cast("BullMQBroker", broker)
            server = one.server
            place = server.location.url if server.location else str(server.folder)
            groups.setdefault((place, one.slot), []).append((number, one))
    return groups


def _events(broker: ServedBroker, since: str, most: int) -> tuple[str | int, ...]:
    if since:
        return ("XRANGE", broker.keys.events(), f"({since}", "+", "COUNT", most)
    return ("XREVRANGE", broker.keys.events(), "+", "-", "COUNT", most)


async def _sample(
    brokers: Sequence[BullMQBroker], starts: Sequence[tuple[str, int, int | None]]
) -> list[Sample]:
    caller = brokers[0].caller
    commands: list[tuple[str | int, ...]] = [("TIME",)]
    for broker, (last, most, _) in zip(brokers, starts, strict=True):
        keys = broker.keys
        commands += [("LLEN" if state in LISTS else "ZCARD", keys.key(state)) for state in STATES]
        commands += [("ZLEXCOUNT", keys.parked(), "[g:", "(g;")]
        commands += [("EXISTS", keys.lanes()), ("HMGET", keys.meta(), "paused", "version")]
        commands += [*_first(broker), _events(broker, last, most)]
    (seconds, micros), *answers = await caller.pipeline(commands)
    now = int(seconds) * 1000 + int(micros) // 1000
    found: list[Sample] = []
    oldest: list[tuple[int, str]] = []
    fronts: list[tuple[int, BullMQBroker]] = []
    for number, (broker, (last, most, lanes_since)) in enumerate(zip(brokers, starts, strict=True)):
        row = answers[number * COMMANDS : (number + 1) * COMMANDS]
        *lengths, grouped, has_lanes, (paused, version), wait, held, first, raw = row
        counts = dict(zip(STATES, lengths, strict=True))
        lane_events: list[SampledEvent] = []
        if has_lanes:
            if lanes_since is not None:
                rows = await broker.lanes.read_entries((lanes_since, 0, ""))
                lane_events = [_sampled(f"{ms}-{count}", fields) for (ms, count, _), fields in rows]
            lanes = await broker.lanes.counts()
            for lane in lanes.values():
                for state in STATES:
                    counts[state] += lane[state]
            full = sorted(
                (name for name in lanes if _ready(lanes[name])), key=lambda name: -_ready(lanes[name])
            )
            fronts += ((number, broker.lanes.open(name)) for name in full[:_LANES])
        oldest += ((number, broker.keys.job(job)) for job in _ids(wait, held, first))
        entries = [_sampled(entry_id.decode(), pairs(fields)) for entry_id, fields in raw]
        made = Sample(at_ms=now, counts=counts, paused=paused is not None)
        made.version, made.has_lanes = text(version) if version else None, bool(has_lanes)
        made.events, made.cut = entries if last else entries[::-1], len(entries) >= most
        made.lane_events, made.lanes_cut = lane_events, len(lane_events) >= _MANY
        made.grouped = grouped
        found.append(made)
    if fronts:
        firsts = await caller.pipeline([command for _, lane in fronts for command in _first(lane)])
        for at, (number, front) in enumerate(fronts):
            own = firsts[at * len(_READY) : (at + 1) * len(_READY)]
            oldest += ((number, front.keys.job(job)) for job in _ids(*own))
    if oldest:
        times = await caller.pipeline([("HMGET", key, *_TIMES) for _, key in oldest])
        for (number, _), (added, ready_at) in zip(oldest, times, strict=True):
            if (since := _ms(ready_at) or _ms(added)) is not None:
                known = found[number].oldest_ms
                found[number].oldest_ms = since if known is None else min(known, since)
    return found


def _sampled(entry_id: str, fields: Mapping[bytes, bytes]) -> SampledEvent:
    name, job_id = fields.get(b"event", b""), fields.get(b"jobId", b"")
    return SampledEvent(
        entry_id, event_ms(entry_id), name.decode("utf-8", "replace"), job_id.decode("utf-8", "replace")
    )


def _first(broker: BullMQBroker) -> list[tuple[str | int, ...]]:
    """Returns the commands that read the oldest job of each list of ready jobs."""
    key = broker.keys.key
    return [
        ("LINDEX", key("wait"), -1),
        ("LINDEX", key("paused"), -1),
        ("ZRANGE", key("prioritized"), 0, 0),
    ]


def _ids(wait: bytes | None, held: bytes | None, first: Sequence[bytes]) -> list[str]:
    # BullMQ's marker of older versions is no job.
    return [text(one) for one in (wait, held, *first) if one and not one.startswith(b"0:")]


def _ready(counts: Mapping[str, int]) -> int:
    return sum(counts[place] for place in _READY)


def _ms(raw: bytes | None) -> int | None:
    return int(raw) if raw and raw.isdigit() and len(raw) < 16 else None


async def _sample_one(broker: ServedBroker, since: str, most: int) -> Sample:
    """Samples a queue of another protocol by the verbs that all have."""
    counts = await broker.counts_over_lanes()
    made = Sample(at_ms=await broker.now(), counts=counts, paused=await broker.is_paused())
    made.has_lanes = await broker.has_targets()
    if broker.capabilities.protocol != "memory":  # which has no stream
        raw = await broker.caller.command(*_events(broker, since, most))
        entries = [_sampled(entry_id.decode(), pairs(fields)) for entry_id, fields in raw]
        made.events, made.cut = entries if since else entries[::-1], len(entries) >= most
    for place in _READY:
        for job in await broker.page(place, 0, 0, oldest=True) if counts.get(place) else ():
            at = int((job.scheduled_at or job.created_at).timestamp() * 1000)
            made.oldest_ms = at if made.oldest_ms is None else min(made.oldest_ms, at)
    return made


async def _crews(brokers: Sequence[BullMQBroker]) -> list[Crew]:
    caller = brokers[0].caller
    found = [Crew() for _ in brokers]
    listed = await caller.pipeline([("ZRANGE", broker.keys.workers(), 0, -1) for broker in brokers])
    ids = [[text(raw) for raw in row] for row in listed]
    keys = [broker.keys for broker in brokers]
    for crew, workers in zip(found, await read_records(caller, [*zip(keys, ids, strict=True)]), strict=True):
        crew.workers += workers
    try:
        clients = await list_clients(caller, "TYPE", "normal")
    except (ScriptError, AccessDenied):
        return found  # the user may not list connections: peers stay unknown
    named = {name: at for at, broker in enumerate(brokers) for name in broker.keys.consumer_names()}
    for client in clients:
        queue, _, worker = client.get("name", "").partition(":w:")
        at = named.get(queue)
        if at is None:
            continue
        crew, worker = found[at], unquote(worker)
        if not any(worker in (one.id, one.name) for one in crew.workers):
            crew.peers.append(worker)
    return found
