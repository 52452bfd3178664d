"""The program in docs/steps.md runs unchanged, and the page states the bounds of the code."""

from __future__ import annotations

import re
from pathlib import Path

import redis

from oxcart.model.steps import LONGEST_NAME, MOST_BYTES, MOST_SIGNAL_BYTES, MOST_STEPS
from tests.test_docs_handlers import run

PAGE = (Path(__file__).parent.parent / "docs" / "steps.md").read_text()


def test_the_program_runs(store: redis.Redis, url: str, tmp_path: Path) -> None:
    (program,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert run(program, url, tmp_path) == [
        "charging 7",
        "shipping 7",
        "{'receipt': 'receipt 7', 'by': 'Ada', 'parcel': 'parcel 7'}",
        "['charge', 'sleep-1', 'approved', 'ship']",
    ]


def test_the_page_has_the_bounds() -> None:
    assert (MOST_STEPS, MOST_BYTES, MOST_SIGNAL_BYTES, LONGEST_NAME) == (1000, 2**20, 2**20, 200)
    assert "1 000 steps and 1 MiB of records per job, 1 MiB of signals" in PAGE
    assert "names of 1 to 200 printable characters" in PAGE
