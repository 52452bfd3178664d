"""The asynchronous source as the generator sees it: modules, and what their names mean."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tools.sync.faces import FACES, Face

ROOT = Path(__file__).resolve().parent.parent.parent
SOURCE = ROOT / "src"
TARGET = SOURCE / "oxcart" / "sync"


class Unclear(Exception):
    """The source does not tell enough to make a twin."""


@dataclass(frozen=True)
class Import:
    """An import statement of one name."""

    module: str
    name: str = ""
    bound: str = ""

    def __str__(self) -> str:
        alias = f" as {self.bound}" if self.bound and self.bound != (self.name or self.module) else ""
        return (
            f"from {self.module} import {self.name}{alias}" if self.name else f"import {self.module}{alias}"
        )


class Module:
    """A module of the source: its classes and what its names mean."""

    def __init__(self, name: str) -> None:
        self.name = name
        base = SOURCE / name.replace(".", "/")
        self.path = base / "__init__.py" if base.is_dir() else base.with_suffix(".py")
        self.text = self.path.read_text(encoding="utf-8")
        self.lines = self.text.splitlines()
        self.tree = ast.parse(self.text)
        self.imports: dict[str, tuple[Import, bool]] = {}
        self.classes: dict[str, ast.ClassDef] = {}
        self.aliases: dict[str, ast.Assign] = {}
        self.own: set[str] = set()
        self._read(self.tree.body, types_only=False)

    def _read(self, body: Iterable[ast.stmt], *, types_only: bool) -> None:
        for node in body:
            match node:
                case ast.ImportFrom(module=str(module)):
                    for one in node.names:
                        bound = one.asname or one.name
                        self.imports[bound] = Import(module, one.name, bound), types_only
                case ast.Import():
                    for one in node.names:
                        self.imports[one.asname or one.name] = (
                            Import(one.name, "", one.asname or one.name),
                            types_only,
                        )
                case ast.If(test=ast.Name(id="TYPE_CHECKING")):
                    self._read(node.body, types_only=True)
                case ast.ClassDef():
                    self.classes[node.name] = node
                    self.own.add(node.name)
                case ast.Assign(targets=[ast.Name(id=name)]):
                    self.aliases[name] = node
                    self.own.add(name)
                case ast.AnnAssign(target=ast.Name(id=name)):
                    self.own.add(name)
                case ast.FunctionDef() | ast.AsyncFunctionDef():
                    self.own.add(node.name)
                case _:
                    pass

    def source(self, node: ast.stmt) -> str:
        """The text of a statement with its decorators, indented as it is."""
        decorators = getattr(node, "decorator_list", [])
        first = min([node.lineno, *(one.lineno for one in decorators)])
        return "\n".join(self.lines[first - 1 : node.end_lineno])


@cache
def module(name: str) -> Module:
    """A module of the source, read once."""
    return Module(name)


def twin_module(name: str) -> str:
    """The module with the twins of a module's faces."""
    return f"oxcart.sync._{name.rpartition('.')[2]}"


def names_in(node: ast.AST) -> set[str]:
    """All names that an expression mentions."""
    return {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}


def place(name: str, source: Module) -> tuple[str, str]:
    """Where a name of a module is defined, however many modules pass it on."""
    if name not in source.imports:
        return source.name, name
    found, _ = source.imports[name]
    if not found.name or not is_ours(found.module):
        return found.module, found.name
    return place(found.name, module(found.module))


def is_ours(name: str) -> bool:
    """Whether a module is a file of the source."""
    base = SOURCE / name.replace(".", "/")
    return name.startswith("oxcart") and (base.with_suffix(".py").exists() or (base / "__init__.py").exists())


@cache
def remade() -> dict[tuple[str, str], str]:
    """Where the twins of classes, type aliases and protocols are, by the originals' module and name."""
    found = {(face.module, face.name): twin_module(face.module) for face in FACES}
    size = -1
    while size != len(found):
        size = len(found)
        for name in dict.fromkeys(face.module for face in FACES):
            source = module(name)
            for alias, node in source.aliases.items():
                is_type = isinstance(node.value, ast.BinOp | ast.Subscript)
                if is_type and any(place(one, source) in found for one in names_in(node.value)):
                    found[name, alias] = twin_module(name)
            for called, made in source.classes.items():
                is_protocol = any("Protocol" in names_in(base) for base in made.bases)
                if is_protocol and any(place(one, source) in found for one in names_in(made)):
                    found[name, called] = twin_module(name)
    return found


def face_of(name: str, source: Module) -> Face | None:
    """The face that a name of a module means."""
    where = place(name, source)
    return next((face for face in FACES if (face.module, face.name) == where), None)


def mentions_face(node: ast.AST, source: Module) -> bool:
    """Whether a type names a face, or an alias that does."""
    return any(place(one, source) in remade() for one in names_in(node))


def is_types_only(name: str, source: Module) -> bool:
    """Whether a module imports a name for type checkers alone."""
    return name in source.imports and source.imports[name][1]


def alias_of(source: Module) -> str:
    """The name of a source module in the file of its twins."""
    return f"_{source.name.rpartition('.')[2]}"


def twin_path(name: str) -> Path:
    """The file with the twins of a module's faces."""
    return TARGET / (twin_module(name).rpartition(".")[2] + ".py")
