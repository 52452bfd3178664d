"""The server of a queue: by URL, by environment, embedded, behind Sentinels, behind TLS."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from oxcart import Queue
from oxcart.broker.connection import YOUNG_ATTEMPTS, YOUNG_PAUSE, Reconnect, Server
from oxcart.model.errors import BrokerTimeout, BrokerUnavailable, ValidationError
from tests.servers import Sentinels, ValkeyServer, wait_until
from tests.signals import eventually


class TestReconnect:
    def pauses(self, policy: Reconnect, *, holding: bool, count: int, rand: float = 0.5) -> list[float]:
        return [policy.pause(attempt, holding=holding, rand=lambda: rand) for attempt in range(1, count + 1)]

    def test_doubles_up_to_the_longest(self) -> None:
        assert self.pauses(Reconnect(), holding=True, count=7) == pytest.approx(
            [0.1, 0.2, 0.4, 0.8, 1.6, 2, 2]
        )

    def test_waits_longer_when_idle_but_not_at_first(self) -> None:
        pauses = self.pauses(Reconnect(), holding=False, count=40)
        assert max(pauses[:YOUNG_ATTEMPTS]) == YOUNG_PAUSE
        assert sum(pauses[:YOUNG_ATTEMPTS]) > 10
        assert pauses[-1] == 30

    def test_jitter(self) -> None:
        for rand, factor in ((0.0, 0.8), (0.5, 1.0), (1.0, 1.2)):
            assert self.pauses(Reconnect(), holding=True, count=1, rand=rand) == pytest.approx([0.1 * factor])

    def test_a_very_long_outage(self) -> None:
        assert Reconnect().pause(10**9, holding=True, rand=lambda: 0.5) == 2


class TestWhere:
    async def test_a_url(self) -> None:
        server = Server("redis://ada:secret@example.org:7000/3")
        endpoint = await server.endpoint()
        assert (endpoint.host, endpoint.port, endpoint.db) == ("example.org", 7000, 3)
        assert (endpoint.username, endpoint.password, endpoint.tls) == ("ada", "secret", None)
        assert not server.is_cluster
        assert server.folder is None
        assert "secret" not in server.name + repr(server) + repr(endpoint)

    async def test_a_socket(self) -> None:
        assert (await Server("unix:///run/valkey.sock").endpoint()).name == "/run/valkey.sock"

    async def test_the_environment(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("OXCART_URL", "redis://from-the-environment:7001")
        assert (await Server().endpoint()).name == "from-the-environment:7001"
        assert (await Server("redis://explicit").endpoint()).host == "explicit"

    def test_the_embedded_server_without_both(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setenv("OXCART_HOME", str(tmp_path / "home"))
        assert Server().folder == tmp_path / "home"
        assert Server().location is None
        assert "embedded Valkey in" in Server().name
        monkeypatch.setenv("OXCART_URL", "redis://other")
        assert Server(folder=tmp_path).folder == tmp_path, "an explicit folder overrides the environment"

    def test_a_cluster(self) -> None:
        assert Server("redis+cluster://a:1,b:2").is_cluster

    async def test_an_error_of_a_bad_url_does_not_contain_it(self) -> None:
        with pytest.raises(ValueError, match="url") as caught:
            Server("http://user:secret@example.org")
        assert "secret" not in str(caught.value)


class TestSlots:
    async def test_no_node_answers(self) -> None:
        server = Server("redis+cluster://127.0.0.1:1,127.0.0.1:2")
        with pytest.raises(
            BrokerUnavailable, match=r"no node of the cluster returned its slots: (?=.*:1: )(?=.*:2: )"
        ):
            await server.endpoint(5)

    async def test_slots_of_the_cluster_are_cached_until_forgotten(self) -> None:
        server = Server("redis+cluster://127.0.0.1:1")
        server.moved(5, "127.0.0.9", 7009)
        server.moved(5, "127.0.0.8", 7008)
        assert (await server.endpoint(5)).name == "127.0.0.8:7008"
        with pytest.raises(BrokerUnavailable):
            await server.endpoint(6)
        server.forget_slots()
        with pytest.raises(BrokerUnavailable):
            await server.endpoint(5)


@pytest.fixture
def watched() -> Iterator[Sentinels]:
    """A master, its replica, and a Sentinel that knows both."""
    with Sentinels(1) as group:
        yield group


@pytest.mark.slow
class TestSentinel:
    @pytest.mark.slow
    async def test_follows_a_failover(self, watched: Sentinels) -> None:
        master, replica = watched.servers
        dead = f"redis+sentinel://127.0.0.1:1,127.0.0.1:{watched.sentinels[0].port}/main"
        async with Queue(
            "q", url=dead, add_timeout=90
        ) as queue:  # a Sentinel that was held up waits for 30 s
            await queue.add("before", job_id="before")
            assert (await queue._core.server.endpoint()).port == master.port
            wait_until(lambda: bool(replica.client().exists("bull:q:before")), "replicated")
            await asyncio.to_thread(master.kill)
            failing = asyncio.create_task(asyncio.to_thread(watched.fail_over))
            await queue.add("after", job_id="after")
            await failing
            assert (await queue._core.server.endpoint()).port == replica.port
            assert (await queue.counts())["waiting"] == 2

    async def test_an_unknown_master(self, watched: Sentinels) -> None:
        server = Server(watched.url.replace("/main", "/other"))
        with pytest.raises(BrokerUnavailable, match="knows no master 'other'"):
            await server.endpoint()

    async def test_an_unknown_master_leaves_no_connection_to_a_sentinel(self, watched: Sentinels) -> None:
        async with Queue("q", url=watched.url.replace("/main", "/other"), add_timeout=0.5) as queue:
            with pytest.raises(BrokerTimeout, match="knows no master 'other'"):
                await queue.add("n")
        with contextlib.closing(watched.sentinels[0].client()) as client:
            asked = "sentinel|get-master-addr-by-name"
            await eventually(lambda: asked not in [one["cmd"] for one in client.client_list()], "closed")

    async def test_no_sentinel_answers(self) -> None:
        queue = Queue("q", url="redis+sentinel://127.0.0.1:1/main", add_timeout=0.05)
        with pytest.raises(BrokerTimeout, match="no sentinel named a master"):
            await queue.add("n")
        await queue.close()


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a certificate for localhost, signed by itself."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not on the PATH")
    folder = tmp_path_factory.mktemp("tls")
    command = (
        "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -keyout key.pem -out cert.pem -subj /CN=localhost"
    )
    subprocess.run(
        [*command.split(), "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"],
        cwd=folder,
        check=True,
        capture_output=True,
    )
    return folder


@contextlib.asynccontextmanager
async def terminating(port: int, folder: Path, *, client_cert: bool = False) -> AsyncIterator[int]:
    """A proxy that accepts TLS and forwards plain text to the server."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    if client_cert:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(folder / "cert.pem")

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        writer.close()

    writers: list[asyncio.StreamWriter] = []
    served: list[asyncio.Task[None] | None] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        served.append(asyncio.current_task())
        behind_reader, behind_writer = await asyncio.open_connection("127.0.0.1", port)
        writers.extend((writer, behind_writer))
        await asyncio.gather(pump(reader, behind_writer), pump(behind_reader, writer))

    proxy = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    yield proxy.sockets[0].getsockname()[1]
    proxy.close()
    for writer in writers:
        writer.transport.abort()
    await asyncio.gather(*filter(None, served), return_exceptions=True)


class TestTls:
    async def test_a_job_goes_through(self, valkey: ValkeyServer, url: str, certificate: Path) -> None:
        async with terminating(valkey.port, certificate) as port:
            address = f"rediss://localhost:{port}/0?tls_ca={certificate / 'cert.pem'}"
            async with Queue("q", url=address) as queue:
                job = await queue.add("n", {"x": 1})
                assert (await job.get()).data == {"x": 1}
        assert valkey.client().llen("bull:q:wait") == 1

    @pytest.mark.slow
    async def test_an_unknown_authority_is_refused(self, valkey: ValkeyServer, certificate: Path) -> None:
        async with terminating(valkey.port, certificate) as port:
            async with Queue("q", url=f"rediss://localhost:{port}/0", add_timeout=2) as queue:
                with pytest.raises(BrokerTimeout, match="CERTIFICATE_VERIFY_FAILED"):
                    await queue.add("n")
            async with Queue("q", url=f"rediss://localhost:{port}/0?tls_verify=no") as queue:
                assert await queue.counts()

    @pytest.mark.parametrize("name", ["tls_ca", "tls_cert"])
    async def test_a_file_that_cannot_be_read_is_named(
        self, valkey: ValkeyServer, tmp_path: Path, name: str
    ) -> None:
        """It is not an unreachable server, for which every caller would wait."""
        (tmp_path / "empty.pem").touch()
        for file in ("empty.pem", "none.pem"):
            address = f"rediss://localhost:{valkey.port}/0?{name}={tmp_path / file}"
            async with Queue("q", url=address) as queue:
                with pytest.raises(ValidationError, match=rf"{name} must be a PEM file .*{file}"):
                    await queue.add("n")

    async def test_a_client_certificate(self, valkey: ValkeyServer, url: str, certificate: Path) -> None:
        cert, key = certificate / "cert.pem", certificate / "key.pem"
        async with terminating(valkey.port, certificate, client_cert=True) as port:
            address = f"rediss://localhost:{port}/0?tls_ca={cert}&tls_cert={cert}&tls_key={key}"
            async with Queue("q", url=address) as queue:
                assert (await queue.add("n")).created


def test_the_embedded_server_by_default(tmp_path: Path) -> None:
    """Without a URL or setup, a second process finds the job of the first."""
    code = "from oxcart.sync import Queue; q = Queue('q'); q.add('n'); print(q.counts()['waiting'])"
    (tmp_path / "pyproject.toml").touch()
    counts = [
        subprocess.run(
            [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True
        ).stdout.strip()
        for _ in range(2)
    ]
    assert counts == ["1", "2"]
    assert (tmp_path / ".oxcart").is_dir()
