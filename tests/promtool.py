"""Prometheus' own tool for rules: found on the path, or unpacked from Debian's package."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from tests.fast import refuse
from tests.nodes import NODE_FOLDER, locked

_UNPACKED = NODE_FOLDER / "node_modules" / ".promtool"
_LIMIT = 300


def promtool() -> Path | None:
    """Returns the program, or None if it is neither installed nor can be fetched."""
    found = _found()
    if found is not None:
        return found
    refuse("promtool, which is fetched")
    with locked("promtool"):
        return _found() or _from_debian()


def _found() -> Path | None:
    named = shutil.which("promtool")
    return next((path for path in (Path(named or ""), _UNPACKED) if path.is_file()), None)


def _from_debian() -> Path | None:
    """Unpacks the program alone: an installed package would start a server."""
    if os.geteuid() != 0 or shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        return None
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)  # apt fetches as another user
        getting = ["apt-get", "download", "prometheus"]
        # The package lists may be missing or too old: then retry with new ones.
        for command in (getting, ["apt-get", "update"], getting):
            subprocess.run(command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, timeout=_LIMIT)
            package = next(Path(folder).glob("prometheus_*.deb"), None)
            if package is not None:
                break
        else:
            return None
        unpacked = Path(folder, "unpacked")
        subprocess.run(["dpkg-deb", "-x", package, unpacked], check=True, timeout=_LIMIT)
        shutil.copy2(unpacked / "usr" / "bin" / "promtool", _UNPACKED.with_suffix(".part"))
    _UNPACKED.with_suffix(".part").rename(_UNPACKED)
    return _UNPACKED
