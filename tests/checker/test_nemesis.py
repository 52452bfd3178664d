"""Schedules of faults: a seed reproduces them, and a failing one is shrunk."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.checker import clock, disk, nemesis
from tests.checker.clock import Clock
from tests.checker.crews import TAILER, Crews
from tests.checker.nemesis import KINDS, Fault, fails_over, make_faults
from tests.checker.pair import Pair
from tests.checker.plan import make_plan
from tests.checker.record import Record
from tests.checker.shrinker import shrink
from tests.servers import ValkeyServer, wait_until

FAULTS = [Fault(float(n), "kill", f"oxcart-{n}") for n in range(12)]


def test_a_seed_reproduces_plan_and_faults() -> None:
    peers = ("node5", "node6")
    assert make_plan(7, 20, peers) == make_plan(7, 20, peers)
    assert make_faults(7, 60, peers) == make_faults(7, 60, peers)
    assert make_plan(7, 20, peers) != make_plan(8, 20, peers)
    assert make_faults(7, 60, peers) != make_faults(8, 60, peers)


def test_faults_survive_the_command_line() -> None:
    made = make_faults(7, 60, ())
    assert nemesis.read(nemesis.dump(made)) == made


def test_every_kind_comes_and_peers_are_spared_a_full_server() -> None:
    assert {fault.kind for fault in make_faults(1, 60, ())} == set(KINDS)
    assert {fault.kind for fault in make_faults(1, 60, ("node5",))} == set(KINDS) - {
        "fill",
        "step",
        "failover",
    }


def test_servers_without_a_replica_do_not_fail_over() -> None:
    assert "failover" not in {fault.kind for fault in make_faults(1, 60, (), has_replica=False)}


def test_disks_are_filled_only_where_there_is_one() -> None:
    assert "disk" not in {fault.kind for fault in make_faults(1, 60, (), has_disk=False)}


@pytest.mark.skipif(bool(disk.missing()), reason=disk.missing() or "a disk can be mounted")
def test_a_server_without_space_ends_and_starts_again_with_what_it_acknowledged() -> None:
    server = ValkeyServer(start=False, appendonly=True, appendfsync="always")
    with disk.mounted(server.folder) as space, server:
        assert space is not None
        with server.client() as client:
            client.set("kept", 1)
            space.fill()
            with contextlib.suppress(redis.ConnectionError):
                for number in range(1000):
                    client.set(f"lost{number}", "x" * 1000)
            wait_until(lambda: not server.running, "the server has ended")
        space.free()
        server.start()
        with server.client() as client:
            assert client.get("kept") == "1"


@pytest.mark.skipif(bool(disk.missing()), reason=disk.missing() or "a disk can be mounted")
async def test_a_full_disk_after_a_failover_ends_the_new_master(tmp_path: Path) -> None:
    options: dict[str, Any] = {"appendonly": True, "appendfsync": "always"}
    pair = Pair(ValkeyServer(start=False, **options), options)
    record = Record(tmp_path / "record")
    with contextlib.ExitStack() as stack:
        stack.callback(record.close)
        disks = {one.folder: stack.enter_context(disk.mounted(one.folder)) for one in pair.servers}
        stack.enter_context(pair)
        crews = Crews(make_plan(1, 1.0, ()), tmp_path, record.path, "", "")
        made: dict[Path, Any] = dict(disks)
        causes = nemesis.Nemesis(pair, {}, crews, record, Clock(tmp_path), made)
        await causes.run([Fault(0.0, "failover", "server", 0.0)])
        master, before = pair.master, [one.pid for one in pair.servers]
        over = threading.Event()

        def write() -> None:
            while not over.is_set():
                with contextlib.suppress(redis.RedisError), master.client() as client:
                    client.set("key", "x" * 1000)

        writing = asyncio.create_task(asyncio.to_thread(write))
        try:
            await causes.run([Fault(0.0, "disk", "server", 1.0)])
        finally:
            over.set()
            await writing
        after = [one.pid for one in pair.servers]
        assert after[0] != before[0], "the present master ended and started again"
        assert after[1] == before[1], "the replica had space"


def test_every_second_round_may_fail_over() -> None:
    assert [fails_over(seed) for seed in (306, 307, 308)] == [True, False, True]


def test_clocks_are_stepped_only_where_they_can_be() -> None:
    assert "step" not in {fault.kind for fault in make_faults(1, 60, (), can_step=False)}


def test_the_tailer_is_harmed_where_it_takes_part() -> None:
    with_it = make_faults(1, 300, (), has_tailer=True)
    assert TAILER in {fault.target for fault in with_it}
    assert TAILER not in {fault.target for fault in make_faults(1, 300, ())}


@pytest.mark.skipif(bool(clock.missing()), reason=clock.missing() or "libfaketime is installed")
def test_a_step_sets_the_clock_of_the_server(tmp_path: Path) -> None:
    made = Clock(tmp_path)
    with ValkeyServer(binary=made.program) as server, server.client() as client:
        made.set(-3600)
        wait_until(lambda: client.time()[0] < time.time() - 1800, "the clock is an hour behind")


@pytest.mark.parametrize("needed", [[], [0], [11], [3, 8], [2, 5, 6]])
async def test_shrinking_leaves_the_faults_that_are_needed(needed: list[int]) -> None:
    runs = 0

    async def fails(faults: list[Fault]) -> bool:
        nonlocal runs
        runs += 1
        return {FAULTS[number] for number in needed} <= set(faults)

    assert await shrink(FAULTS, fails) == [FAULTS[number] for number in needed]
    assert runs <= 40


async def test_shrinking_ends_when_its_runs_are_used_up() -> None:
    runs = 0

    async def fails(faults: list[Fault]) -> bool:
        nonlocal runs
        runs += 1
        return False

    assert await shrink(FAULTS, fails, most=5) == FAULTS
    assert runs == 5
