"""Sequences of schedules and limits: runs that are claimed, missed, failed and changed.

All plain operations occur too. Where we differ from 5.62.0 on purpose (docs/protocol), the real BullMQ runs
the operation on both sides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from oxcart.broker.bullmq.runs import read_repeat
from tests.equality.ops import QUEUE, Op
from tests.equality.sequences import Generator

KEYS = ("s1", "s2", "a:b")
PATTERNS = ("* * * * *", "*/10 * * * * *", "0 */5 * * * *", "30 3 L * *", "0 12 * * MON-FRI", "5 0 1 1 *")
ZONES = (None, "UTC", "Europe/Berlin", "America/New_York")


class Schedules(Generator):
    """A mix with schedules and often limits, by us alone or in turn with a peer."""

    def __init__(self, seed: int, length: int | None = None) -> None:
        super().__init__(seed, length)
        self._limits = self._random.random() < 0.6
        self._peers = self._random.random() < 0.3

    def _weighted(self) -> Iterable[tuple[Callable[[], Op | None], float]]:
        yield from super()._weighted()
        there = self._view.schedulers(QUEUE)
        yield self._upsert_scheduler, 30 if len(there) < 2 else 10
        yield self._work_a_run, 25 if there else 1
        if there:
            yield self._remove_scheduler, 4
        if self._claims:
            yield self._give_back_held, 3

    def _who(self) -> str:
        return self._pick("us", "us", "peer") if self._peers else "us"

    # ------------------------------------------------------------------------------------- schedules

    def _upsert_scheduler(self) -> Op:
        there = self._view.schedulers(QUEUE)
        key = self._pick(*there) if there and self._random.random() < 0.5 else self._pick(*KEYS)
        repeat = self._again(key) if self._random.random() < 0.6 else None
        template: dict[str, Any] = {}
        if self._random.random() < 0.7:
            template["name"] = self._pick("n", "other")
        if self._random.random() < 0.6:
            template["data"] = self._pick({}, {"x": 1}, [], "text", {"deep": {"list": [1, None, 2.5]}})
        if self._random.random() < 0.6:
            template["opts"] = self._template()
        return self._op(
            "upsert_scheduler", key=key, repeat=repeat or self._repeat(), template=template, by=self._who()
        )

    def _again(self, key: str) -> dict[str, Any] | None:
        """The stored schedule as the options of a repeated upsert."""
        record = self._view.hash(QUEUE, f"repeat:{key}")
        if not record:
            return None
        numbers = ("every", "limit", "startDate", "endDate")
        repeat: dict[str, Any] = {name: int(record[name]) for name in numbers if name in record}
        return repeat | {name: record[name] for name in ("pattern", "tz") if name in record}

    def _repeat(self) -> dict[str, Any]:
        chance = self._random.random
        repeat: dict[str, Any] = {}
        if chance() < 0.5:
            repeat["every"] = self._pick(7, 1_000, 10_000, 60_000, 86_400_000)
        else:
            repeat["pattern"] = self._pick(*PATTERNS)
            zone = self._pick(*ZONES)
            if zone is not None:
                repeat["tz"] = zone
            if chance() < 0.25:
                repeat["immediately"] = True
        if chance() < 0.2 and "immediately" not in repeat:
            repeat["startDate"] = self._now + self._pick(-5_000, 3_000, 90_000)
        if chance() < 0.15:
            repeat["endDate"] = self._now + self._pick(2_000, 100_000)
        if chance() < 0.2:
            repeat["limit"] = self._pick(1, 2, 3)
        return repeat

    def _template(self) -> dict[str, Any]:
        opts = self._options()
        for name in ("delay", "timestamp"):
            opts.pop(name, None)
        return opts

    def _remove_scheduler(self) -> Op:
        keys = [*self._view.schedulers(QUEUE), "missing"]
        return self._op("remove_scheduler", key=self._random.choice(keys), by=self._who())

    def _work_a_run(self) -> Op:
        """Claims ready jobs and finishes them, because a schedule shows its effect only when it runs."""
        if not self._plan:
            times = self._view.schedulers(QUEUE).values()
            if times and self._random.random() < 0.6:
                self._now = max(self._now, min(times) + self._pick(0, 0, 1, 3_000))
            self._plan += [self._pick(self._complete, self._complete, self._fail)]
        return self._claim()

    # ------------------------------------------------------------------------------------- limits

    def _give_back_held(self) -> Op | None:
        held = self._held()
        if held is None:
            return None
        del held["doomed"]
        # A refused finish holds the queue on both sides, but Node needs two steps.
        return self._op("give_back_held", **held, hold=self._pick(60_000, 90_000), by=self._who())

    # ------------------------------------------------------------------------- deliberate differences

    def _is_meant(self, kind: str, queue: str, args: dict[str, Any]) -> bool:
        if super()._is_meant(kind, queue, args):
            return True
        if kind == "upsert_scheduler":
            return self._changes(args["key"], args["repeat"]) or self._misses(args["key"])
        if kind == "claim" or args.get("fetch"):
            return any(self._misses(key) or self._is_taken(key) for key in self._view.schedulers(queue))
        return False

    def _changes(self, key: str, repeat: dict[str, Any]) -> bool:
        """A changed schedule: 5.62.0 keeps the time of the old one for its next run."""
        if key not in self._view.schedulers(QUEUE):
            return False
        there, wanted = self._again(key) or {}, {**repeat}
        return any(there.get(name) != wanted.get(name) for name in ("every", "pattern", "tz", "startDate"))

    def _misses(self, key: str) -> bool:
        """Runs were missed: 5.62.0 skips one more than necessary."""
        record = self._view.hash(QUEUE, f"repeat:{key}")
        every, offset = int(record.get("every", 0)), int(record.get("offset", 0))
        late = every and self._view.schedulers(QUEUE).get(key, self._now) + every < self._now
        return bool(late) and self._now % every < offset

    def _is_taken(self, key: str) -> bool:
        """The next run exists already: a schedule of 5.62.0 ends here."""
        record, last = self._view.hash(QUEUE, f"repeat:{key}"), self._view.schedulers(QUEUE)[key]
        if "every" in record:
            every = int(record["every"])
            later = [last + every, self._now // every * every + every + int(record.get("offset", 0))]
        else:
            schedule = read_repeat(self._again(key) or {})
            later = [schedule.following(max(self._now, last)) or 0]
        return any(self._view.exists(QUEUE, f"repeat:{key}:{time}") for time in later)
