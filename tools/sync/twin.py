"""Writes the twin of one class."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

from tools.sync.faces import QUEUE, Face
from tools.sync.output import Output, plain, quoted
from tools.sync.source import Module, Unclear, alias_of, face_of, is_ours, module, names_in, place
from tools.sync.types import item_of, unwrapped, wrapped

_TYPES = (
    (re.compile(r"\bAsyncIterator\["), "Iterator["),
    (re.compile(r"\bAsyncIterable\["), "Iterable["),
    (re.compile(r"\bAsyncGenerator\[([^,\]]+), None\]"), r"Iterator[\1]"),
)
#: Dunder methods that a twin has where the face has them.
_DUNDERS = ("__call__", "__contains__", "__getitem__", "__len__", "__eq__", "__hash__", "__bool__")

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass
class Attribute:
    """A public attribute of a face."""

    name: str
    type: ast.expr
    source: Module
    doc: str


class Twin:
    """Writes the twin of one face."""

    def __init__(self, face: Face, output: Output) -> None:
        self.face = face
        self.output = output
        self.source = output.source
        self.node = self.source.classes[face.name]
        self.methods: list[tuple[Function, Module]] = []
        self.overloads: dict[str, list[ast.FunctionDef]] = {}
        self.attributes: dict[str, Attribute] = {}
        self.bases: list[str] = []
        self._collect(self.node, self.source)
        known = {method.name for method, _ in self.methods} | self.attributes.keys()
        if gone := set(face.without) - known:
            raise Unclear(f"{face.name} has no {', '.join(sorted(gone))}, which FACES names")

    def _collect(self, node: ast.ClassDef, source: Module) -> None:
        """Reads a class and those of its bases that are no faces."""
        known = {method.name for method, _ in self.methods}
        untyped: dict[str, int] = {}
        for one in node.body:
            if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef):
                if isinstance(one, ast.FunctionDef) and _has(one, "overload"):
                    self.overloads.setdefault(one.name, []).append(one)
                elif one.name not in known:
                    self.methods.append((one, source))
                untyped |= self._assigned(one, node, source)
            elif isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name):
                self._attribute(one.target.id, one.annotation, node, source, one.lineno)
        known = {method.name for method, _ in self.methods}
        for name, line in untyped.items():
            if name not in self.attributes and name not in self.face.without and name not in known:
                raise Unclear(f"{source.path}:{line}: the public attribute {name} needs an annotation")
        for base in node.bases:
            root = base.value if isinstance(base, ast.Subscript) else base
            if not isinstance(root, ast.Name) or root.id == "Protocol":
                continue
            if root.id == "Generic" or face_of(root.id, source):
                self.bases.append(ast.unparse(base))
            elif is_ours(place(root.id, source)[0]):
                where, name = place(root.id, source)
                self._collect(module(where).classes[name], module(where))

    def _assigned(self, method: Function, owner: ast.ClassDef, source: Module) -> dict[str, int]:
        """Notes the attributes that a method assigns; returns those whose types cannot be read."""
        params = {one.arg: one.annotation for one in _all_args(method)}
        untyped: dict[str, int] = {}
        for one in ast.walk(method):
            match one:
                case ast.AnnAssign(
                    target=ast.Attribute(value=ast.Name(id="self"), attr=name), annotation=kind
                ):
                    self._attribute(name, kind, owner, source, one.lineno)
                case ast.Assign(targets=[ast.Attribute(value=ast.Name(id="self"), attr=name)], value=value):
                    match value:
                        case ast.Name(id=given) if params.get(given) is not None:
                            self._attribute(name, params[given], owner, source, one.lineno)
                        case ast.Call(func=ast.Name(id=called)) if called[:1].isupper():
                            self._attribute(name, value.func, owner, source, one.lineno)
                        case _ if not name.startswith("_"):
                            untyped[name] = one.lineno
                        case _:
                            pass
                case _:
                    pass
        return untyped

    def _attribute(
        self, name: str, kind: ast.expr | None, owner: ast.ClassDef, source: Module, line: int
    ) -> None:
        if kind is None or name in self.attributes or name in self.face.without:
            return
        if name.startswith("_") and not _is_queue(kind, source):
            return
        doc = comment_above(source.lines, line) or _documented(ast.get_docstring(owner) or "", name)
        self.attributes[name] = Attribute(
            name, kind, source, plain(doc or f"As ``oxcart.{self.face.name}.{name}``.")
        )

    def text(self) -> str:
        """The class."""
        parts = [self._head()]
        held = [one for one in self.attributes.values() if _is_queue(one.type, one.source)]
        init = next(((one, src) for one, src in self.methods if one.name == "__init__"), None)
        if init is not None:
            parts.append(self._init(*init))
        if held or self._wraps_function(init):
            parts.append(self._stand_for(held, wraps=self._wraps_function(init)))
        known = {method.name for method, _ in self.methods}
        for one in self.attributes.values():
            if one not in held and one.name not in known:
                parts.append(self._property(one))
        names = [method.name for method, _ in self.methods]
        for method, source in self.methods:
            if self._is_wanted(method):
                parts.append(self._method(method, source, has_close="close" in names))
        return "\n\n".join(parts)

    @property
    def _run(self) -> str:
        """What waits for a coroutine: the queue, which tests let run in the caller's thread."""
        if self.face.name == QUEUE:
            return "self.run"
        held = next((one.name for one in self._inherited() if _is_queue(one.type, one.source)), None)
        return "_portal.run" if held is None else f"self.{held}.run"

    def _inherited(self) -> list[Attribute]:
        """The attributes with those of a base that is a face."""
        found = list(self.attributes.values())
        for base in self.bases:
            if (face := face_of(base.partition("[")[0], self.source)) is not None:
                found += Twin(face, Output(module(face.module)))._inherited()
        return found

    def _is_wanted(self, method: Function) -> bool:
        name = method.name
        if name in self.face.without:
            return False
        if name.startswith("__"):
            return name in _DUNDERS or name in ("__aenter__", "__aexit__", "__aiter__")
        return not name.startswith("_") or name in self.face.seams

    def _wraps_function(self, init: tuple[Function, Module] | None) -> bool:
        """Whether the face shows a function's name and docstring."""
        return init is not None and any(
            isinstance(one, ast.Call) and isinstance(one.func, ast.Name) and one.func.id == "update_wrapper"
            for one in ast.walk(init[0])
        )

    def _behind(self) -> str:
        """The type that the twin stands for."""
        generic = next((base for base in self.bases if base.startswith("Generic[")), "")
        return f"{alias_of(self.source)}.{self.face.name}{generic[len('Generic') :]}"

    def _head(self) -> str:
        from_face = [base for base in self.bases if not base.startswith("Generic[")]
        kind = "Owner" if any(_is_close(one) for one in self.node.body) else "Twin"
        root = (
            []
            if from_face
            else ["_portal.QueueTwin" if self.face.name == QUEUE else f"_portal.{kind}[{self._behind()}]"]
        )
        lines = [f"class {self.face.name}({', '.join([*root, *self.bases])}):"]
        lines.append(quoted(plain(ast.get_docstring(self.node) or ""), "    "))
        slots = [
            one
            for one in self.node.body
            if isinstance(one, ast.Assign) and names_in(one.targets[0]) == {"__slots__"}
        ]
        if slots:
            held = [one.name for one in self.attributes.values() if _is_queue(one.type, one.source)]
            inherited = bool(from_face)
            lines += ["", f"    __slots__ = {tuple(held) if not inherited else ()!r}"]
        if from_face or self.face.name == QUEUE:
            lines += ["", f"    asynchronous: {self._behind()}"]
        text = "\n".join(lines)
        self.output.add(text, self.source)
        return text

    def _init(self, method: Function, source: Module) -> str:
        call = f"{alias_of(self.source)}.{self.face.name}({self._arguments(method, source)})"
        return self._piece([self._signature(method, source), f"        self._stand_for({call})"], source)

    def _stand_for(self, held: list[Attribute], *, wraps: bool) -> str:
        lines = [
            f"    def _stand_for(self, asynchronous: {self._behind()}) -> None:",
            "        super()._stand_for(asynchronous)",
        ]
        lines += [f"        self.{one.name} = _portal.twin_of(asynchronous.{one.name})" for one in held]
        if wraps:
            lines.append("        update_wrapper(self, asynchronous.__wrapped__)")
        return self._piece(lines, self.source)

    def _property(self, one: Attribute) -> str:
        value = wrapped(one.type, f"self.asynchronous.{one.name}", one.source)
        lines = [
            "    @property",
            f"    def {one.name}(self) -> {ast.unparse(one.type)}:",
            quoted(one.doc, "        "),
            f"        return {value}",
        ]
        return self._piece(lines, one.source)

    def _method(self, method: Function, source: Module, *, has_close: bool) -> str:
        if method.name in ("__aenter__", "__aexit__", "__aiter__"):
            return self._protocol(method, source, has_close=has_close)
        lines: list[str] = []
        overloads = self.overloads.get(method.name, [])
        for one in overloads:
            lines += [source.source(one), ""]
        if _has(method, "property", "cached_property"):
            lines.append("    @property")
        lines += [f"    @{name}" for name in ("classmethod", "staticmethod") if _has(method, name)]
        lines.append(self._signature(method, source))
        if doc := ast.get_docstring(method):
            lines.append(quoted(plain(doc), "        "))
        lines += self._body(method, source, overloads)
        return self._piece(lines, source)

    def _body(self, method: Function, source: Module, overloads: list[ast.FunctionDef]) -> list[str]:
        target = f"self.asynchronous.{method.name}"
        if _has(method, "classmethod", "staticmethod"):
            target = f"{alias_of(self.source)}.{self.face.name}.{method.name}"
        if method.name == "__call__":
            target = "self.asynchronous"
        if _has(method, "property", "cached_property"):
            return [f"        return {wrapped(method.returns, target, source)}"]
        if overloads:
            return self._overloaded(method, source, overloads, target)
        call = f"{target}({self._arguments(method, source)})"
        if (item := item_of(method.returns)) is not None:
            if _is_plain_coroutine(method):
                call = f"{self._run}({call})"
            streamed = wrapped(item, "one", source)
            call = f"_portal.iterate({self._run}, {call})"
            return [f"        return {call if streamed == 'one' else f'({streamed} for one in {call})'}"]
        if isinstance(method, ast.AsyncFunctionDef):
            call = f"{self._run}({call})"
            if method.name == "close":  # nothing is open where nothing runs
                return ["        if _portal.is_running():", f"            {call}"]
        if isinstance(method.returns, ast.Constant) and method.returns.value is None:
            return [f"        {call}"]
        return [f"        return {wrapped(method.returns, call, source)}"]

    def _overloaded(
        self, method: Function, source: Module, overloads: list[ast.FunctionDef], target: str
    ) -> list[str]:
        """A decorator with and without arguments: what it makes of a function becomes a twin."""
        made = {
            root.id
            for one in overloads
            if one.returns is not None
            and isinstance(
                root := one.returns.value if isinstance(one.returns, ast.Subscript) else one.returns, ast.Name
            )
            and face_of(root.id, source)
        }
        lines = [f"        decorate: Any = {target}"]
        if not made:
            return [*lines, f"        return decorate({self._arguments(method, source)})"]
        (kind,) = made
        first = (method.args.posonlyargs or method.args.args)[1].arg
        if first == "self":
            raise Unclear(f"{source.path}: {method.name} takes no function")
        rest = self._arguments(method, source, skip=first)
        return [
            *lines,
            f"        if {first} is not None:",
            f"            return {kind}._of(decorate({first}))",
            f"        with_options = decorate({rest})",
            f"        return lambda {first}: {kind}._of(with_options({first}))",
        ]

    def _protocol(self, method: Function, source: Module, *, has_close: bool) -> str:
        """``with`` and ``for``."""
        if method.name == "__aenter__":
            lines = [f"    def __enter__(self) -> {ast.unparse(method.returns or ast.Name('Self'))}:"]
            if not (len(method.body) == 1 and isinstance(method.body[0], ast.Return)):
                lines.append(f"        {self._run}(self.asynchronous.__aenter__())")
            return self._piece([*lines, "        return self"], source)
        if method.name == "__aexit__":
            lines = ["    def __exit__(self, *exc: object) -> None:"]
            end = "self.close()" if has_close else f"{self._run}(self.asynchronous.__aexit__(*exc))"
            return self._piece([*lines, f"        {end}"], source)
        item = item_of(method.returns)
        if item is None:
            raise Unclear(f"{source.path}: __aiter__ of {self.face.name} needs an AsyncIterator[…]")
        streamed = wrapped(item, "one", source)
        call = f"_portal.iterate({self._run}, self.asynchronous, self)"
        return self._piece(
            [
                f"    def __iter__(self) -> Iterator[{ast.unparse(item)}]:",
                f"        return {call if streamed == 'one' else f'({streamed} for one in {call})'}",
            ],
            source,
        )

    def _signature(self, method: Function, source: Module) -> str:
        """The lines of ``def``, as they are written but for ``async``."""
        lines = source.lines[method.lineno - 1 : method.body[0].lineno - 1]
        text = (
            "\n".join(lines).rpartition(":\n")[0] + ":"
            if lines[-1].lstrip().startswith("#")
            else "\n".join(lines)
        )
        for pattern, instead in _TYPES:
            text = pattern.sub(instead, text)
        return re.sub(r"^( *)async def", r"\1def", text)

    def _arguments(self, method: Function, source: Module, skip: str = "") -> str:
        args = method.args
        passed: list[str] = []
        own = args.posonlyargs + args.args
        for one in own if _has(method, "staticmethod") else own[1:]:
            if one.arg != skip:
                passed.append(unwrapped(one, source))
        if args.vararg is not None:
            kind = args.vararg.annotation
            many = ast.Subscript(ast.Name("Sequence"), kind) if kind is not None else None
            passed.append("*" + unwrapped(ast.arg(args.vararg.arg, many), source))
        passed += [f"{one.arg}={unwrapped(one, source)}" for one in args.kwonlyargs]
        if args.kwarg is not None:
            passed.append("**" + args.kwarg.arg)
        return ", ".join(passed)

    def _piece(self, lines: list[str], source: Module) -> str:
        text = "\n".join(lines)
        self.output.add(text, source)
        return text


def _is_queue(kind: ast.expr, source: Module) -> bool:
    face = face_of(kind.id, source) if isinstance(kind, ast.Name) else None
    return face is not None and face.name == QUEUE


def _has(method: Function, *decorators: str) -> bool:
    return any(isinstance(one, ast.Name) and one.id in decorators for one in method.decorator_list)


def _all_args(method: Function) -> Iterator[ast.arg]:
    args = method.args
    yield from (*args.posonlyargs, *args.args, *args.kwonlyargs)


def _is_plain_coroutine(method: Function) -> bool:
    return isinstance(method, ast.AsyncFunctionDef) and not any(
        isinstance(one, ast.Yield | ast.YieldFrom) for one in ast.walk(method)
    )


def comment_above(lines: list[str], line: int) -> str:
    """The ``#:`` comment above a line."""
    found: list[str] = []
    for text in reversed(lines[: line - 1]):
        if not text.strip().startswith("#:"):
            break
        found.insert(0, text.strip()[2:].strip())
    return " ".join(found)


def _documented(doc: str, name: str) -> str:
    """What the Args or Attributes of a class say of a name."""
    match = re.search(rf"^    (?:\*\*)?{re.escape(name)}: (.*(?:\n {{8}}.*)*)", doc, re.MULTILINE)
    return " ".join(match[1].split()) if match else ""


def _is_close(node: ast.stmt) -> bool:
    return isinstance(node, ast.AsyncFunctionDef) and node.name == "close"
