"""``oxcart up`` as a program: it serves, runs jobs, notices a dead part, and ends as a whole."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from tests.cli.conftest import Commands, Program
from tests.servers import free_port

Start = Callable[..., Program]

APP = """
from oxcart import Queue

emails = Queue("emails")
events = Queue("events", prefix="own", partitions=4)
both = [emails, events]

@emails.job
async def welcome(to: str) -> str:
    return f"Hello {to}!"

@events.job
async def count(number: int) -> int:
    return 2 * number
"""


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def process(line: str) -> int:
    found = re.search(r"process (\d+)", line)
    assert found is not None
    return int(found[1])


@pytest.mark.slow
def test_one_command_runs_everything_and_one_signal_ends_it(start: Start, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(APP)
    port = free_port()
    program = start("up", "--app", "shop:both", "--port", str(port), "--no-pipeline", OXCART_URL="")
    program.wait_for("server: embedded Valkey")
    pids = sorted(process(program.wait_for("started, process")) for _ in range(2))
    program.wait_for("api | HTTP API on http")
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
        job = client.post("/api/v1/jobs", json={"type": "welcome", "payload": {"to": "Ada"}}).json()
        waited = client.get(f"/api/v1/jobs/{job['id']}/wait?timeout=60s").json()
        assert (waited["state"], waited["success"]) == ("completed", True)
        rows = [{"type": "count", "queue": "events", "payload": {"number": number}} for number in range(8)]
        added = client.post("/api/v1/jobs/batch", json={"jobs": rows}).json()["results"]
        for one in added:  # a partitioned queue of its own prefix, as the worker reads it
            assert client.get(f"/api/v1/jobs/{one['job']['id']}/wait?timeout=60s").json()["success"]
        metrics = httpx.get(f"http://127.0.0.1:{port + 1}/metrics", timeout=60)
        assert "bullmq_active_workers" in metrics.text
        assert client.get("/", headers={"Accept": "text/html"}).status_code == 200
        # The worker is killed: it is said, and another one runs the next job.
        work = next(pid for pid in pids if "work" in Path(f"/proc/{pid}/cmdline").read_text().split("\0"))
        os.kill(work, signal.SIGKILL)
        program.wait_for("work was killed by SIGKILL")
        again = process(program.wait_for("work: started, process"))
        job = client.post("/api/v1/jobs", json={"type": "welcome", "payload": {"to": "Bob"}}).json()
        assert client.get(f"/api/v1/jobs/{job['id']}/wait?timeout=60s").json()["success"]
    assert program.end(signal.SIGINT) == 0
    assert "everything has ended" in program.seen[-1]
    assert not any(alive(pid) for pid in (*pids, again))
    # What was acknowledged is in the file of the embedded server: the next start finds the jobs again.
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
        second = start("serve", "--port", str(port), "--queues", "emails", OXCART_URL="")
        second.wait_for("HTTP API on http")
        assert client.get("/api/v1/jobs?state=completed").json()["count"] == 2
        assert second.end(signal.SIGTERM) == 0
    assert "Traceback" not in "\n".join(program.seen)


def test_wrong_usage_is_named(ox: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    ended = ox("up", "--app", "nowhere:emails", "--no-pipeline")
    assert (ended.code, "nowhere" in ended.err) == (2, True)
