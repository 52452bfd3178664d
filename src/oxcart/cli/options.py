"""Options of jobs that several commands share."""

from __future__ import annotations

from typing import Annotated

import typer

from oxcart.cli.exits import USAGE, CommandError

PriorityOption = Annotated[
    int | None,
    typer.Option(
        help="Lower runs first, 0 before every other. With --namespace 1 to 10, of which 10 runs first."
    ),
]
TargetOption = Annotated[
    str | None,
    typer.Option(
        "--target",
        help="Which workers may run it: 'all;c=gpu,cuda;r=us-east', 'any;s=python', 'id=NAME'.",
    ),
]
LabelOption = Annotated[
    list[str] | None, typer.Option("--tag", metavar="NAME=VALUE", help="A label; repeat for several.")
]
CorrelationIdOption = Annotated[
    str | None, typer.Option("--correlation-id", help="Ties it to other jobs and logs.")
]
LimitKeyOption = Annotated[
    str | None,
    typer.Option("--limit-key", help="Key whose limits apply, for example a tenant id."),
]
PartitionKeyOption = Annotated[
    str | None,
    typer.Option("--partition-key", help="Jobs of one key share a partition of a partitioned queue."),
]
GroupOption = Annotated[
    str | None,
    typer.Option("--group", help="Group that takes turns with the others, for example a tenant id."),
]
RateLimitOption = Annotated[
    str | None,
    typer.Option(
        "--rate-limit",
        metavar="JSON",
        help='With --namespace, limits of its type: \'{"max_concurrent": 4, "max_per_minute": 100}\'.',
    ),
]
SkipOnOption = Annotated[
    list[str] | None,
    typer.Option(
        "--skip-on", metavar="ERROR", help="With --namespace, an error that ends the retries; repeatable."
    ),
]
RerouteOnOption = Annotated[
    list[str] | None,
    typer.Option(
        "--reroute-on",
        metavar="ERROR",
        help="With --namespace, an error after which another worker must try; repeatable.",
    ),
]
AfterOption = Annotated[
    list[str] | None,
    typer.Option(
        "--after",
        metavar="ID",
        help="A job that must have completed first; repeatable.",
    ),
]

#: The formal states that name whole lists of a queue, and the states of the wire in these lists.
LISTS = {
    "pending": ("waiting-children",),
    "scheduled": ("waiting", "prioritized"),
    "delayed": ("delayed",),
    "running": ("active",),
    "completed": ("completed",),
    "failed": ("failed",),
}


def wire_states(names: list[str] | None, *allowed: str) -> list[str] | None:
    """Returns the states of the wire for formal names; names that only the wire has stay as they are.

    Args:
        names: The given names, or None.
        *allowed: The formal names that the command accepts.

    Raises:
        CommandError: A formal state names no whole list, or another command deals with it.
    """
    if names is None:
        return None
    found: list[str] = []
    for name in names:
        is_wire = any(name in states for states in LISTS.values()) and name not in LISTS
        if not is_wire and name not in allowed:
            raise CommandError(f"state must be one of {', '.join(allowed)}, got {name!r}", USAGE)
        found += (name,) if is_wire else LISTS[name]
    return found
