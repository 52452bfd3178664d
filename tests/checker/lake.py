"""The pipeline in a run: a tailer that the nemesis harms, and the tables that are built when all is quiet."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import sys
from pathlib import Path
from typing import Any

from tests.checker.final import Final, Lake
from tests.checker.plan import WIRES

ROOT = Path(__file__).parents[2]
#: Seconds that Spark may take to read all streams and to build the tables.
LIMIT = 900.0
_ENTRIES = (
    "SELECT queue, kind, entry_id, event, job_id FROM events WHERE stream = 'events' AND kind <> 'counts'"
)
_JOBS = "SELECT queue, job_id, state FROM jobs"


def missing() -> str:
    """Returns why the pipeline cannot take part, "" if it can."""
    absent = [name for name in ("pyspark", "deltalake", "duckdb") if importlib.util.find_spec(name) is None]
    return f"{', '.join(absent)} not installed" if absent else ""


def command(folder: Path, *words: str) -> list[str]:
    """Returns a command of the pipeline over the lake of a run."""
    program = Path(sys.executable).with_name("oxcart")
    return [str(program), "pipeline", *words, "--lake", str(folder / "lake")]


def chosen() -> list[str]:
    """Returns the options that select the queues of a run."""
    return [word for name in WIRES for word in ("--queue", name)]


async def build(folder: Path, url: str, final: Final) -> None:
    """Reads the streams and the tailer's spool into tables, and adds these to the final state."""
    await _run(url, *command(folder, "run", "--once", *chosen()))
    entries = await _ask(folder, url, _ENTRIES)
    jobs = await _ask(folder, url, _JOBS)
    final.lake = Lake(
        [(one["queue"], one["entry_id"], one["event"], one["job_id"]) for one in entries if _is_entry(one)],
        [one["queue"] for one in entries if not _is_entry(one)],
        {(one["queue"], one["job_id"]): one["state"] for one in jobs},
    )


def _is_entry(row: dict[str, Any]) -> bool:
    return bool(row["kind"] == "entry")


async def _ask(folder: Path, url: str, question: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(await _run(url, *command(folder, "query", question, "--json")))
    return found


async def _run(url: str, *words: str) -> str:
    process = await asyncio.create_subprocess_exec(
        *words,
        cwd=ROOT,
        env={**os.environ, "OXCART_URL": url},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    printed, errors = await asyncio.wait_for(process.communicate(), LIMIT)
    if process.returncode:
        raise SystemExit(f"oxcart pipeline {words[2]} failed: {errors.decode()[-3000:]}")
    return printed.decode()
