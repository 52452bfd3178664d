"""The bounds of a week: what its figures may be."""

from __future__ import annotations

from collections.abc import Mapping

from tests.spark.week.run import MOST_FILES

#: The last part of the week against the first.
GROWTH = {"rows_read_per_new": 1.3, "cpu_s_per_1000": 1.3}
#: The last quarter of a process' life against the second one.
MEMORY = 1.25
#: Seconds that a build may wait after it is due and the build before it has ended.
LATE_S = 2.0
#: The share of builds that may take longer than their pace.
LONG_BUILDS = 0.1


def missed_bounds(figures: Mapping[str, float]) -> list[str]:
    """Returns a line for each bound of cost, memory and pace that is missed, or that was not measured."""
    found = []
    for name, bound in GROWTH.items():
        found += _ratio(figures, name, f"{name}_first", f"{name}_last", bound)
    found += _ratio(figures, "memory", "memory_young_mb", "memory_old_mb", MEMORY)
    for name, bound in (("latest_start_s", LATE_S), ("long_builds", LONG_BUILDS)):
        if name not in figures:
            found.append(f"{name} was not measured: the week is too short")
        elif figures[name] > bound:
            found.append(f"{name} is {figures[name]:.2f}, at most {bound}")
    return found


def many_files(figures: Mapping[str, float]) -> list[str]:
    """Returns a line if a day of a table had too many files."""
    most = figures["files_per_table_and_day"]
    return [f"{most:.0f} files of a table and day, at most {MOST_FILES}"] if most > MOST_FILES else []


def _ratio(figures: Mapping[str, float], name: str, first: str, last: str, bound: float) -> list[str]:
    if not figures.get(first) or last not in figures:
        return [f"{name} was not measured: the week is too short"]
    ratio = figures[last] / figures[first]
    return [f"{name} is {ratio:.2f} times that of the beginning, at most {bound}"] if ratio > bound else []
