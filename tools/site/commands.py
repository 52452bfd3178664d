"""The reference of the command line, generated from the commands themselves."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any

import typer

from oxcart.cli.app import PANELS, app

#: Texts of options that every command has; the page names them once.
_EVERYWHERE = {"--help", "--install-completion", "--show-completion"}
#: What stands for the value of an option, by its type.
_WORDS: dict[Any, str] = {int: "INTEGER", float: "NUMBER", Path: "PATH"}


def page() -> str:
    """Returns the page of all commands, by task."""
    root = typer.main.get_command(app)
    parts = [
        "# Commands",
        "Generated from the program: `oxcart COMMAND --help` shows the same.",
        "## Options of every command",
        _table(root, with_help=False),
        str(app.info.epilog or ""),
    ]
    for panel in PANELS:
        parts.append(f"## {panel}")
        for path, command in walk(root, ("oxcart",)):
            if _panel(root, path) == panel:
                parts += _command(path, command)
    return "\n\n".join(part for part in parts if part) + "\n"


def walk(command: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yields every command that can be run, with its words."""
    below = getattr(command, "commands", None)
    if not below:
        yield path, command
    for name, one in (below or {}).items():
        if not one.hidden:
            yield from walk(one, (*path, name))


def _panel(root: Any, path: tuple[str, ...]) -> str:
    return str(root.commands[path[1]].rich_help_panel)


def _command(path: tuple[str, ...], command: Any) -> list[str]:
    words = " ".join(path)
    arguments = " ".join(_metavar(one) for one in command.params if one.param_type_name == "argument")
    help_text = "\n\n".join(" ".join(part.split()) for part in (command.help or "").split("\n\n"))
    usage = f"```text\n{words} [OPTIONS] {arguments}".rstrip() + "\n```"
    return [f"### {words}", _escaped(help_text), usage, _table(command)]


def _table(command: Any, *, with_help: bool = True) -> str:
    rows = []
    for one in command.params:
        if one.hidden or _EVERYWHERE & set(one.opts):
            continue
        is_argument = one.param_type_name == "argument"
        names = _metavar(one) if is_argument else ", ".join([*one.opts, *one.secondary_opts])
        if not is_argument and not one.is_flag:
            names += f" {_metavar(one)}"
        rows.append(f"| `{names}` | {_cell(one.help or '')} | {_cell(_default(one))} |")
    if not rows:
        return ""
    head = "option" if not with_help else "argument or option"
    return "\n".join([f"| {head} | meaning | default |", "|---|---|---|", *rows])


def _metavar(one: Any) -> str:
    if one.metavar or one.param_type_name == "argument":
        return str(one.metavar or one.name.upper())
    kind = one.type_descriptor.annotation
    if isinstance(kind, type) and issubclass(kind, Enum):
        return "|".join(str(choice.value) for choice in kind)
    return _WORDS.get(kind, "TEXT")


def _default(one: Any) -> str:
    shown = getattr(one, "show_default", None)
    if isinstance(shown, str):
        return shown
    value = one.default
    if value is None or callable(value) or shown is False or value is False or value == []:
        return "required" if one.required else ""
    if value is True:
        return "on"
    return f"`{getattr(value, 'value', value)}`"


def _cell(text: str) -> str:
    return _escaped(" ".join(text.split())).replace("|", "\\|")


def _escaped(text: str) -> str:
    return text.replace("<", "&lt;").replace("*", "\\*").replace("_", "\\_") if "`" not in text else text
