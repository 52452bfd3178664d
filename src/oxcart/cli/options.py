"""Options of jobs that several commands share."""

from __future__ import annotations

from typing import Annotated

import typer

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
