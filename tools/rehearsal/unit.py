"""Reads systemd units: the command line that systemd would run, and how it would stop it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

UNITS = Path(__file__).parents[2] / "deploy" / "systemd"


@dataclass(frozen=True)
class Unit:
    """A service.

    Attributes:
        words: The command line, with its variables.
        environment: The variables that the unit itself sets.
        stop_seconds: How long systemd waits after SIGTERM before it kills.
    """

    words: tuple[str, ...]
    environment: Mapping[str, str]
    stop_seconds: float

    @classmethod
    def read(cls, name: str) -> Unit:
        """Reads a unit of `deploy/systemd`."""
        text = (UNITS / name).read_text()
        settings = dict(re.findall(r"^(\w+)=(.*)$", text, re.MULTILINE))
        given = shlex.split(settings.get("Environment", ""))
        return cls(
            tuple(settings["ExecStart"].split()),
            dict(one.split("=", 1) for one in given),
            float(settings["TimeoutStopSec"]),
        )

    def command(self, program: Path, environ: Mapping[str, str]) -> list[str]:
        """Returns the command line as systemd would run it.

        Args:
            program: What stands for the installed ``oxcart``.
            environ: The variables of the environment file. ``$NAME`` becomes words, as in a unit.
        """
        found = [str(program)]
        for word in self.words[1:]:
            if word.startswith("$"):
                found += environ.get(word[1:].strip("{}"), "").split()
            else:
                found.append(word)
        return found
