"""docs/architecture.md names the existing folders and files."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "oxcart"
PAGE = (ROOT / "docs" / "architecture.md").read_text("utf-8")


def test_every_file_of_the_way_exists() -> None:
    files = re.findall(r"`([\w/]+\.(?:py|lua))`", PAGE)
    assert len(files) > 20
    assert [name for name in files if not (SOURCE / name).exists() and not list(SOURCE.rglob(name))] == []


def test_every_folder_has_its_line() -> None:
    named = set(re.findall(r"^\| `([\w/]+)/` \|", PAGE, re.MULTILINE))
    folders = {
        path.parent.relative_to(SOURCE).as_posix() for path in SOURCE.rglob("*.py") if path.parent != SOURCE
    }
    assert named <= folders
    # The folders of the drop-in mirror those of PyPI's package.
    missing = {one for one in folders - named if not one.startswith("compat")}
    assert missing == set()


@pytest.mark.parametrize(
    "layer", ["cli", "http", "spark", "observe", "testing", "sync", "compat", "engine", "broker"]
)
def test_the_diagram_has_the_layers_of_the_contract(layer: str) -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]
    (layers,) = [one["layers"] for one in settings["contracts"] if one["type"] == "layers"]
    assert any(layer in re.findall(r"\w+", one) for one in layers)
    assert f'{layer}["' in PAGE
