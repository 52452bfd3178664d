"""Finds our own errors inside of Spark's.

Spark wraps an error that a task, a planner or a batch raises in the traces of two languages. A user needs the
one line of it with the reason and the remedy.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from oxcart.model.errors import (
    AccessDenied,
    BrokerUnavailable,
    OxcartError,
    ScriptError,
    ValidationError,
)
from oxcart.spark.lake.columns import unknown_table
from oxcart.spark.lake.versions import LakeConflict, LakeError

if TYPE_CHECKING:
    from pyspark.errors import PySparkException

#: An error of ours at the end of a Python traceback.
_OURS = re.compile(r"^(?:.*: )?oxcart\.[\w.]+\.(\w+): (.+)$", re.MULTILINE)
_KINDS = {
    kind.__name__: kind for kind in (AccessDenied, BrokerUnavailable, LakeConflict, LakeError, ScriptError)
}
#: Spark's message when a Python process of its own took longer than 10 s to start. The limit is fixed.
_LATE = "Python worker failed to connect back"
#: The messages of a full file system, in Java and in Python.
_FULL = ("No space left", "File too large", "Disk quota exceeded")


class WorkerLate(OxcartError):
    """A process that Spark started took too long to start; nothing was read yet."""


def unwrapped(error: Exception, lake: Path) -> Exception:
    """Returns our error inside of one of Spark's, or Spark's where there is none.

    Args:
        error: What Spark raised.
        lake: The lake that was being written.
    """
    found = of_task(error)
    if found is not error:
        return found
    for words in _FULL:
        if words in str(error):
            return LakeError(
                f"the lake in {lake} cannot grow: {words}; make room ('oxcart pipeline expire' deletes what "
                "old versions keep) and run it again: nothing is lost"
            )
    return error


def of_task(error: Exception) -> Exception:
    """Returns the error of ours that a task raised, or Spark's where there is none.

    Args:
        error: What Spark raised.
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
    return error


def explained_query(error: PySparkException) -> ValidationError:
    """Returns the error of a query that Spark refused, in one line.

    Args:
        error: What Spark raised.
    """
    if error.getCondition() == "TABLE_OR_VIEW_NOT_FOUND":
        named = (error.getMessageParameters() or {}).get("relationName", "")
        return unknown_table(named.replace("`", ""))
    text = " ".join(str(error).split(" SQLSTATE")[0].split())
    return ValidationError("query", "SQL that Spark can run", None, text.partition(";")[0])
