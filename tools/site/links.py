"""Checks built pages: links lead somewhere, nothing comes from elsewhere, and no block is shown as text."""

from __future__ import annotations

import posixpath
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

#: Attributes that make a browser fetch a file by itself.
_LOADS = {("script", "src"), ("img", "src"), ("iframe", "src"), ("source", "src")}

#: Elements whose text is shown as it is.
_CODE = ("code", "pre", "script", "style")


class _Page(HTMLParser):
    """The anchors of a page, its links, and what it loads."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.broken: list[str] = []
        self._depth = 0  # of elements that show code
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self._depth += tag in _CODE
        self.ids.update(given[name] for name in ("id", "name") if name in given)
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        elif tag == "link" and "href" in given and given.get("rel") not in ("canonical", "next", "prev"):
            self.loads.append(given["href"])
        self.loads += [given[name] for kind, name in _LOADS if kind == tag and name in given]

    def handle_endtag(self, tag: str) -> None:
        self._depth -= tag in _CODE

    def handle_data(self, data: str) -> None:
        if "```" in data and not self._depth:
            self.broken.append(" ".join(data.split())[:60])


def problems(folder: Path) -> list[str]:
    """Returns what is wrong with the pages of a folder, one line each.

    Args:
        folder: The built site.
    """
    files = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    pages = {place: _Page((folder / place).read_text()) for place in sorted(files) if place.endswith(".html")}
    if not pages:
        return [f"no pages in {folder}"]
    found = []
    for place, page in pages.items():
        found += [f"{place}: loads {load}" for load in page.loads if urlsplit(load).netloc]
        found += [f"{place}: the fence of a code block is text: {one}" for one in page.broken]
        if place == "404.html":  # its links are absolute: it stands at any address
            continue
        for link in dict.fromkeys([*page.links, *page.loads]):
            problem = _problem(place, link, pages, files)
            if problem:
                found.append(f"{place}: {link}: {problem}")
    return found


def _problem(place: str, link: str, pages: dict[str, _Page], files: set[str]) -> str | None:
    parts = urlsplit(link)
    if parts.scheme or parts.netloc or link == "":
        return None
    target = place
    if parts.path:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(place), unquote(parts.path)))
    if target not in files:
        target = posixpath.normpath(posixpath.join(target, "index.html"))
    if target not in files:
        return "no such file"
    anchor = unquote(parts.fragment)
    if anchor and target in pages and anchor not in pages[target].ids:
        return "no such anchor"
    return None
