"""The report as tables for a terminal."""

from __future__ import annotations

from oxcart.history.report.figures import TABLES, TEXTS, Report, shown


def lines(report: Report) -> list[tuple[str, list[str], list[list[str]]]]:
    """Returns the tables: title, columns (a number's name ends in ``#``) and rows."""
    made = []
    for name in ("queues", "names", "flows", "schedules", "failures", "gaps"):
        title, columns = TABLES[name]
        if name == "queues":
            title = f"Queues on {report.title}"
        heads = [head if column in TEXTS else f"{head}#" for column, head in columns]
        made.append(
            (
                title,
                heads,
                [
                    [shown(row.get(column), column, report.form) for column, _ in columns]
                    for row in getattr(report, name)
                ],
            )
        )
    return made
