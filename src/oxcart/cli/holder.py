"""A process that uses the embedded server of a folder, so that the server keeps running.

``oxcart server start`` starts it as ``python -m oxcart.cli.holder FOLDER``. It prints the server's location
and uses the server until SIGTERM.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

#: The name under which the server's keeper knows this process.
NAME = "oxcart-server"

#: Seconds between checks that the server still runs.
EVERY = 1.0


def hold(folder: Path) -> None:
    """Uses the server until SIGTERM or SIGINT; starts it again if its keeper is killed."""
    sys.argv[0] = NAME
    from oxcart.broker.embedded import Embedded, EmbeddedServerError

    ends = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, ends)
    embedded = Embedded(folder)
    try:
        reply = {"url": embedded.ensure().url}
    except EmbeddedServerError as error:
        reply = {"error": str(error)}
    print(json.dumps(reply), flush=True)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # the parent process need not wait for the end of this one
    if "error" in reply:
        return
    while signal.sigtimedwait(ends, EVERY) is None:
        try:
            embedded.ensure()
        except EmbeddedServerError as error:
            print(f"{NAME}: {error}", file=sys.stderr, flush=True)
    embedded.release(wait=10)


if __name__ == "__main__":
    hold(Path(sys.argv[1]))
