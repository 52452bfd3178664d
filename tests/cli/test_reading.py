"""What a person reads: tables at any width, colours, data as it is, shortened ids and completion."""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import re
import subprocess
import sys
from collections import Counter
from typing import Any

import pytest
from rich.console import Console

from oxcart import PermanentError, Queue, Worker
from oxcart.cli import output
from oxcart.cli.table import lay_out
from oxcart.model.errors import JobFailed
from tests.cli.conftest import Commands
from tests.servers import ValkeyServer

REASON = (
    "the payment provider answered 503 Service Unavailable after 30 seconds; order 45263 of customer "
    "4f59376b-e462-4ad1-a7ad-d86b849bdea6 was not charged"
)
HEADS = ["id", "name", "state", "attempts", "age", "reason or result"]
NUMBERS = [False, False, False, True, True, False]
ROWS = [
    ["4f59376b-e462-4ad1-a7ad-d86b849bdea6", "send-invoice-mail", "dead_letter", "3/3", "5m", REASON],
    ["short", "日本語のジョブ名", "scheduled", "0/3", "1.0s", "-"],
]


def drawn(width: int, rows: list[list[str]] = ROWS) -> list[str]:
    return [line.plain for line in lay_out(HEADS, NUMBERS, rows, Console(width=width))]


def letters(text: str) -> str:
    return re.sub(r"[\s─]", "", text)


class TestTables:
    @pytest.mark.parametrize("width", [20, 40, 60, 79, 80, 81, 100, 120, 200])
    def test_no_word_of_a_reason_is_lost(self, width: int) -> None:
        from rich.cells import cell_len

        lines = drawn(width)
        assert letters(REASON) in letters("".join(lines))
        printed = Counter(letters("".join(lines) + "reason or result-"))
        assert Counter(letters("".join(cell for row in [HEADS, *ROWS] for cell in row))) <= printed
        assert max(cell_len(line) for line in lines) <= width

    def test_words_are_kept_whole_where_they_fit(self) -> None:
        text = "\n".join(drawn(80))
        for word in REASON.split():
            assert word in text

    def test_ids_are_kept_in_one_piece(self) -> None:
        for width in (60, 80, 100):
            assert any(ROWS[0][0] in line for line in drawn(width))

    def test_numbers_end_in_one_column(self) -> None:
        first, second = (line for line in drawn(200) if line.startswith(("4f59", "short")))
        # A wide letter takes two cells.
        assert first.index("3/3") == second.index("0/3") + len("日本語のジョブ名")

    def test_a_table_without_rows_has_its_head(self) -> None:
        assert drawn(80, [])[0].split() == [
            "id",
            "name",
            "state",
            "attempts",
            "age",
            "reason",
            "or",
            "result",
        ]

    def test_the_command_at_80_columns(
        self, ox: Commands, clean: ValkeyServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def work() -> None:
            async with Queue("mail", url=clean.url) as queue:

                @queue.fallback
                async def handle(job: Any) -> None:
                    raise PermanentError(REASON)

                async with Worker(queue).running():
                    with contextlib.suppress(JobFailed):
                        await (await queue.add("send-invoice-mail")).result(60)

        asyncio.run(work())
        monkeypatch.setenv("COLUMNS", "80")
        for command in (["jobs", "mail"], ["dead", "list", "mail", "--permanent"], ["failures", "mail"]):
            shown = ox(*command).out
            for word in [
                "payment",
                "provider",
                "answered",
                "Service",
                "Unavailable",
                "seconds;",
                "was",
                "not",
                "charged",
            ]:
                assert word in shown, (command, word)


def test_states_have_colours_on_a_terminal() -> None:
    lines = lay_out(HEADS, NUMBERS, ROWS, Console(width=200))
    screen = Console(file=io.StringIO(), force_terminal=True, color_system="standard", width=200)
    for line in lines:
        screen.print(line)
    shown = screen.file.getvalue()  # type: ignore[attr-defined]
    assert "\x1b[1;31mdead_letter\x1b[0m" in shown
    assert "\x1b[36mscheduled\x1b[0m" in shown


def test_data_is_printed_as_it_is(ox: Commands) -> None:
    ox("add", "mail", "hello", "45263", "--job-id", "number")
    ox("add", "mail", "hello", '{"n": 45263, "ok": true, "x": 1e9}', "--job-id", "object")
    ox("add", "mail", "hello", "true", "--job-id", "bool")
    facts = {
        one: ox("job", "mail", one).out.splitlines()[-1].split(None, 1)[1].strip()
        for one in ("number", "object", "bool")
    }
    assert facts == {
        "number": "45263",
        "object": '{"n":45263,"ok":true,"x":1000000000.0}',
        "bool": "true",
    }


def test_counts_have_separators_and_other_numbers_none() -> None:
    assert output.count(45263) == "45,263"
    assert output.show(45263) == "45263"


def test_durations_have_the_unit_that_fits() -> None:
    assert [output.took(ms) for ms in (0, 999, 1000, 112_590, 7_200_000)] == [
        "0 ms",
        "999 ms",
        "1.0 s",
        "112.6 s",
        "2h",
    ]


def test_a_new_queue_is_noted(ox: Commands) -> None:
    added = ox("add", "mail", "hello", "--job-id", "one")
    assert (added.out, added.err) == ("one\n", "oxcart: note: there was no queue mail until now\n")
    assert ox("add", "mail", "hello").err == ""
    assert ox("--namespace", "wk", "add", "email", "hello").err == ""


class TestShortIds:
    def test_a_unique_beginning_suffices(self, ox: Commands) -> None:
        for job_id in ("abcd-1", "abcd-2", "wxyz-1"):
            ox("add", "mail", "hello", "1", "--job-id", job_id)
        assert ox("job", "mail", "wxyz", "--json").json["id"] == "wxyz-1"
        assert ox("logs", "mail", "wxyz", "--json").json["id"] == "wxyz-1"
        assert "wxyz-1" in ox("flow", "show", "mail", "wxyz").out
        assert ox("remove", "mail", "wxyz").out == "wxyz-1: removed\n"
        assert ox("cancel", "mail", "abcd-2").out == "abcd-2: cancelled\n"

    def test_an_ambiguous_one_lists_the_candidates(self, ox: Commands) -> None:
        for job_id in ("abcd-1", "abcd-2"):
            ox("add", "mail", "hello", "--job-id", job_id)
        for command in (["job", "mail"], ["remove", "mail"], ["cancel", "mail"], ["dead", "show", "mail"]):
            ended = ox(*command, "abcd")
            assert (ended.code, ended.out) == (1, "")
            assert ended.err == ("oxcart: id abcd is ambiguous: it may be abcd-1, abcd-2; write more of it\n")
        assert len(ox("jobs", "mail", "--json").json) == 2

    def test_a_missing_one_is_named(self, ox: Commands) -> None:
        ox("add", "mail", "hello", "--job-id", "abcd-1")
        assert ox("job", "mail", "nope-").err == "oxcart: queue mail has no job nope-\n"
        assert ox("job", "mail", "abc").err == "oxcart: queue mail has no job abc\n"


class TestCompletion:
    def complete(self, url: str, *words: str, **more: str) -> list[str]:
        environ = {
            **{name: value for name, value in os.environ.items() if not name.startswith("OXCART_")},
            "OXCART_URL": url,
            "_OXCART_COMPLETE": "complete_bash",
            "OXCART_COMPLETION_TIMEOUT": "60",  # a busy machine may need more than a second
            "COMP_WORDS": " ".join(("oxcart", *words)),
            "COMP_CWORD": str(len(words)),
            **more,
        }
        done = subprocess.run(
            [sys.executable, "-m", "oxcart.cli"], env=environ, capture_output=True, text=True, timeout=80
        )
        assert done.stderr == ""
        return done.stdout.split()

    def test_names_come_from_the_server(self, ox: Commands, clean: ValkeyServer) -> None:
        for queue, name in (("mail", "welcome"), ("mail", "digest"), ("maps", "render"), ("video", "cut")):
            ox("add", queue, name)
        ox("--namespace", "wk", "add", "email", "email")
        assert self.complete(clean.url, "jobs", "ma") == ["mail", "maps"]
        assert self.complete(clean.url, "--namespace", "wk", "jobs", "em") == ["email"]
        assert self.complete(clean.url, "jobs", "mail", "--name", "w") == ["welcome"]
        assert self.complete(clean.url, "jobs", "mail", "--state", "d") == ["delayed", "dead_letter"]
        assert self.complete("", "--url", clean.url, "pause", "vi") == ["video"]
        assert self.complete(clean.url, "add", "mail", "d") == ["digest"]
        assert self.complete(clean.url, "retry", "mail", "--name", "") == ["digest", "welcome"]

    def test_workers_and_categories_of_failures(self, ox: Commands, clean: ValkeyServer) -> None:
        async def work() -> None:
            async with Queue("mail", url=clean.url) as queue:
                queue.fallback(lambda: None)
                async with Worker(queue, name="night-1").running():
                    await (await queue.add("n")).result(60)

        asyncio.run(work())
        assert self.complete(clean.url, "jobs", "mail", "--worker", "n") == ["night-1"]
        assert self.complete(clean.url, "failures", "mail", "--category", "t") == ["temporary", "timeout"]

    def test_failures_are_silent(self, clean: ValkeyServer, tmp_path: Any) -> None:
        assert self.complete("redis://127.0.0.1:1", "jobs", "ma") == []
        assert self.complete("nonsense", "jobs", "ma") == []
        home = {"OXCART_HOME": str(tmp_path / "home")}
        assert self.complete("", "jobs", "ma", **home) == []
        assert not (tmp_path / "home").exists(), "no embedded server was started"


def test_findings_have_the_colour_of_their_level_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    screen = Console(force_terminal=True, width=80, color_system="standard")
    monkeypatch.setattr(output, "console", lambda: screen)
    output.grid([["!", "memory", "full"], ["", "", "make room"]], ["yellow", ""])
    shown = capsys.readouterr().out
    assert "\x1b[33m!" in shown
    assert "\x1b[33mfull" not in shown
