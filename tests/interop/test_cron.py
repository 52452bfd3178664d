"""Next times equal those of the cron-parser in the real BullMQ: random expressions and instants.

It covers both clock changes of a year, in zones that change by an hour, by half an hour, at midnight and
never. Both sides must refuse the same expressions.

    OXCART_CRON=5000 pytest tests/interop/test_cron.py      # as `make cron` does
"""

from __future__ import annotations

import os
import random
from typing import Any

import pytest

from oxcart.model.cron import parse_cron, zone_offset
from oxcart.model.errors import ValidationError
from tests.interop.conftest import Drivers

pytestmark = [pytest.mark.node, pytest.mark.asyncio(loop_scope="session")]

COUNT = int(os.environ.get("OXCART_CRON", "500"))
SEED = int(os.environ.get("OXCART_CRON_SEED", "62"))
CHUNK = 500

ZONES = (
    "Europe/Berlin",
    "America/New_York",
    "Australia/Lord_Howe",
    "America/Sao_Paulo",
    "Africa/Cairo",
    "America/St_Johns",
    "Asia/Kolkata",
    "UTC",
)
MONTHS = ["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"]
WEEKDAYS = ["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"]


def changes_of(zone: str) -> list[int]:
    """The instants, in ms, at which a zone's clock was or will be set, from 2015 to 2030."""
    ahead = zone_offset(zone)
    minute, day = 60_000, 86_400_000
    found = []
    for start in range(1_420_070_400_000, 1_924_992_000_000, day):
        if ahead(start) != ahead(start + day):
            found += [at for at in range(start, start + day, minute) if ahead(at - minute) != ahead(at)]
    return found


CHANGES = {zone: changes_of(zone) for zone in ZONES}


class Expressions:
    """Draws expressions: most are valid, some are nearly valid."""

    def __init__(self, rand: random.Random) -> None:
        self._random = rand

    def draw(self) -> str:
        pick = self._random.random()
        if pick < 0.04:
            return self._random.choice(("@yearly", "@monthly", "@weekly", "@daily", "@hourly", "@never"))
        fields = [
            self._field(0, 59),
            self._field(0, 23, often=(0, 1, 2, 3)),
            self._month_day(),
            self._field(1, 12, names=MONTHS, star=0.6),
            self._weekday(),
        ]
        if pick < 0.5:
            fields.insert(0, self._field(0, 59, star=0.15))
        elif pick < 0.55:
            fields = fields[self._random.randint(1, 4) :]
        if pick > 0.97:
            fields[self._random.randrange(len(fields))] = self._odd()
        return self._random.choice((" ", " ", "  ")).join(fields)

    def _field(
        self,
        low: int,
        high: int,
        *,
        names: list[str] | None = None,
        star: float = 0.35,
        often: tuple[int, ...] = (),
    ) -> str:
        rand = self._random
        kind = rand.random()

        def number() -> int:
            return rand.choice(often) if often and rand.random() < 0.6 else rand.randint(low, high)

        def word() -> str:
            value = number()
            return (
                rand.choice((names[value - 1], names[value - 1].lower()))
                if names and rand.random() < 0.4
                else f"{value}"
            )

        if kind < star:
            return "*"
        if kind < star + 0.12:
            return f"*/{rand.randint(1, high)}"
        first, last = sorted((number(), number()))
        if kind < star + 0.24:
            return f"{first}-{last}" + (f"/{rand.randint(1, 5)}" if rand.random() < 0.4 else "")
        if kind < star + 0.34:
            return ",".join(
                rand.choice((word(), word(), f"{first}-{last}")) for _ in range(rand.randint(2, 4))
            )
        if kind < star + 0.4:
            return f"{number()}/{rand.randint(1, 20)}"
        return word()

    def _month_day(self) -> str:
        rand = self._random
        return rand.choice(
            (
                "*",
                "*",
                "*",
                "?",
                self._field(1, 31),
                self._field(1, 31),
                "L",
                "15,L",
                "28-31",
                f"{rand.randint(1, 31)}",
            )
        )

    def _weekday(self) -> str:
        rand = self._random
        day = rand.choice((*WEEKDAYS, *"01234567"))
        return rand.choice(
            (
                "*",
                "*",
                "*",
                "?",
                self._field(0, 7),
                f"{day}#{rand.randint(1, 5)}",
                f"{rand.randint(0, 7)}L",
                f"{rand.randint(0, 6)},{rand.randint(0, 6)}L",
                "MON-FRI",
                "1-7",
                "5-7/2",
                day,
            )
        )

    def _odd(self) -> str:
        return self._random.choice(
            (
                "60",
                "-1",
                "*/0",
                "5-1",
                "1,,2",
                "1-2-3",
                "a",
                "MON,XYZ",
                "1#6",
                "1,2#1",
                "5/",
                "/5",
                "**",
                "L-1",
                "0-",
                "5*",
            )
        )


def draw_case(rand: random.Random, expressions: Expressions) -> dict[str, Any]:
    zone = rand.choice(ZONES)
    changes = CHANGES[zone]
    if changes and rand.random() < 0.75:
        # From two days before the clock is set to a day after it.
        after = rand.choice(changes) + rand.randint(-2 * 86_400_000, 86_400_000)
        if rand.random() < 0.4:
            after = rand.choice(changes) + rand.randint(-3 * 3_600_000, 3 * 3_600_000)
    else:
        after = rand.randint(1_420_000_000_000, 1_900_000_000_000)
    if rand.random() < 0.5:
        after -= after % rand.choice((1_000, 60_000, 3_600_000))
    end = after + rand.choice((3_600_000, 86_400_000 * 40)) if rand.random() < 0.05 else None
    return {"pattern": expressions.draw(), "after": after, "tz": zone, "end": end}


def ours(case: dict[str, Any]) -> int | str | None:
    try:
        return parse_cron(case["pattern"]).next_ms(case["after"], case["tz"], case["end"])
    except ValidationError as error:
        return str(error)


@pytest.mark.parametrize("first", range(0, COUNT, CHUNK))
async def test_next_times_equal_cron_parser(drivers: Drivers, first: int) -> None:
    node = await drivers.get("v5")
    rand = random.Random(SEED * 1_000_003 + first)
    expressions = Expressions(rand)
    cases = [draw_case(rand, expressions) for _ in range(min(CHUNK, COUNT - first))]
    theirs = await node.call("cronNext", cases=cases)
    differing = []
    for case, expected in zip(cases, theirs, strict=True):
        found = ours(case)
        refused = isinstance(expected, str) and isinstance(found, str)
        if found != expected and not refused:
            differing.append((case, {"node": expected, "ours": found}))
    fired = sum(isinstance(one, int) for one in theirs)
    print(
        f"{len(cases)} expressions, {fired} fire, {sum(isinstance(one, str) for one in theirs)} are refused"
    )
    assert differing == []
    assert fired > len(cases) / 2
