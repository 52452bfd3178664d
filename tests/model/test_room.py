"""The model as a whole: it imports nothing else of Oxcart, and its examples are right."""

import ast
import doctest
import importlib
from pathlib import Path

import msgspec
import pytest

import oxcart.model

ROOM = Path(oxcart.model.__file__).parent
FILES = sorted(ROOM.glob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_imports_nothing_else_of_ours_and_no_clock(path: Path) -> None:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            names.add(node.module or "")
    assert not {name for name in names if name.startswith("oxcart") and not name.startswith("oxcart.model")}
    assert not names & {"time", "random", "socket", "asyncio", "threading", "redis", "os"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_examples(path: Path) -> None:
    name = "oxcart.model" if path.stem == "__init__" else f"oxcart.model.{path.stem}"
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_public_names_exist() -> None:
    assert all(hasattr(oxcart.model, name) for name in oxcart.model.__all__)
    assert len(set(oxcart.model.__all__)) == len(oxcart.model.__all__)


def test_values_are_frozen_but_for_those_that_are_filled_step_by_step() -> None:
    names = ["oxcart.model" if path.stem == "__init__" else f"oxcart.model.{path.stem}" for path in FILES]
    found = {
        f"{kind.__module__}.{kind.__name__}"
        for name in names
        for kind in vars(importlib.import_module(name)).values()
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct) and kind.__module__ == name
        if not kind.__struct_config__.frozen
    }
    assert found == {"oxcart.model.failure_groups.FailureGroup", "oxcart.model.failure_groups.Failures"}
