"""The schedules of a queue behind an HTTP API."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Unpack
from urllib.parse import quote

import msgspec

from oxcart.handle import JobHandle
from oxcart.http.refused import ApiRefused, unsupported
from oxcart.http.remote_jobs import RemoteHandle
from oxcart.http.times import parse_time_ms, rfc3339_ms
from oxcart.model import payload
from oxcart.model.duration import Duration, parse_ms
from oxcart.model.errors import ValidationError
from oxcart.model.options import DEFAULT_OPTIONS, JobOptions, OptionKwargs
from oxcart.model.schedule import PAUSED_MS, Instant, Missed, Overlap, Schedule, Scheduler, parse_instant
from oxcart.schedules import Schedules

if TYPE_CHECKING:
    from oxcart.http.remote import RemoteQueue

#: Options of runs that a request can carry.
_SENT = frozenset({"attempts", "priority", "tags", "timeout"})


class _Body(msgspec.Struct):
    """A schedule, as the API shows it."""

    id: str
    type: str
    next_at: str | None = None
    paused: bool = False
    every_ms: int | None = None
    cron: str | None = None
    tz: str | None = None
    next_job_id: str | None = None
    runs: int | None = None
    limit: int | None = None
    payload: Any = None


class _Page(msgspec.Struct):
    schedules: list[_Body]
    count: int


class RemoteSchedules(Schedules):
    """The schedules of a queue behind an HTTP API."""

    @property
    def _remote(self) -> RemoteQueue:
        found: RemoteQueue = self._queue  # type: ignore[assignment]
        return found

    def _path(self, schedule_id: str = "") -> str:
        own = f"/{quote(schedule_id, safe='')}" if schedule_id else ""
        return f"{self._remote.path}/schedules{own}"

    async def upsert(
        self,
        schedule_id: str,
        *,
        every: Duration | None = None,
        cron: str | None = None,
        tz: str | None = "UTC",
        offset: Duration | None = None,
        start: Instant | None = None,
        end: Instant | None = None,
        limit: int | None = None,
        immediately: bool = False,
        name: str | None = None,
        data: Any = None,
        missed: Missed | None = None,
        overlap: Overlap | None = None,
        **options: Unpack[OptionKwargs],
    ) -> JobHandle[Any]:
        """Makes a schedule, or changes the one of this id; see `Schedules.upsert`.

        Raises:
            NotSupported: An argument that the API lacks: ``missed``, ``overlap``, ``tz=None``, or an option
                other than attempts, priority, tags and timeout; nothing was written.
        """
        for field, value in (("missed", missed), ("overlap", overlap)):
            if value is not None:
                raise unsupported(field, f"the argument {field}")
        if tz is None:
            raise unsupported("tz", "tz=None", "name the time zone")
        if not schedule_id:
            raise ValidationError("schedule_id", "a text that is not empty", schedule_id)
        called = schedule_id if name is None else name
        body: dict[str, Any] = {
            "every": _span(every, "every"),
            "cron": cron,
            "tz": tz,
            "offset": _span(offset, "offset"),
            "start": None if start is None else rfc3339_ms(parse_instant(start, "start")),
            "end": None if end is None else rfc3339_ms(parse_instant(end, "end")),
            "limit": limit,
            "immediately": immediately or None,
            "type": called,
            "payload": None if data is None else msgspec.Raw(payload.encode(data)),
            **self._options(self._queue._core.prepare(called, {} if data is None else data, options)),
        }
        sent = {field: value for field, value in body.items() if value is not None}
        answer = await self._remote.client.send("PUT", self._path(schedule_id), sent)
        found = msgspec.json.decode(answer.content, type=_Body)
        return RemoteHandle(self._queue, found.next_job_id or found.id, called, True)

    def _options(self, own: JobOptions) -> dict[str, Any]:
        for field in own.__struct_fields__:
            if field not in _SENT and getattr(own, field) != getattr(DEFAULT_OPTIONS, field):
                raise unsupported(field, f"the option {field} of a schedule")
        if own.timeout is None:
            raise unsupported("timeout", "timeout=None", "pass a long one")
        made: dict[str, Any] = {"max_attempts": own.attempts, "tags": own.tags or None}
        if isinstance(own.timeout, int):
            made["timeout"] = f"{own.timeout}ms"
        if self._queue._core.priorities is not None or own.priority != DEFAULT_OPTIONS.priority:
            made["priority"] = own.priority
        return made

    async def get(self, schedule_id: str) -> Scheduler | None:
        """Returns a schedule, or None."""
        try:
            answer = await self._remote.client.send("GET", self._path(schedule_id))
        except ApiRefused as error:
            if error.status == 404:
                return None
            raise
        return _scheduler(msgspec.json.decode(answer.content, type=_Body))

    async def list(self, *, first: int = 0, limit: int = 100, latest: bool = False) -> Sequence[Scheduler]:
        """Returns the schedules, soonest next run first.

        Raises:
            NotSupported: ``latest``.
        """
        if latest:
            raise unsupported("latest", "latest=True of a list of schedules")
        return [_scheduler(one) for one in (await self._page(first, limit)).schedules]

    async def count(self) -> int:
        """Returns how many schedules the queue has."""
        return (await self._page(0, 1)).count

    async def pause(self, schedule_id: str) -> bool:
        """Lets a schedule make no run until it is resumed; returns whether it exists."""
        return await self._steer("POST", f"{self._path(schedule_id)}/pause")

    async def resume(self, schedule_id: str) -> bool:
        """Lets a paused schedule run again; returns whether it exists."""
        return await self._steer("POST", f"{self._path(schedule_id)}/resume")

    async def remove(self, schedule_id: str) -> bool:
        """Removes a schedule with its delayed run; returns whether it existed."""
        return await self._steer("DELETE", self._path(schedule_id))

    async def _steer(self, method: str, path: str) -> bool:
        try:
            await self._remote.client.send(method, path)
        except ApiRefused as error:
            if error.status == 404:
                return False
            raise
        return True

    async def _page(self, first: int, limit: int) -> _Page:
        params = {"first": first, "limit": limit}
        answer = await self._remote.client.send("GET", self._path(), params=params)
        return msgspec.json.decode(answer.content, type=_Page)


def _span(given: Duration | None, field: str) -> str | None:
    return None if given is None else f"{parse_ms(given, field)}ms"


def _scheduler(body: _Body) -> Scheduler:
    rule = Schedule(every=body.every_ms, cron=body.cron, tz=body.tz, limit=body.limit)
    return Scheduler(
        id=body.id,
        name=body.type,
        schedule=rule,
        next_ms=PAUSED_MS if body.next_at is None else parse_time_ms(body.next_at, "next_at"),
        runs=body.runs,
        data=body.payload,
        names_runs=body.next_job_id is not None,
    )
