"""Maps Spark's exceptions to failures of a job.

A failure crosses from the driver's process to the worker by pickle, which cannot copy Spark's own exceptions.
So each becomes one of ours with the same text: for good, to be tried again, or a crash of the machinery.
"""

from __future__ import annotations

import re

from oxcart.engine.processes import HandlerCrashed
from oxcart.model.failure import PermanentError, TemporaryError

#: Spark's classes of errors that the same application meets again.
PERMANENT = (
    "AnalysisException",
    "ParseException",
    "IllegalArgumentException",
    "PySparkAttributeError",
    "PySparkImportError",
    "PySparkNotImplementedError",
    "PySparkPicklingError",
    "PySparkTypeError",
    "PySparkValueError",
    "UnsupportedOperationException",
)
#: Words of failures that lost machines or processes cause, and the code of each.
LOST = (
    ("ExecutorLostFailure", "executor-lost"),
    ("Python worker exited unexpectedly", "executor-lost"),
    ("FetchFailed", "shuffle-lost"),
    ("MetadataFetchFailed", "shuffle-lost"),
    ("All masters are unresponsive", "master-lost"),
    ("Master removed our application", "master-lost"),
    ("SparkContext was shut down", "context-lost"),
    ("stopped SparkContext", "context-lost"),
)
#: Words of failures of the driver's own JVM.
CRASHED = ("java.lang.OutOfMemoryError", "StackOverflowError", "JAVA_GATEWAY_EXITED")
#: Our own errors at the end of a Python traceback of a task.
_OURS = re.compile(r"^(?:.*: )?oxcart\.[\w.]+\.(PermanentError|TemporaryError): (.+)$", re.MULTILINE)
_LONGEST = 4000


def mapped(error: Exception) -> BaseException:
    """Returns the failure of a job for an exception of its application.

    Args:
        error: What the handler raised. An exception that is not Spark's is returned as it is.
    """
    module = type(error).__module__.partition(".")[0]
    if module == "py4j":
        return _of_gateway(error)
    if module != "pyspark":
        return error
    text = _text(error)
    if ours := _OURS.findall(str(error)):
        name, message = ours[-1]
        return PermanentError(message) if name == "PermanentError" else TemporaryError(message)
    if any(words in text for words in CRASHED):
        return HandlerCrashed(text)
    for words, code in LOST:
        if words in text:
            return TemporaryError(text, code=code)
    condition = getattr(error, "getCondition", lambda: None)() or type(error).__name__
    if any(kind.__name__ in PERMANENT for kind in type(error).__mro__):
        return PermanentError(text, code=condition)
    return TemporaryError(text, code=condition)


def _of_gateway(error: Exception) -> BaseException:
    text = _text(error)
    java = getattr(error, "java_exception", None)
    if java is None:  # the connection to the JVM broke, or refuses
        return HandlerCrashed(f"the driver's JVM has ended: {text}")
    if any(words in text for words in CRASHED):
        return HandlerCrashed(text)
    for words, code in LOST:
        if words in text:
            return TemporaryError(text, code=code)
    return TemporaryError(text, code=str(java.getClass().getSimpleName()))


def _text(error: Exception) -> str:
    text = str(error).strip() or type(error).__name__
    text = text.partition("\n\nJVM stacktrace:")[0]
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
