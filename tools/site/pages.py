"""Staging: the files of the repository become pages of the site, and their links keep leading to files.

A page of `docs/` keeps its place. A few files outside (README, CHANGELOG, …) have a place of their own. Any
other file that a page links to, an example for instance, becomes a page that shows its text, so that no link
of the site leads out of it.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tools.site.diagrams import drawn

ROOT = Path(__file__).parents[2]

#: Files outside `docs/` that are pages, with their places in the site.
OUTSIDE = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "benchmarks/README.md": "benchmarks.md",
    "deploy/README.md": "deploy.md",
    "examples/node/README.md": "examples/node.md",
}
#: Folders that a page may link to, with the page that stands for each.
FOLDERS = {
    "docs/decisions": "decisions/README.md",
    "docs/schemas": "files/docs/schemas.md",
    "examples": "files/examples.md",
}
#: How the text of a file is highlighted, by its suffix.
LANGUAGES = {".py": "python", ".js": "js", ".json": "json", ".yml": "yaml", ".yaml": "yaml", ".toml": "toml"}
#: Characters of a file that a page shows at most.
SHOWN = 40_000

_LINK = re.compile(r"(!?\[(?:[^\[\]]|\[[^\]]*\])*\])\(([^()\s]+)\)")
#: A block of commands for a terminal of its own, which the generator shows only as a title.
_TERMINAL = re.compile(r'^(`{3,}\w+) terminal="(\d+)"')
_FENCE = re.compile(r"^( *)(`{3,}|~{3,})")


class BrokenLink(Exception):
    """A page links to a file that does not exist."""


@dataclass
class Site:
    """The pages of the site, by their places below its source folder.

    Attributes:
        root: The repository.
        pages: The text of each page.
        assets: The files that are copied as they are: places and sources.
        broken: Links that lead nowhere, as ``page: target``.
    """

    root: Path = ROOT
    pages: dict[str, str] = field(default_factory=dict)
    assets: dict[str, Path] = field(default_factory=dict)
    broken: list[str] = field(default_factory=list)
    _wanted: set[str] = field(default_factory=set)

    def collect(self) -> None:
        """Stages the pages of the repository and every file that they link to."""
        texts = {path: (self.root / path).read_text() for path in self.sources()}
        for path, text in texts.items():
            self.pages[place_of(path)] = drawn(self._relinked(path, text))
        for folder, place in FOLDERS.items():
            if place not in self.pages:
                self.pages[place] = self._listing(folder)
        for path in sorted(self._wanted):
            self.pages[file_place(path)] = _shown(path, (self.root / path).read_text())

    def sources(self) -> Iterator[str]:
        """The Markdown files that are pages, as paths of the repository."""
        yield from OUTSIDE
        for path in sorted((self.root / "docs").rglob("*.md")):
            yield path.relative_to(self.root).as_posix()

    def write(self, folder: Path) -> None:
        """Writes pages and assets."""
        for place, text in self.pages.items():
            target = folder / place
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text)
        for place, source in self.assets.items():
            target = folder / place
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(source.read_bytes())

    def _relinked(self, path: str, text: str) -> str:
        here = place_of(path)

        def relink(found: re.Match[str]) -> str:
            label, target = found.groups()
            try:
                return f"{label}({self._target(path, here, target)})"
            except BrokenLink:
                self.broken.append(f"{path}: {target}")
                return found[0]

        return "".join(
            _TERMINAL.sub(r'\1 title="terminal \2"', line) if is_code else _LINK.sub(relink, line)
            for line, is_code in lines_with_code(text)
        )

    def _target(self, path: str, here: str, target: str) -> str:
        if "://" in target or target.startswith(("#", "mailto:")):
            return target
        file, _, anchor = target.partition("#")
        named = posixpath.normpath(posixpath.join(posixpath.dirname(path), file))
        place = self._place(named)
        relative = os.path.relpath(place, posixpath.dirname(here) or ".")
        return relative + (f"#{anchor}" if anchor else "")

    def _place(self, named: str) -> str:
        """The place of a file of the repository; remembers that the site needs it."""
        if named in FOLDERS:
            if named != "docs/decisions":
                self._wanted.update(self._files(named))
            return FOLDERS[named]
        source = self.root / named
        if not source.is_file():
            raise BrokenLink(named)
        if named in OUTSIDE or (named.startswith("docs/") and named.endswith(".md")):
            return place_of(named)
        if source.suffix in (".svg", ".png"):
            place = named.removeprefix("docs/")
            self.assets[place] = source
            return place
        self._wanted.add(named)
        return file_place(named)

    def _files(self, folder: str) -> list[str]:
        """The files of a folder that a page can show."""
        found = (self.root / folder).iterdir()
        return sorted(f"{folder}/{one.name}" for one in found if one.suffix in LANGUAGES)

    def _listing(self, folder: str) -> str:
        rows = [
            f"- [{Path(path).name}]({Path(folder).name}/{Path(path).name}.md)" for path in self._files(folder)
        ]
        self._wanted.update(self._files(folder))
        title = {"docs/schemas": "JSON Schemas", "examples": "Examples"}.get(folder, folder)
        return f"# {title}\n\n" + "\n".join(rows) + "\n"


def place_of(path: str) -> str:
    """Returns the place of a Markdown file of the repository in the site."""
    return OUTSIDE.get(path) or path.removeprefix("docs/")


def file_place(path: str) -> str:
    """Returns the place of the page that shows a file."""
    return f"files/{path.lstrip('.')}.md"  # the generator skips hidden files


def lines_with_code(text: str) -> Iterator[tuple[str, bool]]:
    """Yields the lines of Markdown, and whether each is part of a code block."""
    fence = ""
    for line in text.splitlines(keepends=True):
        found = _FENCE.match(line)
        if fence:
            yield line, True
            if found and found[2].startswith(fence) and not line.strip().strip(fence[0]):
                fence = ""
        elif found:
            fence = found[2]
            yield line, True
        else:
            yield line, False


def _shown(path: str, text: str) -> str:
    language = LANGUAGES.get(Path(path).suffix, "text")
    cut = text if len(text) <= SHOWN else text[:SHOWN] + "\n…"
    note = "" if cut is text else "\nThe file continues in the repository.\n"
    return f"# {path}\n\n````{language}\n{cut.rstrip()}\n````\n{note}"
