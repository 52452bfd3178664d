"""The previous version and this one share a queue, and a fleet rolls forward and back."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from collections import Counter
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import pytest
import redis

from oxcart import Queue
from tests.nodes import locked
from tests.signals import eventually
from tests.versions.member import open_queue

ROOT = Path(__file__).parents[2]
MEMBER = Path(__file__).parent / "member.py"
#: The previous version while there is no tag: the last commit before the broker and the API were rebuilt.
PINNED = "4826faf0c7ce5db2b2b9b91e6c96ea40379f8e93"
LIMIT = 60.0


def git(*words: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, check=False)


def previous() -> str:
    """The newest tag that is no part of this very commit, or the pinned commit."""
    found = git("describe", "--tags", "--match", "v*", "--abbrev=0", "HEAD^")
    return found.stdout.decode().strip() if found.returncode == 0 else PINNED


@pytest.fixture(scope="module")
def before() -> Path:
    """The source of the previous version."""
    revision = previous()
    if git("cat-file", "-e", f"{revision}^{{commit}}").returncode:
        pytest.skip(f"{revision} is not in this clone: git fetch --unshallow --tags")
    place = ROOT / "build" / f"version-{revision[:12]}"
    with locked("version"):
        if not place.exists():
            archive = git("archive", revision, "src").stdout
            with tarfile.open(fileobj=BytesIO(archive)) as files:
                files.extractall(place, filter="data")
    return place / "src"


class Fleet:
    """Processes of two versions on one server."""

    def __init__(self, url: str, protocol: str, before: Path) -> None:
        self._url = url
        self._protocol = protocol
        self._sources = {"before": before, "now": ROOT / "src"}
        self._workers: dict[str, subprocess.Popen[str]] = {}

    def start(self, version: str) -> None:
        self._workers[version] = self._run("work", version)
        output = self._workers[version].stdout
        assert output is not None
        assert output.readline() == "ready\n"

    def stop(self, version: str) -> None:
        """Lets a worker end as at a SIGTERM: running jobs end, the rest is returned."""
        worker = self._workers.pop(version)
        worker.communicate(timeout=LIMIT)
        assert worker.returncode == 0

    def add(self, version: str, count: int) -> subprocess.Popen[str]:
        return self._run("add", version, str(count))

    def steer(self, version: str) -> subprocess.Popen[str]:
        return self._run("steer", version)

    def close(self) -> None:
        for version in list(self._workers):
            self.stop(version)

    def _run(self, role: str, version: str, *more: str) -> subprocess.Popen[str]:
        path = os.pathsep.join(filter(None, [str(self._sources[version]), os.environ.get("PYTHONPATH")]))
        return subprocess.Popen(
            [sys.executable, str(MEMBER), role, self._url, self._protocol, version, *more],
            env={**os.environ, "PYTHONPATH": path},
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )


@pytest.fixture(params=["bullmq", "bridge"])
def protocol(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def fleet(url: str, protocol: str, before: Path) -> Iterator[Fleet]:
    made = Fleet(url, protocol, before)
    yield made
    made.close()


async def completed(queue: Queue) -> int:
    return (await queue.counts())["completed"]


def test_members_run_the_version_that_they_should(before: Path) -> None:
    code = "import oxcart.engine.worker as module; print(module.__file__)"
    for source in (before, ROOT / "src"):
        shown = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONPATH": str(source)},
            capture_output=True,
            text=True,
            check=True,
        )
        assert shown.stdout.startswith(str(source))


async def test_both_versions_run_what_both_versions_add(
    fleet: Fleet, url: str, protocol: str, store: redis.Redis
) -> None:
    fleet.start("before")
    fleet.start("now")
    adding = [fleet.add(version, 150) for version in ("before", "now")]
    assert [one.wait(LIMIT) for one in adding] == [0, 0]
    async with open_queue(url, protocol) as queue:
        await eventually(lambda: _has(queue, 300), "all jobs of both versions are completed")
        jobs = await queue.jobs.list("completed", limit=400)
        assert Counter(job.data["by"] for job in jobs) == {"before": 150, "now": 150}
        ran = Counter((job.data["by"], job.return_value) for job in jobs)
        assert len(ran) == 4, f"each version ran jobs of each: {ran}"
        shaky = [job for job in jobs if job.data["shaky"]]
        assert {job.attempts_made for job in shaky} == {2}
        assert {job.attempts_made for job in jobs if not job.data["shaky"]} == {1}
        assert (await queue.counts())["failed"] == 0


async def test_a_fleet_rolls_forward_and_back_under_load(fleet: Fleet, url: str, protocol: str) -> None:
    fleet.start("before")
    adding = fleet.add("before", 300)
    async with open_queue(url, protocol) as queue:
        await eventually(lambda: _has(queue, 20), "the old worker has begun")
        fleet.start("now")
        fleet.stop("before")
        more = fleet.add("now", 300)
        at = await completed(queue)
        await eventually(lambda: _has(queue, at + 20), "the new worker goes on")
        fleet.start("before")
        fleet.stop("now")
        assert (adding.wait(LIMIT), more.wait(LIMIT)) == (0, 0)
        await eventually(lambda: _has(queue, 600), "the old worker ends the rest")
        jobs = await queue.jobs.list("completed", limit=700)
        assert {job.stalled_count for job in jobs} == {0}
        assert {job.attempts_made for job in jobs} == {1, 2}
        assert set(Counter(job.return_value for job in jobs)) == {"before", "now"}


@pytest.mark.parametrize(("worker", "producer"), [("before", "now"), ("now", "before")])
async def test_one_version_steers_the_jobs_of_the_other(
    fleet: Fleet, url: str, protocol: str, worker: str, producer: str
) -> None:
    """Flows, schedules, cancellations and replays reach a worker of the other version."""
    fleet.start(worker)
    shown, _ = fleet.steer(producer).communicate(timeout=LIMIT)
    doomed, endless, *flows = shown.split()
    async with open_queue(url, protocol) as queue:

        async def replayed() -> bool:
            job = await queue.jobs.get(doomed)
            return (
                job is not None and job.attempts_started == 2 and await queue.jobs.state(doomed) == "failed"
            )

        await eventually(replayed, "the dead letter ran again", LIMIT)
        cancelled = await queue.jobs.get(endless)
        assert cancelled is not None
        assert (cancelled.state, cancelled.failed_reason) == ("cancelled", "no longer wanted")
        for parent in flows:

            async def gathered(parent: str = parent) -> bool:
                job = await queue.jobs.get(parent)
                return job is not None and job.return_value == [worker] * 3

            await eventually(gathered, "the flow's parent has the results of its children", LIMIT)

            async def ticked() -> bool:
                jobs = await queue.jobs.list("completed", limit=100)
                return [job.return_value for job in jobs if job.name == "tick"] == [worker] * 2

            await eventually(ticked, "the schedule made its two runs", LIMIT)


async def _has(queue: Queue, count: int) -> bool:
    return await completed(queue) >= count
