"""``oxcart top``: queues at a glance in the terminal, down to a job and the tail of its log."""

from __future__ import annotations

from typing import Annotated

import typer

from oxcart.cli import settings


def top(
    ctx: typer.Context,
    match: Annotated[
        str | None, typer.Option(metavar="PATTERN", help="Only queues whose names match: mail-*.")
    ] = None,
) -> None:
    """Watch queues, jobs and logs in the terminal; Enter goes deeper, Escape back.

    p pauses or resumes a queue, s shows the next state, r retries and c cancels a job, q ends it.
    With --namespace it shows the job types of a namespace of Bridge.
    """
    using = settings.of(ctx)
    try:
        from oxcart.cli.screens import Top
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "textual":
            raise
        from oxcart.model.errors import MissingExtra

        raise MissingExtra("oxcart top", "web") from error
    Top(using, match).run()
