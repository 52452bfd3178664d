"""The health server: the replies to an orchestrator and a scraper."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from oxcart.observe.health import HealthServer
from oxcart.observe.metrics import Metrics


class Probe:
    """A health server whose readiness the test decides."""

    def __init__(self) -> None:
        self.reason: str | None = None
        self.server = HealthServer(Metrics(), lambda: self.reason)

    async def send(self, request: bytes) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.server.port)
        writer.write(request)
        answer = await asyncio.wait_for(reader.read(), 60)
        writer.close()
        return answer

    async def get(self, path: str, method: str = "GET", headers: str = "") -> tuple[int, str, str]:
        answer = await self.send(f"{method} {path} HTTP/1.1\r\nHost: x\r\n{headers}\r\n".encode())
        head, _, body = answer.decode().partition("\r\n\r\n")
        return int(head.split(" ")[1]), head, body


@pytest.fixture
async def probe() -> AsyncIterator[Probe]:
    probe = Probe()
    await probe.server.start()
    yield probe
    await probe.server.close()


async def test_live_is_always_ok(probe: Probe) -> None:
    probe.reason = "shutting down"
    assert (await probe.get("/live"))[0] == 200


async def test_ready_names_the_reason(probe: Probe) -> None:
    assert (await probe.get("/ready"))[0] == 200
    probe.reason = "the server cannot be reached"
    status, _, body = await probe.get("/ready")
    assert status == 503
    assert body == "not ready: the server cannot be reached\n"


async def test_metrics_are_prometheus_text(probe: Probe) -> None:
    status, head, body = await probe.get("/metrics")
    assert status == 200
    assert "Content-Type: text/plain; version=" in head
    assert "bullmq_active_workers 0.0" in body


async def test_metrics_are_openmetrics_on_request(probe: Probe) -> None:
    _, head, body = await probe.get("/metrics?x=1", headers="Accept: application/openmetrics-text\r\n")
    assert "Content-Type: application/openmetrics-text" in head
    assert body.endswith("# EOF\n")


async def test_head_has_no_body(probe: Probe) -> None:
    status, head, body = await probe.get("/live", method="HEAD")
    assert (status, body) == (200, "")
    assert "Content-Length: 5" in head


@pytest.mark.parametrize(("method", "path", "status"), [("GET", "/", 404), ("POST", "/metrics", 405)])
async def test_other_requests_get_an_error(probe: Probe, method: str, path: str, status: int) -> None:
    assert (await probe.get(path, method=method))[0] == status


@pytest.mark.parametrize("noise", [b"\r\n\r\n", b"nonsense\r\n\r\n", b"\xff\xfe\x00 / x\r\n\r\n"])
async def test_noise_does_no_harm(probe: Probe, noise: bytes) -> None:
    assert (await probe.send(noise)).startswith(b"HTTP/1.1 405 ")
    assert (await probe.get("/live"))[0] == 200


async def test_an_endless_request_is_cut_off(probe: Probe) -> None:
    with contextlib.suppress(ConnectionError):
        assert await probe.send(b"GET /" + b"x" * 100_000) == b""
    assert (await probe.get("/live"))[0] == 200


async def test_a_taken_port_is_an_error(probe: Probe) -> None:
    second = HealthServer(Metrics(), lambda: None, port=probe.server.port)
    with pytest.raises(OSError, match="address already in use"):
        await second.start()
