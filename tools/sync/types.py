"""What becomes of values and arguments, by their types."""

from __future__ import annotations

import ast

from tools.sync.faces import QUEUE
from tools.sync.source import Module, Unclear, face_of, is_types_only, mentions_face, names_in


def wrapped(kind: ast.expr | None, value: str, source: Module) -> str:
    """An expression of the asynchronous side as one of this side, by its type."""
    if kind is None or not (mentions_face(kind, source) or _is_self(kind)):
        return value
    if _is_self(kind):
        return f"self._of({value})"
    match kind:
        case ast.Constant(value=str(text)):
            return wrapped(ast.parse(text, mode="eval").body, value, source)
        case ast.Name(id=name) | ast.Subscript(value=ast.Name(id=name)) if face := face_of(name, source):
            if face.name == QUEUE:
                return f"_portal.twin_of({value})"
            return f"{name}._of({value})"
        case ast.BinOp(left=left, right=ast.Constant(value=None)):
            return f"None if (found := {value}) is None else {wrapped(left, 'found', source)}"
        case ast.Subscript(value=ast.Name(id="list" | "Sequence"), slice=inner):
            return f"[{wrapped(inner, 'one', source)} for one in {value}]"
        case ast.Subscript(value=ast.Name(id="tuple"), slice=ast.Tuple(elts=[inner, ast.Constant()])):
            return f"tuple({wrapped(inner, 'one', source)} for one in {value})"
        case ast.Subscript(value=ast.Name(id="dict" | "Mapping"), slice=ast.Tuple(elts=[_, inner])):
            return f"{{key: {wrapped(inner, 'one', source)} for key, one in {value}.items()}}"
        case _:
            raise Unclear(f"{source.path}: cannot make twins of {ast.unparse(kind)}")


def unwrapped(arg: ast.arg, source: Module) -> str:
    """A parameter as the asynchronous side takes it, by its type."""
    kind, name = arg.annotation, arg.arg
    if kind is None:
        return name
    match kind:
        case ast.Name(id=of) | ast.Subscript(value=ast.Name(id=of)) if face_of(of, source):
            return f'_portal.within("{name}", {name})'
        case ast.BinOp(left=ast.Name(id=of), right=ast.Constant(value=None)) if face_of(of, source):
            return f'None if {name} is None else _portal.within("{name}", {name})'
        case ast.Subscript(value=ast.Name(id="Sequence" | "Iterable" | "list"), slice=ast.Name(id=of)) if (
            face_of(of, source) and not is_types_only(of, source)
        ):
            return f'_portal.behind("{name}", {of}, {name})'
        case _:
            if mentions_face(kind, source) or "Iterable" in names_in(kind):
                return f"_portal.inward({name})"
            return name


def _is_self(kind: ast.expr) -> bool:
    return isinstance(kind, ast.Name) and kind.id == "Self"


def item_of(kind: ast.expr | None) -> ast.expr | None:
    """The type of what an async iterator gives."""
    match kind:
        case ast.Subscript(value=ast.Name(id="AsyncIterator" | "AsyncIterable"), slice=inner):
            return inner
        case ast.Subscript(value=ast.Name(id="AsyncGenerator"), slice=ast.Tuple(elts=[inner, *_])):
            return inner
        case _:
            return None
