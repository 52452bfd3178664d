"""The tutorial runs as it stands: its files are written and its commands run, in order."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.documented import ROOT, Block, blocks
from tests.servers import free_ports, wait_until

PAGE = ROOT / "docs" / "tutorial.md"
#: Seconds that a block may take on a busy machine: the last one starts Spark twice.
LIMIT = 600.0


class Reader:
    """Someone who follows the page in an empty folder.

    Args:
        folder: The folder.
        ports: The first of two free ports, for those of the page.
    """

    def __init__(self, folder: Path, ports: int) -> None:
        self.folder = folder
        self._ports = {"9100": str(ports), "8080": str(ports + 1)}
        self._terminals: dict[str, subprocess.Popen[bytes]] = {}
        own = Path(sys.executable).parent
        self._environ = {**os.environ, "PATH": f"{own}{os.pathsep}{os.environ['PATH']}", "COLUMNS": "120"}
        self._environ.pop("OXCART_HOME", None)

    def follow(self, block: Block) -> str:
        """Writes the file of a block, or runs its commands; returns their output."""
        if "title" in block.options:
            (self.folder / block.options["title"]).write_text(block.text)
            return ""
        code = re.sub(r"\b(9100|8080)\b", lambda found: self._ports[found[0]], block.text)
        if "terminal" in block.options:
            self._open(block.options["terminal"], code)
            return ""
        running = subprocess.Popen(
            ["bash", "-euo", "pipefail", "-c", code],
            cwd=self.folder,
            env=self._environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            output, errors = running.communicate(timeout=LIMIT)
        finally:
            if running.poll() is None:  # Spark's Java must not outlive the test
                os.killpg(running.pid, signal.SIGKILL)
                running.communicate()
        assert running.returncode == 0, f"{code}\n{output}\n{errors}\n{self.logs()}"
        return output

    def _open(self, terminal: str, code: str) -> None:
        log = self.folder / f"terminal-{terminal}.log"
        with log.open("wb") as output:
            self._terminals[terminal] = subprocess.Popen(
                ["bash", "-c", f"exec {code.strip()}"],
                cwd=self.folder,
                env={**self._environ, "PYTHONUNBUFFERED": "1"},
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        wait_until(lambda: "http://" in log.read_text(), f"terminal {terminal} serves")

    def logs(self) -> str:
        return "\n".join(log.read_text() for log in sorted(self.folder.glob("terminal-*.log")))

    def close(self) -> None:
        for terminal in self._terminals.values():
            terminal.send_signal(signal.SIGTERM)
        for terminal in self._terminals.values():
            terminal.wait(60)


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    found = Reader(tmp_path, free_ports(2))
    try:
        yield found
    finally:
        found.close()


@pytest.mark.timeout(900)
def test_every_block_of_the_tutorial_runs(reader: Reader) -> None:
    steps = [block for block in blocks(PAGE) if block.language != "console"]
    assert {block.language for block in steps} == {"python", "sh"}
    shown = [reader.follow(block) for block in steps]
    output = "\n".join(shown)
    for expected in (
        "4200",
        "{'order': 2, 'charged': 999} {'order': 3, 'charged': 1999}",
        "100 parcel-00099",
        "exit code 1",
        "costs",
        "DependencyCounts(processed=2, unprocessed=0, ignored=0, failed=0)",
        "nightly",
        "<title>",
        "bullmq_jobs_processed_total",
    ):
        assert expected in output, f"{expected}\n{output}\n{reader.logs()}"
    report = (reader.folder / "report.html").read_text()
    assert report.count("orders") > 0
    assert "<table id='flows'>" in report
    assert "<table id='schedules'>" in report
