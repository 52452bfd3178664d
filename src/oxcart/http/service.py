"""What all routes share: the queues, the way from a type or an id to a queue, and the event hub."""

from __future__ import annotations

import asyncio
import copy
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oxcart.broker.access import AccessStore
from oxcart.http.counting import FormalCounts
from oxcart.http.credentials import Caller
from oxcart.http.errors import ApiError, not_found
from oxcart.http.hub import Hub
from oxcart.http.ids import new_id, tag_of_id, tag_of_queue
from oxcart.http.rates import Rates
from oxcart.http.redaction import Masks
from oxcart.model.access import Grant, Role
from oxcart.model.duration import Duration, parse_ms
from oxcart.model.errors import ValidationError
from oxcart.model.job import Job
from oxcart.model.names import check_job_id, check_job_name
from oxcart.model.partitions import split_partition
from oxcart.observe.lengths import QueueLengths
from oxcart.observe.metrics import Metrics
from oxcart.queue import Queue

if TYPE_CHECKING:
    from oxcart.http.operations import Operations

#: How long after its delay a job must have ended unless it sets its own lifetime: 7 days.
DEFAULT_LIFETIME_MS = 7 * 86_400_000
#: Ids of jobs that were made elsewhere, whose queue the service remembers.
REMEMBERED = 4096
#: Requests of `/ready` per second of one address, and five times as many at once.
PROBES = 10.0
#: Sets of grants whose queues the service remembers.
VIEWS = 1000


class Service:
    """The queues behind an API.

    Args:
        queues: The queues; the first serves types that lead to no other, unless ``default`` names one.
        types: The queue of each job type. Other types lead to the queue of their name.
        default: The queue of types that lead to no other.
        lifetime: How long after its delay a job may take to end unless it sets its own; None for no limit.
        masks: Fields of payloads and results that no answer shows.
        store: The API keys and the audit log, or None.
        lake: The folder of the lake with the history, or None.

    Attributes:
        viewer: Who the view is for; None for the whole (see `seen_by`).
    """

    def __init__(
        self,
        queues: Iterable[Queue],
        types: Mapping[str, str] | None = None,
        default: str | None = None,
        lifetime: Duration | None = "7d",
        masks: Masks | None = None,
        store: AccessStore | None = None,
        lake: str | Path | None = None,
    ) -> None:
        self.store = store
        self.lake = lake
        #: Questions that the lake answers at once; others wait.
        self.lake_turns = asyncio.Semaphore(2)
        self.operations: Operations = _operations()
        self.masks = masks or Masks()
        self.formal = FormalCounts()
        #: How often each address may ask whether the store answers.
        self.probes = Rates(PROBES, 5 * PROBES)
        self.viewer: Caller | None = None
        self._views: dict[tuple[tuple[Grant, ...], Role], Service] = {}
        self._all: Service = self
        given = list(queues)
        self.queues = {queue.name: queue for queue in given}
        if not self.queues:
            raise ValidationError("queues", "at least one queue", [])
        if len(self.queues) < len(given):
            raise ValidationError("queues", "of different names", [queue.name for queue in given])
        self.types = dict(types or {})
        for job_type, name in self.types.items():
            check_job_name(job_type, "types")
            if name not in self.queues:
                raise ValidationError("types", f"names of queues: {', '.join(self.queues)}", name)
        if default is not None and default not in self.queues:
            raise ValidationError("default", f"the name of a queue: {', '.join(self.queues)}", default)
        if default is None:
            default = "default" if "default" in self.queues else next(iter(self.queues))
        self.default = default
        self.lifetime_ms = None if lifetime is None else parse_ms(lifetime, "lifetime", minimum=1)
        self.hub = Hub(self.queues.values())
        #: Each ends some endless answers, before the server waits for requests under way.
        self.streams: list[Callable[[], Awaitable[None]]] = [self.hub.close]
        #: Each prepares for a queue that is served later than the others, before any route sees it.
        self.added: list[Callable[[Queue], Awaitable[None]]] = []
        self._tags: dict[int, list[Queue]] = {}
        for queue in self.queues.values():
            self._tags.setdefault(tag_of_queue(queue.name), []).append(queue)
        self._known: OrderedDict[str, Queue] = OrderedDict()
        self._metrics: Metrics | None = None
        self._lengths: list[QueueLengths] = []

    # -- queues

    def queue(self, name: str) -> Queue:
        """Returns a queue by its name.

        Raises:
            ApiError: The API does not serve it.
        """
        found = self.queues.get(name)
        if found is None:
            self._refuse_role(name)
            raise not_found(f"queue {name}")
        return found

    def served(self, name: str) -> str:
        """Returns the name by which the API serves the queue of a job: that without lane and partition."""
        everywhere = self._all.queues
        if name in everywhere:
            return name
        base = name.partition("@")[0]
        part = split_partition(base)
        return part[0] if part is not None and part[0] in everywhere else base

    def queue_of_type(self, job_type: str, named: str | None) -> Queue:
        """Returns the queue that a new job goes to.

        Raises:
            ValidationError: The API does not serve the named queue.
        """
        if named is not None:
            if named not in self.queues:
                self._refuse_role(named)
                raise ValidationError("queue", f"one of {', '.join(self.queues)}", named)
            return self.queues[named]
        everywhere = self._all.queues
        name = self.types.get(job_type, job_type)
        name = name if name in everywhere else self.default
        if name not in self.queues:
            raise ApiError(403, "forbidden", f"the caller may not add jobs of type {job_type}")
        return self.queues[name]

    def chosen(self, names: Iterable[str] | None) -> list[Queue]:
        """Returns the named queues, or all.

        Raises:
            ApiError: The API does not serve one of them.
        """
        return [self.queue(name) for name in names] if names else list(self.queues.values())

    async def add_queue(self, queue: Queue) -> None:
        """Serves one more queue from now on. Event streams end; their clients continue by their position.

        Raises:
            ValidationError: There is a queue of this name already.
        """
        whole = self._all
        if queue.name in whole.queues:
            raise ValidationError("queue", "one of a new name", queue.name)
        await whole._serve(queue)

    async def replace_queue(self, queue: Queue) -> None:
        """Serves a queue in place of that of its name, which stays open. Event streams end.

        Raises:
            ValidationError: There is no queue of this name.
        """
        whole = self._all
        if queue.name not in whole.queues:
            raise ValidationError("queue", f"one of {', '.join(whole.queues)}", queue.name)
        await whole._serve(queue)

    async def _serve(self, queue: Queue) -> None:
        for prepare in self.added:
            await prepare(queue)
        old, tag = self.queues.get(queue.name), tag_of_queue(queue.name)
        views = [
            view
            for (grants, needed), view in self._views.items()
            if any(one.role >= needed and one.covers(queue._core.prefix, queue.name) for one in grants)
        ]
        for service in (self, *views):
            service.queues[queue.name] = queue
            same = service._tags.get(tag, ())
            service._tags[tag] = [*(one for one in same if one is not old), queue]
        for job_id in [job_id for job_id, known in self._known.items() if known is old]:
            del self._known[job_id]
        # After the registration: a client that connects again meanwhile must find the new queue.
        await self.hub.add(queue)
        metrics, lengths = self._metrics, self._lengths
        self._metrics, self._lengths = None, []
        if metrics is not None:
            await metrics.close()
        for one in lengths:
            await one.close()

    # -- callers

    def seen_by(self, caller: Caller | None, needed: Role | None) -> Service:
        """Returns the service with only the queues on which a caller has a role.

        A route gets nothing else, so that it cannot reach other queues.
        """
        if caller is None or needed is None:
            return self
        view = self._views.get((caller.grants, needed))
        if view is None:
            view = copy.copy(self)
            view.queues = {
                name: queue
                for name, queue in self.queues.items()
                if caller.has(needed, queue._core.prefix, name)
            }
            view._tags = {
                tag: [queue for queue in queues if queue.name in view.queues]
                for tag, queues in self._tags.items()
            }
            if len(self._views) >= VIEWS:
                self._views.clear()
            self._views[caller.grants, needed] = view
        seen = copy.copy(view)
        seen.viewer = caller
        return seen

    def _refuse_role(self, name: str) -> None:
        """Refuses a queue that the caller may see, but not use in this way."""
        queue = self._all.queues.get(name)
        if queue is not None and self.viewer and self.viewer.has(Role.OBSERVER, queue._core.prefix, name):
            raise ApiError(403, "forbidden", f"the caller's role on queue {name} does not allow this")

    def may_read_payloads(self, queue: str) -> bool:
        """Returns whether the caller may read payloads of a queue's jobs."""
        return self.viewer is None or self.viewer.may_read_payloads(self._prefix(queue), queue)

    def may_read_results(self, queue: str) -> bool:
        """Returns whether the caller may read results of a queue's jobs."""
        return self.viewer is None or self.viewer.may_read_results(self._prefix(queue), queue)

    def _prefix(self, queue: str) -> str:
        found = self._all.queues.get(queue)
        return "" if found is None else found._core.prefix

    # -- jobs

    def new_id(self, queue: Queue) -> str:
        """Returns a UUID v4 for a new job, whose last 16 bits lead back to its queue."""
        return new_id(queue.name)

    async def find(self, job_id: str, queue: str | None = None) -> tuple[Queue, Job]:
        """Returns a job with its queue.

        An id that this API made leads to its queue by itself, so one read suffices. The queue of another id
        is found by reading all queues at once, and remembered.

        Raises:
            ApiError: There is no such job.
        """
        _check_id(job_id)
        if queue is not None:
            places = [self.queue(queue)]
        elif (known := self._known.get(job_id)) is not None and known.name in self.queues:
            places = [known]
        else:
            places = self._tags.get(tag_of_id(job_id) or 0, [])
        for place in places:
            if (job := await look(place, job_id)) is not None:
                return place, job
        if queue is None:
            rest = [place for place in self.queues.values() if place not in places]
            found = await asyncio.gather(*(look(place, job_id) for place in rest))
            for place, job in zip(rest, found, strict=True):
                if job is not None:
                    self._remember(job_id, place)
                    return place, job
        raise not_found(f"job {job_id}")

    async def locate(self, job_id: str, queue: str | None = None) -> tuple[Queue, Job | None]:
        """As `find`, but a job need not exist any more if its id leads to one queue.

        Raises:
            ApiError: There is no such job.
        """
        try:
            return await self.find(job_id, queue)
        except ApiError:
            tagged = self._tags.get(tag_of_id(job_id) or 0, [])
            places = tagged if queue is None else [place for place in tagged if place.name == queue]
            if len(places) != 1:
                raise
            return places[0], None

    def _remember(self, job_id: str, queue: Queue) -> None:
        self._known[job_id] = queue
        if len(self._known) > REMEMBERED:
            self._known.popitem(last=False)

    @property
    def metrics(self) -> Metrics:
        """The lengths of all queues, read over connections of their own."""
        whole = self._all
        if whole._metrics is None:
            whole._lengths = [QueueLengths(queue) for queue in whole.queues.values()]
            whole._metrics = Metrics(whole._lengths)
        return whole._metrics

    async def end_streams(self) -> None:
        """Ends every answer that has no end of its own."""
        for end in self.streams:
            await end()

    async def close(self) -> None:
        """Ends the event streams. The queues stay open."""
        await self.end_streams()
        await self.operations.close()
        if self._metrics is not None:
            await self._metrics.close()
            for lengths in self._lengths:
                await lengths.close()
        if self.store is not None:
            await self.store.close()


async def look(queue: Queue, job_id: str) -> Job | None:
    """Returns a job, with values that do not open left sealed; None if there is none."""
    return (await queue._core.broker.look([job_id], lenient=True))[0]


def _check_id(job_id: Any) -> None:
    """Refuses ids that are names of a queue's own keys, which are no jobs."""
    if isinstance(job_id, str) and job_id.isascii() and job_id.isdigit():
        return  # Node numbers its jobs
    try:
        check_job_id(job_id)
    except ValidationError:
        raise not_found(f"job {job_id}") from None


def _operations() -> Operations:
    from oxcart.http.operations import Operations  # which has routes, and they need the service

    return Operations()
