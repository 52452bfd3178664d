"""The program in docs/bridge.md runs unchanged."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

PAGE = (Path(__file__).parents[3] / "docs" / "bridge.md").read_text()
PROGRAMS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def test_the_worker_example_runs(url: str, store: Any, tmp_path: Path) -> None:
    file = tmp_path / "program.py"
    file.write_text(PROGRAMS[0])
    done = subprocess.run(
        [sys.executable, str(file)],
        env={**os.environ, "OXCART_URL": url},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "sent to ada@example.com",
        "report of May",
        "workers: ['pdf-1']",
        "dead letter: no address: nobody True",
        "waiting: 0 dead: 1 schedules: 1",
    ]
    records = [store.get(key) for key in store.scan_iter("bridge:jobs:data:*")]
    assert any('"payload":{"to":"ada@example.com"}' in record for record in records), "as the page shows it"


def test_the_page_names_the_client_that_we_compared() -> None:
    assert "629ec12" in PAGE
    assert "*attempts + 1* times" in PAGE
    assert "without `mode` for `any`" in PAGE
