"""A process that does nothing but use the embedded server of a folder, so that it stays.

Started by ``oxcart server start``; says on its standard output where the server is, then holds it until
SIGTERM. Run as ``python -m oxcart.cli.holder FOLDER``.

May touch: the embedded server.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

#: The name under which the server's keeper knows this process.
NAME = "oxcart-server"

#: Seconds between looks at whether the server is still there.
EVERY = 1.0


def hold(folder: Path) -> None:
    """Uses the server until SIGTERM or SIGINT; starts it again should its keeper be killed."""
    sys.argv[0] = NAME
    from oxcart.broker.embedded import Embedded, EmbeddedServerError

    ends = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, ends)
    embedded = Embedded(folder)
    try:
        said = {"url": embedded.ensure().url}
    except EmbeddedServerError as error:
        said = {"error": str(error)}
    print(json.dumps(said), flush=True)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # whoever started us need not wait for our end
    if "error" in said:
        return
    while signal.sigtimedwait(ends, EVERY) is None:
        try:
            embedded.ensure()
        except EmbeddedServerError as error:
            print(f"{NAME}: {error}", file=sys.stderr, flush=True)
    embedded.release(wait=10)


if __name__ == "__main__":
    hold(Path(sys.argv[1]))
