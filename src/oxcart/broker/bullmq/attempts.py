"""Builds the arguments of claims and of finished attempts, and reads the replies.

``lua/claim.lua`` and ``lua/finish.lua`` read the arguments in the same order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from oxcart.broker.bullmq.claimed import BullMQClaim, NewClaim
from oxcart.broker.bullmq.codec import read_options
from oxcart.broker.faults import DIGITS, fault_in
from oxcart.broker.port import Ask, Claimed, ClaimedJob, Outcome, OutcomeKind
from oxcart.broker.stored import count_of
from oxcart.model.retention import Retention

#: How much of a token separates the values of a claimed job; also in ``lua/parts/claiming.lua``.
NONCE = 12
#: Pieces of a claimed job with six fields: its id, and names and values.
SIX_FIELDS = 13


#: ``ClaimReply.journal``: the reply came from the journal, or the claim reached its time limit.
REPEATED, STOPPED = 1, 2
#: ``ClaimReply.closed``: one of a choice of lanes is open no more, because their base queue is closed.
SHUT = 2


class ClaimReply(msgspec.Struct, gc=False):
    """The reply of ``lua/claim.lua`` and ``lua/finish.lua``, as the server sends it.

    Attributes:
        codes: Finish: a code per outcome, or how many outcomes there were if all are done.
        jobs: The claimed jobs, a text for each.
        limited_ms: For how long a limit blocks the next start.
        due_ms: When the next delayed job is due.
        closed: Above zero if the queue is paused or at its concurrency; `SHUT` for a whole choice of lanes.
        active: The length of the active list.
        orphans: Ids without a job.
        journal: `REPEATED`, `STOPPED`, or 0.
        now_ms: The server's time.
        lane: With a choice of lanes: the chosen one, counted from 1, or 0. None without a choice.
        more: Whether the chosen lane has more jobs.
        empty: The empty lanes and their next due times, in turn.
    """

    codes: int | list[Any]
    jobs: list[bytes]
    limited_ms: int
    due_ms: int
    closed: int
    active: int
    orphans: list[bytes]
    journal: int
    now_ms: int
    lane: int | None = None
    more: int = 0
    empty: list[int] = []


def claim_args(ask: Ask, now: int | str, token: str, lane: str | None) -> list[bytes | str | int]:
    """Returns the arguments of a claim, for the broker's queue or lane."""
    count: int | str = ask.count
    if ask.lanes:
        count = f"{count}@{'@'.join((lane or 'base', *ask.lanes))}"
    return [
        now,
        count,
        token,
        ask.lock_ms,
        ask.worker,
        "" if ask.limit_max is None else ask.limit_max,
        "" if ask.limit_duration is None else ask.limit_duration,
        ask.max_bytes,
        ask.spell_us or "",
        "1" if ask.isolates else "",
    ]


def end_args(outcomes: Sequence[Outcome], metrics: int, version: str = "") -> list[bytes | str | int]:
    """Returns the arguments that finish attempts, behind those of a claim; shared values are sent once."""
    args: list[bytes | str | int] = [len(outcomes)]
    completed, failed, retry, delay = (
        OutcomeKind.COMPLETED,
        OutcomeKind.FAILED,
        OutcomeKind.RETRY,
        OutcomeKind.DELAY,
    )
    ended = (completed, failed)
    group: tuple[str, str, int, str, int] | None = None
    size_at = 0
    failures: list[bytes | str | int] = []
    for number, o in enumerate(outcomes, 1):
        kind = o.kind
        if o.category:
            failures += (number, o.category, o.code)
        if kind == retry:
            more = "L" if o.lifo else ""
        else:
            more = "" if o.retention is None else retention_argument(o.retention)
        earlier = o.claim.earlier if isinstance(o.claim, BullMQClaim) and kind in ended else -1
        shared = (kind, o.token, o.at_ms, more, earlier)
        if shared != group:
            size_at = len(args) + 1
            args += (kind, 0, o.token, o.at_ms or "", more, earlier if earlier >= 0 else "")
            group = shared
        args[size_at] += 1  # type: ignore[operator]
        args += (o.id, o.starts if o.starts >= 0 else "")
        if kind == completed:
            args.append(o.value)
        elif kind == failed:
            args += (o.value, o.stack, o.attempts, o.category, o.dead)
        elif kind == retry:
            args += (o.value, o.stack)
        elif kind == delay:
            args += (o.value, o.stack, o.delay_ms, "" if o.counts else "2" if o.unhandled else f"1{o.waits}")
        elif kind == OutcomeKind.HOLD_QUEUE:
            args.append(o.delay_ms)
    args.append(metrics or "")
    args += failures
    if version:
        args += (0, version, "")
    return args


def retention_argument(kept: Retention) -> str:
    """Returns a retention as ``lua/finish.lua`` reads it: ``count:age:limit``, or ``-1::`` for all jobs."""
    count = "" if kept.count is None or kept.count < 0 else str(kept.count)
    if count == "0":
        return "0::"
    if not count and kept.age is None:
        return "-1::"
    return f"{count}:{'' if kept.age is None else kept.age}:{'' if kept.limit is None else kept.limit}"


def read_claim(reply: ClaimReply, token: str) -> Claimed:
    """Reads the jobs of a claim."""
    jobs: list[ClaimedJob] = []
    aside, now, suspects = [], reply.now_ms, False
    between = b"\0" + token[:NONCE].encode()
    names: tuple[bytes, ...] = ()
    first = int(reply.journal != REPEATED)  # a repeated reply is read after the claim, a first one before it
    for joined in reply.jobs:
        flat = joined.split(between)
        raw_id = flat[0]
        plain = not len(flat) & 1
        if plain:  # values alone, and no starts among them
            del flat[0]
            fields = dict(zip(names, flat, strict=False))
        else:
            fields = dict(zip(flat[1::2], flat[2::2], strict=True))
            if len(flat) == SIX_FIELDS:
                names = tuple(fields)
            if b"stc" in fields:
                suspects = True
        try:
            job_id = raw_id.decode()
        except UnicodeDecodeError:  # no worker could name this id: the stalled check recovers it
            aside.append(raw_id)
            continue
        if plain:
            jobs.append(_new(job_id, token, first, now, fields))
        else:
            jobs.append(BullMQClaim(job_id, token, count_of(fields.get(b"ats")) + first, now, fields))
    found = Claimed(
        jobs,
        reply.limited_ms,
        reply.due_ms,
        reply.closed > 0,
        reply.active,
        [orphan.decode("utf-8", "replace") for orphan in reply.orphans + aside],
        reply.journal == REPEATED,
        more=reply.journal == STOPPED,
        suspects=suspects,
    )
    if reply.lane is not None:
        found.lane = reply.lane - 1 if reply.lane else None
        found.shut = reply.closed == SHUT
        found.more = found.more or reply.more == 1
        found.empty = [(i - 1, due) for i, due in zip(reply.empty[::2], reply.empty[1::2], strict=True)]
    return found


def _new(job_id: str, token: str, starts: int, now: int, fields: dict[bytes, bytes]) -> NewClaim:
    """Returns a claimed job that has the six fields of a new one."""
    options, fault = read_options(fields[b"opts"])
    name = fields[b"name"]
    numbers = fields[b"timestamp"] + fields[b"delay"] + fields[b"priority"]
    if not (numbers.isdigit() and len(numbers) <= DIGITS and name.isascii()):
        fault = fault_in(fields) or fault
    return NewClaim(
        job_id,
        token,
        starts,
        now,
        fields,
        None,
        name.decode("utf-8", "replace"),
        fields[b"data"],
        fault,
        options,
    )
