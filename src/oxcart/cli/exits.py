"""Exit codes that scripts can use, and one clear line for every expected error.

0 success; 1 not found, refused, or a failed check; 2 wrong usage; 3 the server cannot be reached; 130
interrupted. Everything else is a bug of ours, and shows its traceback.
"""

from __future__ import annotations

OK = 0
FAILED = 1
USAGE = 2
UNREACHABLE = 3
INTERRUPTED = 130


class CommandError(Exception):
    """An expected end of a command: one line for the user, and the exit code."""

    def __init__(self, message: str, code: int = FAILED) -> None:
        super().__init__(message)
        self.code = code


def judge(error: BaseException) -> tuple[int, str] | None:
    """Returns the exit code and the line for an expected error, or None."""
    if isinstance(error, CommandError):
        return error.code, str(error)
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED, "interrupted"
    # A usage error of typer, whose own classes have moved between its versions.
    if hasattr(error, "format_message") and hasattr(error, "exit_code"):
        return _usage(error)

    from oxcart.model import errors

    if isinstance(error, errors.ValidationError):
        return USAGE, str(error)
    unreachable = (
        errors.BrokerUnavailable | errors.BrokerTimeout | errors.OutcomeUnknown | errors.AccessDenied
    )
    if isinstance(error, unreachable):
        # The first cause names the address; the outer errors only describe attempts.
        first = error.__cause__ if isinstance(error.__cause__, errors.BrokerError) else error
        return UNREACHABLE, str(first)
    if isinstance(error, errors.OxcartError):
        return FAILED, str(error)
    return None


def _usage(error: BaseException) -> tuple[int, str]:
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "oxcart"
    message = " ".join(error.format_message().split())  # type: ignore[attr-defined]
    return USAGE, f"{message.rstrip('.')} (see '{path} --help')"
