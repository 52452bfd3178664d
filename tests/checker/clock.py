"""A server's clock that a run can set, by libfaketime (the Debian package `libfaketime`)."""

from __future__ import annotations

from pathlib import Path

from oxcart.broker.embedded import binary_path

_PRELOADED = sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))


def missing() -> str:
    """Returns why clocks cannot be set, "" if they can."""
    return "" if _PRELOADED else "libfaketime is not installed (apt-get install libfaketime)"


class Clock:
    """The clock of the server that `program` starts.

    Args:
        folder: Where the program and the offset of its clock are written.

    Attributes:
        program: The server with that clock; None where libfaketime is not installed.
    """

    def __init__(self, folder: Path) -> None:
        self._offset = folder / "offset"
        self.program: Path | None = None
        if missing():
            return
        self.set(0)
        self.program = folder / "server"
        self.program.write_text(
            "#!/bin/sh\n"
            f"export LD_PRELOAD={_PRELOADED[0]} FAKETIME_TIMESTAMP_FILE={self._offset}\n"
            "export FAKETIME_NO_CACHE=1 FAKETIME_DONT_FAKE_MONOTONIC=1\n"
            f'exec {binary_path()} "$@"\n'
        )
        self.program.chmod(0o755)

    def set(self, seconds: float) -> None:
        """Sets the clock so many seconds ahead of the true time, or behind it."""
        written = self._offset.with_suffix(".new")
        written.write_text(f"{seconds:+.3f}\n")
        written.rename(self._offset)
