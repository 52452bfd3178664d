"""The configuration of the generator, with the navigation of the staged pages."""

from __future__ import annotations

import json
from collections.abc import Sequence

from tools.site.nav import Entry

_HEAD = """\
# Made by `python -m tools.site`: change tools/site instead.
[project]
site_name = "Oxcart"
site_description = "A distributed job system for Python that shares its queues with BullMQ."
docs_dir = "docs"
site_dir = "html"
use_directory_urls = false
nav = {nav}
extra_css = ["site.css"]

[project.theme]
language = "en"
font = false
features = [
  "content.code.copy",
  "navigation.footer",
  "navigation.indexes",
  "navigation.sections",
  "navigation.tabs",
  "navigation.top",
  "search.highlight",
  "toc.follow",
]

# Without this first entry the site keeps the look of the first visit when the system changes its own.
[[project.theme.palette]]
media = "(prefers-color-scheme)"
toggle.icon = "lucide/sun-moon"
toggle.name = "Switch to dark mode"

[[project.theme.palette]]
media = "(prefers-color-scheme: dark)"
scheme = "slate"
toggle.icon = "lucide/moon"
toggle.name = "Switch to light mode"

[[project.theme.palette]]
media = "(prefers-color-scheme: light)"
scheme = "default"
toggle.icon = "lucide/sun"
toggle.name = "Follow the system"

[project.plugins.mkdocstrings.handlers.python]
paths = ["{source}"]

[project.plugins.mkdocstrings.handlers.python.options]
docstring_style = "google"
heading_level = 2
members_order = "source"
merge_init_into_class = true
separate_signature = true
show_root_heading = true
show_root_full_path = false
show_source = false
show_signature_annotations = true
signature_crossrefs = false
inherited_members = true
filters = ["!^_"]

[project.markdown_extensions.tables]
[project.markdown_extensions.toc]
permalink = true
[project.markdown_extensions.pymdownx.highlight]
[project.markdown_extensions.pymdownx.superfences]
"""

#: Wider pages for our tables, headless tables without an empty row, and signatures that wrap.
STYLE = """\
.md-grid { max-width: 78rem; }
.md-typeset table:not([class]) { font-size: 0.68rem; }
.md-typeset table:not([class]) code { word-break: break-word; }
.md-typeset table:not([class]) td:first-child code { overflow-wrap: normal; word-break: normal; }
.md-typeset thead:not(:has(th:not(:empty))) { display: none; }
.md-typeset .doc-signature code { white-space: pre-wrap; }
[data-md-color-scheme="slate"] .md-content img[src$=".svg"] { filter: invert(0.88) hue-rotate(180deg); }
.layers { font-size: 0.7rem; max-width: 32rem; }
.layers div { display: flex; gap: 0.3rem; margin-bottom: 0.3rem; }
.layers span { border: 1px solid currentcolor; border-radius: 0.2rem; flex: 1; padding: 0.15rem 0.5rem; }
"""


def config(nav: Sequence[Entry], source: str) -> str:
    """Returns the configuration file.

    Args:
        nav: The navigation.
        source: The folder of the Python source, relative to the configuration.
    """
    return _HEAD.format(nav=_toml(list(nav)), source=source)


def _toml(value: object) -> str:
    """Writes text, lists and tables inline, as TOML."""
    if isinstance(value, list):
        return "[" + ", ".join(_toml(one) for one in value) + "]"
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{json.dumps(key)} = {_toml(one)}" for key, one in value.items()) + " }"
    return json.dumps(value, ensure_ascii=False)
