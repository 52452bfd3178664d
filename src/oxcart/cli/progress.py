"""A progress bar of an operation on a terminal; nothing elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from oxcart.observe.terminal import clean

if TYPE_CHECKING:
    from oxcart.jobs import Progress


class Bar:
    """Shows the progress of an operation while the block runs.

    Args:
        what: The operation, e.g. ``mail: cleaning``.
        quiet: Show nothing.
    """

    def __init__(self, what: str, *, quiet: bool = False) -> None:
        self._what = clean(what)
        self._quiet = quiet
        self._bar: Any = None
        self._task: Any = None

    def __enter__(self) -> Bar:
        from rich import progress
        from rich.console import Console

        console = Console(stderr=True, markup=False, emoji=False)
        if console.is_terminal and not self._quiet:
            self._bar = progress.Progress(
                progress.TextColumn("{task.description}", markup=False),
                progress.BarColumn(),
                progress.TextColumn("{task.completed:,.0f} of about {task.total:,.0f}"),
                progress.TimeElapsedColumn(),
                console=console,
                transient=True,
            )
            self._task = self._bar.add_task(self._what, total=1)
            self._bar.start()
        return self

    def __exit__(self, *exc: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def update(self, at: Progress) -> None:
        """Shows one more step."""
        if self._bar is not None:
            self._bar.update(
                self._task, description=f"{self._what} {at.step}", completed=at.done, total=max(at.total, 1)
            )
