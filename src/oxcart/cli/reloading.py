"""Notices changes of the application's source.

It compares the modification times of all loaded modules outside of Python and of installed packages.
"""

from __future__ import annotations

import os
import site
import sys
import sysconfig
import time
from collections.abc import Iterable

#: Seconds between checks.
EVERY = 0.5


class SourceWatch:
    """The files of the loaded modules, and their modification times.

    Args:
        since: When the application began to be loaded, in seconds since 1970.
        more: Further files to watch.
    """

    def __init__(self, since: float, more: Iterable[str] = ()) -> None:
        self._since = since
        self._more = set(more)
        self._times: dict[str, float] = {}
        self._early: str | None = None
        self._early = self.changed()

    def changed(self) -> str | None:
        """Returns a file that was written since it was loaded, or None."""
        if self._early is not None:
            return self._early
        for file in self._files():
            try:
                written = os.stat(file).st_mtime
            except OSError:
                continue  # an editor may be replacing it; it will be back
            known = self._times.get(file)
            if known is None:
                # Written while it was loaded: Python may have read the old or the new text.
                if self._since < written <= time.time():
                    return file
                self._times[file] = written
            elif known != written:
                return file
        return None

    def _files(self) -> set[str]:
        files = set(self._more)
        for module in list(sys.modules.values()):
            file = getattr(module, "__file__", None)
            if isinstance(file, str) and file.endswith(".py") and not _is_installed(file):
                files.add(file)
        return files


def _installed_folders() -> tuple[str, ...]:
    folders = {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")}
    folders |= {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    folders |= {*site.getsitepackages(), site.getusersitepackages()}
    real = {os.path.realpath(folder) for folder in folders}
    return tuple(folder.rstrip(os.sep) + os.sep for folder in folders | real)


_INSTALLED = _installed_folders()


def _is_installed(file: str) -> bool:
    return file.startswith(_INSTALLED) or "<" in file
