"""Real servers of every kind of URL: with users, behind TLS, behind Sentinels, in a cluster."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.cli.conftest import Program
from tests.servers import Sentinels, ValkeyCluster, ValkeyServer

PAGE = Path(__file__).parents[2] / "docs" / "connections.md"

#: A password that a URL must escape.
PASSWORD = "p@ss/w:rd #1%"


def rule(role: str) -> list[str]:
    """Returns the rights of a role from the page, as arguments of ACL SETUSER."""
    found = re.search(rf"^ACL SETUSER {role} on >SECRET (.+?)$", PAGE.read_text(), re.MULTILINE)
    assert found is not None, f"the page names no rule for a {role}"
    return found[1].split()


def make_user(client: Any, name: str, *roles: str) -> None:
    """Creates a user with the rights of these roles, as the page lists them."""
    words = [word for role in roles for word in rule(role)]
    client.execute_command("ACL", "SETUSER", name, "reset", "on", f">{PASSWORD}", *words)


def login(name: str) -> str:
    return f"{quote(name, safe='')}:{quote(PASSWORD, safe='')}@"


class Certificates:
    """A certificate authority with a server and a client certificate, made by openssl."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._run("req -x509 -newkey rsa:2048 -nodes -days 2 -keyout ca.key -out ca.pem -subj /CN=authority")
        (folder / "names").write_text("subjectAltName=DNS:localhost,IP:127.0.0.1\n")
        for name in ("server", "client"):
            self._run(f"req -newkey rsa:2048 -nodes -keyout {name}.key -out {name}.csr -subj /CN={name}")
            self._run(
                f"x509 -req -in {name}.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -out {name}.pem "
                "-extfile names"
            )

    def _run(self, arguments: str) -> None:
        subprocess.run(["openssl", *arguments.split()], cwd=self.folder, check=True, capture_output=True)

    def path(self, name: str) -> str:
        return str(self.folder / name)

    @property
    def query(self) -> str:
        names = {"tls_ca": "ca.pem", "tls_cert": "client.pem", "tls_key": "client.key"}
        return "&".join(f"{name}={self.path(file)}" for name, file in names.items())


class TlsProxy:
    """Accepts TLS from clients with a certificate and forwards it in plain text to the server.

    It has a thread and a loop of its own, so that programs and blocking clients can use it too.
    """

    def __init__(self, port: int, certificates: Certificates) -> None:
        self._behind = port
        self._context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._context.load_cert_chain(certificates.path("server.pem"), certificates.path("server.key"))
        self._context.verify_mode = ssl.CERT_REQUIRED
        self._context.load_verify_locations(certificates.path("ca.pem"))
        self._loop = asyncio.new_event_loop()
        self._writers: set[asyncio.StreamWriter] = set()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        listening = asyncio.run_coroutine_threadsafe(self._listen(), self._loop)
        self._server = listening.result(60)
        self.port: int = self._server.sockets[0].getsockname()[1]

    async def _listen(self) -> asyncio.Server:
        return await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._context)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", self._behind)
        self._writers |= {writer, back}
        try:
            await asyncio.gather(self._pump(reader, back), self._pump(there, writer))
        finally:
            self._writers -= {writer, back}

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        writer.close()

    def cut(self) -> None:
        """Closes every connection; new ones are accepted."""
        for writer in list(self._writers):
            self._loop.call_soon_threadsafe(writer.transport.abort)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._server.close)
        self.cut()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("tls"))


@contextlib.contextmanager
def plain() -> Iterator[str]:
    with ValkeyServer() as server:
        yield server.url


@contextlib.contextmanager
def with_users() -> Iterator[str]:
    with ValkeyServer(requirepass="nobody-knows") as server:
        with contextlib.closing(server.client(password="nobody-knows")) as client:
            make_user(client, "app@work", "worker", "operator")
        yield f"redis://{login('app@work')}127.0.0.1:{server.port}/0"


@contextlib.contextmanager
def behind_tls(certificates: Certificates) -> Iterator[str]:
    with ValkeyServer() as server, contextlib.closing(TlsProxy(server.port, certificates)) as proxy:
        yield f"rediss://localhost:{proxy.port}/0?{certificates.query}"


@contextlib.contextmanager
def behind_sentinels() -> Iterator[str]:
    with Sentinels(password="secret") as group:
        yield group.url


@contextlib.contextmanager
def in_cluster() -> Iterator[str]:
    with ValkeyCluster(replicas=1, node_timeout=15_000, requirepass="secret", masterauth="secret") as cluster:
        for node in cluster.all:
            with contextlib.closing(node.client(password="secret")) as client:
                make_user(client, "app", "worker", "operator")
        yield f"redis+cluster://{login('app')}{cluster.hosts}"


KINDS = ("plain", "users", "tls", "sentinel", "cluster")


@pytest.fixture(scope="session", params=KINDS)
def kind_of_server(request: pytest.FixtureRequest) -> Iterator[str]:
    """Yields a URL of every kind in turn; each server ends before the next starts."""
    makers: dict[str, Callable[[], Any]] = {
        "plain": plain,
        "users": with_users,
        "tls": lambda: behind_tls(request.getfixturevalue("certificates")),
        "sentinel": behind_sentinels,
        "cluster": in_cluster,
    }
    with makers[request.param]() as url:
        yield url


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Program]]:
    """Starts ``oxcart`` in a folder of its own and kills it after the test."""
    programs: list[Program] = []
    environ = {name: value for name, value in os.environ.items() if not name.startswith("OXCART_")}
    environ |= {"OXCART_HOME": str(tmp_path / "home"), "PYTHONUNBUFFERED": "1"}

    def start(*arguments: str, **more: str) -> Program:
        program = Program(list(arguments), tmp_path, environ | more)
        programs.append(program)
        return program

    yield start
    for program in programs:
        program.kill()
