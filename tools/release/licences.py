"""Licences of installed packages, as their metadata states them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from importlib.metadata import Distribution
from typing import Any

#: Licences that put no duty on users' own code.
FREE = (
    "0BSD",
    "Apache",
    "BSD",
    "CC0",
    "ISC",
    "MIT",
    "MPL",
    "Mozilla Public License 2.0",
    "PSF",
    "Python Software Foundation",
    "Unlicense",
    "Zlib",
)
#: Packages whose metadata names no licence we can read, with what their files say.
KNOWN = {"polars": "MIT", "pandas": "BSD-3-Clause", "mmh3": "MIT", "valkey": "MIT", "rich-click": "MIT"}


def licence_of(package: Distribution) -> str:
    """Returns the licence of a package in a few words; empty if its metadata has none."""
    metadata: Any = package.metadata
    expression = metadata.get("License-Expression")
    if expression:
        return str(expression)
    classifiers = [
        one.rpartition(" :: ")[2]
        for one in metadata.get_all("Classifier") or ()
        if one.startswith("License :: OSI")
    ]
    if classifiers:
        return " AND ".join(classifiers)
    text = (metadata.get("License") or "").strip()
    if len(text) > 60 or "\n" in text:
        return KNOWN.get(package.name.lower(), text.splitlines()[0][:60])
    return text or KNOWN.get(package.name.lower(), "")


def is_free(licence: str) -> bool:
    """Returns whether every part of an expression allows use without a duty on users' own code."""
    alternatives = re.split(r"\bOR\b", licence)
    return any(
        bool(parts) and all(any(word in part for word in FREE) for part in parts)
        for one in alternatives
        if (parts := [part.strip(" ()") for part in re.split(r"\bAND\b", one) if part.strip(" ()")])
    )


def problems(packages: Iterable[Distribution]) -> list[str]:
    """Returns the packages whose licence is unknown or not free."""
    return [
        f"licence of {one.name} {one.version}: {licence_of(one) or 'none stated'}"
        for one in packages
        if not is_free(licence_of(one))
    ]
