"""Schedules: their rules, the next ten times of each, and runs that nobody made in time."""

from __future__ import annotations

from typing import Any

from oxcart.http.errors import not_found
from oxcart.http.schedules import run_now
from oxcart.http.service import Service
from oxcart.http.web.actions import Fields, action
from oxcart.http.web.dashboard import View, each, page
from oxcart.model.errors import ValidationError
from oxcart.model.schedule import Scheduler

#: Schedules of one queue, and of all, that the page lists.
ROWS, MOST = 50, 200
#: Next times of a schedule.
TIMES = 10
#: How late the next run may be before it counts as missed, in ms.
GRACE = 30_000


def next_times(one: Scheduler, count: int = TIMES) -> list[int]:
    """Returns the next times of a schedule in ms, as far as its end and its limit allow."""
    if one.paused:
        return []
    schedule, times = one.schedule, [one.next_ms]
    left = count if schedule.limit is None else min(count, schedule.limit - (one.runs or 1) + 1)
    while len(times) < left:
        at: int | None
        if schedule.every is not None:
            at = times[-1] + schedule.every
        else:
            try:
                at = schedule.following(times[-1])
            except ValidationError:  # a peer's expression that we cannot read
                break
        if at is None or (schedule.end is not None and at > schedule.end):
            break
        times.append(at)
    return times


def missed(one: Scheduler, now: int) -> int:
    """Returns how many of the next ten times have passed without a run."""
    return sum(at < now - GRACE for at in next_times(one))


class SchedulesPage(View):
    """Schedules."""

    title = "Schedules"
    template = "schedules.html"
    parts = ("schedules",)
    every = 10.0
    nav = "schedules"

    def read_address(self) -> None:
        """Reads the queue."""
        self._queue = self.query.get("queue", "")
        if self._queue:
            self.service.queue(self._queue)

    async def load(self) -> dict[str, Any]:
        """Reads the schedules of a queue, or of all queues."""
        rows: list[dict[str, Any]] = []
        tracks = await self.tracks()
        queues = self.service.chosen([self._queue] if self._queue else None)
        able = [queue for queue in queues if queue.capabilities.can("schedules")]
        most = MOST if self._queue else ROWS
        found = await each(able, lambda queue: queue.schedules.list(limit=most + 1))
        for queue, listed in zip(able, found, strict=True):
            name = queue.name
            visible = self.service.may_read_payloads(name)
            for one in listed[:most]:
                now = tracks[name].sample.at_ms
                rows.append(
                    {
                        "queue": name,
                        "id": one.id,
                        "type": one.name,
                        "rule": one.schedule.text,
                        "cron": one.schedule.cron,
                        "tz": one.schedule.tz,
                        "every": one.schedule.every,
                        "next": one.next_ms,
                        "times": next_times(one),
                        "missed": missed(one, now),
                        "runs": one.fired,
                        "limit": one.schedule.limit,
                        "legacy": one.legacy,
                        "paused": one.paused,
                        "declared_by": one.declared_by,
                        "data": self.service.masks.apply(one.data) if visible and one.data else None,
                    }
                )
        rows.sort(key=lambda row: row["next"])
        full = sum(len(listed) > most for listed in found)
        return {
            "schedules": rows[:MOST],
            "is_cut": bool(full) or len(rows) > MOST,
            "queue": self._queue,
        }


async def _remove(service: Service, fields: Fields) -> tuple[str, int]:
    if not await service.queue(fields.get("queue", "")).schedules.remove(fields.get("schedule", "")):
        raise not_found(f"schedule {fields.get('schedule', '')}")
    return "unscheduled", 1


async def _pause(service: Service, fields: Fields) -> tuple[str, int]:
    if not await service.queue(fields.get("queue", "")).schedules.pause(fields.get("schedule", "")):
        raise not_found(f"schedule {fields.get('schedule', '')}")
    return "schedule-paused", 1


async def _resume(service: Service, fields: Fields) -> tuple[str, int]:
    if not await service.queue(fields.get("queue", "")).schedules.resume(fields.get("schedule", "")):
        raise not_found(f"schedule {fields.get('schedule', '')}")
    return "schedule-resumed", 1


async def _run(service: Service, fields: Fields) -> tuple[str, int]:
    queue = service.queue(fields.get("queue", ""))
    found = await queue.schedules.get(fields.get("schedule", ""))
    if found is None:
        raise not_found(f"schedule {fields.get('schedule', '')}")
    await run_now(service, queue, found)
    return "ran", 1


ROUTES = [
    *page("/schedules", SchedulesPage),
    action("/schedules/pause", _pause),
    action("/schedules/resume", _resume),
    action("/schedules/remove", _remove),
    action("/schedules/run", _run),
]
