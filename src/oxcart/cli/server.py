"""``oxcart server``: the embedded Valkey of a folder.

It runs as long as a process uses it; ``start`` keeps it running without other users until ``stop``.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from oxcart.cli import output
from oxcart.cli.exits import FAILED, UNREACHABLE, CommandError
from oxcart.cli.settings import JsonOption

#: Seconds that a server has to end.
STOP_LIMIT = 20.0

app = typer.Typer(no_args_is_help=False, rich_markup_mode=None)

FolderOption = Annotated[
    Path | None,
    typer.Option(help="The data folder.", show_default="OXCART_HOME, or .oxcart in the project"),
]


@app.callback(invoke_without_command=True)
def _server(ctx: typer.Context) -> None:
    """Start, show and stop the embedded Valkey."""
    if ctx.invoked_subcommand is None:
        typer.echo(ctx.get_help())


@app.command()
def start(
    folder: FolderOption = None,
    foreground: Annotated[
        bool, typer.Option("--foreground", help="Keep it running in this terminal, until interrupted.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Start the server and keep it running; prints its URL."""
    place = _folder(folder)
    if foreground:
        _hold_here(place, as_json)
        return
    known = _status(place)
    if known is not None and _holders(known):
        _say(known["url"], place, as_json, "was running already")
        return
    _say(_start_holder(place), place, as_json, "started")


@app.command()
def status(folder: FolderOption = None, as_json: JsonOption = False) -> None:
    """Show the running server; exit code 1 if there is none."""
    place = _folder(folder)
    found = _status(place)
    if as_json:
        output.document({"running": found is not None, "folder": str(place), **(found or {})})
    elif found is not None:
        users = ", ".join(f"{user['name']} ({user['pid']})" for user in found["users"])
        output.facts(
            {
                "url": found["url"],
                "folder": found["folder"],
                "state": found["state"],
                "uptime": output.span(found["uptime"]),
                "server pid": str(found["server_pid"]),
                "keeper pid": str(found["keeper_pid"]),
                "data": f"{found['data_bytes']:,} bytes",
                "users": users or None,
            }
        )
    if found is None:
        if as_json:
            raise typer.Exit(FAILED)
        raise CommandError(f"no server runs in {place}", FAILED)


@app.command()
def stop(folder: FolderOption = None, as_json: JsonOption = False) -> None:
    """Stop the server, unless other processes use it; its data stays."""
    place = _folder(folder)
    found = _status(place)
    stopped = found is not None
    if found is not None:
        for pid in _holders(found):
            with contextlib.suppress(ProcessLookupError):  # it may have ended by itself
                os.kill(pid, signal.SIGTERM)
        _await_end(place)
    if as_json:
        output.document({"stopped": stopped, "folder": str(place)})
    else:
        output.text("stopped" if stopped else "was not running")


def _folder(folder: Path | None) -> Path:
    from oxcart.broker.embedded import data_folder

    return Path(os.path.realpath(data_folder() if folder is None else folder))


def _status(folder: Path) -> dict[str, Any] | None:
    from oxcart.broker import embedded

    found = embedded.status(folder)
    if found is not None:
        found["url"] = found.pop("location").url
    return found


def _holders(status: dict[str, Any]) -> list[int]:
    from oxcart.cli.holder import NAME

    return [user["pid"] for user in status["users"] if user["name"] == NAME and user["pid"] > 1]


def _start_holder(folder: Path) -> str:
    process = subprocess.Popen(
        [sys.executable, "-m", "oxcart.cli.holder", str(folder)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    assert process.stdout is not None
    with process.stdout:
        line = process.stdout.readline()
    reply = json.loads(line) if line else {"error": "the process that holds the server ended at once"}
    if "error" in reply:
        raise CommandError(reply["error"], UNREACHABLE)
    process.returncode = 0  # it outlives this process on purpose
    return str(reply["url"])


def _hold_here(folder: Path, as_json: bool) -> None:
    import queue

    from oxcart.broker.embedded import Embedded
    from oxcart.cli import holder

    sys.argv[0] = holder.NAME
    embedded = Embedded(folder)
    url = embedded.ensure().url
    # Not threading.Event: its wait and its set take one lock, and the handler interrupts the wait.
    signals: queue.SimpleQueue[int] = queue.SimpleQueue()
    for number in (signal.SIGINT, signal.SIGTERM):  # before the URL is printed
        signal.signal(number, lambda received, _: signals.put(received))
    _say(url, folder, as_json, "runs until interrupted")
    while True:
        try:
            signals.get(timeout=holder.EVERY)
        except queue.Empty:
            embedded.ensure()
        else:
            break
    embedded.release(wait=10)


def _await_end(folder: Path) -> None:
    end = time.monotonic() + STOP_LIMIT
    while (left := _status(folder)) is not None:
        users = [user for user in left["users"] if user["pid"] not in _holders(left)]
        if users:
            names = ", ".join(f"{user['name']} ({user['pid']})" for user in users)
            raise CommandError(f"the server stays until its users end: {names}", FAILED)
        if time.monotonic() > end:
            raise CommandError(f"the server in {folder} has not ended within {STOP_LIMIT:g} s", FAILED)
        time.sleep(0.05)


def _say(url: str, folder: Path, as_json: bool, what: str) -> None:
    if as_json:
        output.document({"url": url, "folder": str(folder)})
    else:
        output.text(url)
        output.error(f"the server in {folder} {what}")
