"""``make rehearse-images``: containers with the settings of the compose file, replaced under load.

    python -m tools.rehearsal.containers [--jobs 1000] [--workers 2] [--image NAME] [--build-network host]

Builds the image, unless ``--image`` names one, starts a server, workers and the API by the commands and the
rights of `deploy/compose.yaml`, waits until Docker calls them healthy, stops and replaces every worker while
jobs arrive, and compares what was acknowledged with what ran. Containers share the network of the machine, on
ports of their own, and the server is the image's own Valkey: Compose's networks and its other images stay
untried.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from oxcart.model.duration import parse_ms
from tools.rehearsal.load import Failed, answers, produce, settled, verdict

ROOT = Path(__file__).parents[2]
COMPOSE = ROOT / "deploy" / "compose.yaml"
#: Seconds until a container must be healthy: Docker asks every 15 s.
LIMIT = 120.0
VALKEY, API, METRICS = 26379, 28080, 29100
_SERVER = (
    "import os; from oxcart.broker.embedded import binary_path as b; os.execv(b(), [str(b()), *{words!r}])"
)


def docker(*words: str) -> str:
    """Runs a command of Docker's client; returns its output.

    Raises:
        Failed: The command failed.
    """
    done = subprocess.run(["docker", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise Failed(f"docker {' '.join(words)}: {(done.stdout + done.stderr)[-3000:]}")
    return done.stdout.strip()


def grace(service: dict[str, Any]) -> int:
    """Returns the seconds that Compose waits for a service after SIGTERM."""
    return parse_ms(service["stop_grace_period"], "stop_grace_period") // 1000


def rights(service: dict[str, Any]) -> list[str]:
    """Returns the options of ``docker run`` for what a service may do and how long it may take to stop."""
    words = [f"--cap-drop={one}" for one in service["cap_drop"]]
    words += [f"--security-opt={one}" for one in service["security_opt"]]
    words += [f"--tmpfs={one}" for one in service["tmpfs"]]
    words += ["--read-only"] if service["read_only"] else []
    words += [f"--user={service['user']}"] if "user" in service else []
    return [*words, f"--stop-timeout={grace(service)}"]


class Fleet:
    """The containers of a rehearsal.

    Args:
        image: The image.
        folder: Where the application and its diary are.
    """

    def __init__(self, image: str, folder: Path) -> None:
        self._image = image
        self._services: dict[str, dict[str, Any]] = yaml.safe_load(COMPOSE.read_text())["services"]
        self._folder = folder
        self._ids: dict[str, str] = {}
        self.url = f"redis://127.0.0.1:{VALKEY}/0"
        self.diary = folder / "diary"
        self.diary.touch()
        self.diary.chmod(0o666)  # the image's user writes into it
        app = folder / "app.py"
        app.write_text((Path(__file__).parent / "app.py").read_text())
        app.chmod(0o644)

    def start_server(self) -> None:
        """Starts the image's Valkey with Compose's settings and without a password."""
        command = self._services["valkey"]["command"][1:]
        at = command.index("--requirepass")
        words = [*command[:at], *command[at + 2 :], "--port", str(VALKEY), "--bind", "127.0.0.1"]
        entry = ["--entrypoint=python", "--workdir=/tmp", self._image, "-c", _SERVER.format(words=words)]
        self._run("valkey", "--no-healthcheck", *rights(self._services["valkey"]), *entry)
        self._wait("valkey", lambda: "Ready to accept" in docker("logs", self._ids["valkey"]))

    def start_worker(self, number: int) -> None:
        """Starts a worker; returns when Docker calls it healthy."""
        service, port = self._services["worker"], METRICS + number
        words = [
            word.replace("web:signups", "app:orders")
            .replace("=0.0.0.0", "=127.0.0.1")
            .replace("=9100", f"={port}")
            for word in service["command"]
        ]
        self._start(
            f"worker-{number}",
            service,
            f"http://127.0.0.1:{port}/live",
            *("--env=REHEARSAL_DIARY=/app/diary", f"--volume={self.diary}:/app/diary"),
            *(f"--volume={self._folder / 'app.py'}:/app/app.py:ro", self._image, *words),
        )

    def start_api(self) -> None:
        """Starts the API; returns when Docker calls it healthy."""
        service = self._services["api"]
        words = ["serve", "--host=127.0.0.1", f"--port={API}", "--queues=orders"]
        assert [word.partition("=")[0] for word in service["command"]] == [w.partition("=")[0] for w in words]
        health = f"http://127.0.0.1:{API}/live"
        self._start("api", service, health, "--env=OXCART_TOKENS=admin:" + "r" * 32, self._image, *words)
        if not answers(API, "/ready"):
            raise Failed("the API is healthy and not ready")

    def stop(self, name: str) -> float:
        """Stops a container as Compose does; returns the seconds that it took.

        Raises:
            Failed: It was killed, or ended with an error.
        """
        began = time.monotonic()
        docker("stop", self._ids[name])
        code = docker("inspect", "--format={{.State.ExitCode}}", self._ids[name])
        if code != "0":
            raise Failed(f"{name} ended with {code}\n{docker('logs', self._ids[name])[-2000:]}")
        docker("rm", self._ids.pop(name))
        return time.monotonic() - began

    def user(self, name: str) -> str:
        """Returns the user of a container, after it failed to write into the image.

        Raises:
            Failed: The container can write into the image.
        """
        tried = "id -u; ! touch /app/written 2>/dev/null; ! touch /opt/oxcart/written 2>/dev/null"
        return docker("exec", self._ids[name], "sh", "-ec", tried)

    def close(self) -> None:
        """Removes what is left."""
        for one in self._ids.values():
            subprocess.run(["docker", "rm", "--force", one], capture_output=True, check=False)

    def _start(self, name: str, service: dict[str, Any], health: str, *words: str) -> None:
        environ = [f"--env=OXCART_URL={self.url}", f"--env=OXCART_HEALTH={health}"]
        self._run(name, *rights(service), *environ, *words)
        state = "--format={{.State.Health.Status}}"
        self._wait(name, lambda: docker("inspect", state, self._ids[name]) == "healthy")

    def _run(self, name: str, *words: str) -> None:
        self._ids[name] = docker("run", "--detach", "--network=host", *words)

    def _wait(self, name: str, condition: Callable[[], object]) -> None:
        end = time.monotonic() + LIMIT
        while not condition():
            if time.monotonic() > end:
                raise Failed(f"{name} is not healthy\n{docker('logs', self._ids[name])[-3000:]}")
            time.sleep(0.2)


def _wait_for(condition: Callable[[], object]) -> None:
    end = time.monotonic() + LIMIT
    while not condition():
        if time.monotonic() > end:
            raise Failed(f"no jobs were added within {LIMIT:g} s")
        time.sleep(0.02)


async def rehearse(fleet: Fleet, jobs: int, workers: int) -> dict[str, object]:
    """Runs all steps; returns the figures of the report.

    Raises:
        Failed: A step failed, or a job was lost or ran twice.
    """
    await asyncio.to_thread(fleet.start_server)
    for number in range(workers):
        await asyncio.to_thread(fleet.start_worker, number)
    await asyncio.to_thread(fleet.start_api)
    user = fleet.user("worker-0")
    acknowledged: list[str] = []
    enough = asyncio.Event()
    adding = asyncio.create_task(produce(fleet.url, jobs, acknowledged, enough))
    took = []
    for number in range(workers):
        before = len(acknowledged)
        await asyncio.to_thread(_wait_for, lambda: len(acknowledged) > before + 20 or adding.done())  # noqa: B023
        took.append(await asyncio.to_thread(fleet.stop, f"worker-{number}"))
        await asyncio.to_thread(fleet.start_worker, number)
    enough.set()
    await adding
    counts = await settled(fleet.url, len(acknowledged))
    api = await asyncio.to_thread(fleet.stop, "api")
    for number in range(workers):
        await asyncio.to_thread(fleet.stop, f"worker-{number}")
    verdict(acknowledged, fleet.diary, counts)
    return {
        "user": user,
        "jobs": len(acknowledged),
        "replaced workers": workers,
        "longest stop of a worker": f"{max(took):.1f} s",
        "stop of the API": f"{api:.1f} s",
        "lost, twice, stalled, failed": "0, 0, 0, 0",
    }


def main(arguments: list[str]) -> int:
    """Rehearses and prints the report; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tools.rehearsal.containers", description=__doc__)
    parser.add_argument("--jobs", type=int, default=1000, help="how many jobs at least")
    parser.add_argument("--workers", type=int, default=2, help="workers that are replaced in turn")
    parser.add_argument("--image", help="an image that exists, instead of building one")
    parser.add_argument("--build-network", default="default", help="the network of the build")
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="oxcart-rehearsal-") as folder:
        os.chmod(folder, 0o755)  # the image's user reads the application
        fleet: Fleet | None = None
        try:
            image = given.image or "oxcart-rehearsal"
            if given.image is None:
                where = [f"--network={given.build_network}", f"--file={ROOT / 'deploy' / 'Dockerfile'}"]
                docker("build", *where, "--target=runtime", f"--tag={image}", str(ROOT))
            fleet = Fleet(image, Path(folder))
            report = asyncio.run(rehearse(fleet, given.jobs, given.workers))
        except Failed as error:
            print(error, file=sys.stderr)
            return 1
        finally:
            if fleet is not None:
                fleet.close()
    for name, value in report.items():
        print(f"{name}: {value}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
