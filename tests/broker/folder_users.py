"""Processes that use an embedded server's folder, and the processes that run there."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from oxcart.broker.embedded import status
from oxcart.broker.location import Location
from tests.servers import wait_until

#: A process that uses a folder and reads its commands from stdin.
USER = """
import json, os, sys
from oxcart.broker.embedded import Embedded
embedded = Embedded(sys.argv[1])

def client():
    import redis
    place = embedded.ensure()
    if place.path:
        return redis.Redis(unix_socket_path=place.path, decode_responses=True)
    host, port = place.hosts[0]
    return redis.Redis(host=host, port=port, password=place.password, decode_responses=True)

def answer(value):
    print(json.dumps([os.getpid(), value]), flush=True)

embedded.ensure()
answer("ready")
for line in sys.stdin:
    command, *words = line.split()
    if command == "call":
        answer(client().execute_command(*words))
    elif command == "attached":
        answer(embedded.is_attached)
    elif command == "fork":
        if os.fork() == 0:
            answer(["attached", embedded.is_attached])
            client().set("child", "was here")
            answer("forked")
            os.read(int(words[0]), 1)
            os._exit(0)
"""


class UserProcess:
    """A separate process that uses the folder."""

    def __init__(self, folder: Path, wait: bool = True, pass_fds: tuple[int, ...] = ()) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", USER, str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            pass_fds=pass_fds,
        )
        if wait:
            assert self.answer() == "ready"

    @property
    def pid(self) -> int:
        return self.process.pid

    def tell(self, *words: object) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(" ".join(str(word) for word in words) + "\n")
        self.process.stdin.flush()

    def answer(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "the user process ended"
        return json.loads(line)[1]

    def ask(self, *words: object) -> Any:
        self.tell(*words)
        return self.answer()

    def end(self, number: signal.Signals) -> None:
        self.process.send_signal(number)
        self.process.wait(20)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()


class Users:
    """Starts user processes and ends them after the test."""

    def __init__(self) -> None:
        self._all: list[UserProcess] = []

    def __call__(self, folder: Path, wait: bool = True, pass_fds: tuple[int, ...] = ()) -> UserProcess:
        user = UserProcess(folder, wait, pass_fds)
        self._all.append(user)
        return user

    def close(self) -> None:
        for user in self._all:
            user.close()


def processes(folder: Path) -> list[int]:
    """The processes that run in the folder or were started for it."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if entry.joinpath("stat").read_text().rpartition(")")[2].split()[0] == "Z":
                continue
            here = os.readlink(entry / "cwd").removesuffix(" (deleted)") == str(folder)
            words = entry.joinpath("cmdline").read_bytes().split(b"\0")
            if here or (os.fsencode(folder) in words and b"-c" not in words):
                found.append(int(entry.name))
    return found


def is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def kill(pid: int) -> None:
    """SIGKILL, and wait until the kernel has cleared the process away."""
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: is_gone(pid), f"{pid} has ended")


def pids(folder: Path) -> tuple[int, int]:
    """The pids of keeper and server."""
    found = status(folder)
    assert found is not None
    return found["keeper_pid"], found["server_pid"]


def client(place: Location, **options: Any) -> redis.Redis:
    if place.path:
        options["unix_socket_path"] = place.path
    else:
        options["host"], options["port"] = place.hosts[0]
    once = Retry(NoBackoff(), 0)
    return redis.Redis(**{"password": place.password, "decode_responses": True, "retry": once, **options})


def assert_nothing_left(folder: Path, *known: int) -> None:
    wait_until(lambda: all(is_gone(pid) for pid in known), f"{known} have ended", 15)
    wait_until(lambda: not processes(folder) and status(folder) is None, f"nothing is left for {folder}", 15)
