"""Webhooks are jobs, are signed, and never go to addresses that are not public."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
from collections.abc import AsyncIterator, Sequence
from typing import Any, cast

import pytest
import pytest_asyncio
import redis

from oxcart import Flow, PermanentError, Queue, RunningJob, TemporaryError, Worker
from oxcart.broker.addresses import (
    AddressBlocked,
    check_address,
    check_submitted,
    choose_address,
    read_networks,
)
from oxcart.broker.port import Ask
from oxcart.engine.webhooks import sender as engine
from oxcart.engine.webhooks.outbox import Outbox
from oxcart.engine.webhooks.sender import Delivery, Webhooks
from oxcart.model.errors import MissingExtra, ValidationError
from tests.conftest import MakeQueue
from tests.signals import eventually

SECRET = "0123456789abcdef"
HERE = ["127.0.0.0/8"]


class Receiver:
    """A web server that records its requests. It answers from a list, then with 200."""

    def __init__(self) -> None:
        self.got: list[tuple[dict[str, str], bytes]] = []
        self.answers: list[bytes] = []
        self.hangs = False
        self.port = 0

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            headers = dict(line.lower().split(": ", 1) for line in head[1:] if line)
            # Signatures are hex, so nothing is lost by lower case; ids are compared in lower case too.
            body = await reader.readexactly(int(headers.get("content-length", "0")))
            self.got.append((headers, body))
            if self.hangs:
                await asyncio.Event().wait()
            answer = self.answers.pop(0) if self.answers else b"HTTP/1.1 200 OK\r\n"
            writer.write(answer + b"Content-Length: 0\r\nConnection: close\r\n\r\n")
            await writer.drain()
        except asyncio.IncompleteReadError:
            pass
        finally:
            writer.close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook?x=1"


@pytest_asyncio.fixture
async def receiver() -> AsyncIterator[Receiver]:
    made = Receiver()
    server = await asyncio.start_server(made, "127.0.0.1", 0)
    made.port = server.sockets[0].getsockname()[1]
    yield made
    server.close()


def delivery(url: str) -> Delivery:
    return Delivery(url=url, delivery_id="d-1", body={"x": 1, "correlation_id": "c"})


def to(*addresses: str) -> Any:
    async def ask(host: str, port: int) -> Sequence[str]:
        return addresses

    return ask


class TestAddresses:
    @pytest.mark.parametrize(
        "host",
        [
            "127.0.0.1",
            "127.1.2.3",
            "2130706433",
            "0x7f000001",
            "0177.0.0.1",
            "127.1",
            "0.0.0.0",
            "10.1.2.3",
            "172.16.0.1",
            "192.168.1.1",
            "169.254.169.254",
            "100.64.0.1",
            "224.0.0.1",
            "255.255.255.255",
            "[::1]",
            "[::]",
            "[fe80::1]",
            "[fd00::1]",
            "[::ffff:127.0.0.1]",
            "[::ffff:10.0.0.1]",
            "[64:ff9b::7f00:1]",
            "[2002:7f00:1::]",
            "localhost",
            "LOCALHOST.",
            "db.internal",
            "printer.local",
        ],
    )
    async def test_refused_at_submission(self, queue: Queue, store: redis.Redis, host: str) -> None:
        with pytest.raises(ValidationError, match="callback_url must be at a public address"):
            await queue.add("a", callback_url=f"https://{host}/x")
        assert store.keys("*") == []

    @pytest.mark.parametrize(
        "address",
        [
            "0.1.2.3",
            "100.127.255.255",
            "192.0.0.9",
            "192.88.99.1",
            "198.19.0.1",
            "203.0.113.9",
            "239.1.1.1",
            "240.0.0.1",
            "::",
            "::7f00:1",  # compatible with version 4
            "::ffff:0:7f00:1",  # translated
            "::ffff:169.254.169.254",
            "64:ff9b::a00:1",
            "64:ff9b:1::808:808",  # NAT64 within a site
            "100::1",
            "2001:0:4136:e378:8000:63bf:3fff:fdd2",  # Teredo
            "2001:2::1",
            "2001:db8::1",
            "2002:808:808::1",  # 6to4
            "2606:4700::5efe:7f00:1",  # ISATAP
            "2606:4700::200:5efe:a00:1",
            "3fff::1",
            "5f00::1",
            "fc00::1",
            "fe80::1%eth0",
            "febf::1",
            "fec0::1",
            "feff:ffff::1",
            "ff02::1",
        ],
    )
    def test_special_ones_are_blocked(self, address: str) -> None:
        with pytest.raises(AddressBlocked):
            check_address("h", address)

    @pytest.mark.parametrize("address", ["1.1.1.1", "2606:4700::1111", "64:ff9b::808:808", "::ffff:8.8.8.8"])
    def test_public_addresses_pass(self, address: str) -> None:
        check_address("h", address)

    @pytest.mark.parametrize("host", ["example.com", "8.8.8.8", "[2606:4700::1111]", "10.example.com"])
    def test_public_ones(self, host: str) -> None:
        check_submitted(f"https://{host}/x")

    def test_allowed_networks_pass(self) -> None:
        allow = read_networks(["10.1.0.0/16", "::1/128"])
        check_address("h", "10.1.2.3", allow)
        check_address("h", "::1", allow)
        check_address("h", "::ffff:10.1.2.3", allow)
        for other in ("10.2.0.1", "127.0.0.1", "junk"):
            with pytest.raises(AddressBlocked):
                check_address("h", other, allow)
        with pytest.raises(ValidationError, match="allow must be networks"):
            read_networks(["10.1.2.3/8"])

    async def test_every_address_of_a_name_is_checked(self) -> None:
        assert await choose_address("h", 80, (), to("8.8.8.8", "1.1.1.1")) == "8.8.8.8"
        with pytest.raises(AddressBlocked, match=r"not sent to h \(10.0.0.1\)"):
            await choose_address("h", 80, (), to("8.8.8.8", "10.0.0.1"))
        with pytest.raises(OSError, match="has no address"):
            await choose_address("h", 80, (), to())


class TestDelivery:
    async def test_delivery_has_body_headers_and_signature(self, receiver: Receiver) -> None:
        hooks = Webhooks(SECRET, allow=HERE, clock=lambda: 1_700_000_000)
        assert await hooks.deliver(delivery(receiver.url)) == 200
        headers, body = receiver.got[0]
        assert json.loads(body) == {"x": 1, "correlation_id": "c"}
        assert headers["host"] == f"127.0.0.1:{receiver.port}"
        assert headers["oxcart-delivery"] == "d-1"
        assert headers["oxcart-correlation-id"] == "c"
        # As a receiver would check it by the documentation.
        made = hmac.new(SECRET.encode(), headers["oxcart-timestamp"].encode() + b"." + body, hashlib.sha256)
        assert headers["oxcart-signature"] == f"v1={made.hexdigest()}"
        assert headers["oxcart-timestamp"] == "1700000000"

    async def test_a_name_is_connected_to_by_the_address_that_was_checked(self, receiver: Receiver) -> None:
        asked: list[str] = []

        async def ask(host: str, port: int) -> Sequence[str]:
            asked.append(host)
            return ["127.0.0.1"]

        hooks = Webhooks(SECRET, allow=HERE, ask=ask)
        await hooks.deliver(delivery(f"http://hooks.example.com:{receiver.port}/"))
        assert asked == ["hooks.example.com"]
        assert receiver.got[0][0]["host"] == f"hooks.example.com:{receiver.port}"

    async def test_a_name_that_leads_to_a_private_address(self, receiver: Receiver) -> None:
        hooks = Webhooks(SECRET, ask=to("127.0.0.1"))
        with pytest.raises(TemporaryError, match=r"not sent to hooks\.example\.com"):
            await hooks.deliver(delivery(f"http://hooks.example.com:{receiver.port}/"))
        assert receiver.got == []

    @pytest.mark.parametrize("status", [301, 302, 307, 308])
    async def test_redirects_are_followed_and_checked(self, receiver: Receiver, status: int) -> None:
        hooks = Webhooks(SECRET, allow=["127.0.0.1/32"])
        receiver.answers = [b"HTTP/1.1 %d Moved\r\nLocation: /other\r\n" % status]
        assert await hooks.deliver(delivery(receiver.url)) == 200
        assert receiver.got[0][1] == receiver.got[1][1]
        there = f"http://127.0.0.2:{receiver.port}/".encode()
        receiver.answers = [b"HTTP/1.1 %d Moved\r\nLocation: %b\r\n" % (status, there)]
        with pytest.raises(TemporaryError, match=r"not sent to 127\.0\.0\.2"):
            await hooks.deliver(delivery(receiver.url))

    async def test_redirects_without_end_or_elsewhere(self, receiver: Receiver) -> None:
        hooks = Webhooks(SECRET, allow=HERE)
        receiver.answers = [b"HTTP/1.1 307 Moved\r\nLocation: /again\r\n"] * 9
        with pytest.raises(PermanentError, match="more than 3 redirects"):
            await hooks.deliver(delivery(receiver.url))
        receiver.answers = [b"HTTP/1.1 307 Moved\r\nLocation: file:///etc/passwd\r\n"]
        with pytest.raises(PermanentError, match="not HTTP"):
            await hooks.deliver(delivery(receiver.url))

    async def test_answers(self, receiver: Receiver) -> None:
        hooks = Webhooks(SECRET, allow=HERE)
        receiver.answers = [b"HTTP/1.1 503 No\r\nRetry-After: 7\r\n", b"HTTP/1.1 410 Gone\r\n"]
        with pytest.raises(TemporaryError, match="answered 503") as caught:
            await hooks.deliver(delivery(receiver.url))
        assert caught.value.retry_after == 7
        with pytest.raises(PermanentError, match="answered 410"):
            await hooks.deliver(delivery(receiver.url))

    async def test_a_host_that_hangs(self, receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(engine, "LIMIT", 0.2)
        receiver.hangs = True
        with pytest.raises(TemporaryError, match=r"no answer within 0\.2 s"):
            await Webhooks(SECRET, allow=HERE).deliver(delivery(receiver.url))

    async def test_delivery_times_out_after_ten_seconds(
        self, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The test advances the clock of the loop instead of waiting."""
        loop = asyncio.get_running_loop()
        really, ahead = loop.time, 0.0
        monkeypatch.setattr(loop, "time", lambda: really() + ahead)
        receiver.hangs = True
        sending = asyncio.create_task(Webhooks(SECRET, allow=HERE).deliver(delivery(receiver.url)))
        await eventually(lambda: receiver.got, "the host has the request")
        ahead = 8.0
        for _ in range(10):
            await asyncio.sleep(0)
        assert not sending.done()
        ahead = 10.5
        with pytest.raises(TemporaryError, match="no answer within 10 s"):
            await asyncio.wait_for(sending, 5)

    async def test_refused_connection_is_temporary(self) -> None:
        with pytest.raises(TemporaryError, match="ConnectError"):
            await Webhooks(SECRET, allow=HERE).deliver(delivery("http://127.0.0.1:1/"))

    @pytest.mark.parametrize(("secret", "allow"), [("short", []), (SECRET, ["nowhere"])])
    def test_bad_settings(self, secret: Any, allow: Any) -> None:
        with pytest.raises(ValidationError) as caught:
            Webhooks(secret, allow=allow)
        assert "short" not in str(caught.value).replace("a shorter one", "")

    def test_without_the_package(self, monkeypatch: pytest.MonkeyPatch) -> None:
        import sys

        monkeypatch.setitem(sys.modules, "httpx", None)
        with pytest.raises(MissingExtra, match=r"oxcart\[webhooks\]"):
            Webhooks(SECRET)


@pytest.fixture
def hooked(make_queue: MakeQueue) -> Queue:
    """A queue with webhooks that tries each delivery once."""
    return make_queue(webhooks=Webhooks(SECRET, allow=HERE, attempts=1))


async def body_of(receiver: Receiver, number: int = 0) -> Any:
    await eventually(lambda: len(receiver.got) > number, "the webhook was delivered", 20)
    return json.loads(receiver.got[number][1])


class TestEnds:
    async def test_completed(self, hooked: Queue, receiver: Receiver, store: redis.Redis) -> None:
        @hooked.job
        async def work() -> dict[str, int]:
            return {"a": 1}

        async with Worker(hooked).running():
            job = await work.using(callback_url=receiver.url, correlation_id="c-1").enqueue()
            body = await body_of(receiver)
            await eventually(lambda: not store.exists("bull:q:ox:callbacks"), "no webhook is pending")
        assert (body["job_id"], body["type"], body["queue"]) == (job.id, "work", "q")
        assert (body["state"], body["result"], body["error"]) == ("completed", {"a": 1}, None)
        assert (body["correlation_id"], body["attempt"]) == ("c-1", 1)
        assert receiver.got[0][0]["oxcart-delivery"] == body["delivery_id"].lower()
        ended = await job.get()
        assert body["finished_at"] == ended.finished_on

    @pytest.mark.parametrize(
        ("error", "state", "category"),
        [
            (PermanentError("no", code="x"), "failed", "permanent"),
            (OSError("later"), "dead_letter", "temporary"),
        ],
    )
    async def test_failed(
        self, hooked: Queue, receiver: Receiver, error: Exception, state: str, category: str
    ) -> None:
        @hooked.job(attempts=1)
        async def work() -> None:
            raise error

        async with Worker(hooked).running():
            await work.using(callback_url=receiver.url).enqueue()
            body = await body_of(receiver)
        assert (body["state"], body["error"]["category"]) == (state, category)
        assert body["error"]["message"] == str(error)

    async def test_a_retry_is_no_end(self, hooked: Queue, receiver: Receiver) -> None:
        @hooked.job(attempts=2, backoff="1ms")
        async def work(job: RunningJob) -> int:
            if job.attempt == 1:
                raise OSError("once")
            return 2

        async with Worker(hooked).running():
            await work.using(callback_url=receiver.url).enqueue()
            body = await body_of(receiver)
        assert (body["state"], body["attempt"], len(receiver.got)) == ("completed", 2, 1)

    async def test_a_job_that_is_removed_at_once(self, hooked: Queue, receiver: Receiver) -> None:
        @hooked.job(remove_on_complete=True)
        async def work() -> str:
            return "x" * 70_000

        async with Worker(hooked).running():
            await work.using(callback_url=receiver.url).enqueue()
            body = await body_of(receiver)
        assert (body["state"], body["result"], body["result_omitted"]) == ("completed", None, True)

    async def test_a_delivery_is_tried_again_under_the_same_id(
        self, make_queue: MakeQueue, receiver: Receiver
    ) -> None:
        queue = make_queue(webhooks=Webhooks(SECRET, allow=HERE, attempts=2))

        @queue.job
        async def work() -> int:
            return 7

        receiver.answers = [b"HTTP/1.1 503 No\r\nRetry-After: 0\r\n"]
        async with Worker(queue).running():
            await work.using(callback_url=receiver.url).enqueue()
            first, second = await body_of(receiver), await body_of(receiver, 1)
        assert first == second
        assert (first["state"], first["result"]) == ("completed", 7)
        assert receiver.got[0][0]["oxcart-delivery"] == receiver.got[1][0]["oxcart-delivery"]

    async def test_sweep_finds_jobs_that_others_finished(
        self, hooked: Queue, receiver: Receiver, store: redis.Redis
    ) -> None:
        """It finds cancelled jobs and jobs of Node workers; repeated sweeps make one delivery."""
        job = await hooked.add("a", callback_url=receiver.url)
        (other,) = await hooked.add_many([("a", None)], callback_url=receiver.url, delay="1h")
        assert store.zcard("bull:q:ox:callbacks") == 2
        await job.cancel("no")
        deliveries = hooked._core.webhook_queue
        assert deliveries is not None
        for _ in range(2):
            outbox = Outbox({0: (hooked._core.broker, deliveries)})
            await outbox.sweep(0)
            store.zadd("bull:q:ox:callbacks", {job.id: 1})
        assert (await cast(Queue, deliveries.queue).counts())["waiting"] == 1
        async with Worker(hooked).running():
            body = await body_of(receiver)
        assert (body["job_id"], body["state"], body["error"]["message"]) == (job.id, "cancelled", "no")
        assert store.zscore("bull:q:ox:callbacks", other.id) is not None

    async def test_of_a_flow(self, hooked: Queue, receiver: Receiver, store: redis.Redis) -> None:
        leaf = Flow(hooked, "a", job_id="leaf", callback_url=receiver.url)
        tree = await Flow(hooked, "a", children=[leaf], callback_url=receiver.url).add()
        assert set(store.zrange("bull:q:ox:callbacks", 0, -1)) == {"leaf", tree.id}

    async def test_a_url_that_is_given_later(
        self, hooked: Queue, receiver: Receiver, store: redis.Redis
    ) -> None:
        job = await hooked.add("a")
        await hooked._core.broker.claim(Ask(1))
        await job.update(callback_url=receiver.url)
        assert store.zscore("bull:q:ox:callbacks", job.id) is not None
        with pytest.raises(ValidationError, match="at a public address"):
            await job.update(callback_url="http://10.0.0.1/")

    @pytest.mark.parametrize(
        ("hangs", "why"), [(False, "webhooks are not sent to 10.0.0.1"), (True, "no answer within 0.3 s")]
    )
    async def test_a_delivery_that_never_works_is_a_dead_letter(
        self, hooked: Queue, receiver: Receiver, monkeypatch: pytest.MonkeyPatch, hangs: bool, why: str
    ) -> None:
        """The host redirects to a private address, or it hangs."""
        monkeypatch.setattr(engine, "LIMIT", 0.3 if hangs else 60.0)

        @hooked.job
        async def work() -> None: ...

        receiver.hangs = hangs
        receiver.answers = [b"HTTP/1.1 307 Moved\r\nLocation: http://10.0.0.1/\r\n"]
        deliveries = hooked._core.webhook_queue
        assert deliveries is not None

        async def dead() -> Sequence[Any]:
            return await cast(Queue, deliveries.queue).dead_letters.list()

        async with Worker(hooked).running():
            await work.using(callback_url=receiver.url).enqueue()
            await eventually(dead, "it is a dead letter", 20)
        (letter,) = await dead()
        assert why in str(letter.failed_reason)

    async def test_an_entry_without_a_job_is_dropped(self, hooked: Queue, store: redis.Redis) -> None:
        store.zadd("bull:q:ox:callbacks", {"gone": 1, "coming": hooked._core.broker.clock()})
        deliveries = hooked._core.webhook_queue
        assert deliveries is not None
        await Outbox({0: (hooked._core.broker, deliveries)}).sweep(0)
        assert store.zrange("bull:q:ox:callbacks", 0, -1) == ["coming"]

    async def test_without_webhooks_a_warning_is_logged(
        self, queue: Queue, caplog: pytest.LogCaptureFixture
    ) -> None:
        @queue.job
        async def work() -> int:
            return 1

        async with Worker(queue).running():
            job = await work.using(callback_url="https://example.com/").enqueue()
            assert await job.result(10) == 1
            await eventually(lambda: "no webhooks=…" in caplog.text, "a warning")
