"""``deploy/rehearse``: replaces services under load; exits with 1 if a job is lost or runs twice."""

from __future__ import annotations

import argparse
import asyncio
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tools.rehearsal.load import Failed, answers, produce, settled, verdict
from tools.rehearsal.network import isolate
from tools.rehearsal.unit import Unit

ROOT = Path(__file__).parents[2]
APP = Path(__file__).parent
#: Seconds that a busy machine may need to start something.
LIMIT = 60.0
VALKEY, API, METRICS = 16379, 18080, 19100


class Stage:
    """The machine that is deployed to.

    Args:
        folder: Where data and logs go.
        program: The installed ``oxcart``.
    """

    def __init__(self, folder: Path, program: Path) -> None:
        self.folder = folder
        self.diary = folder / "diary"
        self.diary.touch()
        self.url = f"redis://127.0.0.1:{VALKEY}/0"
        self._program = program
        self._running: list[subprocess.Popen[bytes]] = []
        self.user = self._service_user()
        if self.user is not None:
            for path in (folder, self.diary):
                os.chown(path, self.user, -1)

    def _service_user(self) -> int | None:
        """A user without rights, where this process may become one that can read the installation."""
        if os.geteuid() != 0:
            return None
        nobody = pwd.getpwnam("nobody").pw_uid
        try:
            tried = subprocess.run(
                [self._program, "--version"], user=nobody, capture_output=True, check=False
            )
        except OSError:
            return None
        return nobody if tried.returncode == 0 else None

    def start_server(self) -> None:
        """Starts a Valkey with the settings of the compose file."""
        from oxcart.broker.embedded import binary_path

        settings = {
            "appendonly": "yes",
            "appendfsync": "everysec",
            "maxmemory": "1gb",
            "maxmemory-policy": "noeviction",
        }
        given = [word for name, value in settings.items() for word in (f"--{name}", value)]
        self.spawn("valkey", [str(binary_path()), "--port", str(VALKEY), "--bind", "127.0.0.1", *given])
        self.wait(
            lambda: (self.folder / "valkey.log").read_text().count("Ready to accept"), "Valkey is ready"
        )

    def start(self, name: str, unit: Unit, environ: dict[str, str]) -> subprocess.Popen[bytes]:
        """Starts a service by the command line of its unit."""
        given = {"OXCART_URL": self.url, **unit.environment, **environ}
        return self.spawn(name, unit.command(self._program, given), given)

    def spawn(
        self, name: str, command: Sequence[str], environ: dict[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        """Starts a program as the service user, with a clean environment."""
        clean = {key: os.environ[key] for key in ("PATH", "LANG", "LD_LIBRARY_PATH") if key in os.environ}
        with (self.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                command,
                cwd=self.folder,
                env={**clean, **(environ or {})},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                user=self.user,
                umask=0o077,
            )
        self._running.append(process)
        return process

    def wait(self, condition: Callable[[], object], what: str) -> None:
        """Waits until a condition holds."""
        end = time.monotonic() + LIMIT
        while not condition():
            if time.monotonic() > end:
                logs = "\n".join(path.read_text()[-1500:] for path in sorted(self.folder.glob("*.log")))
                raise Failed(f"not within {LIMIT:g} s: {what}\n{logs}")
            time.sleep(0.02)

    def close(self) -> None:
        """Kills what still runs."""
        for process in self._running:
            if process.poll() is None:
                process.kill()
            process.wait()


def drain(process: subprocess.Popen[bytes], unit: Unit, name: str) -> float:
    """Sends SIGTERM as systemd does; returns the seconds until the process ended by itself."""
    began = time.monotonic()
    process.send_signal(signal.SIGTERM)
    try:
        code = process.wait(unit.stop_seconds)
    except subprocess.TimeoutExpired:
        raise Failed(f"{name} did not end within TimeoutStopSec={unit.stop_seconds:g}") from None
    if code != 0:
        raise Failed(f"{name} ended with {code} after SIGTERM")
    return time.monotonic() - began


async def rehearse(stage: Stage, jobs: int, workers: int, processes: int) -> dict[str, object]:
    """Runs all steps; returns the figures of the report.

    Raises:
        Failed: A step failed, or a job was lost or ran twice.
    """
    worker, serve = Unit.read("oxcart-worker@.service"), Unit.read("oxcart-serve.service")
    stage.start_server()

    def start_worker(number: int) -> subprocess.Popen[bytes]:
        port = METRICS + number * 10
        options = f"--concurrency 10 --processes {processes} --metrics-port {port}"
        more = {"OXCART_APP": "app:orders", "OXCART_OPTIONS": options, "REHEARSAL_DIARY": str(stage.diary)}
        process = stage.start(
            f"worker-{number}", worker, {**more, "PYTHONPATH": str(stage.folder / "application")}
        )
        ports = range(port, port + processes)
        stage.wait(lambda: all(answers(one, "/ready") for one in ports), f"worker {number} is ready")
        return process

    crew = [await asyncio.to_thread(start_worker, number) for number in range(workers)]
    options = {"OXCART_OPTIONS": f"--port {API} --queues orders"}
    api = stage.start("api", serve, options)
    await asyncio.to_thread(stage.wait, lambda: answers(API, "/ready"), "the API is ready")

    acknowledged: list[str] = []
    enough = asyncio.Event()
    adding = asyncio.create_task(produce(stage.url, jobs, acknowledged, enough))
    drained = []
    for number in range(workers):
        before = len(acknowledged)
        await asyncio.to_thread(stage.wait, lambda: len(acknowledged) > before + 20, "jobs are added")  # noqa: B023
        drained.append(await asyncio.to_thread(drain, crew[number], worker, f"worker {number}"))
        crew[number] = await asyncio.to_thread(start_worker, number)
    enough.set()
    await adding
    api_took = await asyncio.to_thread(drain, api, serve, "the API")

    counts = await settled(stage.url, len(acknowledged))
    for number, process in enumerate(crew):
        await asyncio.to_thread(drain, process, worker, f"worker {number}")
    verdict(acknowledged, stage.diary, counts)
    return {
        "jobs": len(acknowledged),
        "replaced workers": workers,
        "longest drain of a worker": f"{max(drained):.1f} s of {worker.stop_seconds:g} s",
        "drain of the API": f"{api_took:.1f} s of {serve.stop_seconds:g} s",
        "lost, twice, stalled, failed": "0, 0, 0, 0",
    }


def main(arguments: list[str]) -> int:
    """Rehearses and prints the report; returns the exit code."""
    parser = argparse.ArgumentParser(prog="deploy/rehearse", description=__doc__)
    parser.add_argument("--jobs", type=int, default=2000, help="how many jobs at least")
    parser.add_argument(
        "--workers", type=int, default=3, help="services of workers that are replaced in turn"
    )
    parser.add_argument("--processes", type=int, default=2, help="processes of each")
    parser.add_argument("--here", action="store_true", help="stay in this network")
    given = parser.parse_args(arguments)
    isolated = not given.here and isolate()
    program = Path(sys.executable).parent / "oxcart"
    folder = Path(tempfile.mkdtemp(prefix="oxcart-rehearsal-"))
    stage = Stage(folder, program)
    try:
        shutil.copytree(
            APP, folder / "application", ignore=shutil.ignore_patterns("__pycache__", "__main__.py")
        )
        user = "nobody" if stage.user is not None else pwd.getpwuid(os.geteuid()).pw_name
        print(f"network of its own: {'yes' if isolated else 'no'}; service user: {user}")
        report = asyncio.run(rehearse(stage, given.jobs, given.workers, given.processes))
    except Failed as error:
        print(error, file=sys.stderr)
        return 1
    finally:
        stage.close()
        shutil.rmtree(folder, ignore_errors=True)
    for name, value in report.items():
        print(f"{name}: {value}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
