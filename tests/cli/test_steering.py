"""The commands on schedules, limits, deduplication, flows and logs: effects, output and exit codes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from xml.etree import ElementTree

import pytest

from oxcart.model.schedule import parse_instant
from oxcart.sync import Flow, Graph, Queue
from tests.cli.conftest import Commands
from tests.servers import ValkeyServer


@pytest.fixture
def queue(clean: ValkeyServer) -> Iterator[Queue]:
    with Queue("mail", url=clean.url) as queue:
        yield queue


class TestSchedulers:
    def test_add_show_list_and_remove(self, ox: Commands, queue: Queue) -> None:
        made = ox("schedules", "add", "mail", "digest", '{"to": "all"}', "--cron", "0 7 * * 1-5",
                  "--tz", "Europe/Berlin", "--name", "send", "--attempts", "2", "--json")  # fmt: skip
        assert made.code == 0
        found = queue.schedules.get("digest")
        assert found is not None
        assert made.json == ox("schedules", "show", "mail", "digest", "--json").json
        assert made.json == ox("schedules", "list", "mail", "--json").json[0]
        assert {name: made.json[name] for name in ("id", "name", "cron", "tz", "next_ms", "data")} == {
            "id": "digest",
            "name": "send",
            "cron": "0 7 * * 1-5",
            "tz": "Europe/Berlin",
            "next_ms": found.next_ms,
            "data": {"to": "all"},
        }
        assert found.options["attempts"] == 2
        assert "0 7 * * 1-5 Europe/Berlin" in ox("schedules", "show", "mail", "digest").out
        assert ox("schedules", "pause", "mail", "digest").out == "digest: paused\n"
        assert "paused" in ox("schedules", "list", "mail").out
        assert ox("schedules", "list", "mail", "--json").json[0]["next_ms"] is None
        assert ox("schedules", "add", "mail", "digest", "--cron", "0 8 * * 1-5").out.endswith(", paused\n")
        assert ox("schedules", "resume", "mail", "digest").out == "digest: resumed\n"
        assert not queue.schedules.list()[0].paused
        none = ox("schedules", "pause", "mail", "none")
        assert (none.code, "has no schedule none" in none.out + none.err) == (1, True)
        assert ox("schedules", "remove", "mail", "digest").out == "digest: removed\n"
        assert ox("schedules", "list", "mail").out == "mail: no schedules\n"
        assert queue.counts()["delayed"] == 0

    def test_an_interval_with_everything(self, ox: Commands, queue: Queue) -> None:
        made = ox("schedules", "add", "mail", "poll", "--every", "1h", "--limit", "3",
                  "--start", "2100-01-01T00:00Z", "--end", "2100-02-01T00:00Z")  # fmt: skip
        assert made.out == "poll: every 1h, next at 2100-01-01 00:00:00.000Z\n"
        found = queue.schedules.get("poll")
        assert found is not None
        assert (found.schedule.limit, found.schedule.end) == (3, parse_instant("2100-02-01T00:00Z", "end"))
        assert "every 1h" in ox("schedules", "list", "mail").out
        ox("schedules", "add", "mail", "late", "--every", "1h", "--offset", "5m")
        late = queue.schedules.get("late")
        assert late is not None
        assert late.next_ms % 3_600_000 == 300_000
        assert "every 1h, offset 5m" in ox("schedules", "show", "mail", "late").out

    def test_the_same_again_changes_nothing(self, ox: Commands, queue: Queue) -> None:
        words = ("schedules", "add", "mail", "daily", "--cron", "0 7 * * *", "--json")
        assert ox(*words).json == ox(*words).json
        assert queue.schedules.count() == 1

    @pytest.mark.parametrize(
        "words",
        [
            [],
            ["--every", "1h", "--cron", "* * * * *"],
            ["--cron", "61 * * * *"],
            ["--cron", "* * * * *", "--tz", "Mars/Olympus"],
            ["--every", "1h", "--limit", "0"],
            ["--every", "1h", "--start", "tomorrow"],
            ["not json", "--every", "1h"],
        ],
    )
    def test_bad_schedules_are_code_2(self, ox: Commands, queue: Queue, words: list[str]) -> None:
        ended = ox("schedules", "add", "mail", "x", *words)
        assert (ended.code, ended.err.count("\n")) == (2, 1)
        assert queue.schedules.count() == 0

    def test_missing_schedule_is_code_1(self, ox: Commands, queue: Queue) -> None:
        ended = ox("schedules", "show", "mail", "none")
        assert (ended.code, ended.err) == (1, "oxcart: queue mail has no schedule none\n")
        queue.schedules.upsert("some", every="1h")
        ended = ox("schedules", "remove", "mail", "none", "some", "--json")
        assert (ended.code, [one["ok"] for one in ended.json]) == (1, [False, True])


class TestLimits:
    def test_set_show_and_clear(self, ox: Commands, queue: Queue) -> None:
        free: dict[str, Any] = {
            "queue": "mail",
            "concurrency": None,
            "rate": None,
            "wait_ms": 0,
            "types": {},
            "keys": None,
        }
        assert ox("limits", "show", "mail", "--json").json == free
        limited = {**free, "concurrency": 20, "rate": {"most": 1, "per_ms": 500}}
        assert (
            ox("limits", "set", "mail", "--concurrency", "20", "--rate", "1/500ms", "--json").json == limited
        )
        assert queue.limits.concurrency() == 20
        assert ox("limits", "show", "mail").out.split() == ["concurrency", "20", "rate", "1", "in", "0.5s",
                                                            "held", "for", "-"]  # fmt: skip
        assert ox("limits", "clear", "mail", "--rate", "--json").json == {**limited, "rate": None}
        assert ox("limits", "clear", "mail", "--json").json == free

    def test_types_and_keys(self, ox: Commands, queue: Queue) -> None:
        digest = {"concurrent": 2, "per_minute": None, "running": 0, "held_back": 0, "started": 0}
        shown = ox("limits", "type", "mail", "digest", "--concurrent", "2", "--json").json
        assert shown["types"] == {"digest": digest}
        shown = ox("limits", "key", "mail", "--per-minute", "60", "--json").json
        assert shown["keys"] == {**digest, "concurrent": None, "per_minute": 60}
        assert "2 at once; 0 hold a place, 0 held back" in ox("limits", "show", "mail").out
        assert ox("add", "mail", "digest", "{}", "--limit-key", "tenant-42").code == 0
        assert queue.jobs.list("waiting")[0].options.limit_key == "tenant-42"
        assert ox("limits", "type", "mail", "digest").code == 2
        assert ox("limits", "key", "mail", "--remove", "--concurrent", "1").code == 2
        assert ox("limits", "type", "mail", "digest", "--remove").code == 0
        assert ox("limits", "key", "mail", "--remove", "--json").json["keys"] is None

    def test_groups(self, ox: Commands, queue: Queue) -> None:
        unset = {"concurrent": None, "per_minute": None, "weight": None, "paused": False}
        none = {"waiting": 0, "running": 0, "started": 0}
        shown = ox("groups", "pause", "mail", "tenant-42", "--json").json
        assert shown == {"queue": "mail", "group": "tenant-42", **unset, **none, "paused": True}
        for _ in range(2):
            assert ox("add", "mail", "digest", "{}", "--group", "tenant-42").code == 0
        assert ox("groups", "show", "mail", "--json").json["groups"] == {"tenant-42": 2}
        assert "tenant-42" in ox("groups", "show", "mail").out
        assert ox("groups", "set", "mail", "--concurrent", "5", "--json").json["concurrent"] == 5
        shown = ox("groups", "set", "mail", "tenant-42", "--weight", "2", "--json").json
        assert (shown["weight"], shown["waiting"]) == (2, 2)
        assert "that of all groups" in ox("groups", "show", "mail", "tenant-42").out
        assert ox("groups", "set", "mail", "tenant-42").code == 2
        assert ox("groups", "set", "mail", "--weight", "2").code == 2
        assert ox("groups", "clear", "mail", "tenant-42", "--json").json["removed"] == 2
        assert ox("groups", "resume", "mail", "tenant-42", "--json").json["paused"] is False
        ox("add", "mail", "digest", "{}", "--group", "tenant-42")
        assert "cancelled 1 jobs" in ox("groups", "cancel", "mail", "tenant-42").out
        assert queue.groups.settings("tenant-42").weight == 2

    def test_hold(self, ox: Commands, queue: Queue) -> None:
        assert 590_000 < ox("limits", "hold", "mail", "10m", "--json").json["wait_ms"] <= 600_000
        assert queue.limits.wait_ms() > 0
        assert "10m" in ox("limits", "show", "mail").out
        assert ox("limits", "clear", "mail", "--hold", "--json").json["wait_ms"] == 0

    @pytest.mark.parametrize(
        "words",
        [
            ["set", "mail"],
            ["set", "mail", "--concurrency", "0"],
            ["set", "mail", "--concurrency", "3", "--rate", "fast"],
            ["set", "mail", "--rate", "0/1m"],
            ["set", "mail", "--rate", "5/0s"],
            ["hold", "mail", "soon"],
        ],
    )
    def test_bad_limits_are_code_2(self, ox: Commands, queue: Queue, words: list[str]) -> None:
        ended = ox("limits", *words)
        assert (ended.code, ended.err.count("\n")) == (2, 1)
        assert (queue.limits.concurrency(), queue.limits.rate(), queue.limits.wait_ms()) == (None, None, 0)


class TestDedup:
    def test_show_and_release(self, ox: Commands, queue: Queue) -> None:
        queue.add("n", job_id="owner", deduplication="user-42")
        assert ox("dedup", "show", "mail", "user-42").out.split() == ["job", "owner", "state", "scheduled"]
        found = ox("dedup", "show", "mail", "user-42", "--json").json
        assert found == {
            "queue": "mail",
            "key": "user-42",
            "job": "owner",
            "state": "scheduled",
            "wire_state": "waiting",
        }
        assert ox("dedup", "release", "mail", "user-42", "--json").json["released"] is True
        assert queue.add("n", deduplication="user-42").created
        assert ox("dedup", "release", "mail", "user-42").out == "user-42: released\n"

    def test_missing_window_is_code_1(self, ox: Commands) -> None:
        for word in ("show", "release"):
            ended = ox("dedup", word, "mail", "nobody")
            assert (ended.code, ended.err) == (1, "oxcart: queue mail keeps nothing out for nobody\n")


class TestFlow:
    def test_a_tree(self, ox: Commands, queue: Queue, clean: ValkeyServer) -> None:
        other = Queue("parts", url=clean.url)
        Flow(queue, "top", job_id="a").after(
            Flow(other, "part", job_id="b").after(Flow(queue, "leaf", job_id="d")),
            Flow(other, "part", job_id="c"),
        ).add()
        shown = ox("flow", "show", "mail", "a").out.splitlines()
        assert shown[0] == "top mail/a pending"
        assert sorted(line.lstrip("│├└─ ") for line in shown[1:]) == [
            "leaf mail/d scheduled",
            "part parts/b pending",
            "part parts/c scheduled",
        ]
        above = shown[next(at for at, line in enumerate(shown) if "leaf" in line) - 1]
        assert "parts/b" in above
        found = ox("flow", "show", "mail", "a", "--json").json
        assert {child["id"] for child in found["children"]} == {"b", "c"}
        assert ox("flow", "show", "mail", "a", "--depth", "1").out == "top mail/a pending\n└─ 2 more\n"
        other.close()

    def test_a_graph_as_text_and_as_a_picture(self, ox: Commands, queue: Queue) -> None:
        graph = Graph(queue)
        top = graph.job("top", job_id="t")
        above = graph.job("above <b>", job_id="s", after=[top])
        sides = [graph.job("side", job_id=name, after=[above]) for name in ("l", "r")]
        graph.fan_in("join", after=sides, job_id="j")
        graph.add()
        shown = ox("flow", "show", "mail", "j").out
        assert shown.startswith("join mail/j pending\n")
        assert shown.count("above <b> mail/s pending") == 2
        assert shown.count("(shown above)") == 1
        drawn = ElementTree.fromstring(ox("flow", "show", "mail", "j", "--svg").out)
        svg = "{http://www.w3.org/2000/svg}"
        assert len(drawn.findall(f"{svg}g")) == 5
        assert len(drawn.findall(f"{svg}path")) == 5
        assert "~gates" not in ox("queues").out
        assert (
            ox("flow", "show", "mail", "t").out == "top mail/t scheduled\nwaited for by bull:mail:s (after)\n"
        )
        assert ox("flow", "show", "mail", "t", "--json").json["dependents"] == {"bull:mail:s": "after"}
        assert (
            len(ElementTree.fromstring(ox("flow", "show", "mail", "t", "--svg").out).findall(f"{svg}g")) == 2
        )

    def test_missing_flow_is_code_1(self, ox: Commands) -> None:
        assert ox("flow", "show", "mail", "none").code == 1


def test_logs(ox: Commands, queue: Queue) -> None:
    queue.add("n", job_id="a").log("one", "two")
    assert ox("logs", "mail", "a").out == "one\ntwo\n"
    assert ox("logs", "mail", "a", "--json").json == {"queue": "mail", "id": "a", "logs": ["one", "two"]}
    ended = ox("logs", "mail", "none")
    assert (ended.code, ended.err) == (1, "oxcart: queue mail has no job none\n")


def test_a_server_that_cannot_be_reached_is_code_3() -> None:
    for command in (["schedules", "list", "q"], ["limits", "show", "q"], ["dedup", "show", "q", "k"]):
        ended = Commands("redis://127.0.0.1:1")(*command)
        assert (ended.code, ended.err.count("\n")) == (3, 1)
