"""The files of a release: builds them and checks what is in them."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path

ROOT = Path(__file__).parents[2]

#: Files that a wheel must have beside every module, and why it would not work without them.
NEEDED = ("oxcart/py.typed", "oxcart/broker/bullmq/lua/add.lua", "oxcart/broker/bridge/lua/add.lua")
#: Top folders that a sdist must have: whoever builds from it can also test it.
IN_SDIST = ("src", "tests", "docs", "examples", "benchmarks", "tools", "deploy")


def version() -> str:
    """Returns the version: `pyproject.toml` is its one source."""
    return str(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"])


def build(folder: Path) -> tuple[Path, Path]:
    """Builds the sdist, and the wheel from the unpacked sdist, so that both are known to be complete.

    Args:
        folder: Where to; it is emptied.

    Returns:
        The wheel and the sdist.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    _hatchling(ROOT, folder, "sdist")
    (sdist,) = folder.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder / "unpacked", filter="data")
    (source,) = (folder / "unpacked").iterdir()
    _hatchling(source, folder, "wheel")
    shutil.rmtree(folder / "unpacked")
    (wheel,) = folder.glob("*.whl")
    return wheel, sdist


def _hatchling(source: Path, folder: Path, kind: str) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(folder)]
    done = subprocess.run(command, cwd=source, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"cannot build the {kind}:\n{done.stdout}{done.stderr}")


def problems(wheel: Path, sdist: Path) -> list[str]:
    """Returns what is wrong with the files of a release."""
    with zipfile.ZipFile(wheel) as archive:
        inside = set(archive.namelist())
        info = f"oxcart-{version()}.dist-info"
        metadata = Parser().parsestr(archive.read(f"{info}/METADATA").decode())
        text = archive.read("oxcart/__init__.py").decode()
    source = {
        path.relative_to(ROOT / "src").as_posix()
        for path in (ROOT / "src").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and not path.name.endswith(".pyc")
    }
    missing = (source | set(NEEDED) | {f"{info}/licenses/LICENSE"}) - inside
    found = [f"the wheel lacks {name}" for name in sorted(missing)]
    found += [f"the wheel has {name}" for name in sorted(inside - source) if not name.startswith(info)]
    with tarfile.open(sdist) as archive:
        folders = {Path(name).parts[1] for name in archive.getnames() if len(Path(name).parts) > 2}
    found += [f"the sdist lacks {name}/" for name in IN_SDIST if name not in folders]
    if re.search(r"__version__ = ", text):
        found.append("oxcart/__init__.py has a version of its own")
    return found + _metadata_problems(metadata)


def _metadata_problems(metadata: Message) -> list[str]:
    wanted = {
        "Name": "oxcart",
        "Version": version(),
        "License-Expression": "MIT",
        "Description-Content-Type": "text/markdown",
    }
    found = [
        f"metadata: {name} is {metadata[name]!r}, not {value!r}"
        for name, value in wanted.items()
        if metadata[name] != value
    ]
    description = str(metadata.get_payload())
    if len(description) < 1000:
        found.append("metadata: the README is missing")
    readme = {f"Programming Language :: Python :: 3.{minor}" for minor in (11, 12, 13)}
    lacking = readme - set(metadata.get_all("Classifier") or ())
    found += [f"metadata: no classifier {one}" for one in sorted(lacking)]
    return found + changelog_problems(version(), (ROOT / "CHANGELOG.md").read_text())


def changelog_problems(version: str, changelog: str) -> list[str]:
    """Returns what is wrong with the changelog of a version.

    A release needs a dated section, and the next one's entries must not be in it. A version in the making
    (``0.2.0.dev0``) needs the section ``[Unreleased]``.
    """
    dated = re.findall(r"^## \[([^\]]+)\] - \d{4}-\d\d-\d\d$", changelog, re.MULTILINE)
    if re.fullmatch(r"\d+(\.\d+)*", version):
        return [] if version in dated else [f"CHANGELOG.md has no section '## [{version}] - YYYY-MM-DD'"]
    found = [] if "\n## [Unreleased]\n" in changelog else ["CHANGELOG.md has no section [Unreleased]"]
    base = re.split(r"\.?(?:dev|a|b|rc)\d", version)[0]
    return found + (
        [f"{version} comes before {base}, which CHANGELOG.md calls released"] if base in dated else []
    )
