"""Groups of failed jobs: failures that differ only in particulars, such as ids and numbers, are one group."""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from oxcart.model.filter import failure_of
from oxcart.model.job import Job
from oxcart.model.particulars import LONGEST, PARTICULARS
from oxcart.model.search import changed_ms

#: Ids that a group shows as examples.
SAMPLES = 3
#: Groups that are kept apart. Failures beyond them are one group, which bounds a flood of odd reasons.
MOST_GROUPS = 1000
#: The reason of the group of all others.
OTHERS = "(other reasons)"

_PATTERNS = tuple((re.compile(pattern), re.sub(r"\$(\d)", r"\\g<\1>", word)) for pattern, word in PARTICULARS)

_PYTHON = re.compile(r'File "([^"\n]*/)?([^"/\n]+)", line (\d+), in (\S+)')
#: Folders of installed packages, and of the standard library.
_PACKAGES = re.compile(r"/(?:site|dist)-packages/")
_STANDARD = re.compile(r"/lib(?:64)?/python\d[\d.]*t?/(?!(?:site|dist)-packages/)|/python\d+\.zip/")
_NODE_FOREIGN = re.compile(r"[/(]node_modules/|\bnode:|<anonymous>")
_NODE = re.compile(
    r"^\s*at (?:async )?(?:(\S+(?: \[as \S+\])?) \()?(?:[^\s()]*/)?([^\s()/]+):(\d+):\d+\)?$", re.M
)


class FailureGroup(msgspec.Struct):
    """Failed jobs with the same masked reason, raised in the same frame.

    Attributes:
        reason: The reason with ids, numbers and addresses masked: ``order <n> is unknown``.
        frame: Where it was raised: ``mail.py:41 in send``; None if the job has no stack trace.
        count: How many jobs failed so.
        first_ms: When the first of them ended.
        last_ms: When the last of them ended.
        example: The reason of the last of them, unmasked.
        ids: Ids of some of them, newest first.
        names: How many jobs of each name are among them.
        categories: How many of each category of failure; the key is empty for jobs without one.
        codes: How many of each code: the class of the exception, unless it has a ``code`` of its own.
        states: How many are in each formal state.
    """

    reason: str
    frame: str | None = None
    count: int = 0
    first_ms: int = 0
    last_ms: int = 0
    example: str = ""
    ids: list[str] = msgspec.field(default_factory=list)
    names: dict[str, int] = msgspec.field(default_factory=dict)
    categories: dict[str, int] = msgspec.field(default_factory=dict)
    codes: dict[str, int] = msgspec.field(default_factory=dict)
    states: dict[str, int] = msgspec.field(default_factory=dict)


class Failures(msgspec.Struct):
    """Failed jobs in groups.

    Attributes:
        groups: The groups, those with most jobs first.
        failed: How many failed jobs there are, as far as they were read.
        exact: Whether all failed jobs were read.
        looked_at: How many jobs were read.
        total: How many jobs are in the searched lists.
    """

    groups: Sequence[FailureGroup]
    failed: int
    exact: bool
    looked_at: int
    total: int


class FailureGroups:
    """Collects failed jobs, newest first, into groups."""

    def __init__(self) -> None:
        self._groups: dict[tuple[str, str | None], FailureGroup] = {}

    def add(self, job: Job) -> None:
        """Adds a failed job."""
        reason = failure_of(job) or "(no reason)"
        key = mask(reason), raised_in(job.stacktrace[-1] if job.stacktrace else "")
        if key not in self._groups and len(self._groups) >= MOST_GROUPS:
            key = OTHERS, None
        group = self._groups.setdefault(key, FailureGroup(*key))
        at = changed_ms(job)
        group.first_ms = at if not group.count else min(group.first_ms, at)
        if not group.count or at > group.last_ms:
            group.last_ms, group.example = at, reason
        group.count += 1
        if len(group.ids) < SAMPLES:
            group.ids.append(job.id)
        _count(group.names, job.name)
        _count(group.categories, job.category or "")
        if code := job.code:
            _count(group.codes, code)
        _count(group.states, job.state.value if job.state is not None else "")

    def largest(self) -> list[FailureGroup]:
        """Returns the groups, those with most jobs first; of equal ones the latest first."""
        return sorted(self._groups.values(), key=lambda group: (-group.count, -group.last_ms))


def mask(reason: str) -> str:
    """Returns a reason with its particulars masked.

    Example:
        >>> mask("order 4711 of user-7 at 10.0.0.7:80 is unknown")
        'order <n> of <id> at <address> is unknown'
    """
    masked = reason[:LONGEST]
    for pattern, word in _PATTERNS:
        masked = pattern.sub(word, masked)
    return masked.strip()


def raised_in(trace: str) -> str | None:
    """Returns the innermost frame of the program that raised an error; None without a trace.

    A frame of an installed package is returned if the program has none in the trace, and a frame of the
    standard library if no other has one.
    """
    if python := _PYTHON.findall(trace):
        _, file, line, function = min(reversed(python), key=lambda frame: _foreign(frame[0], frame[1]))
        return f"{file}:{line} in {function}"
    if node := list(_NODE.finditer(trace)):
        own = min(node, key=lambda frame: _NODE_FOREIGN.search(frame[0]) is not None)
        function, file, line = own.groups()
        return f"{file}:{line}" + (f" in {function}" if function else "")
    return None


def _foreign(folder: str, file: str) -> int:
    """Returns how far a file is from the program: 0 its own, 1 a package, 2 the standard library."""
    if file.startswith("<frozen ") or _STANDARD.search(folder):
        return 2
    return 1 if _PACKAGES.search(folder) else 0


def _count(counts: dict[str, int], key: str) -> None:
    counts[key] = counts.get(key, 0) + 1
