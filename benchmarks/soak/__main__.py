"""`make soak`, or `python -m benchmarks.soak --help`: exits 1 when a bound does not hold.

Samples of memory are taken at quiet moments: the producer waits after every tenth of the jobs until none is
left that has not ended. The bounds then say something of what stays, not of what is under way.

A soak that gets SIGTERM adds no more jobs, and judges those that it has added.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import signal
import sys
import time
from dataclasses import asdict, dataclass, field
from typing import Any

from rich.table import Table
from rich.text import Text
from tests.servers import ValkeyServer

from benchmarks.report import make_console
from benchmarks.soak.crew import Crew, memory
from benchmarks.soak.keys import account, leftovers
from benchmarks.soak.mix import Producer, Queues, opened
from benchmarks.soak.verdict import KEYS_BOUND, Finding, Sample, judge
from benchmarks.systems import ROOT

OUTPUT = ROOT / "build" / "soak.json"
#: Jobs that may wait before the producer pauses.
DEEP = 8_000
#: Seconds until all jobs have ended once no more are added, and until short-lived keys of lanes are gone.
QUIET, GONE = 600.0, 180.0
SAMPLES = 20
_LEFT = ("waiting", "prioritized", "active", "delayed", "waiting-children")


@dataclass
class Soak:
    """A soak under way."""

    arguments: argparse.Namespace
    queues: Queues
    client: Any
    crew: Crew
    samples: list[Sample] = field(default_factory=list)
    enough: asyncio.Event = field(default_factory=asyncio.Event)

    async def left(self) -> int:
        """Returns how many jobs have not ended, without the next runs of schedules."""
        many = 0
        for queue in self.queues:
            counts = await queue.counts()
            many += sum(counts.get(state, 0) for state in _LEFT)
        return many - int(self.client.zcard("bull:soak:repeat"))

    async def until(self, bound: int, limit: float) -> None:
        """Waits until at most so many jobs have not ended."""
        end = time.monotonic() + limit
        while (left := await self.left()) > bound:
            self.crew.check()
            if time.monotonic() > end:
                raise SystemExit(f"{left} jobs have not ended within {limit:g} s")
            await asyncio.sleep(0.05)

    async def produce(self, producer: Producer) -> None:
        """Adds all jobs, and takes a sample whenever a share of them has ended."""
        share = self.arguments.jobs / SAMPLES
        while producer.added < self.arguments.jobs and not self.enough.is_set():
            await producer.chunk()
            await self.until(DEEP, QUIET)
            if producer.added >= share * (len(self.samples) + 1):
                await self.until(0, QUIET)
                self.samples.append(self.sample(producer.added))

    def sample(self, jobs: int) -> Sample:
        self.client.execute_command("MEMORY PURGE")
        return Sample(
            jobs,
            memory(self.crew.stayer.pid),
            self.client.info("memory")["used_memory"] / 2**20,
            self.client.dbsize(),
        )

    async def replace(self) -> None:
        """Replaces a worker every few seconds until it is enough.

        It is not cancelled: a worker that is just being started would be left alive without an owner.
        """
        while not self.enough.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.enough.wait(), self.arguments.every)
                return
            await self.crew.replace()


async def soak(arguments: argparse.Namespace) -> list[Finding]:
    """Runs a soak and returns what was found."""
    with ValkeyServer() as server:
        client = server.client()
        crew = Crew(server.url, arguments.concurrency, arguments.seed)
        async with opened(server.url) as queues:
            run = Soak(arguments, queues, client, crew)
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, run.enough.set)
            producer = Producer(queues, arguments.seed)
            await producer.declare()
            await crew.begin(arguments.workers)
            replacing = asyncio.create_task(run.replace())
            began = time.monotonic()
            try:
                await run.produce(producer)
                seconds = time.monotonic() - began
                run.enough.set()
                await replacing
                await producer.retire()
                await run.until(0, QUIET)
                findings = judge(run.samples, producer.added)
                findings += await accounted(client)
                findings += await emptied(queues, client)
            finally:
                run.enough.set()
                with contextlib.suppress(Exception):
                    await replacing
                await crew.end()
            for queue in (queues.main, queues.parts):
                await queue.jobs.obliterate()
        findings.append(await obliterated(client))
        show(run, producer.added, seconds, findings)
        return findings


async def accounted(client: Any) -> list[Finding]:
    """Every key belongs to a queue, a job that exists, a schedule, or expires by itself."""
    found = account(client)
    others = sum(found.kinds.values()) - found.jobs()
    strays = await _settled(lambda: account(client).strays)
    return [
        Finding("keys besides those of jobs", f"{others:,}", f"{KEYS_BOUND:,}", others <= KEYS_BOUND),
        Finding("keys that nothing accounts for", _some(strays), "none", not strays),
    ]


async def emptied(queues: Queues, client: Any) -> list[Finding]:
    """Removes all ended jobs: no key of a job and no entry of an index is left."""
    for queue in queues:
        for state in ("completed", "failed"):
            await queue.jobs.clean(state)
    wrong = await _settled(lambda: leftovers(client))
    return [Finding("left when all jobs are removed", _some(wrong), "nothing", not wrong)]


async def obliterated(client: Any) -> Finding:
    """The queues are gone: what is left on the server expires by itself, but for the Bridge namespace's."""

    def lasting() -> dict[str, str]:
        keys = [str(key) for key in client.scan_iter("bull:*", count=1000)]
        return {key: "it stays" for key in keys if client.ttl(key) == -1}

    wrong = await _settled(lasting)
    return Finding("left of obliterated queues", _some(wrong), "nothing", not wrong)


async def _settled(look: Any) -> dict[str, str]:
    """Looks until nothing is found: indexes heal within the times that docs/protocol.md states."""
    end = time.monotonic() + GONE
    found: dict[str, str] = look()
    while found and time.monotonic() < end:
        await asyncio.sleep(1)
        found = look()
    return found


def _some(found: dict[str, str]) -> str:
    shown = [f"{key}: {why}" for key, why in sorted(found.items())[:10]]
    more = [f"and {len(found) - 10:,} more"] if len(found) > 10 else []
    return "\n".join(shown + more) or "none"


def show(run: Soak, added: int, seconds: float, findings: list[Finding]) -> None:
    """Prints the samples and the findings."""
    console = make_console()
    crew = run.crew
    title = (
        f"{added:,} jobs of {run.arguments.workers + 1} workers, {crew.ended} stopped and {crew.killed} "
        f"killed meanwhile, in {seconds:.0f} s"
    )
    found = {
        "asked": run.arguments.jobs,
        "title": title,
        "samples": [asdict(one) for one in run.samples],
        "findings": [asdict(one) for one in findings],
    }
    OUTPUT.parent.mkdir(exist_ok=True)
    OUTPUT.write_text(json.dumps(found, indent=2))
    table = Table(title=title, title_justify="left")
    for column in ("jobs", "worker MiB", "server MiB", "keys"):
        table.add_column(column, justify="right")
    for one in run.samples:
        table.add_row(f"{one.jobs:,}", f"{one.worker:.1f}", f"{one.server:.1f}", f"{one.keys:,}")
    console.print(table)
    judged = Table("what", "measured", "bound", "")
    for finding in findings:
        word = "[green]holds[/green]" if finding.holds else "[red]DOES NOT HOLD[/red]"
        # As text: markup would draw an ox in the place of the prefix of a key.
        judged.add_row(finding.what, Text(finding.measured), finding.bound, word)
    console.print(judged)


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.soak", description=__doc__)
    parser.add_argument("--jobs", type=int, default=2_000_000, help="jobs in all (2000000)")
    parser.add_argument(
        "--workers", type=int, default=2, help="workers that are replaced, beside one that stays"
    )
    parser.add_argument("--concurrency", type=int, default=100, help="of each worker (100)")
    parser.add_argument("--every", type=float, default=10.0, help="seconds until the next is replaced (10)")
    parser.add_argument("--seed", type=int, default=1)
    findings = asyncio.run(soak(parser.parse_args()))
    return 0 if all(finding.holds for finding in findings) else 1


if __name__ == "__main__":
    sys.exit(main())
