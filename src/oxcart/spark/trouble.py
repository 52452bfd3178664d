"""What went wrong inside Spark, in our own words.

An error of ours that is raised in a task, a planner or a batch comes back as Spark's, wrapped in the traces
of two languages. What a user needs is the one line in it that says what to do.

May touch: nothing.
"""

from __future__ import annotations

import re
from pathlib import Path

from oxcart.model.errors import AccessDenied, BrokerUnavailable, OxcartError, ScriptError
from oxcart.spark.lake import LakeConflict, LakeError

#: An error of ours at the end of a Python traceback.
_OURS = re.compile(r"^(?:.*: )?oxcart\.[\w.]+\.(\w+): (.+)$", re.MULTILINE)
_KINDS = {
    kind.__name__: kind for kind in (AccessDenied, BrokerUnavailable, LakeConflict, LakeError, ScriptError)
}
#: What Spark says when a Python process of its own was not there after 10 s, which nobody can set.
_LATE = "Python worker failed to connect back"
#: How a file system that cannot hold more is called, whoever tells it.
_FULL = ("No space left", "File too large", "Disk quota exceeded")


class WorkerLate(OxcartError):
    """A process that Spark started took too long to come up; nothing was read yet."""


def spoken(error: Exception, lake: Path) -> Exception:
    """The error to raise instead of one of Spark's; the same where there is no better one.

    Args:
        error: What Spark raised.
        lake: The lake that was being written.
    """
    if isinstance(error, OxcartError):
        return error
    text = str(error)
    ours = [(match[1], match[2].strip()) for match in _OURS.finditer(text)]
    if ours:
        name, message = ours[-1]
        return _KINDS.get(name, OxcartError)(message)
    if _LATE in text:
        return WorkerLate(
            "a Python process that Spark started was not there within 10 s: this machine has too much to do; "
            "run it again: nothing is lost"
        )
    for words in _FULL:
        if words in text:
            return LakeError(
                f"the lake in {lake} cannot grow: {words}; make room ('oxcart pipeline expire' deletes what "
                "old versions keep) and run it again: nothing is lost"
            )
    return error
