"""Limits: how many jobs of each queue, type and key may run or start, and the forms that change them."""

from __future__ import annotations

from typing import Any

from oxcart.http.service import Service
from oxcart.http.times import parse_go_ms
from oxcart.http.web.actions import Fields, action
from oxcart.http.web.dashboard import View, page
from oxcart.model.errors import ValidationError

#: Queues that the page lists.
MOST_QUEUES = 40


class LimitsPage(View):
    """Limits."""

    title = "Limits"
    template = "limits.html"
    parts = ("limits",)
    every = 5.0
    nav = "limits"

    async def load(self) -> dict[str, Any]:
        """Reads the limits of all queues."""
        tracks = await self.tracks()
        rows: list[dict[str, Any]] = []
        unlimited: list[str] = []
        for name, queue in list(self.service.queues.items())[:MOST_QUEUES]:
            if not queue.capabilities.can("queue_limits"):
                unlimited.append(name)
                continue
            of = queue.limits
            types = await of.type_limits()
            key = await of.key_limit()
            group = await queue.groups.settings() if queue.capabilities.can("groups") else None
            rows.append(
                {
                    "queue": name,
                    "concurrency": await of.concurrency(),
                    "rate": await of.rate(),
                    "blocked": await of.wait_ms(),
                    "types": [(kind, limit, await of.type_usage(kind)) for kind, limit in types.items()],
                    "key": key,
                    "key_usage": await of.key_usage() if key is not None else None,
                    "group": group if group and (group.concurrent or group.per_minute) else None,
                    "grouped": tracks[name].sample.grouped,
                    "running": tracks[name].count("active"),
                }
            )
        rows.sort(
            key=lambda row: (
                not (row["concurrency"] or row["rate"] or row["types"] or row["key"] or row["group"])
            )
        )
        left_out = max(0, len(self.service.queues) - MOST_QUEUES)
        return {"rows": rows, "unlimited": unlimited, "left_out": left_out}


async def _set(service: Service, fields: Fields) -> tuple[str, int]:
    limits = service.queue(fields.get("queue", "")).limits
    concurrency, most, per = (fields.get(name, "").strip() for name in ("concurrency", "most", "per"))
    at_once = _number(concurrency, "concurrency") if concurrency else None
    starts = (_number(most, "most"), parse_go_ms(per or "1s", "per", minimum=1)) if most else None
    if at_once is None:
        await limits.remove_concurrency()
    else:
        await limits.set_concurrency(at_once)
    if starts is None:
        await limits.remove_rate()
    else:
        await limits.set_rate(starts[0], per=starts[1] / 1000)
    return "limited", 1


def _number(text: str, field: str) -> int:
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= 1_000_000_000):
        raise ValidationError(field, "an integer from 1 to 1000000000", text)
    return int(text)


ROUTES = [*page("/limits", LimitsPage), action("/limits/set", _set)]
