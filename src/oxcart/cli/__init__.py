"""The command line, ``oxcart``.

Each group of commands is a module. A command imports what it needs when it runs, because ``oxcart --help``
and shell completion must answer at once. The modules themselves import only the standard library and typer.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs a command and ends the process with its exit code.

    Args:
        arguments: The command line without the program's name; ``sys.argv`` by default.
    """
    from oxcart.cli.app import run

    sys.exit(run(sys.argv[1:] if arguments is None else list(arguments)))
