"""A real Spark cluster on loopback: a master and workers, started from the installed package.

with Standalone(workers=2) as cluster:
    open_session(cluster.url)
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Self

import pyspark

from oxcart.spark.session import QUICK_SETTINGS, find_java, prepare_environment
from tests.servers import wait_until

_LIMIT = 120.0


class Standalone:
    """One master and some workers, each with a core and a log of its own.

    Args:
        folder: Where logs and working folders go.
        workers: How many workers.
    """

    def __init__(self, folder: Path, workers: int = 2) -> None:
        self._folder = folder
        self._count = workers
        self._processes: list[subprocess.Popen[bytes]] = []
        self.url = ""

    def __enter__(self) -> Self:
        try:
            # The processes choose their ports: a free one may be taken before a JVM starts.
            host = ("--host", "127.0.0.1", "--webui-port", "0")
            self._start("master", "Master", *host, "--port", "0")
            self.url = self._until("master", r"Starting Spark master at (spark://\S+)\n")
            for number in range(self._count):
                name = f"worker-{number}"
                self._start(
                    name,
                    "Worker",
                    *host,
                    *("--cores", "1", "--memory", "700m", "--work-dir", str(self._folder / name), self.url),
                )
            for number in range(self._count):
                self._until(f"worker-{number}", "(Successfully registered) with master")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        for process in self._processes:
            for pid in (*self._family(process.pid), process.pid):
                _kill(pid)
            process.wait(30)

    def executors(self) -> list[int]:
        """The processes that run tasks."""
        return [pid for process in self._processes for pid in self._family(process.pid, "ExecutorBackend")]

    def kill_executor(self) -> int:
        """Kills one of them together with its Python workers."""
        victim = self.executors()[0]
        for pid in (victim, *_children(victim)):
            _kill(pid)
        return victim

    def log(self, name: str) -> str:
        """The output of one of its processes."""
        path = self._folder / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def _start(self, name: str, kind: str, *arguments: str) -> None:
        environ: dict[str, str] = {
            **os.environ,
            "SPARK_NO_DAEMONIZE": "1",
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": QUICK_SETTINGS["spark.driver.extraJavaOptions"],
        }
        prepare_environment(find_java(), environ, local=True)
        home = Path(pyspark.__file__).parent
        with (self._folder / f"{name}.log").open("wb") as log:
            self._processes.append(
                subprocess.Popen(
                    [
                        str(home / "bin" / "spark-class"),
                        f"org.apache.spark.deploy.{kind.lower()}.{kind}",
                        *arguments,
                    ],
                    env={**environ, "SPARK_HOME": str(home), "PYSPARK_PYTHON": sys.executable},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            )

    def _until(self, name: str, words: str) -> str:
        """Waits for a line in a log and returns the captured text."""
        found: list[str] = []

        def printed() -> bool:
            found[:] = re.findall(words, self.log(name))
            return bool(found)

        try:
            wait_until(printed, f"{name} prints {words!r}", _LIMIT)
        except AssertionError as error:
            raise AssertionError(f"{error}: {self.log(name)[-2000:]}") from None
        return found[0]

    def _family(self, session: int, words: str = "") -> list[int]:
        return [pid for pid, _, sid, text in _all() if sid == session and words in text]


def _all() -> list[tuple[int, int, int, str]]:
    """Returns pid, parent, session and full command of every process."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            found.append((int(folder.name), int(fields[1]), int(fields[3]), command))
    return found


def _children(parent: int) -> list[int]:
    direct = [pid for pid, ppid, _, _ in _all() if ppid == parent]
    return [found for pid in direct for found in (pid, *_children(pid))]


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
