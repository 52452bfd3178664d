"""The documentation site: `make docs` builds it, links lead somewhere, and pages load nothing else."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
import typer
from tools.site import commands, http, names
from tools.site.__main__ import stage
from tools.site.links import problems
from tools.site.nav import navigation
from tools.site.pages import Site

import oxcart
from oxcart.cli.app import app
from tests.browser import Browser
from tests.documented import ROOT
from tests.nodes import locked


@pytest.fixture(scope="module")
def built() -> Path:
    """The built site, as `make docs` builds it."""
    with locked("docs"):
        done = subprocess.run(
            ["make", "docs", f"PYTHON={sys.executable}"],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return ROOT / "build" / "site" / "html"


#: The modules of docs/api.md; the twins and the drop-in have the names of others.
MODULES = [
    module
    for module in re.findall(
        r"^\| `(oxcart\.[\w.]+)` \|", (ROOT / "docs" / "api.md").read_text(), re.MULTILINE
    )
    if module not in ("oxcart.sync", "oxcart.compat.bullmq")
]


class TestSource:
    """Quick checks that need no generator."""

    def test_every_link_leads_to_a_file(self) -> None:
        site = Site()
        site.collect()
        assert site.broken == []
        assert {"index.md", "tutorial.md", "guarantees.md", "decisions/01-wire.md"} <= site.pages.keys()

    def test_a_broken_link_is_reported(self, tmp_path: Path) -> None:
        for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md"):
            (tmp_path / name).write_text("# T\n")
        for name in ("docs", "benchmarks", "deploy", "examples/node", "docs/decisions", "docs/schemas"):
            (tmp_path / name).mkdir(exist_ok=True, parents=True)
            (tmp_path / name / "README.md").write_text("# T\n")
        (tmp_path / "docs" / "a.md").write_text(
            "# A\n[no](b.md) [yes](a.md) [web](https://example.com)\n`[code](c.md)`\n"
        )
        site = Site(tmp_path)
        site.collect()
        assert "docs/a.md: b.md" in site.broken

    def test_every_page_is_in_the_navigation_once(self) -> None:
        site = Site()
        site.collect()
        shown = re.findall(r"'([\w./-]+\.md)'", repr(navigation(site.pages)))
        assert len(shown) == len(set(shown))
        hidden = {place for place in site.pages if place.startswith("files/")}
        assert set(site.pages) - set(shown) <= hidden

    def test_decisions_are_in_the_order_of_their_numbers(self) -> None:
        numbers = [1, 2, 10, 100, 101]
        pages = {f"decisions/{number:02}-a.md": f"# {number}. A\n" for number in reversed(numbers)}
        shown = re.findall(r"decisions/(\d+)-a", repr(navigation({"index.md": "# Oxcart\n", **pages})))
        assert [int(one) for one in shown] == numbers

    def test_block_that_the_generator_shows_as_text_is_a_problem(self, tmp_path: Path) -> None:
        (tmp_path / "good.html").write_text("<p>A</p><pre><code>```sh\nls\n```</code></pre>")
        (tmp_path / "bad.html").write_text('<p>```sh terminal="2" ls</p>')
        assert problems(tmp_path) == [
            'bad.html: the fence of a code block is text: ```sh terminal="2" ls',
        ]

    def test_a_new_page_is_a_how_to_guide(self) -> None:
        pages = {"index.md": "# Oxcart\n", "new.md": "# How to do it\n", "decisions/README.md": "# D\n"}
        (guides,) = (one["How-to guides"] for one in navigation(pages) if "How-to guides" in one)
        assert {"How to do it": "new.md"} in guides

    def test_reference_has_every_command_route_and_name(self) -> None:
        text = commands.page()
        for path, _ in commands.walk(typer.main.get_command(app), ("oxcart",)):
            assert f"### {' '.join(path)}\n" in text
        schema = http.document()
        text = http.page(schema)
        for path, operations in schema["paths"].items():
            for method in operations:
                assert f"### {method.upper()} {path}\n" in text
        text = "\n".join(names.pages().values())
        for name in oxcart.__all__:
            assert re.search(rf"^::: oxcart\S*\.{name}$", text, re.MULTILINE), name

    @pytest.mark.parametrize("module", MODULES)
    def test_reference_has_every_name_of_a_documented_module(self, module: str) -> None:
        text = "\n".join(names.pages().values())
        ours = list(names._exported(module))
        assert ours
        for one in ours:
            assert f"::: {one.__module__}.{one.__qualname__}\n" in f"{text}\n", one


@pytest.mark.timeout(400)
class TestBuilt:
    """The pages as a reader sees them."""

    def test_links_and_anchors_of_all_pages(self, built: Path) -> None:
        assert problems(built) == []
        assert len(list(built.rglob("*.html"))) > 100
        settings = tomllib.loads((built.parent / "zensical.toml").read_text())
        tabs = [next(iter(one)) for one in settings["project"]["nav"]]
        assert tabs == ["Oxcart", "Tutorial", "How-to guides", "Reference", "Explanation"]

    def test_pages_show_docstrings_and_switch_to_dark_mode_in_a_browser(
        self, built: Path, served: str
    ) -> None:
        with Browser() as browser:
            page = browser.page()
            page.goto(f"{served}/reference/queue.html")
            assert "add_many" in page.text()
            assert "idempotency" in page.text()
            page.evaluate("document.querySelector('[data-md-color-scheme]') && 1")
            before = page.evaluate("document.body.getAttribute('data-md-color-scheme')")
            page.click("form[data-md-component=palette] label:not([hidden])")
            page.wait_for(f"document.body.getAttribute('data-md-color-scheme') !== {before!r}")
            page.goto(f"{served}/architecture.html")
            assert "engine: claims" in page.text(".layers")
            assert page.errors == []
            assert [one for one in page.requests if not one.startswith((served, "data:"))] == []

    def test_charts_are_dark_where_the_page_is(self, served: str) -> None:
        with Browser() as browser:
            page = browser.page()
            chart = "document.querySelector('.md-content img[src$=\".svg\"]')"
            for theme, scheme, look in (("light", "default", "none"), ("dark", "slate", "invert")):
                page.call(
                    "Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": theme}]
                )
                page.goto(f"{served}/scaling.html")
                page.wait_for(f"document.body.getAttribute('data-md-color-scheme') === '{scheme}'")
                page.wait_for(f"{chart}?.complete && {chart}.naturalWidth > 0")
                assert page.evaluate(f"getComputedStyle({chart}).filter").startswith(look)

    def test_search_finds_pages_and_the_look_follows_the_system_offline(self, served: str) -> None:
        with Browser() as browser:
            page = browser.page()
            for theme, scheme in (("dark", "slate"), ("light", "default"), ("dark", "slate")):
                page.call(
                    "Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": theme}]
                )
                page.goto(f"{served}/index.html")
                page.wait_for(f"document.body.getAttribute('data-md-color-scheme') === '{scheme}'")
            page.click("button.md-search__button")
            # The generator's search is an element of its own, which nothing outside of it can select.
            field = "[...document.querySelectorAll('div')].map(e => e.shadowRoot).find(e => e)"
            page.wait_for(f"{field}?.activeElement?.tagName === 'INPUT'")
            page.write("poison")
            page.wait_for(f"[...{field}.querySelectorAll('a')].some(a => a.href.includes('.html'))")
            assert page.errors == []
            assert [one for one in page.requests if not one.startswith((served, "data:"))] == []


@pytest.fixture
def served(built: Path) -> Iterator[str]:
    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(built)))
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


def test_staging_needs_no_generator(tmp_path: Path) -> None:
    stage(tmp_path)
    assert (tmp_path / "zensical.toml").exists()
    assert (tmp_path / "docs" / "reference" / "openapi.json").exists()


def test_figures_of_the_comparison_are_those_of_the_benchmarks() -> None:
    page = (ROOT / "docs" / "choosing.md").read_text().partition("## Speed")[2]
    published = (ROOT / "README.md").read_text() + (ROOT / "benchmarks" / "README.md").read_text()
    figures = set(re.findall(r"\b\d{1,2} \d{3}\b", page))
    assert len(figures) >= 10
    assert [one for one in sorted(figures) if one not in published] == []
