"""The navigation: tutorial, how-to guides, reference and explanation, apart.

A page of `docs/` that is not listed here is a how-to guide, so that a new page appears by itself.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TypeAlias

#: A page by its title, or a section of pages.
Entry: TypeAlias = "dict[str, str | list[Entry]]"

TUTORIAL = ("tutorial.md",)
#: How-to guides in the order of a reader who starts; others follow by their titles.
HOW_TO = (
    "handlers.md",
    "steps.md",
    "flows.md",
    "schedules.md",
    "groups.md",
    "partitions.md",
    "retention.md",
    "connections.md",
    "http.md",
    "dashboard.md",
    "pipeline.md",
    "spark-jobs.md",
    "operations.md",
    "deploy.md",
    "playbook.md",
    "troubleshooting.md",
    "upgrading.md",
    "releasing.md",
    "migrating-from-bullmq.md",
)
#: Hand-written reference; the generated pages stand before it.
REFERENCE = ("api.md", "columns.md", "bridge.md", "conformance.md", "files/docs/schemas.md", "changelog.md")
EXPLANATION = (
    "choosing.md",
    "guarantees.md",
    "model.md",
    "protocol.md",
    "architecture.md",
    "pains.md",
    "checker.md",
    "performance.md",
    "scaling.md",
    "dependencies.md",
    "benchmarks.md",
    "contributing.md",
)


def navigation(pages: Mapping[str, str]) -> list[Entry]:
    """Arranges the pages of a site.

    Args:
        pages: The text of each page by its place.
    """
    generated = [place for place in pages if place.startswith("reference/")]
    listed = {*TUTORIAL, *HOW_TO, *REFERENCE, *EXPLANATION, *generated, "index.md"}
    decisions = sorted(
        (place for place in pages if place.startswith("decisions/") and "README" not in place), key=_number
    )
    rest = [
        place
        for place in sorted(pages)
        if place not in listed and not place.startswith(("decisions/", "files/"))
    ]
    examples = sorted(place for place in pages if place.startswith("files/examples/"))

    def entries(places: tuple[str, ...] | list[str]) -> list[Entry]:
        return [{title_of(pages[place]): place} for place in places if place in pages]

    tutorial: list[Entry] = [{"Tutorial": place} for place in TUTORIAL if place in pages]
    return [
        {"Oxcart": "index.md"},
        *tutorial,
        {"How-to guides": [*entries([*HOW_TO, *rest]), {"Examples": entries(examples)}]},
        {"Reference": entries([*generated, *REFERENCE])},
        {
            "Explanation": [
                *entries(EXPLANATION),
                {"Decisions": [{"All decisions": "decisions/README.md"}, *entries(decisions)]},
            ]
        },
    ]


def _number(place: str) -> tuple[int, str]:
    """Returns the number of a decision's page, and its place."""
    found = re.match(r"decisions/(\d+)-", place)
    return (int(found[1]) if found else 0, place)


def title_of(text: str) -> str:
    """Returns the title of a page: its first heading."""
    found = re.search(r"^# (.+)$", text, re.MULTILINE)
    return found[1].strip() if found else "Untitled"
