"""Flows on BullMQ's key layout: adds trees of jobs in one call, and reads them by their keys.

All queues of a tree are in one slot of one server, so the broker of any of them can add and read all of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from oxcart.broker.bullmq import codec
from oxcart.broker.bullmq.keys import Keys
from oxcart.broker.bullmq.part import QueuePart
from oxcart.broker.bullmq.scripts import load
from oxcart.broker.keyring import SEALED
from oxcart.broker.port.flows import Flows
from oxcart.broker.port.results import AddedTree
from oxcart.broker.replies import pairs, text
from oxcart.broker.sealing import Sealer
from oxcart.broker.slots import has_tag
from oxcart.model import payload
from oxcart.model.errors import CrossSlotError, PayloadError, ReplyCode, ValidationError, error_for_code
from oxcart.model.flow import (
    Child,
    DependencyCounts,
    DependencyPage,
    FlowView,
    OnFailure,
    Placed,
    Tree,
    arrange,
)
from oxcart.model.target import base_of

if TYPE_CHECKING:
    from oxcart.broker.bullmq.broker import BullMQBroker

#: Jobs per call when a running job adds children. A tree is never split, so a call may carry more.
CHUNK = 250
#: Children per step when all of them are read.
STEP = 500
#: Bytes of payloads and options that one tree may have.
MOST_BYTES = 16 * 1024 * 1024

_FLAGS = {
    OnFailure.FAIL: "fpof",
    OnFailure.CONTINUE: "cpof",
    OnFailure.IGNORE: "idof",
    OnFailure.REMOVE: "rdof",
    OnFailure.WAIT: "",
}


class QueueFlows(QueuePart, Flows):
    """The flows of one queue."""

    async def add(self, tree: Tree, *, timeout: float | None = None, replicated: bool = False) -> AddedTree:
        placed = arrange([tree], below=False)
        (added,) = await _add(self._broker, placed, None, "", timeout, replicated)
        return added

    async def add_many(self, trees: Sequence[Tree], *, timeout: float | None = None) -> list[AddedTree]:
        for tree in trees:
            if tree.options.deduplication is not None:
                raise ValidationError("deduplication", "left to a tree that is added alone", tree.name)
        return await _add(self._broker, arrange(trees, below=False), None, "", timeout)

    async def add_children(
        self, job_id: str, trees: Sequence[Tree], *, token: str = "", timeout: float | None = None
    ) -> list[AddedTree]:
        batches: list[list[Placed]] = []
        ids: set[tuple[str, str, str]] = set()
        for tree in trees:
            placed = arrange([tree], below=True, ids=ids)
            if batches and len(batches[-1]) + len(placed) <= CHUNK:
                batches[-1] += _moved(placed, len(batches[-1]))
            else:
                batches.append(placed)
        for batch in batches:
            _check_slots(self._broker, batch)
        added: list[AddedTree] = []
        for batch in batches:
            added += await _add(self._broker, batch, job_id, token, timeout)
        return added

    async def counts(self, job_id: str) -> DependencyCounts:
        keys = self._broker.keys
        processed, unprocessed, ignored, failed = await self._broker.caller.pipeline(
            [
                ("HLEN", keys.processed(job_id)),
                ("SCARD", keys.dependencies(job_id)),
                ("HLEN", keys.ignored(job_id)),
                ("ZCARD", keys.unsuccessful(job_id)),
            ]
        )
        return DependencyCounts(processed, unprocessed, ignored, failed)

    async def page(self, job_id: str, kind: str, cursor: str = "0", limit: int = 100) -> DependencyPage:
        keys, command = self._broker.keys, self._broker.caller.command
        if kind == "failed":
            first = int(cursor)
            raw = await command("ZRANGE", keys.unsuccessful(job_id), first, first + limit - 1)
            following = str(first + limit) if len(raw) == limit else None
            return DependencyPage([_child(self._broker, key) for key in raw], following)
        if kind == "unprocessed":
            after, raw = await command("SSCAN", keys.dependencies(job_id), cursor, "COUNT", limit)
            children = [_child(self._broker, key) for key in raw]
        elif kind in ("processed", "ignored"):
            key = keys.processed(job_id) if kind == "processed" else keys.ignored(job_id)
            after, flat = await command("HSCAN", key, cursor, "COUNT", limit)
            pairs = zip(flat[::2], flat[1::2], strict=True)
            children = [_child(self._broker, child, **{kind: value}) for child, value in pairs]
        else:
            raise ValidationError("kind", "one of processed, unprocessed, ignored, failed", kind)
        return DependencyPage(children, None if after == b"0" else after.decode())

    async def every(self, job_id: str, kind: str) -> dict[str, Child]:
        found: dict[str, Child] = {}
        cursor: str | None = "0"
        while cursor is not None:
            one = await self.page(job_id, kind, cursor, STEP)
            found.update((child.key, child) for child in one.children)
            cursor = one.cursor
        return found

    async def view(self, job_id: str, *, depth: int = 10, limit: int = 20) -> FlowView | None:
        top = self._broker.keys.job(job_id)
        jobs: dict[str, FlowView] = {}
        below: dict[str, list[str]] = {}
        wanted = [top]
        for generation in range(depth):
            found = await _read(self._broker, wanted, limit if generation < depth - 1 else 0)
            wanted = []
            for key, (one, children) in found.items():
                jobs[key], below[key] = one, children
                wanted += [child for child in children if child not in jobs and child not in wanted]
            wanted = [key for key in wanted if key not in jobs]
            if not wanted:
                break
        return _assemble(top, jobs, below, set())

    async def remove_unprocessed(self, job_id: str) -> None:
        await self._broker.change("remove_job", job_id, "U")

    async def leave_parent(self, job_id: str) -> bool:
        return bool(await self._broker.change("leave_parent", job_id))


def _moved(placed: list[Placed], by: int) -> list[Placed]:
    return [Placed(one.tree, one.parent + by if one.parent >= 0 else -1) for one in placed]


def _check_slots(broker: BullMQBroker, placed: Sequence[Placed]) -> dict[tuple[str, str], Keys]:
    """Returns the keys of every queue of a tree."""
    found: dict[tuple[str, str], Keys] = {}
    for one in placed:
        named = (one.tree.prefix, one.tree.queue)
        if named not in found:
            keys = found[named] = Keys(one.tree.queue, one.tree.prefix, broker.keys.tagged)
            if broker.slot is not None and keys.slot() != broker.slot:
                raise CrossSlotError(
                    f"a flow over the queues {broker.queue!r} and {one.tree.queue!r} is in two slots of the "
                    "cluster; give them a prefix with a hash tag that they share, e.g. prefix='{bull}'"
                )
    return found


async def _add(
    broker: BullMQBroker,
    placed: Sequence[Placed],
    parent_id: str | None,
    token: str,
    timeout: float | None,
    replicated: bool = False,
) -> list[AddedTree]:
    queues = _check_slots(broker, placed)
    numbers = {named: number for number, named in enumerate(queues, 1)}
    now, parent_key = broker.clock.argument, "" if parent_id is None else broker.keys.job(parent_id)
    args: list[bytes | str | int] = [
        parent_key,
        token,
        len(queues),
        *(keys.key("") for keys in queues.values()),
    ]
    args.append(len(placed))
    ids: list[str] = []
    weight = 0
    for one in placed:
        tree = one.tree
        link = None
        if one.parent >= 0:
            above = placed[one.parent].tree
            link = codec.ParentLink(
                ids[one.parent], queues[above.prefix, above.queue].base, _FLAGS[tree.on_failure]
            )
        elif parent_id is not None:
            link = codec.ParentLink(parent_id, broker.keys.base, _FLAGS[tree.on_failure])
        job_id, job = codec.encode_job(
            tree.name,
            tree.data,
            tree.options,
            now,
            parent=link,
            waits=bool(tree.children),
            sealer=tree.sealer,
            make_id=broker.make_id,
        )
        ids.append(job_id)
        args.append(numbers[tree.prefix, tree.queue])
        args += job
        weight += len(job[2]) + len(job[3])  # type: ignore[arg-type]
    if weight > MOST_BYTES:
        raise ValidationError("flow", f"at most {MOST_BYTES} bytes of payloads", weight)
    status, detail = await broker.caller.once(
        load("add_flow"), broker.keys.meta(), *args, timeout=timeout, replicated=replicated
    )
    if status < 0:
        raise error_for_code(status, text(detail), "add_flow")
    if status == ReplyCode.NOTHING_TO_DO:
        top = placed[0].tree
        return [AddedTree(top.queue, text(detail), top.name, False)]
    return _answered(placed, ids, detail)


def _answered(placed: Sequence[Placed], ids: list[str], codes: list[int]) -> list[AddedTree]:
    # From the last generation up: children come before their parents.
    below: dict[int, list[AddedTree]] = {}
    for number in range(len(placed) - 1, -1, -1):
        one = placed[number]
        children = below.pop(number, [])
        found = AddedTree(
            one.tree.queue,
            ids[number],
            one.tree.name,
            codes[number] == ReplyCode.DONE,
            tuple(reversed(children)),
        )
        below.setdefault(one.parent, []).append(found)
    return list(reversed(below[-1]))


def _assemble(
    key: str, jobs: dict[str, FlowView], below: dict[str, list[str]], above: set[str]
) -> FlowView | None:
    if key not in jobs or key in above:  # gone, or its own ancestor
        return None
    found = (_assemble(child, jobs, below, above | {key}) for child in below[key])
    return msgspec.structs.replace(jobs[key], children=[child for child in found if child is not None])


async def _read(
    broker: BullMQBroker, wanted: Sequence[str], limit: int
) -> dict[str, tuple[FlowView, list[str]]]:
    commands: list[tuple[Any, ...]] = []
    for key in wanted:
        commands += [
            ("HGETALL", key),
            ("HLEN", f"{key}:processed"),
            ("SCARD", f"{key}:dependencies"),
            ("HLEN", f"{key}:failed"),
            ("ZCARD", f"{key}:unsuccessful"),
            ("HSCAN", f"{key}:processed", 0, "COUNT", max(1, limit)),
            ("SSCAN", f"{key}:dependencies", 0, "COUNT", max(1, limit)),
            ("HSCAN", f"{key}:failed", 0, "COUNT", max(1, limit)),
            ("ZRANGE", f"{key}:unsuccessful", 0, max(0, limit - 1)),
        ]
    answers = iter(await broker.caller.pipeline(commands))
    read: dict[str, tuple[list[bytes], int, list[str]]] = {}
    for key in wanted:
        flat, *sizes, processed, unprocessed, ignored, failed = (next(answers) for _ in range(9))
        if flat:
            raw = [*processed[1][::2], *unprocessed[1], *failed, *ignored[1][::2]]
            children = list(dict.fromkeys(map(text, raw)))[:limit]
            read[key] = (flat, max(0, sum(sizes) - len(children)), children)
    states = await _states(broker, list(read))
    found: dict[str, tuple[FlowView, list[str]]] = {}
    for key, (flat, more, children) in read.items():
        base, queue, job_id = split(broker, key)
        fields = pairs(flat)
        if broker.sealer is not None:
            sealer = broker.sealer.beside(base.rpartition(":")[0], base_of(queue))
            fields = codec.open_fields(sealer, job_id, fields, lenient=True)
        job = codec.decode_job(queue, job_id, fields, states[key])
        found[key] = (FlowView(job, states[key], [], more), children)
    return found


async def _states(broker: BullMQBroker, keys: Sequence[str]) -> dict[str, str]:
    groups: dict[str, list[str]] = {}
    for key in keys:
        groups.setdefault(split(broker, key)[0], []).append(key)
    found: dict[str, str] = {}
    for base, members in groups.items():
        ids = [key[len(base) + 1 :] for key in members]
        answer = await broker.caller.again(load("job_state"), f"{base}:meta", *ids)
        found.update(zip(members, (state.decode() for state in answer), strict=True))
    return found


def split(broker: BullMQBroker, key: str) -> tuple[str, str, str]:
    """Splits a job's full key into the qualified name of its queue, the queue's name, and the job's id."""
    own = broker.keys.base
    if key.startswith(f"{own}:"):
        return own, broker.queue, key[len(own) + 1 :]
    base, _, job_id = key.rpartition(":")
    prefix, _, queue = base.rpartition(":")
    if broker.keys.tagged and not has_tag(prefix) and queue.startswith("{") and queue.endswith("}"):
        queue = queue[1:-1]
    return base, queue, job_id


def _child(
    broker: BullMQBroker, raw: bytes, processed: bytes | None = None, ignored: bytes | None = None
) -> Child:
    key = text(raw)
    base, queue, job_id = split(broker, key)
    value: Any = None
    if processed is not None:
        if broker.sealer is not None:
            processed = _opened(broker.sealer, base, queue, job_id, processed)
        try:
            value = payload.decode(processed)
        except PayloadError:
            value = text(processed)
    return Child(key, queue, job_id, value, None if ignored is None else text(ignored))


def _opened(sealer: Sealer, base: str, queue: str, job_id: str, value: bytes) -> bytes:
    """Opens the result of a child; a queue other than the parent's need not be sealed."""
    prefix, named = base.rpartition(":")[0], base_of(queue)
    is_own = (prefix, named) == (sealer.prefix, sealer.queue)
    if not is_own and not value.startswith(SEALED):
        return value
    return sealer.beside(prefix, named).open("result", job_id, value)
