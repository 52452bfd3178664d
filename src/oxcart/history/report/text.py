"""The report as tables for a terminal."""

from __future__ import annotations

from oxcart.history.report.figures import (
    FAILURE_COLUMNS,
    FLOW_COLUMNS,
    GAP_COLUMNS,
    NAME_COLUMNS,
    QUEUE_COLUMNS,
    SCHEDULE_COLUMNS,
    TEXTS,
    Report,
    shown,
)


def lines(report: Report) -> list[tuple[str, list[str], list[list[str]]]]:
    """Returns the tables: title, columns (a number's name ends in ``#``) and rows."""
    made = []
    for title, columns, rows in (
        (f"Queues on {report.title}", QUEUE_COLUMNS, report.queues),
        ("Jobs by name", NAME_COLUMNS, report.names),
        ("Flows", FLOW_COLUMNS, report.flows),
        ("Schedules", SCHEDULE_COLUMNS, report.schedules),
        ("Failures", FAILURE_COLUMNS, report.failures),
        ("Gaps", GAP_COLUMNS, report.gaps),
    ):
        heads = [name if column in TEXTS else f"{name}#" for column, name in columns]
        made.append(
            (
                title,
                heads,
                [[shown(row.get(column), column, report.form) for column, _ in columns] for row in rows],
            )
        )
    return made
