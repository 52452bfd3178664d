"""The public face: few names, each importable, typed, and loaded only when used."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version
from importlib.resources import files

import pytest

import oxcart


def test_the_names() -> None:
    assert len(oxcart.__all__) <= 22
    assert sorted(oxcart.__all__, key=str.lower) == sorted(set(oxcart.__all__), key=str.lower)
    assert {"Queue", "Worker", "QueueEvents", "Retry", "Cancel", "Snooze", "TemporaryError"} <= set(
        oxcart.__all__
    )


@pytest.mark.parametrize("name", oxcart.__all__)
def test_every_name_is_there_and_documented(name: str) -> None:
    assert getattr(oxcart, name).__doc__
    assert name in dir(oxcart)


def test_version_is_that_of_the_package() -> None:
    assert oxcart.__version__ == version("oxcart")


def test_an_unknown_name() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Qeueu'"):
        _ = oxcart.Qeueu


def test_is_typed() -> None:
    assert files("oxcart").joinpath("py.typed").is_file()


@pytest.mark.parametrize(
    ("module", "unwanted"),
    [
        ("oxcart", ("oxcart.engine.worker", "oxcart.queue", "redis", "typer")),
        ("oxcart.model", ("oxcart.broker", "oxcart.engine", "asyncio")),
        ("oxcart.queue", ("oxcart.cli", "typer", "rich", "prometheus_client", "pytest")),
        ("oxcart.sync", ("oxcart.cli", "typer", "rich", "oxcart.testing")),
        ("oxcart.testing", ("pytest", "oxcart.cli")),
    ],
)
def test_an_import_brings_no_more_than_it_needs(module: str, unwanted: tuple[str, ...]) -> None:
    code = f"import sys, {module}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) & set(unwanted) == set()
