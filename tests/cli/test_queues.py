"""``oxcart queues`` with very many queues: pages, patterns and bounds."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from oxcart.broker.bullmq.overview import COMMANDS, PAGE
from tests.cli.conftest import Commands
from tests.servers import ValkeyServer

QUEUES = 3000


@pytest.fixture
def client(clean: ValkeyServer) -> Iterator[Any]:
    with contextlib.closing(clean.client()) as client:
        yield client


@pytest.fixture
def many(client: Any) -> Any:
    """Queues that each have a waiting job, one of them paused and one with a lane."""
    pipe = client.pipeline(transaction=False)
    for number in range(QUEUES):
        pipe.hset(f"bull:mail-{number:05d}:meta", "opts.maxLenEvents", "10000")
        pipe.rpush(f"bull:mail-{number:05d}:wait", "1")
    pipe.hset("bull:mail-00007:meta", "paused", "1")
    pipe.zadd("bull:mail-00008:ox:lanes", {"all;c=gpu": 1})
    pipe.rpush("bull:mail-00008@all;c=gpu:wait", "1", "2")
    pipe.execute()
    return client


def calls(client: Any) -> int:
    stats = client.info("commandstats")
    return sum(one["calls"] for name, one in stats.items() if name not in ("cmdstat_config|resetstat",))


class TestManyQueues:
    def test_all_of_them_are_listed_once(self, ox: Commands, many: Any) -> None:
        ended = ox("queues", "--json")
        rows = ended.json
        assert ended.out == json.dumps(rows, indent=2) + "\n"
        assert sorted(row["queue"] for row in rows) == [f"mail-{n:05d}" for n in range(QUEUES)]
        by_name = {row["queue"]: row for row in rows}
        assert by_name["mail-00007"]["paused"] is True
        assert by_name["mail-00008"]["counts"]["waiting"] == 3
        assert {row["counts"]["waiting"] for row in rows} == {1, 3}

    def test_each_costs_a_known_number_of_commands(self, ox: Commands, many: Any) -> None:
        many.config_resetstat()
        before = many.info("stats")["total_reads_processed"]
        ox("queues", "--json-lines")
        reads = many.info("stats")["total_reads_processed"] - before
        # Beside the counts: the scan, the lane, and the handshake of the connection.
        assert calls(many) <= QUEUES * COMMANDS + 100
        # Many queues share a round trip: one read of the server is one round trip or a part of it.
        assert reads < QUEUES / 2

    def test_lines_are_sorted_pages(self, ox: Commands, many: Any) -> None:
        lines = ox("queues", "--json-lines").out.splitlines()
        names = [json.loads(line)["queue"] for line in lines]
        assert len(names) == QUEUES
        assert names[:PAGE] == sorted(names[:PAGE])

    def test_a_limit_ends_the_scan(self, ox: Commands, many: Any) -> None:
        many.config_resetstat()
        assert len(ox("queues", "--limit", "5", "--json").json) == 5
        assert calls(many) < 3 * PAGE * COMMANDS

    def test_a_pattern(self, ox: Commands, many: Any) -> None:
        found = ox("queues", "--match", "mail-0000?", "--json").json
        assert [row["queue"] for row in found] == [f"mail-0000{n}" for n in range(10)]
        assert ox("queues", "--match", "none-*", "--json").json == []
        assert ox("queues", "--match", "none-*").out == "no queues yet\n"
        assert ox("queues", "mail-00001", "--match", "mail-*").code == 2

    def test_matching_queues_are_shown_as_a_table(self, ox: Commands, many: Any) -> None:
        shown = ox("queues", "--match", "mail-0000*").out
        assert "mail-00007" in shown
        assert shown.count("scheduled") == 1

    def test_memory_does_not_grow_with_them(self, many: Any, clean: ValkeyServer) -> None:
        few, all_ = (_peak(clean, *more) for more in (("--limit", "10"), ()))
        assert all_ - few < 16 * 1024, f"{all_} KiB against {few} KiB"


_PROGRAM = """
import resource, sys
from oxcart.cli.app import run
code = run(sys.argv[1:])
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr)
sys.exit(code)
"""


def _peak(server: ValkeyServer, *arguments: str) -> int:
    """Returns the peak memory of the command in KiB."""
    ended = subprocess.run(
        [sys.executable, "-c", _PROGRAM, "--url", server.url, "queues", *arguments],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        check=True,
        timeout=120,
        cwd=Path(__file__).parents[2],
        env=os.environ | {"COLUMNS": "200"},
    )
    return int(ended.stderr.split()[-1])
