"""Samples many queues of BullMQ over one connection by one pipeline."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import TYPE_CHECKING
from urllib.parse import unquote

from oxcart.broker.bullmq.keys import LISTS
from oxcart.broker.bullmq.part import QueuePart
from oxcart.broker.bullmq.workers import read_records
from oxcart.broker.port.codes import STATES
from oxcart.broker.port.sampling import Crew, Sample, SampledEvent, Sampling, Start
from oxcart.broker.probe import list_clients
from oxcart.broker.replies import pairs, text
from oxcart.broker.sampling import READY, events_command, sampled_event
from oxcart.model.errors import AccessDenied, ScriptError

if TYPE_CHECKING:
    from oxcart.broker.bullmq.broker import BullMQBroker

#: Queues that one pipeline samples.
CHUNK = 100
#: Fields that tell since when a job is ready.
_TIMES = ("timestamp", "ox:ready")
#: Commands that sample one queue: its lengths, its groups and lanes, its settings, its oldest ready jobs, its
#: events.
COMMANDS = len(STATES) + 3 + len(READY) + 1
#: Events of lanes from which on there may be more than were read.
_MANY = 500
#: Lanes of a queue whose oldest ready jobs are looked at, those with most ready jobs first.
_LANES = 50


class QueueSampling(QueuePart, Sampling):
    """Samples a queue together with others on its server."""

    @property
    def place(self) -> Hashable:
        server = self._broker.server
        return server.location.url if server.location else str(server.folder), self._broker.slot

    async def sample(self, queues: Sequence[Sampling], starts: Sequence[Start]) -> list[Sample]:
        brokers, found = _brokers(queues), list[Sample]()
        for at in range(0, len(brokers), CHUNK):
            found += await _sample(brokers[at : at + CHUNK], starts[at : at + CHUNK])
        return found

    async def crews(self, queues: Sequence[Sampling]) -> list[Crew]:
        return await _crews(_brokers(queues))


def _brokers(queues: Sequence[Sampling]) -> list[BullMQBroker]:
    return [one._broker for one in queues if isinstance(one, QueueSampling)]


async def _sample(brokers: Sequence[BullMQBroker], starts: Sequence[Start]) -> list[Sample]:
    caller = brokers[0].caller
    commands: list[tuple[str | int, ...]] = [("TIME",)]
    for broker, (last, most, _) in zip(brokers, starts, strict=True):
        keys = broker.keys
        commands += [("LLEN" if state in LISTS else "ZCARD", keys.key(state)) for state in STATES]
        commands += [("ZLEXCOUNT", keys.parked(), "[g:", "(g;")]
        commands += [("EXISTS", keys.lanes()), ("HMGET", keys.meta(), "paused", "version")]
        commands += [*_first(broker), events_command(keys.events(), last, most)]
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
                lane_events = [sampled_event(f"{ms}-{count}", fields) for (ms, count, _), fields in rows]
            lanes = await broker.lanes.counts()
            for lane in lanes.values():
                for state in STATES:
                    counts[state] += lane[state]
            full = sorted(
                (name for name in lanes if _ready(lanes[name])), key=lambda name: -_ready(lanes[name])
            )
            fronts += ((number, broker.lanes.open(name)) for name in full[:_LANES])
        oldest += ((number, broker.keys.job(job)) for job in _ids(wait, held, first))
        entries = [sampled_event(entry_id.decode(), pairs(fields)) for entry_id, fields in raw]
        made = Sample(at_ms=now, counts=counts, paused=paused is not None)
        made.version, made.has_lanes = text(version) if version else None, bool(has_lanes)
        made.events, made.cut = entries if last else entries[::-1], len(entries) >= most
        made.lane_events, made.lanes_cut = lane_events, len(lane_events) >= _MANY
        made.grouped = grouped
        found.append(made)
    if fronts:
        firsts = await caller.pipeline([command for _, lane in fronts for command in _first(lane)])
        for at, (number, front) in enumerate(fronts):
            own = firsts[at * len(READY) : (at + 1) * len(READY)]
            oldest += ((number, front.keys.job(job)) for job in _ids(*own))
    if oldest:
        times = await caller.pipeline([("HMGET", key, *_TIMES) for _, key in oldest])
        for (number, _), (added, ready_at) in zip(oldest, times, strict=True):
            if (since := _ms(ready_at) or _ms(added)) is not None:
                known = found[number].oldest_ms
                found[number].oldest_ms = since if known is None else min(known, since)
    return found


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
    return sum(counts[place] for place in READY)


def _ms(raw: bytes | None) -> int | None:
    return int(raw) if raw and raw.isdigit() and len(raw) < 16 else None


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
