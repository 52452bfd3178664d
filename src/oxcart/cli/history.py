"""``oxcart history …``: questions of the lake, also about jobs that the server has removed."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from oxcart.cli import output, service
from oxcart.cli.answers import plain, print_rows
from oxcart.cli.exits import FAILED, CommandError
from oxcart.cli.service import QueueOption
from oxcart.cli.settings import JsonOption
from oxcart.cli.spark_options import LAKE, LakeOption, check_lake

if TYPE_CHECKING:
    from oxcart.history.questions import JobHistory

SinceOption = Annotated[
    str, typer.Option("--since", metavar="TIME", help="Ended since then: 2h, 02:30, 2026-11-15T12:00Z.")
]
#: Columns of a job that its heading has, or that mean nothing to people.
_HEADING = ("day", "queue", "lane", "job_id", "first_id", "name", "state")
_ATTEMPT = ("attempt", "started_at", "wait_ms", "run_ms", "outcome", "category", "code", "worker", "reason")


class JobGroup(TyperGroup):
    """A group whose first word may be a job: ``oxcart history 42`` is ``oxcart history job 42``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Reads the words after ``history``."""
        if args and args[0] not in self.commands and args[0] not in ctx.help_option_names:
            args = ["job", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=JobGroup,
    name="history",
    help="Ask the lake about jobs, also about removed ones. 'oxcart history ID' shows one job.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.command()
def job(
    job_id: Annotated[str, typer.Argument(metavar="ID", help="The job's id.", show_default=False)],
    lake: LakeOption = LAKE,
    queue: QueueOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show every attempt and transition of a job."""
    check_lake(lake)
    from oxcart.history.questions import job_history
    from oxcart.history.reader import LakeReader

    with LakeReader(lake) as reader:
        found = job_history(reader, job_id, queue)
    if not found:
        where = f" of queue {queue}" if queue else ""
        raise CommandError(
            f"the tables in {lake} have no job {job_id}{where}; if it is new, run 'oxcart pipeline run "
            "--once' first",
            FAILED,
        )
    if as_json:
        output.document(
            [
                {
                    "job": plain(one.job),
                    "attempts": plain(one.attempts),
                    "transitions": plain(one.transitions),
                }
                for one in found
            ]
        )
        return
    for one in found:
        _print_job(one)


@app.command()
def failures(
    lake: LakeOption = LAKE,
    since: SinceOption = "1d",
    queue: QueueOption = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="Causes that are shown.")] = 20,
    as_json: JsonOption = False,
) -> None:
    """Group failed attempts by cause; ids, numbers and addresses in a reason do not count."""
    check_lake(lake)
    from oxcart.history.questions import failure_causes
    from oxcart.history.reader import LakeReader

    since_ms = _since(since)
    with LakeReader(lake, since_day=_day(since_ms)) as reader:
        found = failure_causes(reader, since_ms, queue)
    if as_json:
        import msgspec

        output.document([msgspec.to_builtins(cause) for cause in found[:limit]])
        return
    if not found:
        output.text(f"no failures since {output.moment(since_ms)}")
        return
    for cause in found[:limit]:
        output.text(cause.reason)
        output.facts(
            {
                "  failed attempts": cause.count,
                "  ended the job": cause.final,
                "  first": output.moment(cause.first_ms),
                "  last": output.moment(cause.last_ms),
                "  queues": _counts(cause.queues),
                "  names": _counts(cause.names),
                "  categories": _counts(cause.categories),
                "  raised in": cause.frame,
                "  last reason": cause.example,
                "  jobs": ", ".join(cause.ids),
            },
            skip_none=True,
        )
    left = len(found) - limit
    if left > 0:
        output.text(f"and {left} more causes (--limit)")


@app.command()
def slow(
    lake: LakeOption = LAKE,
    since: SinceOption = "1d",
    queue: QueueOption = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="Names and runs that are shown.")] = 10,
    as_json: JsonOption = False,
) -> None:
    """Show how long runs took, by job name, and the longest ones."""
    check_lake(lake)
    from oxcart.history.questions import slowest
    from oxcart.history.reader import LakeReader

    since_ms = _since(since)
    with LakeReader(lake, since_day=_day(since_ms)) as reader:
        found = slowest(reader, since_ms, queue, limit)
    names = found.names[:limit]
    if as_json:
        output.document({"names": plain(names), "runs": plain(found.runs)})
        return
    if not names:
        output.text(f"no run ended since {output.moment(since_ms)}")
        return
    output.text("Runs in ms, by queue and job name; the highest p99 first")
    _print(names, tuple(names[0]))
    output.text("The longest runs")
    _print(found.runs, ("job_id", "queue", "name", "attempt", "run_ms", "ended_at", "outcome", "worker"))


for _command in (service.slo, service.anomalies, service.capacity, service.costs, service.changes):
    app.command()(_command)


def _print_job(found: JobHistory) -> None:
    job = found.job
    place = f"{job['queue']}@{job['lane']}" if job["lane"] else job["queue"]
    output.text(f"{job['job_id']} of {place}: {job['name'] or 'no name'}, {job['state']}")
    shown = {name: _shown(value) for name, value in job.items() if name not in _HEADING}
    output.facts({f"  {name}": value for name, value in shown.items()}, skip_none=True)
    if found.attempts:
        output.text("attempts")
        _print(found.attempts, _ATTEMPT)
    output.text("transitions")
    _print(found.transitions, ("occurred_at", "event", "from_state", "to_state", "legal"))


def _print(rows: list[dict[str, Any]], columns: tuple[str, ...]) -> None:
    print_rows(columns, [[row[name] for name in columns] for row in rows])


def _shown(value: Any) -> Any:
    return output.clock(value) if isinstance(value, datetime) else plain(value)


def _counts(counts: dict[str, int]) -> str | None:
    named = [f"{name} ({count})" for name, count in sorted(counts.items(), key=lambda one: -one[1]) if name]
    return ", ".join(named) or None


def _since(text: str) -> int:
    from oxcart.model.moment import parse_moment

    return parse_moment(text, "since", now_ms=time.time_ns() // 1_000_000)


def _day(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).date().isoformat()
