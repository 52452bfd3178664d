"""The help: commands by task, the same options with the same meaning, and one vocabulary of states."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest
import typer

from oxcart.cli.app import PANELS, app
from tests.cli.conftest import Commands

#: Options that choose jobs: the same help wherever a command has them.
SHARED = (
    "--category",
    "--correlation-id",
    "--json",
    "--oldest",
    "--since",
    "--tag",
    "--until",
    "--utc",
    "--yes",
)
#: Commands in which such an option has another object.
OTHER = {
    "--json": {"work"},
    "--correlation-id": {"add", "schedules add", "pipeline erase"},
    "--tag": {"add", "schedules add"},
    "--since": {
        *("events", "retry", "history failures", "history slow"),
        *("history anomalies", "history capacity", "history costs", "history changes"),
    },
    "--until": {"retry"},
    "--yes": {"pipeline erase"},
}


def commands() -> Iterator[tuple[str, Any]]:
    def walk(command: Any, path: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
        below = getattr(command, "commands", None)
        if not below:
            yield " ".join(path), command
        for name, one in (below or {}).items():
            yield from walk(one, (*path, name))

    return walk(typer.main.get_command(app), ())


def test_the_help_groups_all_commands_by_task(ox: Commands) -> None:
    shown = ox("--help").out
    places = [shown.index(f"\n{panel}:") for panel in PANELS]
    assert places == sorted(places)
    listed = set(re.findall(r"^  ([a-z-]+)  +\S", shown[places[0] :], re.M))
    assert listed == {path.split()[0] for path, _ in commands()}
    assert sum(len(panel) for panel in PANELS.values()) == len(listed)
    assert "..." not in shown[places[0] :]


@pytest.mark.parametrize("option", SHARED)
def test_an_option_means_the_same_everywhere(option: str) -> None:
    found: dict[tuple[str | None, str], list[str]] = defaultdict(list)
    for path, command in commands():
        for one in command.params:
            if option in one.opts and path not in OTHER.get(option, ()):
                found[one.metavar, one.help or ""].append(path)
    assert len(found) == 1, dict(found)


def test_no_help_names_a_state_of_the_wire() -> None:
    for path, command in commands():
        for one in command.params:
            if "--wire" not in one.opts:
                assert not re.search(
                    r"\b(prioritized|waiting-children|active)\b", getattr(one, "help", "") or ""
                ), path


def test_formal_states_choose_jobs_to_clean_and_to_cancel(ox: Commands) -> None:
    ox("add", "mail", "hello")
    ox("add", "mail", "hello", "--priority", "3")
    ox("add", "mail", "hello", "--delay", "1h", "--job-id", "later")
    assert ox("cancel", "mail", "--all", "--dry-run", "--state", "scheduled", "--json").json["matched"] == 2
    assert ox("cancel", "mail", "--all", "--dry-run", "--state", "waiting", "--json").json["matched"] == 1
    assert ox("clean", "mail", "--state", "scheduled", "--yes", "--json").json["removed"] == 2
    for command in (["clean", "mail"], ["cancel", "mail", "--all"]):
        refused = ox(*command, "--state", "dead_letter")
        assert refused.code == 2
        assert "state must be one of " in refused.err
    assert [row["id"] for row in ox("jobs", "mail", "--json").json] == ["later"]


def test_queues_count_formal_states_unless_the_wire_is_asked_for(ox: Commands) -> None:
    ox("add", "mail", "hello")
    ox("add", "mail", "hello", "--priority", "3")
    head, _, row = ox("queues").out.splitlines()
    assert head.split() == ["queue", "pending", "scheduled", "delayed", "running", "completed", "failed"]
    assert row.split() == ["mail", "0", "2", "0", "0", "0", "0"]
    head, _, row = ox("queues", "--wire").out.splitlines()
    assert head.split()[:3] == ["queue", "waiting", "priority"]
    assert row.split()[:3] == ["mail", "1", "1"]


def test_events_since_a_time(ox: Commands) -> None:
    ox("add", "mail", "hello", "--job-id", "one")
    assert ox("events", "mail", "--since", "1h", "--count", "1", "--json").lines[0]["job_id"] == "one"
    refused = ox("events", "mail", "--since", "soon")
    assert refused.code == 2
    assert "since must be a time such as 2h or 02:30" in refused.err
