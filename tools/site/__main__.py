"""``python -m tools.site``: writes the source of the site; ``check``: reads the built pages."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

from tools.site import commands, http, names
from tools.site.config import STYLE, config
from tools.site.nav import navigation
from tools.site.pages import ROOT, Site

FOLDER = ROOT / "build" / "site"


def stage(folder: Path = FOLDER) -> Site:
    """Writes the source of the site: pages, reference and configuration.

    Args:
        folder: Where to; `docs/` and `zensical.toml` in it are replaced.
    """
    site = Site()
    site.collect()
    schema = http.document()
    site.pages |= {"reference/commands.md": commands.page(), "reference/http.md": http.page(schema)}
    site.pages |= names.pages()
    shutil.rmtree(folder / "docs", ignore_errors=True)
    site.write(folder / "docs")
    (folder / "docs" / "reference" / "openapi.json").write_text(json.dumps(schema, indent=1))
    (folder / "docs" / "site.css").write_text(STYLE)
    (folder / "zensical.toml").write_text(config(navigation(site.pages), "../../src"))
    return site


def main(arguments: list[str]) -> int:
    """Stages the site, or checks its built pages; returns the exit code."""
    if arguments == ["check"]:
        from tools.site.links import problems

        found = problems(FOLDER / "html")
    else:
        found = [f"broken link: {one}" for one in stage().broken]
    for one in found:
        print(one, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
