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


def layers() -> list[str]:
    """Returns every package that the contract lists as a layer, or as a part of one."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]
    listed = next(one["layers"] for one in settings["contracts"] if one.get("exhaustive"))
    names = [name for layer in listed for name in re.findall(r"\w+", layer)]
    return [name for name in names if (SOURCE / name).is_dir()]


@pytest.mark.parametrize("layer", layers())
def test_the_diagram_has_the_layers_of_the_contract(layer: str) -> None:
    assert re.search(rf'^  {layer}\["{layer}: ', PAGE, re.MULTILINE)


def test_the_diagram_has_no_other_layers() -> None:
    drawn = re.findall(r'^  (\w+)\["', PAGE, re.MULTILINE)
    assert sorted(drawn) == sorted([*layers(), "face"])
    (order,) = re.findall(r"^  (cli --> .*)$", PAGE, re.MULTILINE)
    assert sorted(re.findall(r"\w+", order)) == sorted(drawn)
