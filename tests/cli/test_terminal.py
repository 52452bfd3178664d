"""Every command escapes names, ids, reasons and logs before it prints them to a terminal."""

from __future__ import annotations

import io
import json
import logging
import re
from collections.abc import Iterator
from typing import Any

import pytest
import typer.main

from oxcart.cli.app import app
from oxcart.observe import logs, terminal
from tests.cli.conftest import Commands, Ended

#: ESC and OSC sequences, C1, overrides of the writing direction, a forged line, Rich's markup, an emoji code.
HOSTILE = (
    "\x1b[31mred\x1b]0;title\x07 \x9b2J \u202efdp\u2066 \r\n2026-11-18 forged [bold red]x[/] :smile: \x7f"
)
#: The same for a queue, whose name has no colon.
QUEUE = HOSTILE.replace(":", "")
#: Characters that no output may contain, except our own newlines.
STEERS = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")

#: Commands without a recipe, and why: they show no text of other clients, or run without end.
APART = {
    ("demo",): "makes its own jobs",
    ("work",): "prints logs, which the formatter cleans",
    ("history",): "reads the lake, not the server; test_history.py has hostile text",
    ("keys", "generate"): "prints a key of its own",
    ("pipeline",): "prints through the same module; its tables are tested with Spark",
    ("top",): "test_top.py has hostile text",
    ("up",): "prints the lines of its programs through the same module",
    ("serve",): "prints its own address, and logs, which the formatter cleans",
    ("server",): "prints its own address",
}

#: The arguments of every other command; Q is the queue, J the job, S the schedule.
RECIPES: dict[tuple[str, ...], tuple[tuple[str, ...], ...]] = {
    ("workers",): ((), ("Q",)),
    ("access", "create"): (("\x1b[31m", "--grant", "admin"), ("ada", "--grant", "admin@\x1b[31m")),
    ("access", "list"): ((), ("--json",)),
    ("access", "rotate"): (("hostile",), ("hostile", "--json")),
    ("access", "revoke"): (("hostile",), ("missing-\x1b[31m",)),
    ("access", "forget"): (("missing-\x1b[31m",),),
    ("access", "sign-out-all"): ((),),
    ("access", "audit"): ((), ("--json",)),
    ("queues",): ((), ("Q",), ("--json",)),
    ("namespace",): ((),),
    ("pause",): (("Q",),),
    ("resume",): (("Q",), ("missing-\x1b[31m",)),
    ("add",): (("Q", "\x1b[31m", "{}"), ("Q", "n", "{}", "--job-id", "\x1b[31m")),
    ("jobs",): (("Q",), ("Q", "--json")),
    ("failures",): (("Q",), ("Q", "--json")),
    ("job",): (("Q", "J", "--logs"), ("Q", "J", "--json", "--logs"), ("Q", "missing-\x1b[31m")),
    ("logs",): (("Q", "J"), ("Q", "J", "--json")),
    ("signal",): (("Q", "missing-\x1b[31m", "n"), ("Q", "J", "\x1b[31m")),
    ("retry",): (("Q", "J"), ("Q", "missing-\x1b[31m")),
    ("cancel",): (("Q", "waits"), ("Q", "--all", "--dry-run")),
    ("remove",): (("Q", "missing-\x1b[31m"),),
    ("promote",): (("Q", "J"),),
    ("clean",): (("Q", "--state", "failed", "--grace", "90d", "--yes"),),
    ("orphans",): (("Q",),),
    ("priorities",): (("Q",),),
    ("metrics",): (("Q",),),
    ("clear-logs",): (("Q", "missing-\x1b[31m"),),
    ("events",): (("Q", "--since", "0-0", "--count", "1"), ("Q", "--since", "0-0", "--count", "1", "--json")),
    ("publish",): (("Q", "\x1b[31m"),),
    ("trim-events",): (("Q", "--keep", "1000"),),
    ("doctor",): ((), ("--rescue", "--dry-run")),
    ("flow", "show"): (("Q", "J"), ("Q", "J", "--svg"), ("Q", "J", "--json")),
    ("dead", "list"): (("Q",), ("Q", "--json")),
    ("dead", "show"): (("Q", "J"), ("Q", "J", "--json")),
    ("dead", "replay"): (("Q", "missing-\x1b[31m"),),
    ("dead", "purge"): (("Q", "missing-\x1b[31m", "--yes"), ("Q", "--all", "--dry-run")),
    ("schedules", "list"): (("Q",), ("Q", "--json")),
    ("schedules", "show"): (("Q", "S"), ("Q", "S", "--json")),
    ("schedules", "add"): (("Q", "\x1b[31m", "--every", "1h"),),
    ("schedules", "pause"): (("Q", "missing-\x1b[31m"), ("Q", "S")),
    ("schedules", "resume"): (("Q", "missing-\x1b[31m"), ("Q", "S")),
    ("schedules", "remove"): (("Q", "missing-\x1b[31m"),),
    ("groups", "show"): (("Q",), ("Q", "\x1b[31m"), ("Q", "--json")),
    ("groups", "set"): (("Q", HOSTILE, "--weight", "2"), ("Q", "--concurrent", "5")),
    ("groups", "pause"): (("Q", HOSTILE),),
    ("groups", "resume"): (("Q", HOSTILE),),
    ("groups", "clear"): (("Q", HOSTILE),),
    ("groups", "cancel"): (("Q", HOSTILE),),
    ("partitions", "show"): (("Q",), ("missing-\x1b[31m",)),
    ("partitions", "resize"): (("Q", "2"), ("missing-\x1b[31m", "2")),
    ("partitions", "retire"): (("Q",), ("missing-\x1b[31m",)),
    ("limits", "show"): (("Q",),),
    ("limits", "set"): (("Q", "--concurrency", "5"),),
    ("limits", "type"): (("Q", "\x1b[31m", "--concurrent", "1"), ("Q", HOSTILE, "--concurrent", "1")),
    ("limits", "key"): (("Q", "--concurrent", "1"),),
    ("limits", "hold"): (("Q", "1ms"),),
    ("limits", "clear"): (("Q",),),
    ("dedup", "show"): (("Q", HOSTILE),),
    ("dedup", "release"): (("Q", "\x1b[31m"),),
    ("keys", "rotate"): (("Q",),),
    ("clear",): (("Q", "--yes"),),
    ("obliterate",): (("Q", "--yes", "--force"),),
}


#: Commands that are refused as they are called above, with a line that names the queue or the job.
REFUSED = {
    ("doctor",),
    ("keys", "rotate"),
    ("metrics",),
    ("partitions", "resize"),
    ("partitions", "retire"),
    ("partitions", "show"),
    ("promote",),
}


def all_commands() -> set[tuple[str, ...]]:
    def walk(command: Any, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        below = getattr(command, "commands", None)
        if not below:
            yield path
        for name, one in (below or {}).items():
            yield from walk(one, (*path, name))

    return set(walk(typer.main.get_command(app), ()))


def is_apart(command: tuple[str, ...]) -> bool:
    return command in APART or command[:1] in APART


def test_every_command_has_a_recipe() -> None:
    assert {one for one in all_commands() if not is_apart(one)} == set(RECIPES)


@pytest.fixture
def hostile(store: Any) -> str:
    """Adds a queue, a job and a schedule with hostile text in every field. Returns the queue's name."""
    base = f"bull:{QUEUE}"
    job = {
        "name": HOSTILE,
        "data": '{"a":"\\u001b[31m \\u202e \\u009b"}',
        "opts": '{"attempts":1}',
        "timestamp": "1700000000000",
        "processedOn": "1700000000001",
        "finishedOn": "1700000000002",
        "atm": "1",
        "ats": "1",
        "pb": HOSTILE,
        "failedReason": HOSTILE,
        "stacktrace": '["at x\\n\\u001b[31m\\u009b"]',
        "ox:category": "temporary",
        "ox:code": HOSTILE,
        "ox:corr": HOSTILE,
        "ox:tags": '{"\\u001b[31m":"\\u202e"}',
        "ox:history": f"1700000000000\tscheduled\trunning\t{HOSTILE.split(chr(13))[0]}\twhy\n",
        "progress": '"\\u001b[31m"',
        "parentKey": f"{base}:parent",
    }
    store.hset(f"{base}:meta", "opts.maxLenEvents", "1000")
    store.hset(f"{base}:{HOSTILE}", mapping=job)
    store.zadd(f"{base}:failed", {HOSTILE: 1_700_000_000_002})
    store.hset(f"{base}:waits", mapping={**job, "name": HOSTILE})
    store.lpush(f"{base}:wait", "waits")
    store.rpush(f"{base}:{HOSTILE}:logs", HOSTILE)
    store.xadd(
        f"{base}:events", {"event": "failed", "jobId": HOSTILE, "failedReason": HOSTILE, HOSTILE: HOSTILE}
    )
    store.zadd(f"{base}:repeat", {HOSTILE: 1_900_000_000_000})
    rule = {"name": HOSTILE, "every": "1000", "ic": "1", "data": '"\\u001b[31m"'}
    store.hset(f"{base}:repeat:{HOSTILE}", mapping=rule)
    store.set(f"{base}:de:{HOSTILE}", HOSTILE)
    key = {"id": "hostile", "name": HOSTILE, "hash": "00" * 32, "grants": [f"admin@{HOSTILE}"]}
    store.hset("bull::ox:access", "hostile", json.dumps({**key, "created_ms": 1}))
    done = {"caller": HOSTILE, "kind": HOSTILE, "action": HOSTILE, "queue": HOSTILE, "job_id": HOSTILE}
    store.xadd("bull::ox:audit", {"entry": json.dumps({**done, "facts": {HOSTILE: HOSTILE}})})
    return QUEUE


@pytest.mark.parametrize("command", sorted(RECIPES), ids=" ".join)
def test_no_command_lets_what_others_wrote_steer_the_terminal(
    url: str, hostile: str, command: tuple[str, ...]
) -> None:
    commands = Commands(url)
    for arguments in RECIPES[command]:
        named = {"Q": hostile, "J": HOSTILE, "S": HOSTILE}
        seen = commands(*command, *(named.get(one, one) for one in arguments))
        _check(seen)
        if not any("\x1b" in one for one in arguments):  # arguments of the operator may be refused
            assert seen.code == 0 or command in REFUSED, seen.err


def test_names_are_shown_to_the_letter(url: str, hostile: str) -> None:
    commands = Commands(url)
    for seen in (commands("jobs", hostile), commands("queues"), commands("job", hostile, HOSTILE)):
        assert seen.code == 0, seen.err
        whole = re.sub(r"\s+", "", seen.out)
        assert "\\x1b[31mred" in whole
        assert "forged[boldred]x[/]" in whole, "markup is text"
    assert ":smile:" in commands("job", hostile, HOSTILE).out, "an emoji code is text"


def _check(seen: Ended) -> None:
    for printed in (seen.out, seen.err):
        found = STEERS.search(printed)
        assert found is None, repr(printed[max(0, found.start() - 80) : found.end() + 20])
        assert not re.search(r"^2026-11-18 forged", printed, re.MULTILINE)


class TestLogs:
    @pytest.fixture
    def stream(self) -> Iterator[io.StringIO]:
        root = logging.getLogger()
        before, level = root.handlers[:], root.level
        yield io.StringIO()
        root.handlers[:] = before
        root.setLevel(level)

    @pytest.mark.parametrize("form", ["text", "json"])
    def test_no_id_forges_a_line(self, stream: io.StringIO, form: Any) -> None:
        logs.configure(form, stream=stream)
        extra = {"job_id": HOSTILE, "queue": HOSTILE, "job_name": HOSTILE, "attempt": 1, "worker_id": HOSTILE}
        extra["correlation_id"] = HOSTILE
        logging.getLogger("app").info("job %s ended", HOSTILE, extra=extra)
        try:
            raise ValueError(HOSTILE)
        except ValueError:
            logging.getLogger("app").exception("broken")
        printed = stream.getvalue()
        assert STEERS.search(printed) is None
        first = r"\{\"time\"" if form == "json" else r"\d{4}-\d\d-\d\dT"
        lines = [line for line in printed.split("\n") if line and not line.startswith("    ")]
        assert len(lines) == 2
        assert all(re.match(first, line) for line in lines)


def test_cleaning_leaves_plain_text_alone() -> None:
    plain = "Zoë 日本語 👩‍👩‍👧 [red] \\x1b"
    assert terminal.clean(plain) == terminal.clean_lines(plain) == terminal.clean_json(plain) == plain
    assert terminal.clean("a\tb\nc\r") == "a\\tb\\nc\\r"
    assert terminal.clean_lines("a\tb\nc\x1b") == "a\tb\nc\\x1b"
    assert terminal.clean_json('{"a":"\x9b\u202e\ud83d"}') == '{"a":"\\u009b\\u202e\\ud83d"}'
