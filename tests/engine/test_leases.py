"""The worker's leases and the process that renews them."""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import sys
import termios
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import redis

from oxcart import Queue
from oxcart.broker.port import Ask, Lease, Outcome, OutcomeKind
from oxcart.engine.leases import Leases
from oxcart.engine.renewer import Renewer, is_stopped
from oxcart.engine.running import RunningJob
from oxcart.model.errors import BrokerUnavailable
from tests.engine.making import make_job
from tests.signals import eventually

#: Longer than any machine pauses. Renewals show by the pace of ``EVERY``.
LOCK_MS = 60_000
EVERY = 0.05


class Held:
    """Leases of one queue and their reports."""

    def __init__(self, queue: Queue, lock_ms: int = LOCK_MS, every: float = EVERY, **facts: Any) -> None:
        self.queue = queue
        self.broker = queue._core.open_broker()
        self.lost: list[str] = []
        self.renewed: list[int] = []
        self.failed: list[tuple[list[str], str]] = []
        self.leases = Leases(
            lock_ms,
            every,
            [queue._core.station_facts() | facts],
            lost=lambda station, job_id: self.lost.append(job_id),
            renewed=lambda station, leases, seconds: self.renewed.append(leases),
            failed=lambda station, leases, error: self.failed.append((leases, error)),
        )

    async def claim(self, count: int = 1, lock_ms: int = LOCK_MS) -> list[RunningJob]:
        await self.queue.add_many([("n", None)] * count)
        claimed = await self.broker.claim(Ask(count, lock_ms))
        return [RunningJob(self.broker, claim, "w", None) for claim in claimed.jobs]

    def stand_in(self) -> None:
        """Lets the worker renew too."""
        self.renewed_ids: list[list[str]] = []
        self.refuses = False

        async def renew(station: int, leases: list[Lease]) -> list[str]:
            self.renewed_ids.append([lease.id for lease in leases])
            if self.refuses:
                raise BrokerUnavailable("not now")
            return await self.broker.renew(leases, LOCK_MS)

        self.leases._renew = renew

    async def renewals(self, count: int) -> None:
        """Waits for a number of further renewals."""
        target = len(self.renewed) + count
        await eventually(lambda: len(self.renewed) >= target, f"{count} renewals")

    async def close(self) -> None:
        await self.leases.close()
        await self.broker.close()


@pytest_asyncio.fixture
async def held(queue: Queue) -> AsyncIterator[Held]:
    made = Held(queue)
    made.leases.start()
    yield made
    await made.close()


def lock_of(store: redis.Redis, job: RunningJob) -> int:
    left = store.pttl(f"bull:q:{job.id}:lock")
    assert isinstance(left, int)
    return left


class TestRenewal:
    async def test_a_lease_outlives_its_duration(self, held: Held, store: redis.Redis) -> None:
        jobs = await held.claim(3, lock_ms=LOCK_MS // 2)
        held.leases.hold(0, jobs, [None] * 3)
        await held.renewals(3)
        assert all(lock_of(store, job) > LOCK_MS // 2 for job in jobs)
        assert set(held.renewed) == {3}
        assert held.lost == []

    async def test_dropped_leases_are_not_renewed(self, held: Held, store: redis.Redis) -> None:
        one, two = await held.claim(2)
        held.leases.hold(0, [one, two], [None] * 2)
        await held.renewals(1)
        held.leases.let_go(0, [one.id])
        held.leases.drop(0, [one.id])
        assert set(held.leases.held(0)) == {two.id}
        held.leases.hold(0, [], [])  # drops go with the next claim
        await eventually(lambda: held.renewed[-1] == 1, "only the other is renewed")
        assert held.lost == []

    async def test_a_drop_reaches_the_renewer_without_another_claim(self, held: Held) -> None:
        one, two = await held.claim(2)
        held.leases.hold(0, [one, two], [None] * 2)
        await held.renewals(1)
        held.leases.let_go(0, [one.id])
        held.leases.drop(0, [one.id])
        await eventually(lambda: held.renewed[-1] == 1, "a renewal is reported")

    async def test_lease_is_renewed_until_the_finish_is_committed(
        self, held: Held, store: redis.Redis
    ) -> None:
        (job,) = await held.claim()
        held.leases.hold(0, [job], [None])
        held.leases.let_go(0, [job.id])
        assert held.leases.held(0) == {}
        await held.renewals(1)
        store.set(f"bull:q:{job.id}:lock", "stolen")
        held.leases.drop(0, [job.id])
        (other,) = await held.claim()
        held.leases.hold(0, [other], [None])
        await held.renewals(2)
        assert held.lost == [], "the worker no longer holds the lease"

    async def test_a_job_claimed_again_is_renewed_even_if_its_end_arrives_late(
        self, held: Held, store: redis.Redis
    ) -> None:
        """The reply to its finish was lost, and another call claimed the job again before the repeat."""
        (job,) = await held.claim()
        held.leases.hold(0, [job], [None])
        held.leases.let_go(0, [job.id])
        held.leases.hold(0, [job], [None])
        held.leases.drop(0, [job.id])
        held.leases.hold(0, [], [])
        await held.renewals(3)
        assert held.renewed[-1] == 1

    async def test_a_lease_of_another_worker_is_reported_once(self, held: Held, store: redis.Redis) -> None:
        one, two = await held.claim(2)
        store.set(f"bull:q:{one.id}:lock", "stolen")
        held.leases.hold(0, [one, two], [None] * 2)
        await eventually(lambda: held.lost, "the loss is reported")
        await held.renewals(2)
        assert held.lost == [one.id]
        assert held.renewed[-1] == 1
        assert store.get(f"bull:q:{one.id}:lock") == "stolen"

    async def test_a_refusal_of_the_claim_before_does_not_concern_the_next_one(self, held: Held) -> None:
        """A job may end and be claimed again while its renewal is under way."""
        (before,) = await held.claim()
        await held.broker.finish([Outcome(OutcomeKind.GIVE_BACK, before.id, before.token, before.fencing, 0)])
        (claim,) = (await held.broker.claim(Ask(1, LOCK_MS))).jobs
        assert claim.id == before.id
        held.leases.hold(0, [before], [None])  # all that the renewer knows
        held.leases.held(0)[claim.id] = RunningJob(held.broker, claim, "w", None)
        await held.renewals(1)
        assert held.renewed == [0]
        assert held.lost == []

    async def test_nothing_is_renewed_past_the_deadline(self, held: Held) -> None:
        mortal, immortal = await held.claim(2)
        held.leases.hold(0, [mortal, immortal], [0.01, None])
        await held.renewals(1)
        await eventually(lambda: held.renewed[-1] == 1, "only the one without a deadline")
        assert held.lost == []

    async def test_an_unreachable_server_is_reported(self, queue: Queue) -> None:
        held = Held(queue, url="redis://127.0.0.1:1/0")
        held.leases.start()
        try:
            jobs = await held.claim(2)
            held.leases.hold(0, jobs, [None] * 2)
            await eventually(lambda: held.failed, "the failure is reported")
            ids, error = held.failed[0]
            assert ids == [job.id for job in jobs]
            assert "cannot reach" in error
            assert held.lost == []
        finally:
            await held.close()


def silence_renewers(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Path:
    """Makes renewers start without ever reporting. Returns the file with their pids."""
    started, silent = folder / "started", folder / "silent"
    silent.write_text(f"#!/bin/sh\necho $$ >> {started}\nexec 3>&1\nexec cat > /dev/null\n")
    silent.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(silent))
    return started


class TestProcess:
    async def test_a_dead_renewer_is_replaced_with_all_leases(
        self, held: Held, store: redis.Redis, caplog: pytest.LogCaptureFixture
    ) -> None:
        jobs = await held.claim(2)
        held.leases.hold(0, jobs, [None, None])
        await held.renewals(1)
        first = held.leases.pid
        assert first is not None
        os.kill(first, signal.SIGKILL)
        await eventually(lambda: held.leases.pid not in (None, first), "another one")
        await held.renewals(2)
        assert held.renewed[-1] == 2
        assert "the renewer process ended" in caplog.text

    async def test_a_claim_before_the_renewer_is_up_reaches_it(self, queue: Queue) -> None:
        held = Held(queue)
        jobs = await held.claim(2)
        held.leases.hold(0, jobs, [None, None])
        held.leases.start()
        await held.renewals(1)
        assert set(held.renewed) == {2}
        await held.close()

    async def test_the_first_claim_spawns_it_and_no_start_does(self, held: Held) -> None:
        assert held.leases.pid is None
        jobs = await held.claim()
        held.leases.hold(0, jobs, [None])
        assert held.leases.pid is not None, "before hold returns, so before a handler runs"

    async def test_renewer_renews_its_first_leases_while_the_loop_is_blocked(
        self, queue: Queue, store: redis.Redis
    ) -> None:
        """The handler of the first claim may block the event loop before the process is up."""
        held = Held(queue, every=0.5)
        held.leases.start()
        try:
            jobs = await held.claim(2, lock_ms=LOCK_MS // 2)
            held.leases.hold(0, jobs, [None] * 2)
            until = time.monotonic() + 60
            while min(lock_of(store, job) for job in jobs) <= LOCK_MS // 2:
                assert time.monotonic() < until, "not renewed"
                time.sleep(0.01)  # the loop does not run
        finally:
            await held.close()

    async def test_renewer_renews_soon_after_an_outage(self, queue: Queue) -> None:
        """A failed renewal is repeated before the next one is due."""
        held = Held(queue, every=20.0, url="redis://127.0.0.1:1")
        held.leases._spawned_at = 1.0  # as after another renewer, so that this one renews at once
        held.leases.start()
        try:
            held.leases.hold(0, await held.claim(), [None])
            await eventually(lambda: held.failed, "the server is away")
            held.leases.find_at(0, held.queue._core.station_facts()["url"])
            started = time.monotonic()
            await held.renewals(1)
            assert time.monotonic() - started < 15
            assert len(held.failed) == 1, "repeats are not reported"
        finally:
            await held.close()

    async def test_renewer_renews_while_the_worker_reads_no_reports(
        self, queue: Queue, store: redis.Redis
    ) -> None:
        """A handler may block the event loop for hours, while the pipe of reports fills."""
        held = Held(queue, every=0.001)
        held.leases.start()
        try:
            (job,) = await held.claim()
            held.leases.hold(0, [job], [None])
            await held.renewals(1)
            process = held.leases._process
            assert process is not None
            assert process.stdout is not None
            pipe = process.stdout.fileno()
            asyncio.get_running_loop().remove_reader(pipe)
            fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, 4096)

            def unread() -> int:
                return int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)), sys.byteorder)

            await eventually(lambda: unread() > 3900, "the pipe is full")
            for _ in range(3):
                store.pexpire(f"bull:q:{job.id}:lock", LOCK_MS // 2)
                await eventually(lambda: lock_of(store, job) > LOCK_MS // 2, "renewed")
        finally:
            await held.close()

    async def test_close_ends_it(self, held: Held) -> None:
        held.leases.hold(0, await held.claim(), [None])
        pid = held.leases.pid
        assert pid is not None
        await held.leases.close()
        assert held.leases.pid is None
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)

    async def test_close_at_once(self, queue: Queue) -> None:
        held = Held(queue)
        held.leases.start()
        held.leases.hold(0, await held.claim(), [None])
        async with asyncio.timeout(60):
            await held.close()

    async def test_close_while_another_is_about_to_start(
        self, queue: Queue, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        """The previous renewer has died. A renewer that starts meanwhile does not outlive the close."""
        started = silence_renewers(monkeypatch, tmp_path)
        held = Held(queue)
        held.leases.start()
        held.leases.hold(0, await held.claim(), [None])
        await eventually(lambda: started.exists() and held.leases.pid, "one is there")
        first = held.leases.pid
        assert first is not None
        os.kill(first, signal.SIGKILL)
        await eventually(lambda: held.leases.pid is None, "it died")
        await held.close()
        for pid in started.read_text().split():
            with pytest.raises(ProcessLookupError):
                os.kill(int(pid), 0)

    async def test_signals_to_the_group_are_the_workers_to_handle(self, held: Held) -> None:
        held.leases.hold(0, await held.claim(), [None])
        await held.renewals(1)
        pid = held.leases.pid
        assert pid is not None
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            os.kill(pid, number)
        held.leases.hold(0, await held.claim(), [None])
        await held.renewals(1)
        assert held.leases.pid == pid

    async def test_many_claims_at_once(self, held: Held) -> None:
        """More messages than a pipe holds: the rest follows once the pipe has room."""
        jobs = await held.claim(3000, lock_ms=60_000)
        for _ in range(20):
            held.leases.hold(0, jobs, [None] * len(jobs))
        await eventually(lambda: len(jobs) in held.renewed, "all of them")
        assert held.lost == []


class TestStandIn:
    """While its renewer has not renewed anything, the worker does."""

    @pytest_asyncio.fixture
    async def alone(
        self, queue: Queue, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> AsyncIterator[Held]:
        """Leases whose renewer starts but never reports."""
        silence_renewers(monkeypatch, tmp_path)
        held = Held(queue)
        held.stand_in()
        held.leases.start()
        yield held
        await held.close()

    async def test_a_lease_outlives_its_duration(self, alone: Held, store: redis.Redis) -> None:
        jobs = await alone.claim(3, lock_ms=LOCK_MS // 2)
        alone.leases.hold(0, jobs, [None] * 3)
        await eventually(lambda: all(lock_of(store, job) > LOCK_MS // 2 for job in jobs), "renewed")
        assert not alone.leases.ready.is_set()
        assert alone.lost == []

    async def test_nothing_is_renewed_past_the_deadline(self, alone: Held) -> None:
        mortal, immortal = await alone.claim(2)
        alone.leases.hold(0, [mortal, immortal], [0.01, None])
        await eventually(lambda: alone.renewed_ids[-1:] == [[immortal.id]], "only the one without a deadline")
        assert alone.lost == []

    async def test_a_lease_of_another_worker_is_reported(self, alone: Held, store: redis.Redis) -> None:
        one, two = await alone.claim(2)
        store.set(f"bull:q:{one.id}:lock", "stolen")
        alone.leases.hold(0, [one, two], [None] * 2)
        await eventually(lambda: alone.lost, "the loss is reported")
        assert set(alone.lost) == {one.id}
        assert store.get(f"bull:q:{one.id}:lock") == "stolen"

    async def test_a_server_that_does_not_answer_is_asked_again(self, alone: Held) -> None:
        alone.leases.hold(0, await alone.claim(), [None])
        alone.refuses = True
        before = len(alone.renewed_ids)
        await eventually(lambda: len(alone.renewed_ids) > before + 2, "it goes on")
        assert alone.lost == []

    @pytest.mark.slow
    async def test_stand_in_starts_when_the_renewer_cannot_renew(
        self, queue: Queue, store: redis.Redis
    ) -> None:
        """The server keeps the worker's connection but refuses new ones of the renewer."""
        held = Held(queue, every=0.3)
        held.stand_in()
        held.leases.start()
        try:
            (job,) = await held.claim()
            held.leases.hold(0, [job], [None])
            await held.renewals(2)
            url = held.queue._core.station_facts()["url"]
            held.leases.find_at(0, "redis://127.0.0.1:1/0")
            await eventually(lambda: held.failed, "the renewer has lost the server")
            store.pexpire(f"bull:q:{job.id}:lock", LOCK_MS // 2)
            await eventually(lambda: lock_of(store, job) > LOCK_MS // 2, "the worker renews")
            held.leases.find_at(0, url)
            await held.renewals(2)
            before = len(held.renewed_ids)
            await held.renewals(3)
            assert len(held.renewed_ids) == before, "one is enough"
        finally:
            await held.close()

    async def test_stand_in_stops_for_a_working_renewer_and_starts_for_a_dead_one(self, queue: Queue) -> None:
        held = Held(queue)
        held.stand_in()
        held.leases.start()
        try:
            held.leases.hold(0, await held.claim(), [None])
            await held.renewals(2)
            before = len(held.renewed_ids)
            await held.renewals(5)
            assert len(held.renewed_ids) == before, "one is enough"
            assert held.leases.pid is not None
            os.kill(held.leases.pid, signal.SIGKILL)
            await eventually(
                lambda: len(held.renewed_ids) > before, "the worker renews until another renewer runs"
            )
        finally:
            await held.close()


class TestRenewerAlone:
    def test_does_nothing_for_a_worker_that_is_stopped(self, monkeypatch: pytest.MonkeyPatch) -> None:
        reports: list[dict[str, Any]] = []
        renewer = Renewer(1, LOCK_MS, reports.append)
        renewer.take(
            {"open": 0, "url": "redis://127.0.0.1:1/0", "folder": "", "queue": "q", "prefix": "bull"}
        )
        renewer.take({"hold": 0, "leases": [["a", "t", 1, None]], "drop": []})
        monkeypatch.setattr("oxcart.engine.renewer.is_stopped", lambda pid: True)
        renewer.beat()
        assert reports == []
        monkeypatch.setattr("oxcart.engine.renewer.is_stopped", lambda pid: False)
        renewer.beat()
        assert reports[0]["failed"] == ["a"]
        assert renewer._loop is not None
        renewer._loop.close()

    def test_repeats_soon_what_it_left_out_for_a_worker_that_was_stopped(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The lease may expire before the next renewal is due."""
        reports: list[dict[str, Any]] = []
        renewer = Renewer(1, LOCK_MS, reports.append)
        renewer.take(
            {"open": 0, "url": "redis://127.0.0.1:1/0", "folder": "", "queue": "q", "prefix": "bull"}
        )
        renewer.take({"hold": 0, "leases": [["a", "t", 1, None]], "drop": []})
        monkeypatch.setattr("oxcart.engine.renewer.is_stopped", lambda pid: True)
        assert not renewer.beat(), "to be repeated"
        assert not renewer.beat(again=True)
        monkeypatch.setattr("oxcart.engine.renewer.is_stopped", lambda pid: False)
        assert not renewer.beat(again=True), "no server listens at that port"
        assert renewer._loop is not None, "it tried"
        renewer._loop.close()

    def test_does_not_connect_while_nothing_is_held(self) -> None:
        reports: list[dict[str, Any]] = []
        renewer = Renewer(1, LOCK_MS, reports.append)
        renewer.take(
            {"open": 0, "url": "redis://127.0.0.1:1/0", "folder": "", "queue": "q", "prefix": "bull"}
        )
        renewer.beat()
        assert reports == []

    def test_running_and_missing_processes_are_not_stopped(self) -> None:
        assert not is_stopped(os.getpid())
        assert not is_stopped(2**22 + 1)


async def test_the_renewer_receives_the_new_address_of_the_server(
    queue: Queue, store: redis.Redis, url: str
) -> None:
    """A worker sends the cluster nodes that it has learnt beyond its URL."""
    held = Held(queue, url="redis://127.0.0.1:1")
    held.leases.start()
    try:
        jobs = await held.claim()
        held.leases.hold(0, jobs, [None])
        await eventually(lambda: held.failed, "no server listens there")
        held.leases.find_at(0, url)
        await held.renewals(2)
        assert not held.lost
    finally:
        await held.close()


class TestMessages:
    def make(self, lost: Any) -> Leases:
        station = {"url": "redis://127.0.0.1:1", "folder": "", "queue": "q", "prefix": "bull"}
        return Leases(1000, 0.5, [station], lost=lost, renewed=lambda *_: None, failed=lambda *_: None)

    async def test_an_invalid_message_restarts_the_renewer(self, monkeypatch: pytest.MonkeyPatch) -> None:
        heard: list[Any] = []

        def hear(self: Leases, message: dict[str, Any]) -> None:
            heard.append(message)
            raise ValueError("a line too long, or one that is no message")

        monkeypatch.setattr(Leases, "_hear", hear)
        leases = self.make(lambda *_: None)
        leases.hold(0, [make_job()], [None])
        leases.start()
        try:
            await eventually(lambda: len(heard) >= 2, "another renewer")
        finally:
            await leases.close()

    async def test_many_leases_lost_at_once_are_reported(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
    ) -> None:
        jobs = [make_job(job_id=f"{number:036}") for number in range(5000)]
        token, starts = jobs[0].token, jobs[0].fencing
        fake = tmp_path / "renewer"
        fake.write_text(
            "#!/bin/sh\n"
            'exec python3 -c "import marshal, os, sys; '
            f"leases = [('%036d' % n, '{token}', {starts}) for n in range(5000)]; "
            "body = marshal.dumps({'refused': 0, 'leases': leases}); "
            "os.write(1, len(body).to_bytes(4, 'big') + body); "
            'sys.stdin.buffer.read()"\n'
        )
        fake.chmod(0o755)
        monkeypatch.setattr("sys.executable", str(fake))
        lost: list[str] = []
        leases = self.make(lambda station, job_id: lost.append(job_id))
        leases.hold(0, jobs, [None] * len(jobs))
        leases.start()
        try:
            await eventually(lambda: lost, "the refusals")
        finally:
            await leases.close()
        assert lost == [job.id for job in jobs]
