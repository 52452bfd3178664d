"""JSON Schemas of the model, for readers in other languages.

``python -m oxcart.model.schemas --write docs/schemas`` writes them; a test keeps them up to date.
"""

from __future__ import annotations

import argparse
import inspect
import json
import re
from pathlib import Path
from typing import Any

import msgspec

from oxcart.model.event import Event
from oxcart.model.job import Job
from oxcart.model.options import JobOptions

_DIALECT = "https://json-schema.org/draft/2020-12/schema"

#: The file of each schema.
SCHEMAS: dict[str, type[msgspec.Struct]] = {
    "event.schema.json": Event,
    "job.schema.json": Job,
    "job-options.schema.json": JobOptions,
}

#: Headings that end the attributes of a docstring.
_SECTION = re.compile(r"\n\w+:\n")
_ATTRIBUTE = re.compile(r"(\w+): (.*)")


def schema(kind: type[msgspec.Struct]) -> dict[str, Any]:
    """Returns the JSON Schema of a type, with the descriptions of its docstring."""
    (top,), parts = msgspec.json.schema_components([kind], ref_template="#/$defs/{name}")
    structs = {part.__name__: part for part in _structs(kind)}
    for name, part in parts.items():
        if name in structs:
            _describe(part, structs[name])
    return {"$schema": _DIALECT, **top, "$defs": parts}


def render(kind: type[msgspec.Struct]) -> str:
    """Returns the text of a schema's file."""
    return json.dumps(schema(kind), indent=2, ensure_ascii=False, sort_keys=False) + "\n"


def write(directory: Path) -> list[Path]:
    """Writes every schema and returns the files."""
    directory.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, kind in SCHEMAS.items():
        path = directory / name
        path.write_text(render(kind), encoding="utf-8")
        paths.append(path)
    return paths


def _structs(kind: type[msgspec.Struct]) -> list[type[msgspec.Struct]]:
    """Returns the type and every Struct in its fields."""
    found: list[type[msgspec.Struct]] = []
    waiting: list[Any] = [msgspec.inspect.type_info(kind)]
    while waiting:
        info = waiting.pop()
        if isinstance(info, msgspec.inspect.StructType | msgspec.inspect.DataclassType):
            if info.cls not in found:
                found.append(info.cls)
                waiting.extend(field.type for field in info.fields)
        elif isinstance(info, msgspec.inspect.UnionType):
            waiting.extend(info.types)
    return found


def _describe(part: dict[str, Any], kind: type[msgspec.Struct]) -> None:
    """Moves the docstring's attributes to the properties that they describe."""
    text, _, attributes = (inspect.getdoc(kind) or "").partition("Attributes:")
    part["description"] = text.strip().partition("\n\n")[0].replace("\n", " ")
    attributes = _SECTION.split(attributes)[0]
    for name, words in _attributes(attributes).items():
        part["properties"][name]["description"] = words


def _attributes(text: str) -> dict[str, str]:
    found: dict[str, str] = {}
    name = ""
    for line in inspect.cleandoc(text).splitlines():
        match = _ATTRIBUTE.fullmatch(line)
        if match:
            name = match[1]
            found[name] = match[2]
        elif line.strip():  # a continuation, indented deeper
            found[name] += " " + line.strip()
    return found


def main(argv: list[str] | None = None) -> None:
    """Writes the schemas; the entry point of the command line."""
    parser = argparse.ArgumentParser(prog="python -m oxcart.model.schemas", description=__doc__)
    parser.add_argument(
        "--write", type=Path, metavar="DIRECTORY", required=True, help="where to put the files"
    )
    for path in write(parser.parse_args(argv).write):
        print(path)


if __name__ == "__main__":
    main()
