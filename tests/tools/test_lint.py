"""`make lint` fails for an import against the layers and for an outdated generated twin."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PARTS = ("src", "tools", "Makefile", "pyproject.toml")


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the files that lint reads."""
    root = tmp_path_factory.mktemp("lint") / "clean"
    root.mkdir()
    for part in PARTS:
        if (ROOT / part).is_dir():
            shutil.copytree(ROOT / part, root / part, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / part, root / part)
    return root


@pytest.fixture
def tree(clean: Path, tmp_path: Path) -> Path:
    """A copy that the test may break."""
    return shutil.copytree(clean, tmp_path / "tree")


def make(root: Path, target: str) -> tuple[int, str]:
    done = subprocess.run(
        ["make", "--old-file", "install", f"BIN={Path(sys.executable).parent}", target],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root / "src")},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def append(path: Path, text: str) -> None:
    path.write_text(path.read_text("utf-8") + text, "utf-8")


def test_passes_as_it_is(clean: Path) -> None:
    code, output = make(clean, "lint")
    assert code == 0, output


@pytest.mark.parametrize(
    ("contract", "planted"),
    [
        (
            "Each layer imports only layers below it",
            {
                "model.rate": "oxcart.broker.clock",
                "engine.worker": "oxcart.queue",
                "observe.logs": "oxcart.spark.session",
            },
        ),
        (
            "The brokers do not import each other",
            {
                "broker.bullmq.keys": "oxcart.broker.bridge.keys",
                "broker.bridge.keys": "oxcart.broker.bullmq.keys",
                "broker.memory.store": "oxcart.broker.partitioned.spread",
            },
        ),
        (
            "Only the factory knows the protocols",
            {
                "queue": "oxcart.broker.bullmq.keys",
                "broker.discovery": "oxcart.broker.bridge.keys",
                "cli.queues": "oxcart.broker.partitioned.spread",
            },
        ),
        (
            "Only the broker talks to the server",
            {
                "engine.worker": "hiredis",
                "queue": "oxcart.broker.link",
                "spark.session": "oxcart.broker.caller",
            },
        ),
        (
            "Only observe knows tracers and error trackers",
            {"engine.tracing": "opentelemetry", "http.application": "sentry_sdk"},
        ),
        ("Questions of a lake need no Spark", {"history.reader": "pyspark"}),
    ],
)
def test_an_import_against_a_contract_fails(tree: Path, contract: str, planted: dict[str, str]) -> None:
    for name, imported in planted.items():
        path = tree / "src" / "oxcart" / (name.replace(".", "/") + ".py")
        append(path, f"\n\ndef _planted() -> None:\n    import {imported}  # noqa: F401\n")
    code, output = make(tree, "lint")
    assert code != 0
    assert f"{contract} BROKEN" in output
    for name, imported in planted.items():
        assert f"oxcart.{name} -> {imported}" in output


def test_a_module_without_a_layer_fails(tree: Path) -> None:
    (tree / "src" / "oxcart" / "stray.py").write_text('"""Stands in no layer."""\n', "utf-8")
    code, output = make(tree, "lint")
    assert code != 0
    assert "Each layer imports only layers below it BROKEN" in output
    assert "oxcart.stray" in output


def test_a_twin_that_differs_from_its_source_fails(tree: Path) -> None:
    source, twins = tree / "src" / "oxcart" / "queue.py", tree / "src" / "oxcart" / "sync"
    close = "    async def close(self)"
    added = (
        '    async def twice(self, number: int) -> int:\n        """Doubles."""\n        return 2 * number\n'
    )
    source.write_text(source.read_text("utf-8").replace(close, f"{added}\n{close}", 1), "utf-8")
    append(twins / "_handle.py", "\n\nEDITED = True\n")
    (twins / "_extra.py").write_text('"""No source makes this."""\n', "utf-8")
    code, output = make(tree, "lint")
    assert code != 0
    for name in ("_queue", "_handle", "_extra"):
        assert f"src/oxcart/sync/{name}.py is not what its source makes of it; run `make sync`" in output
    code, output = make(tree, "sync")
    assert code == 0, output
    assert "return self.run(self.asynchronous.twice(number))" in (twins / "_queue.py").read_text("utf-8")
    code, output = make(tree, "lint")
    assert code == 0, output
