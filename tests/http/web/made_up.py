"""A made-up shop for pictures and tests of the dashboard: queues in every state, with workers at work.

Nothing here is somebody's data. Names, addresses and failures are invented.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from oxcart import Abilities, Flow, Queue, RunningJob, Target, Worker
from oxcart.errors import PermanentError
from oxcart.spark.views.objectives import FILE
from tests.history.lakes import make_lake

_HOUR = 3_600_000
#: What the shop promises.
OBJECTIVES = """
[objectives.mail-sent]
queue = "emails"
success = 0.999

[objectives.payments-done]
queue = "payments"
success = 0.99

[objectives.index-fresh]
queue = "search-index"
wait = "5s"
share = 0.99
"""
_PEOPLE = ("ada", "grace", "linus", "margaret", "dennis", "barbara", "ken", "frances")


class Shop:
    """The queues of the shop, and ids of jobs that pictures show."""

    def __init__(self, url: str) -> None:
        self.emails = Queue("emails", url=url)
        self.payments = Queue("payments", url=url)
        self.video = Queue("video", url=url)
        self.reports = Queue("reports", url=url)
        self.search = Queue("search-index", url=url)
        self.partners = Queue("partner-webhooks", url=url)
        self.imports = Queue("imports", url=url)
        self.clicks = Queue("clicks", url=url, partitions=4)
        self.thumbnails = Queue("thumbnails", url=url, protocol="bridge", namespace="media")
        self.queues = [
            *(self.emails, self.payments, self.video, self.reports, self.search, self.partners),
            *(self.imports, self.clicks, self.thumbnails),
        ]
        #: Jobs by what they show.
        self.shown: dict[str, tuple[str, str]] = {}
        self._rng = random.Random(7)
        self._handlers()

    def _handlers(self) -> None:
        rng = self._rng

        @self.emails.job(attempts=3)
        async def welcome(to: str) -> dict[str, Any]:
            await asyncio.sleep(rng.uniform(0.005, 0.05))
            return {"sent": True, "to": to}

        @self.emails.job(attempts=3)
        async def digest(to: str) -> None:
            await asyncio.sleep(rng.uniform(0.02, 0.09))

        @self.payments.job(attempts=3, backoff="200ms", history=True)
        async def charge(job: RunningJob, order: int, cents: int) -> dict[str, Any]:
            await job.log(f"charging {cents / 100:.2f} EUR for order {order}")
            await asyncio.sleep(rng.uniform(0.05, 0.15))
            if order % 7 == 0:
                await job.log("the bank did not answer")
                try:
                    raise TimeoutError(f"no answer from 10.0.0.{order % 250}:443 within 5 s")
                except TimeoutError as error:
                    raise ConnectionError("the bank could not be reached") from error
            if order % 11 == 0:
                raise PermanentError(f"card of order {order} was declined: insufficient funds")
            await job.log("the bank agreed")
            return {"receipt": f"R-{order}", "cents": cents}

        @self.payments.job(attempts=2, backoff="100ms")
        async def refund(order: int) -> None:
            await asyncio.sleep(0.03)
            if order % 3 == 0:
                raise ValueError(f"order {order} has no payment to return")

        @self.video.job(timeout="10m", history=True)
        async def render(job: RunningJob, clip: str, seconds: int) -> str:
            for frame in range(400):
                await job.update_progress(round(frame / 4, 1), f"frame {frame * 6} of 2400")
                if frame % 20 == 0:
                    await job.log(f"rendered {frame * 6} frames of {clip}")
                await asyncio.sleep(0.25)
            return clip

        @self.reports.job(history=True)
        async def fetch(region: str) -> dict[str, Any]:
            await asyncio.sleep({"eu": 0.5, "us": 0.9, "asia": 0.3}.get(region, 0.4))
            return {"rows": 1000, "region": region}

        @self.reports.job(history=True)
        async def clean(region: str) -> None:
            await asyncio.sleep(0.3)

        @self.reports.job(history=True)
        async def assemble(month: str) -> str:
            await asyncio.sleep(150)
            return f"report-{month}.pdf"

        @self.reports.job(history=True)
        async def publish(month: str) -> None:
            await asyncio.sleep(1)

        @self.search.job(attempts=2)
        async def index(document: int) -> None:
            await asyncio.sleep(rng.uniform(0.001, 0.02))

        @self.imports.job(attempts=2)
        async def rows(file: str) -> None:
            await asyncio.sleep(rng.uniform(0.5, 1.5))

        @self.clicks.job(attempts=2)
        async def count(page: str) -> None:
            await asyncio.sleep(rng.uniform(0.005, 0.03))

    async def fill(self) -> None:
        """Adds the jobs that pictures show."""
        for month in ("October",):
            parts = [
                Flow(self.reports, "clean", {"region": region}, history=True).after(
                    Flow(self.reports, "fetch", {"region": region}, history=True)
                )
                for region in ("eu", "us", "asia")
            ]
            whole = Flow(self.reports, "assemble", {"month": month}, history=True).after(*parts)
            top = await Flow(self.reports, "publish", {"month": month}, history=True).after(whole).add()
            self.shown["flow"] = ("reports", top.id)
        await self.payments.add_many(
            [
                (
                    "charge",
                    {"order": order, "cents": 1990 + order},
                    {
                        "tags": {"tenant": "acme" if order % 2 else "globex"},
                        "correlation_id": f"order-{order}",
                    },
                )
                for order in range(1, 24)
            ]
        )
        await self.payments.add_many([("refund", {"order": order}) for order in range(1, 10)])
        self.shown["running"] = (
            "video",
            (
                await self.video.add(
                    "render", {"clip": "autumn-sale.mp4", "seconds": 30}, tags={"tenant": "acme"}
                )
            ).id,
        )
        await self.video.add("render", {"clip": "unboxing.mp4", "seconds": 90})
        await self.video.add(
            "render",
            {"clip": "trailer-8k.mov", "seconds": 120},
            target=Target(capabilities="gpu", region="us-east"),
        )
        for clip in ("tour-4k.mov", "drone.mov"):
            target = Target(capabilities=["gpu", "8k"], region="ap-south")
            await self.video.add("render", {"clip": clip, "seconds": 60}, target=target)
        await self.search.add_many([("index", {"document": number}) for number in range(250)])
        await self.partners.pause()
        await self.partners.add_many(
            [("deliver", {"url": "https://partner.example/hook"}) for _ in range(37)]
        )
        await self.emails.add_many(
            [
                ("digest", {"to": f"{name}@example.com"}, {"delay": f"{30 + 5 * at}m"})
                for at, name in enumerate(_PEOPLE)
            ]
        )
        await self.emails.schedules.upsert(
            "morning-digest",
            cron="0 7 * * MON-FRI",
            tz="Europe/Berlin",
            name="digest",
            data={"to": "all@example.com"},
        )
        await self.payments.schedules.upsert("settle", every="15m", name="settle", data={"bank": "north"})
        await self.reports.schedules.upsert(
            "month-end", cron="30 2 1 * *", tz="UTC", name="assemble", data={"month": "last"}
        )
        await self.payments.limits.set_concurrency(8)
        await self.payments.limits.set_rate(50, per="1s")
        await self.payments.limits.set_type_limit("refund", concurrent=2)
        await self.emails.limits.set_key_limit(concurrent=3, per_minute=120)
        await self.thumbnails.add("thumbnails", {"picture": "hat.png"})
        await self.imports.groups.set_all(concurrent=3)
        await self.imports.groups.set("globex", weight=3)
        await self.imports.groups.set("initech", per_minute=60)
        await self.imports.groups.pause("umbrella")
        for group, files in (
            ("acme", 1840),
            ("globex", 310),
            ("umbrella", 95),
            ("initech", 60),
            ("hooli", 12),
        ):
            await self.imports.add_many([("rows", {"file": f"{group}.csv"}, {"group": group})] * files)

    async def traffic(self) -> None:
        """Adds jobs all the time."""
        order = 100
        while True:
            order += 1
            person = self._rng.choice(_PEOPLE)
            rows: list[Any] = [("welcome", {"to": f"{person}@example.com"})] * self._rng.randrange(2, 12)
            await self.emails.add_many(rows)
            await self.search.add_many([("index", {"document": order})] * self._rng.randrange(1, 30))
            for place in ("/", "/hats", "/coats", "/sale")[: self._rng.randrange(5)]:
                await self.clicks.add("count", {"page": place}, partition_key=place)
            await self.payments.add("charge", {"order": order, "cents": 990}, correlation_id=f"order-{order}")
            await asyncio.sleep(0.15 + 0.2 * abs(order % 60 - 30) / 30 + self._rng.uniform(0, 0.15))

    async def find_failures(self) -> None:
        """Remembers a failed job and a dead letter for pictures."""
        while not self.shown.get("dead"):
            for job in await self.payments.jobs.list("failed"):
                if job.name == "charge":
                    self.shown["failed" if job.state == "failed" else "dead"] = ("payments", job.id)
            await asyncio.sleep(0.2)


def make_history(folder: Path) -> Path:
    """Writes a lake with the figures of the shop's last day, and returns its folder."""
    rng, now = random.Random(3), int(time.time() * 1000)
    first = now - now % _HOUR - 23 * _HOUR
    day = datetime.fromtimestamp(now / 1000, UTC).date()
    figures: list[dict[str, Any]] = []
    attempts: list[dict[str, Any]] = []
    timings: list[dict[str, Any]] = []
    spending: list[dict[str, Any]] = []
    for queue, busy in (("emails", 900), ("payments", 300), ("search-index", 2000)):
        for hour in range(24):
            at = first + hour * _HOUR
            arrivals = round(busy * (0.4 + 0.6 * abs(((hour + 6) % 24) - 12) / 12) * rng.uniform(0.85, 1.15))
            failed = round(arrivals * rng.uniform(0, 0.05))
            facts = {"day": day, "queue": queue, "window": "hour", "name": "*", "start_ms": at}
            facts |= {"arrivals": arrivals, "completed": arrivals - failed, "failed": failed}
            facts |= {"wait_p50": rng.uniform(5, 20), "wait_p99": rng.uniform(60, 400)}
            facts |= {"backlog_ready": rng.randrange(40), "backlog_active": 3, "backlog_delayed": 12}
            figures.append(facts)
        for number in range(40):
            ran = {"day": day, "queue": queue, "name": "charge", "job_id": f"{queue}-{number}", "attempt": 1}
            ran |= {"first_id": "1-0", "ended_ms": now - number * 60_000, "run_ms": rng.randrange(20, 900)}
            ran |= (
                {"outcome": "failed", "reason": f"order {number} has no payment"} if number % 9 == 0 else {}
            )
            attempts.append({"outcome": "completed", **ran})
        timings += _timings(rng, queue, busy, first)
        for tenant, share in (("acme", 5), ("globex", 2), (None, 1)):
            worked = busy * share * 24_000
            spending.append(
                {"day": day, "queue": queue, "name": "charge", "tenant": tenant, "attempts": busy * share}
                | {"run_total": worked, "wasted_total": worked // 40, "last_ms": now}
            )
    # An hour of a month ago and of each week since, so that the latest one is an anomaly.
    odd = first + 20 * _HOUR
    for week in range(1, 7):
        at = odd - week * 168 * _HOUR
        before = {"day": datetime.fromtimestamp(at / 1000, UTC).date(), "queue": "payments", "window": "hour"}
        figures.append(
            {**before, "name": "*", "start_ms": at, "arrivals": 20 + week, "completed": 20, "failed": 0}
        )
    minute = {
        "day": day,
        "queue": "payments",
        "window": "minute",
        "name": "*",
        "start_ms": now - now % 60_000,
    }
    figures.append({**minute, "arrivals": 0, "completed": 0, "failed": 0})
    lake = make_lake(folder, queue_metrics=figures, attempts=attempts, timings=timings, spending=spending)
    (lake.root / FILE).write_text(OBJECTIVES, encoding="utf-8")
    return lake.root


def _timings(rng: random.Random, queue: str, busy: int, first: int) -> list[dict[str, Any]]:
    """Returns the sums of a queue's attempts by hour, with a new version since noon."""
    rows = []
    for hour in range(24):
        at = first + hour * _HOUR
        failed = round(busy * (0.02 if queue == "payments" else 0.0002) * rng.uniform(0, 2))
        facts: dict[str, Any] = {"queue": queue, "name": "charge", "version": "7f3a" if hour < 12 else "9c41"}
        facts |= {
            "day": datetime.fromtimestamp(at / 1000, UTC).date(),
            "start_ms": at,
            "last_ms": at + 59_000,
        }
        facts |= {"attempts": busy, "completed": busy - failed, "failed": failed, "unrun": 0, "cancelled": 0}
        facts |= {"retries": 0, "stalls": 0, "run_total": busy * 240}
        slow = 150 if hour < 12 else 420
        waits = [{"ms": 4, "times": busy - 12}, {"ms": 900, "times": 9}, {"ms": 6000, "times": 3}]
        rows.append({**facts, "waits": waits, "runs": [{"ms": slow, "times": busy}]})
    return rows


@contextlib.asynccontextmanager
async def open_shop(url: str) -> AsyncIterator[Shop]:
    """Opens the shop: its jobs, its workers and its traffic."""
    shop = Shop(url)
    async with contextlib.AsyncExitStack() as stack:
        for queue in shop.queues:
            await stack.enter_async_context(queue)
        await shop.fill()
        for name, queues, slots, abilities in (
            ("web-1", [shop.emails, shop.payments], 10, None),
            ("web-2", [shop.emails, shop.search], 8, None),
            ("render-gpu-1", [shop.video], 2, Abilities(capabilities=["gpu", "cuda"], region="us-east")),
            ("reports-1", [shop.reports], 4, None),
            ("data-1", [shop.imports, shop.clicks], 6, None),
        ):
            worker = Worker(*queues, name=name, concurrency=slots, abilities=abilities, shutdown_timeout=0.1)
            await stack.enter_async_context(worker.running())
        traffic = asyncio.create_task(shop.traffic())
        try:
            yield shop
        finally:
            traffic.cancel()
            await asyncio.gather(traffic, return_exceptions=True)
