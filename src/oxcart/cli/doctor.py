"""``oxcart doctor``: checks the server and its queues, and puts lost jobs back."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from oxcart.cli import output, settings
from oxcart.cli.exits import FAILED, USAGE, CommandError
from oxcart.cli.settings import JsonOption, Settings
from oxcart.observe.terminal import clean

if TYPE_CHECKING:
    from oxcart.broker.port.results import Rescued
    from oxcart.broker.progress import Progress
    from oxcart.cli.checks import Finding

_MARKS = {"ok": "✓", "note": "·", "warning": "!", "problem": "✗"}
_STYLES = {"ok": "green", "note": "cyan", "warning": "yellow", "problem": "bold red"}


def doctor(
    ctx: typer.Context,
    rescue: Annotated[
        bool, typer.Option("--rescue", help="Find jobs that are in no list of their queue and put them back.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="With --rescue: only show what would be put back.")
    ] = False,
    queue: Annotated[
        list[str] | None, typer.Option(help="With --rescue: only these queues.", show_default="all")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Check the server, the queues, the peers and the clocks; exit code 1 if something is wrong."""
    using = settings.of(ctx)
    if (dry_run or queue) and not rescue:
        raise CommandError("--dry-run and --queue go with --rescue", USAGE)
    findings = settings.run(_examine(using))
    if not as_json:
        _show(findings)
    rescued = settings.run(_rescue(using, queue or [], dry_run, as_json)) if rescue else None
    healthy = not any(finding.level == "problem" for finding in findings)
    if as_json:
        document: dict[str, Any] = {
            "healthy": healthy,
            "findings": [finding.as_dict() for finding in findings],
        }
        if rescued is not None:
            document["rescue"] = {"dry_run": dry_run, "queues": rescued}
        output.document(document)
    if not healthy:
        raise typer.Exit(FAILED)


async def _examine(using: Settings) -> list[Finding]:
    from oxcart.cli import checks, namespace_checks

    if using.namespace is not None:
        findings, _ = await checks.examine_server(using.server, using.reconnect)
        return findings + await namespace_checks.examine(using)
    return await checks.examine(using.server, using.prefix, using.reconnect, using.plain)


def _show(findings: list[Finding]) -> None:
    rows, styles = [], []
    for finding in findings:
        rows.append([_MARKS[finding.level], finding.name, finding.detail])
        styles.append(_STYLES[finding.level])
        if finding.fix:
            rows.append(["", "", f"→ {finding.fix}"])
            styles.append("")
    output.grid(rows, styles)


async def _rescue(using: Settings, names: list[str], dry_run: bool, as_json: bool) -> dict[str, Any]:
    rescued = _in_namespace if using.namespace is not None else _in_queues
    found: dict[str, Any] = {}
    async for name, result in rescued(using, names, dry_run, as_json):
        found[name] = {
            "looked_at": result.looked_at,
            "rescued": result.rescued,
            "leased": result.leased,
            "ended": result.ended,
        }
        if not as_json:
            output.text(_summary(name, result, dry_run))
    return found


async def _in_queues(
    using: Settings, names: list[str], dry_run: bool, quiet: bool
) -> AsyncIterator[tuple[str, Rescued]]:
    from oxcart.broker.discovery import find_queues
    from oxcart.broker.factory import make_broker

    for name in names or await find_queues(using.server, using.prefix, using.reconnect):
        broker = make_broker("bullmq", using.server, name, prefix=using.prefix, reconnect=using.reconnect)
        with _ProgressLine(name, quiet=quiet) as line:
            try:
                search = broker.capabilities.part(broker.rescue, "rescue")
                result = await search.run(dry_run=dry_run, progress=line.update)
            finally:
                await broker.close()
        yield name, result


async def _in_namespace(
    using: Settings, names: list[str], dry_run: bool, quiet: bool
) -> AsyncIterator[tuple[str, Rescued]]:
    from oxcart.cli.namespace import open_broker, part_of

    broker = open_broker(using, "any")
    with _ProgressLine(using.namespace or "", quiet=quiet) as line:
        try:
            found = await part_of(broker).rescue(names, dry_run=dry_run, progress=line.update)
        finally:
            await broker.close()
    for name, result in found.items():
        yield name, result


def _summary(name: str, result: Rescued, dry_run: bool) -> str:
    count = len(result.rescued)
    if not count:
        text = f"{name}: {result.looked_at:,} jobs looked at, none lost"
    else:
        shown = ", ".join(result.rescued[:5]) + (", …" if count > 5 else "")
        done = "would be put back" if dry_run else "put back"
        text = f"{name}: {result.looked_at:,} jobs looked at, {count} {done}: {shown}"
    if result.leased:
        text += f"; {len(result.leased)} in no list but leased, look again when the lease has ended"
    if result.ended:
        text += f"; {len(result.ended)} that have ended are in no list and were left alone"
    return text


class _ProgressLine:
    """Shows the progress of a scan on a terminal."""

    def __init__(self, name: str, *, quiet: bool) -> None:
        self._name = clean(name)
        self._status: Any = None
        self._quiet = quiet

    def __enter__(self) -> _ProgressLine:
        from rich.console import Console

        console = Console(stderr=True, markup=False, emoji=False)
        if console.is_terminal and not self._quiet:
            self._status = console.status(f"{self._name}: looking")
            self._status.start()
        return self

    def __exit__(self, *exc: object) -> None:
        if self._status is not None:
            self._status.stop()

    def update(self, progress: Progress) -> None:
        """Shows one more step."""
        if self._status is not None:
            self._status.update(
                f"{self._name}: {progress.step}, {progress.done:,} of about {progress.total:,} keys, "
                f"{progress.suspects:,} suspects"
            )
