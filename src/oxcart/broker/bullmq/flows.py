"""Flows on BullMQ's key layout: trees of jobs are added in one call, and read back by their keys.

All queues of a tree are in one slot of one server, so the broker of any of them can add and read all of it.

May touch: the server, through a queue's broker.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from oxcart.broker.bullmq import codec
from oxcart.broker.bullmq.broker import BullMQBroker
from oxcart.broker.bullmq.keys import Keys, has_tag
from oxcart.broker.bullmq.scripts import load
from oxcart.broker.keyring import SEALED
from oxcart.broker.sealing import Sealer
from oxcart.model import payload
from oxcart.model.errors import CrossSlotError, PayloadError, ValidationError, error_for_code
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

#: Jobs per call when a running job adds children: each tree as a whole, so a call may carry more.
CHUNK = 250
#: Children per step when all of them are read.
STEP = 500
#: What one tree may weigh in bytes of payloads and options.
MOST_BYTES = 16 * 1024 * 1024

_FLAGS = {
    OnFailure.FAIL: "fpof",
    OnFailure.CONTINUE: "cpof",
    OnFailure.IGNORE: "idof",
    OnFailure.REMOVE: "rdof",
    OnFailure.WAIT: "",
}


class AddedTree(msgspec.Struct, frozen=True):
    """What became of a job of a tree, and of its children.

    Attributes:
        queue: Its queue.
        id: Its id; for a tree that a deduplication window kept out, that of the job that owns the window.
        name: Its name.
        created: Whether this add made the job.
        children: Its children; none for a tree that was kept out.
    """

    queue: str
    id: str
    name: str
    created: bool
    children: tuple[AddedTree, ...] = ()


async def add_tree(
    broker: BullMQBroker, tree: Tree, *, timeout: float | None = None, replicated: bool = False
) -> AddedTree:
    """Adds a tree of jobs, all of it or nothing; `broker` is that of the queue at its top.

    Raises:
        ValidationError: Something is wrong with the tree; nothing was written.
        CrossSlotError: Its queues are in different slots of the cluster; nothing was written.
        ParentConflict: A job of an id in the tree belongs to another parent; nothing was written.
    """
    placed = arrange([tree], below=False)
    (added,) = await _add(broker, placed, None, "", timeout, replicated)
    return added


async def add_trees(
    broker: BullMQBroker, trees: Sequence[Tree], *, timeout: float | None = None
) -> list[AddedTree]:
    """Adds trees without a deduplication window, all of them or nothing; errors are those of ``add_tree``."""
    for tree in trees:
        if tree.options.deduplication is not None:
            raise ValidationError("deduplication", "left to a tree that is added alone", tree.name)
    return await _add(broker, arrange(trees, below=False), None, "", timeout)


async def add_children(
    broker: BullMQBroker, job_id: str, trees: Sequence[Tree], *, token: str = "", timeout: float | None = None
) -> list[AddedTree]:
    """Adds trees as children of a job of this queue; long lists go in several calls, each tree as a whole.

    Args:
        broker: The parent's queue.
        job_id: The parent.
        trees: Its new children.
        token: The lease under which the parent runs; empty not to ask for one.
        timeout: Seconds after which a call that gets no answer fails.

    Raises:
        ValidationError: Something is wrong with a tree; nothing was written.
        CrossSlotError: A queue is in another slot of the cluster; nothing was written.
        LeaseLost: The parent is not run under this lease any more.
        JobNotFound: The parent is gone.
        ParentConflict: A job of an id in the trees belongs to another parent.
    """
    batches: list[list[Placed]] = []
    ids: set[tuple[str, str, str]] = set()
    for tree in trees:
        placed = arrange([tree], below=True, ids=ids)
        if batches and len(batches[-1]) + len(placed) <= CHUNK:
            batches[-1] += _moved(placed, len(batches[-1]))
        else:
            batches.append(placed)
    for batch in batches:
        _check_slots(broker, batch)
    added: list[AddedTree] = []
    for batch in batches:
        added += await _add(broker, batch, job_id, token, timeout)
    return added


def _moved(placed: list[Placed], by: int) -> list[Placed]:
    return [Placed(one.tree, one.parent + by if one.parent >= 0 else -1) for one in placed]


def _check_slots(broker: BullMQBroker, placed: Sequence[Placed]) -> dict[tuple[str, str], Keys]:
    """The keys of every queue of a tree."""
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
        raise error_for_code(status, detail.decode("utf-8", "surrogateescape"), "add_flow")
    if status == 0:
        top = placed[0].tree
        return [AddedTree(top.queue, detail.decode("utf-8", "surrogateescape"), top.name, False)]
    return _answered(placed, ids, detail)


def _answered(placed: Sequence[Placed], ids: list[str], codes: list[int]) -> list[AddedTree]:
    # From the last generation up: children are there before their parents.
    below: dict[int, list[AddedTree]] = {}
    for number in range(len(placed) - 1, -1, -1):
        one = placed[number]
        children = below.pop(number, [])
        found = AddedTree(
            one.tree.queue, ids[number], one.tree.name, codes[number] == 1, tuple(reversed(children))
        )
        below.setdefault(one.parent, []).append(found)
    return list(reversed(below[-1]))


# --- reading --------------------------------------------------------------------------------------


async def counts(broker: BullMQBroker, job_id: str) -> DependencyCounts:
    """How many children a job has, by what became of them."""
    keys = broker.keys
    processed, unprocessed, ignored, failed = await broker.caller.pipeline(
        [
            ("HLEN", keys.processed(job_id)),
            ("SCARD", keys.dependencies(job_id)),
            ("HLEN", keys.ignored(job_id)),
            ("ZCARD", keys.unsuccessful(job_id)),
        ]
    )
    return DependencyCounts(processed, unprocessed, ignored, failed)


async def page(
    broker: BullMQBroker, job_id: str, kind: str, cursor: str = "0", limit: int = 100
) -> DependencyPage:
    """Some of a job's children of a kind; a child may come twice while children are added.

    Raises:
        ValidationError: There is no such kind.
    """
    keys, command = broker.keys, broker.caller.command
    if kind == "failed":
        first = int(cursor)
        raw = await command("ZRANGE", keys.unsuccessful(job_id), first, first + limit - 1)
        following = str(first + limit) if len(raw) == limit else None
        return DependencyPage([_child(broker, key) for key in raw], following)
    if kind == "unprocessed":
        after, raw = await command("SSCAN", keys.dependencies(job_id), cursor, "COUNT", limit)
        children = [_child(broker, key) for key in raw]
    elif kind in ("processed", "ignored"):
        key = keys.processed(job_id) if kind == "processed" else keys.ignored(job_id)
        after, flat = await command("HSCAN", key, cursor, "COUNT", limit)
        pairs = zip(flat[::2], flat[1::2], strict=True)
        children = [_child(broker, child, **{kind: value}) for child, value in pairs]
    else:
        raise ValidationError("kind", "one of processed, unprocessed, ignored, failed", kind)
    return DependencyPage(children, None if after == b"0" else after.decode())


async def every(broker: BullMQBroker, job_id: str, kind: str) -> dict[str, Child]:
    """All children of a kind by their keys, read in steps."""
    found: dict[str, Child] = {}
    cursor: str | None = "0"
    while cursor is not None:
        one = await page(broker, job_id, kind, cursor, STEP)
        found.update((child.key, child) for child in one.children)
        cursor = one.cursor
    return found


async def view(broker: BullMQBroker, job_id: str, *, depth: int = 10, limit: int = 20) -> FlowView | None:
    """A job with its children and theirs, read a generation at a time; None where there is no job.

    Args:
        broker: The queue of the job at the top.
        job_id: That job.
        depth: How many generations, the first included.
        limit: How many children of one job at most.
    """
    top = broker.keys.job(job_id)
    jobs: dict[str, FlowView] = {}
    below: dict[str, list[str]] = {}
    wanted = [top]
    for generation in range(depth):
        found = await _read(broker, wanted, limit if generation < depth - 1 else 0)
        wanted = []
        for key, (one, children) in found.items():
            jobs[key], below[key] = one, children
            wanted += [child for child in children if child not in jobs and child not in wanted]
        wanted = [key for key in wanted if key not in jobs]
        if not wanted:
            break
    return _assemble(top, jobs, below, set())


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
            children = list(dict.fromkeys(map(_text, raw)))[:limit]
            read[key] = (flat, max(0, sum(sizes) - len(children)), children)
    states = await _states(broker, list(read))
    found: dict[str, tuple[FlowView, list[str]]] = {}
    for key, (flat, more, children) in read.items():
        base, queue, job_id = split(broker, key)
        pairs = iter(flat)
        fields = dict(zip(pairs, pairs, strict=True))
        if broker.sealer is not None:
            sealer = broker.sealer.beside(base.rpartition(":")[0], base_of(queue))
            fields = sealer.open_fields(job_id, fields, lenient=True)
        job = codec.decode_job(queue, job_id, fields)
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
    """What a job's full key tells: the qualified name of its queue, the queue's name, and the job's id."""
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
    key = _text(raw)
    base, queue, job_id = split(broker, key)
    value: Any = None
    if processed is not None:
        if broker.sealer is not None:
            processed = _opened(broker.sealer, base, queue, job_id, processed)
        try:
            value = payload.decode(processed)
        except PayloadError:
            value = _text(processed)
    return Child(key, queue, job_id, value, None if ignored is None else _text(ignored))


def _opened(sealer: Sealer, base: str, queue: str, job_id: str, value: bytes) -> bytes:
    """The result of a child; another queue than the parent's need not be sealed."""
    prefix, named = base.rpartition(":")[0], base_of(queue)
    is_own = (prefix, named) == (sealer.prefix, sealer.queue)
    if not is_own and not value.startswith(SEALED):
        return value
    return sealer.beside(prefix, named).open("result", job_id, value)


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")


class Parent:
    """What can be asked of a job that may have children."""

    __slots__ = ()

    id: str

    def _storage(self) -> BullMQBroker:
        raise NotImplementedError

    async def children_values(self) -> dict[str, Any]:
        """The results of the children that completed, by the children's keys (``bull:images:page-1``)."""
        found = await every(self._storage(), self.id, "processed")
        return {key: child.value for key, child in found.items()}

    async def ignored_failures(self) -> dict[str, str]:
        """Why children failed whose failure did not fail the job, by the children's keys."""
        found = await every(self._storage(), self.id, "ignored")
        return {key: child.reason or "" for key, child in found.items()}

    async def dependency_counts(self) -> DependencyCounts:
        """How many children the job has, by what became of them."""
        return await counts(self._storage(), self.id)

    async def dependencies(self, kind: str, *, cursor: str = "0", limit: int = 100) -> DependencyPage:
        """About so many of the job's children of a kind.

        Args:
            kind: ``processed``, ``unprocessed``, ``ignored`` or ``failed``, as in `DependencyCounts`.
            cursor: That of the page before.
            limit: About how many; a small family comes at once.
        """
        if limit < 1:
            raise ValidationError("limit", "at least 1", limit)
        return await page(self._storage(), self.id, kind, cursor, limit)
