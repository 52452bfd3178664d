"""Finds jobs that are in no list of their queue, and puts them back or removes them.

A job hash that no list or set contains is a job that no worker will ever run. A peer can leave one behind:
two generations of BullMQ that pause and resume the same queue rename one list over another (docs/protocol).

The scan keeps only ids: first every id that is in some state, then every job hash. The difference are
suspects.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from oxcart.broker.bullmq.keys import LISTS
from oxcart.broker.bullmq.part import QueuePart
from oxcart.broker.bullmq.scripts import load
from oxcart.broker.discovery import glob_escape
from oxcart.broker.port.codes import STATES
from oxcart.broker.port.parts import Rescue
from oxcart.broker.port.results import Rescued
from oxcart.broker.progress import OnProgress, Progress, silent
from oxcart.broker.replies import number
from oxcart.model.errors import ReplyCode

if TYPE_CHECKING:
    from oxcart.broker.bullmq.broker import BullMQBroker

#: Keys, or members, that one step looks at.
STEP = 1000
#: Suspects per call: few, because each is searched in the lists.
FEW = 50
#: Members of lists that one call may walk through, about 5 ms of server time.
WALK = 500_000


class QueueRescue(QueuePart, Rescue):
    """The search for lost jobs of one queue."""

    async def run(self, *, dry_run: bool = False, progress: OnProgress = silent) -> Rescued:
        found = Rescued()
        suspects = await _suspects(self._broker, found, progress)
        # Each is put in front of the last: the oldest goes last, and runs first.
        suspects.sort(reverse=True)
        async for raw, code in _ask(self._broker, "rescue", [one for _, one in suspects], dry_run):
            job_id = raw.decode("utf-8", "replace")
            if code == ReplyCode.DONE:
                found.rescued.append(job_id)
            elif code == ReplyCode.LEASE_GONE:
                found.leased.append(job_id)
            elif code == ReplyCode.WRONG_STATE:
                found.ended.append(job_id)
        found.rescued.reverse()
        return found

    async def remove_orphans(self, *, dry_run: bool = False, progress: OnProgress = silent) -> list[str]:
        suspects = sorted(await _suspects(self._broker, Rescued(), progress))
        asked = _ask(self._broker, "remove_orphans", [one for _, one in suspects], dry_run)
        return [raw.decode("utf-8", "replace") async for raw, code in asked if code == ReplyCode.DONE]


async def _suspects(broker: BullMQBroker, found: Rescued, progress: OnProgress) -> list[tuple[int, bytes]]:
    """Returns jobs that no list or set contained when it was read: when they were made, and their ids."""
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
                suspects.append((number(stamp), one))
        progress(Progress("looking for jobs", min(seen, total), total, len(suspects)))
    return suspects


async def _ask(
    broker: BullMQBroker, verb: str, ids: list[bytes], dry_run: bool
) -> AsyncIterator[tuple[bytes, int]]:
    """Lets a script decide about suspects; yields the id and the answer of each."""
    script = load(verb)
    start = 0
    while start < len(ids):
        lengths = await broker.caller.pipeline([("LLEN", broker.keys.key(name)) for name in LISTS])
        batch = ids[start : start + max(1, min(FEW, WALK // (sum(lengths) + 1)))]
        start += len(batch)
        codes = await broker.caller.once(script, broker.keys.meta(), "1" if dry_run else "", *batch)
        for pair in zip(batch, codes, strict=True):
            yield pair


async def _known(broker: BullMQBroker) -> AsyncIterator[list[bytes]]:
    """Yields every id that is in some state."""
    command = broker.caller.command
    for state in STATES:
        key = broker.keys.key(state)
        if state in LISTS:
            # From the head: jobs arrive there and leave at the tail, so none is missed, but one may be read
            # twice.
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
    """Yields the key suffixes of the queue's hashes, with about how many keys were seen."""
    base = broker.keys.key("")
    pattern = glob_escape(base) + "*"
    skip = len(base.encode())
    cursor = b"0"
    while True:
        cursor, keys = await broker.caller.command(
            "SCAN", cursor, "MATCH", pattern, "COUNT", STEP, "TYPE", "hash"
        )
        yield STEP, [key[skip:] for key in keys if key[skip:] != b"meta"]
        if cursor == b"0":
            return
