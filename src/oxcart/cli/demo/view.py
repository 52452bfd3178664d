"""The demo's display: a live table on a terminal, one line per second elsewhere."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from oxcart.cli import output
from oxcart.cli.options import LISTS

if TYPE_CHECKING:
    from oxcart.cli.demo.story import Story

#: Seconds between lines without a terminal.
EVERY = 1.0

#: The shop has no flows.
_STATES = {name: lists for name, lists in LISTS.items() if name != "pending"}


class View:
    """Displays the progress of a demo.

    Args:
        total: Number of jobs.
        quiet: Print nothing.
    """

    def __init__(self, total: int, *, quiet: bool = False) -> None:
        self._total = total
        self._quiet = quiet
        self._live: Any = None
        self._started = time.monotonic()
        self._last_line = 0.0

    def __enter__(self) -> View:
        screen = output.console()
        if screen.is_terminal and not self._quiet:
            from rich.live import Live

            self._live = Live(console=screen, refresh_per_second=10, transient=True)
            self._live.start()
        return self

    def __exit__(self, *exc: object) -> None:
        if self._live is not None:
            self._live.stop()

    def say(self, text: str) -> None:
        """Prints a line above the live table."""
        if self._quiet:
            return
        if self._live is not None:
            self._live.console.print(text, highlight=False)
        else:
            output.text(text)

    def show(self, counts: dict[str, int], story: Story, added: int) -> None:
        """Updates the display."""
        if self._quiet:
            return
        elapsed = time.monotonic() - self._started
        rate = story.rate(int(time.time() * 1000))
        if self._live is not None:
            self._live.update(self._drawing(counts, story, added, elapsed, rate))
        elif elapsed - self._last_line >= EVERY:
            self._last_line = elapsed
            states = "  ".join(f"{state} {number:,}" for state, number in _numbers(counts).items())
            output.text(f"{elapsed:5.1f} s  {states}  {rate:,} jobs/s")

    def _drawing(self, counts: dict[str, int], story: Story, added: int, elapsed: float, rate: int) -> Any:
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        states = Table(box=None, padding=(0, 2), header_style="bold")
        for state in _STATES:
            states.add_column(state, justify="right", min_width=9)
        states.add_row(*(f"{number:,}" for number in _numbers(counts).values()))
        workers = Table.grid(padding=(0, 2))
        for name, done in sorted(story.by_worker.items()):
            share = ProgressBar(total=max(1, story.completed), completed=done, width=30)
            workers.add_row(Text(name), share, Text(f"{done:,} jobs"))
        head = (
            f"{elapsed:4.1f} s   {added:,} of {self._total:,} added   {story.ended:,} ended   "
            f"{story.retries:,} retries   {rate:,} jobs/s"
        )
        bar = ProgressBar(total=self._total, completed=story.ended, width=60)
        return Group(Text(head, style="bold"), bar, Text(""), states, Text(""), workers)


def _numbers(counts: dict[str, int]) -> dict[str, int]:
    return {state: sum(counts.get(one, 0) for one in lists) for state, lists in _STATES.items()}


def show_summary(summary: dict[str, Any]) -> None:
    """Prints the summary of a demo."""
    rows: list[tuple[str, str]] = [
        ("jobs", f"{summary['jobs']:,}"),
        ("completed", f"{summary['completed']:,}"),
        ("failed for good, as planned", f"{summary['failed']:,}"),
        ("retries", f"{summary['retries']:,}"),
        ("stalled and recovered", f"{summary['stalled']:,}"),
        ("wait p50 / p99", f"{summary['wait_ms']['p50']:,} / {summary['wait_ms']['p99']:,} ms"),
        ("run p50 / p99", f"{summary['run_ms']['p50']:,} / {summary['run_ms']['p99']:,} ms"),
        ("jobs/s", f"{summary['jobs_per_s']:,} over {summary['seconds']:g} s"),
    ]
    rows += [(f"by {name}", f"{done:,}") for name, done in summary["workers"].items()]
    output.text("")
    output.facts(dict(rows))
