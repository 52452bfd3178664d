"""Finds jobs that are in no list of their queue, and puts them back or removes them.

A job hash that no list or set names is a job that nobody will ever run. A peer can leave one behind: two
generations of BullMQ that pause and resume the same queue rename one list over another (docs/protocol).

The scan goes in bounded steps and holds no more than ids: first every id that is in some state, then
every job hash; what is left are suspects. Whether a suspect is really lost is decided by the script that
puts it back or removes it, in the same step, so a job that moved meanwhile is left alone.

May touch: the server, through a queue's broker.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable

import msgspec

from oxcart.broker.bullmq.broker import STATES, BullMQBroker
from oxcart.broker.bullmq.scripts import load

#: Keys, or members, that one step looks at.
STEP = 1000
#: Suspects per call: few, because each is searched for in the lists.
FEW = 50
#: Members of lists that a call may walk through at most, about 5 ms of the server's time.
WALK = 500_000

_LISTS = frozenset({"wait", "paused", "active"})
_SPECIAL = re.compile(r"([*?\[\]\\^])")


class Progress(msgspec.Struct, frozen=True):
    """How far a rescue is: what it does, keys looked at, keys there are about, suspects so far."""

    step: str
    keys: int
    total: int
    suspects: int


class Rescued(msgspec.Struct):
    """What a rescue found.

    Attributes:
        looked_at: How many job hashes there were.
        rescued: The ids that were put back, or would be.
        leased: Ids in no list that a worker holds a lease on.
        ended: Ids in no list whose jobs have ended; running them again would be wrong.
    """

    looked_at: int = 0
    rescued: list[str] = []
    leased: list[str] = []
    ended: list[str] = []


async def rescue(
    broker: BullMQBroker,
    *,
    dry_run: bool = False,
    progress: Callable[[Progress], None] = lambda _: None,
) -> Rescued:
    """Puts back every lost job of a queue.

    Args:
        broker: The queue.
        dry_run: Only say what would be put back.
        progress: Told after every step.
    """
    found = Rescued()
    suspects = await _suspects(broker, found, progress)
    # Each is put in front of the last: the oldest goes last, and will be the first to run.
    suspects.sort(reverse=True)
    ids = [one for _, one in suspects]
    async for raw, code in _ask(broker, "rescue", ids, dry_run):
        job_id = raw.decode("utf-8", "replace")
        if code == 1:
            found.rescued.append(job_id)
        elif code == -2:
            found.leased.append(job_id)
        elif code == -3:
            found.ended.append(job_id)
    found.rescued.reverse()
    return found


async def remove_orphans(
    broker: BullMQBroker,
    *,
    dry_run: bool = False,
    progress: Callable[[Progress], None] = lambda _: None,
) -> list[str]:
    """Removes every job of a queue that is in no list, and that no worker holds; returns their ids.

    Args:
        broker: The queue.
        dry_run: Only say which would be removed.
        progress: Told after every step.
    """
    suspects = sorted(await _suspects(broker, Rescued(), progress))
    ids = [one for _, one in suspects]
    asked = _ask(broker, "remove_orphans", ids, dry_run)
    return [raw.decode("utf-8", "replace") async for raw, code in asked if code == 1]


async def _suspects(
    broker: BullMQBroker, found: Rescued, progress: Callable[[Progress], None]
) -> list[tuple[int, bytes]]:
    """Jobs that no list or set named when it was read: when they were made, and their ids."""
    total = int(await broker.caller.command("DBSIZE"))
    known: set[bytes] = set()
    async for ids in _known(broker):
        known.update(ids)
        progress(Progress("reading the lists", 0, total, 0))
    base = broker.keys.key("").encode()
    suspects: list[tuple[int, bytes]] = []
    seen = 0
    async for scanned, ids in _hashes(broker):
        seen += scanned
        asked = [(b"HMGET", base + one, b"timestamp", b"opts") for one in ids]
        stamps = await broker.caller.pipeline(asked) if asked else []
        for one, (stamp, opts) in zip(ids, stamps, strict=True):
            if stamp is None or opts is None:
                continue  # a hash of another kind
            found.looked_at += 1
            if one not in known:
                suspects.append((_number(stamp), one))
        progress(Progress("looking for jobs", min(seen, total), total, len(suspects)))
    return suspects


async def _ask(
    broker: BullMQBroker, verb: str, ids: list[bytes], dry_run: bool
) -> AsyncIterator[tuple[bytes, int]]:
    """Lets a script decide about suspects: the id and the answer of each."""
    script = load(verb)
    start = 0
    while start < len(ids):
        lengths = await broker.caller.pipeline([("LLEN", broker.keys.key(name)) for name in _LISTS])
        batch = ids[start : start + max(1, min(FEW, WALK // (sum(lengths) + 1)))]
        start += len(batch)
        codes = await broker.caller.once(script, broker.keys.meta(), "1" if dry_run else "", *batch)
        for pair in zip(batch, codes, strict=True):
            yield pair


async def _known(broker: BullMQBroker) -> AsyncIterator[list[bytes]]:
    """Every id that is in some state, a step at a time."""
    command = broker.caller.command
    for state in STATES:
        key = broker.keys.key(state)
        if state in _LISTS:
            # From the head: jobs arrive there and leave at the tail, so one can only be read twice.
            at = 0
            while ids := await command("LRANGE", key, at, at + STEP - 1):
                yield ids
                at += len(ids)
            continue
        cursor = b"0"
        while True:
            cursor, pairs = await command("ZSCAN", key, cursor, "COUNT", STEP)
            yield pairs[::2]
            if cursor == b"0":
                break


async def _hashes(broker: BullMQBroker) -> AsyncIterator[tuple[int, list[bytes]]]:
    """Every hash under the queue's prefix, by what stands behind it; with about how many keys were seen."""
    base = broker.keys.key("")
    pattern = _SPECIAL.sub(r"\\\1", base) + "*"
    skip = len(base.encode())
    cursor = b"0"
    while True:
        cursor, keys = await broker.caller.command(
            "SCAN", cursor, "MATCH", pattern, "COUNT", STEP, "TYPE", "hash"
        )
        yield STEP, [key[skip:] for key in keys if key[skip:] != b"meta"]
        if cursor == b"0":
            return


def _number(raw: bytes) -> int:
    try:
        return int(float(raw))
    except (ValueError, OverflowError):
        return 0
