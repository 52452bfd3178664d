"""The real BullMQ for tests: installed once per version, driven over a pipe.

    driver = await NodeDriver.start(installed("v5"), server.url)
    job_id = await driver.call("add", queue="q", name="n", data={}, opts={})
    await driver.stop()

`tests/node/v5` and `tests/node/v6` pin the versions that CI runs. `OXCART_BULLMQ=x.y.z` replaces both by any
other version, installed into `tests/node/x.y.z`.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import re
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Self

NODE_FOLDER = Path(__file__).parent / "node"
VERSION_VARIABLE = "OXCART_BULLMQ"
_PINNED = ("v5", "v6")
_IOREDIS = "5.11.1"
_INSTALL_LIMIT = 300.0
_CALL_LIMIT = 60.0
_LINE_LIMIT = 64 * 1024 * 1024


class NodeError(Exception):
    """An operation failed in Node.

    Attributes:
        message: The error's text.
        code: BullMQ's script code, such as -2 for a missing lock; None for other errors.
        name: The error's class name in Node.
    """

    def __init__(self, message: str, code: int | None = None, name: str = "Error") -> None:
        super().__init__(message if code is None else f"{message} (code {code})")
        self.message = message
        self.code = code
        self.name = name


def versions() -> list[str]:
    """Return the folders to test against: both pins, or the one version the environment asks for."""
    asked = os.environ.get(VERSION_VARIABLE)
    return [asked] if asked else list(_PINNED)


def node_missing() -> str | None:
    """Say why Node cannot be used here, or None."""
    for program in ("node", "npm"):
        if shutil.which(program) is None:
            return f"{program} is not on the PATH"
    return None


def installed(version: str = "v5") -> Path:
    """Return the folder of a BullMQ version (`v5`, `v6` or `x.y.z`), installed on first use.

    Parallel test processes install once: the others wait for the first.
    """
    if version not in _PINNED and not re.fullmatch(r"\d+\.\d+\.\d+(-[\w.]+)?", version):
        raise ValueError(f"a BullMQ version is v5, v6 or x.y.z, got {version!r}")
    folder = NODE_FOLDER / version
    with locked(version):
        manifest = folder / "package.json"
        if not manifest.exists():
            folder.mkdir(parents=True, exist_ok=True)
            manifest.write_text(_manifest(version))
        return install(folder)


def with_telemetry(version: str) -> Path:
    """Return the folder of BullMQ `v5` or `v6` with its telemetry, installed on first use."""
    name = f"otel{version[1:]}"
    with locked(name):
        return install(NODE_FOLDER / name)


def bull_board() -> Path:
    """Return the folder of bull-board, installed on first use."""
    with locked("board"):
        return install(NODE_FOLDER / "board")


def axe() -> str:
    """Return the script of axe-core, installed on first use."""
    with locked("axe"):
        folder = install(NODE_FOLDER / "axe")
    return (folder / "node_modules" / "axe-core" / "axe.min.js").read_text("utf-8")


def pyright() -> Path:
    """Return the script of pyright, installed on first use."""
    with locked("pyright"):
        return install(NODE_FOLDER / "pyright") / "node_modules" / "pyright" / "index.js"


def install(folder: Path) -> Path:
    """Install what a folder's `package.json` asks for, unless it is there; hold its lock meanwhile."""
    lock = folder / "package-lock.json"
    # npm writes this record last, so an interrupted installation is done again.
    record = folder / "node_modules" / ".package-lock.json"
    newest = max(path.stat().st_mtime for path in (folder / "package.json", lock) if path.exists())
    if not record.exists() or record.stat().st_mtime < newest:
        _npm(folder, locked=lock.exists())
        record.touch()
    return folder


def _manifest(version: str) -> str:
    content = {
        "name": f"oxcart-tests-bullmq-{version}",
        "private": True,
        "dependencies": {"bullmq": version, "ioredis": _IOREDIS},
    }
    return json.dumps(content, indent=2) + "\n"


@contextlib.contextmanager
def locked(name: str) -> Iterator[None]:
    """Hold the install lock of a folder; it lives in `node_modules`, which git ignores."""
    place = NODE_FOLDER / "node_modules"
    place.mkdir(exist_ok=True)
    with (place / f".{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _npm(folder: Path, *, locked: bool) -> None:
    # Not `npm ci`: it refuses a lock that lists optional packages of this platform alone, which is how npm
    # writes one. With --no-save the lock is obeyed and left as it is.
    options = ["--no-save" if locked else "--no-package-lock", "--ignore-scripts", "--no-audit", "--no-fund"]
    done = subprocess.run(
        ["npm", "install", *options],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_INSTALL_LIMIT,
        check=False,
    )
    if done.returncode:
        raise AssertionError(f"npm install failed in {folder}:\n{done.stderr[-4000:]}")


class NodeDriver:
    """One Node process with one BullMQ, answering operations (see `tests/node/driver.js`)."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._numbers = iter(range(1, 1 << 62))
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._reader = asyncio.create_task(self._read())
        self.version = ""

    @classmethod
    async def start(cls, folder: Path, url: str, prefix: str = "bull", *, traced: bool = False) -> Self:
        """Start Node with the BullMQ of the folder, connected to the server at the url."""
        process = await asyncio.create_subprocess_exec(
            "node",
            str(NODE_FOLDER / "driver.js"),
            str(folder),
            *(["traced"] if traced else []),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=_LINE_LIMIT,
        )
        driver = cls(process)
        try:
            driver.version = (await driver.call("connect", url=url, prefix=prefix))["version"]
        except BaseException:
            await driver.kill()
            raise
        return driver

    async def call(self, op: str, *, limit: float = _CALL_LIMIT, **args: Any) -> Any:
        """Run one operation and return its result.

        Raises:
            NodeError: The operation failed in Node, or Node has gone.
            TimeoutError: No answer within `limit` seconds.
        """
        number = next(self._numbers)
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        line = json.dumps({"id": number, "op": op, "args": args}, ensure_ascii=True)
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line.encode() + b"\n")
            await self._process.stdin.drain()
            return _unwrap(await asyncio.wait_for(answer, limit))
        except (BrokenPipeError, ConnectionResetError) as error:
            raise NodeError(f"Node has gone: {error}") from error
        finally:
            self._waiting.pop(number, None)

    async def batch(self, commands: list[tuple[str, dict[str, Any]]]) -> list[Any | NodeError]:
        """Run operations one after the other in one call; a failed one is its NodeError."""
        answers = await self.call("batch", commands=[{"op": op, "args": args} for op, args in commands])
        results: list[Any | NodeError] = []
        for answer in answers:
            try:
                results.append(_unwrap(answer))
            except NodeError as error:
                results.append(error)
        return results

    async def stop(self) -> None:
        """Close everything that is open in Node and end the process."""
        if self._process.returncode is None:
            with contextlib.suppress(NodeError, TimeoutError):
                await self.call("close", limit=10.0)
        await self.kill()

    async def kill(self) -> None:
        """Kill the process, as a crash would: it closes no connection and returns no job."""
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
        await self._process.wait()
        await self._reader

    @property
    def pid(self) -> int:
        return self._process.pid

    async def _read(self) -> None:
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            answer: dict[str, Any] = json.loads(line)
            waiting = self._waiting.get(answer["id"])
            if waiting is not None and not waiting.done():
                waiting.set_result(answer)
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(NodeError("Node has gone"))


@contextlib.asynccontextmanager
async def node_driver(version: str, url: str, prefix: str = "bull") -> AsyncIterator[NodeDriver]:
    """Start a driver for the block and stop it afterwards."""
    folder = await asyncio.to_thread(installed, version)
    driver = await NodeDriver.start(folder, url, prefix)
    try:
        yield driver
    finally:
        await driver.stop()


def _unwrap(answer: dict[str, Any]) -> Any:
    error = answer.get("error")
    if error is not None:
        raise NodeError(error["message"], error["code"], error["name"])
    return answer["result"]
