"""The public names: what a user types in the first week is at the root, errors are in ``oxcart.errors``."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import re
import subprocess
import sys
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path

import pytest

import oxcart
from oxcart import JobOptions, Queue, errors, sync
from oxcart.broker.capabilities import BULLMQ, OPTIONS
from oxcart.model.options import AllOptions
from oxcart.task import Task

FOLDER = Path(__file__).parents[1]

#: Names at the root. A new one needs a reason: every name here is one more that a beginner reads.
ROOT = {
    "Abilities",
    "Backoff",
    "Cancel",
    "Depends",
    "Event",
    "Flow",
    "Graph",
    "Job",
    "JobHandle",
    "JobOptions",
    "PermanentError",
    "Queue",
    "RateLimited",
    "Retry",
    "RunningJob",
    "Snooze",
    "SyncRunningJob",
    "Target",
    "TemporaryError",
    "WaitForChildren",
    "Worker",
    "current_job",
}

#: The documented path of every other public name but errors.
PATHS = {
    "oxcart.encryption": {"Bond", "KeyRing"},
    "oxcart.events": {"QueueEvents"},
    "oxcart.jobs": {"Cancellation", "Cancelled", "FailureGroup", "Failures", "Found", "Progress", "Series"},
    "oxcart.history.reader": {"LakeReader"},
    "oxcart.http": {"Client", "SyncClient", "app"},
    "oxcart.observe.errors": {"Failure", "FailureHook"},
    "oxcart.observe.logs": {"JobContext", "job_fields"},
    "oxcart.observe.meters": {"MeterHook"},
    "oxcart.observe.sentry": {"SentryHook"},
    "oxcart.observe.tracing": {"Tracing"},
    "oxcart.spark": {"JobsRun", "SparkJob", "register", "run_jobs", "tables"},
    "oxcart.sync": {"Queue"},
    "oxcart.testing": {"MemoryServer", "assert_enqueued", "drain", "inline", "manual", "override"},
    "oxcart.webhooks": {"Webhooks"},
}

#: Members of a queue itself.
QUEUE = {
    "add",
    "add_many",
    "capabilities",
    "close",
    "counts",
    "fallback",
    "is_paused",
    "job",
    "name",
    "pause",
    "resume",
}

#: The parts of a queue and their members.
PARTS = {
    "dead_letters": {"count", "get", "list", "purge", "purge_all", "replay", "replay_all"},
    "deduplication": {"owner", "release"},
    "events": {"publish", "trim"},
    "flows": {"dependents", "get"},
    "jobs": {
        "cancel",
        "cancel_all",
        "clean",
        "clear",
        "counts_per_priority",
        "failures",
        "get",
        "get_many",
        "handle",
        "list",
        "metrics",
        "obliterate",
        "promote_all",
        "remove",
        "remove_orphans",
        "resolve",
        "retry",
        "retry_all",
        "search",
        "signal",
        "state",
    },
    "groups": {
        "cancel",
        "clear",
        "list",
        "pause",
        "resume",
        "set",
        "set_all",
        "settings",
        "summary",
        "usage",
    },
    "lanes": {"counts", "get"},
    "partitions": {"counts", "layout", "names", "resize", "retire"},
    "limits": {
        "concurrency",
        "hold",
        "key_limit",
        "key_usage",
        "rate",
        "release",
        "remove_concurrency",
        "remove_key_limit",
        "remove_rate",
        "remove_type_limit",
        "set_concurrency",
        "set_key_limit",
        "set_rate",
        "set_type_limit",
        "type_limits",
        "type_usage",
        "wait_ms",
    },
    "namespace": {"stats"},
    "schedules": {"count", "get", "list", "pause", "remove", "resume", "upsert"},
    "workers": {"list", "unroutable", "unroutable_jobs"},
}

#: Errors that do not leave the package, or that exist for PyPI's names.
PRIVATE = {"AnswerLost", "HandlerStopped", "LinkClosed", "NotAName", "NotJson"}


def test_the_root_has_the_names_of_the_first_week() -> None:
    assert set(oxcart.__all__) == ROOT
    assert list(oxcart.__all__) == sorted(oxcart.__all__)


@pytest.mark.parametrize("name", oxcart.__all__)
def test_every_name_is_there_and_documented(name: str) -> None:
    assert getattr(oxcart, name).__doc__
    assert name in dir(oxcart)


def test_a_queue_has_the_members_of_the_rule() -> None:
    """It adds work, names handlers and is switched on and off; every other noun is a part."""
    assert {name for name in dir(Queue) if not name.startswith("_")} == QUEUE | PARTS.keys()
    assert {name for name in dir(sync.Queue) if not name.startswith("_")} == (
        QUEUE | PARTS.keys() | {"asynchronous", "run"}
    )


@pytest.mark.parametrize("part", PARTS)
def test_a_part_has_its_members(part: str) -> None:
    members = {name for name in dir(getattr(Queue("q"), part)) if not name.startswith("_")}
    assert members == PARTS[part]
    assert members == {
        name
        for name in dir(getattr(sync.Queue("q"), part))
        if not name.startswith("_") and name != "asynchronous"
    }


def test_the_page_of_the_api_names_everything() -> None:
    named = set(re.findall(r"[a-z_A-Z]+", (FOLDER / "docs" / "api.md").read_text("utf-8")))
    options = set(AllOptions.__optional_keys__)
    members = QUEUE | PARTS.keys() | set[str]().union(*PARTS.values())
    assert (ROOT | members | options | set[str]().union(*PATHS.values())) - named == set()


def test_texts_name_members_that_exist() -> None:
    """Docstrings and messages of the package, and code in the pages, name members by their current names."""
    texts = [
        (path, node.value)
        for path in (FOLDER / "src" / "oxcart").rglob("*.py")
        if "compat" not in path.parts  # PyPI's names
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    for page in (FOLDER / "README.md", *(FOLDER / "docs").glob("*.md")):
        if page.name != "migrating-from-bullmq.md":
            texts += [(page, code) for code in re.findall(r"`([^`]+)`", page.read_text("utf-8"))]
    stale = {
        f"{path.relative_to(FOLDER)}: {member[0]}"
        for path, text in texts
        for member in re.finditer(r"\b[Qq]ueue\.([a-z_]+)\b(?:\.([a-z_]+)|\()?", text)
        if not _is_member(member)
    }
    assert stale == set()


def _is_member(found: re.Match[str]) -> bool:
    name, member = found[1], found[2]
    if name in ("py", "html", "asynchronous", "run"):  # a file, or a member of oxcart.sync
        return True
    if name not in PARTS:
        return name in QUEUE
    return member in PARTS[name] if member else name == "events" or not found[0].endswith("(")


def test_the_table_of_nodes_methods_names_members_that_exist() -> None:
    page = (FOLDER / "docs" / "protocol.md").read_text("utf-8")
    table = page.partition("## Node's API, and ours")[2].partition("\n## ")[0]
    members = {name for kind in (oxcart.JobHandle, oxcart.Worker, oxcart.Flow, Task) for name in dir(kind)}
    for row in re.findall(r"^\|.*\|$", table, re.MULTILINE)[2:]:
        known = QUEUE | members
        for path in re.findall(r"`([a-z_.]+)(?:\(.*?\))?`", row.split("|")[3].replace("marked `legacy`", "")):
            *parts, member = path.removeprefix("queue.").split(".")
            if parts and parts[0] in PARTS:
                known = known | PARTS[parts[0]]  # the next names of the cell may leave out the part
                assert member in PARTS[parts[0]], row
            else:
                assert member in known | {"concurrency", "events", "started"}, row


def test_every_option_is_in_one_group() -> None:
    """An option is marked as "only" for one protocol exactly if the other protocol refuses it."""
    text = inspect.getdoc(JobOptions) or ""
    for name in JobOptions.__struct_fields__:
        (line,) = re.findall(rf"^    {name}: (.*)", text, re.MULTILINE)
        feature = OPTIONS.get(name)
        if name == "after" or feature is None:
            assert not line.startswith(("BullMQ only", "Bridge only")), name
        else:
            assert line.startswith("BullMQ only:" if BULLMQ.can(feature) else "Bridge only:"), name


@pytest.mark.parametrize("path", PATHS)
def test_every_other_name_has_its_path(path: str) -> None:
    module = importlib.import_module(path)
    assert {name for name in PATHS[path] if getattr(module, name).__doc__} == PATHS[path]


def test_every_error_is_in_the_module_of_errors() -> None:
    for module in pkgutil.walk_packages(oxcart.__path__, "oxcart."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    found = {kind.__name__ for kind in _kinds(errors.OxcartError)}
    assert found - PRIVATE == set(errors.__all__)
    assert list(errors.__all__) == sorted(errors.__all__)


@pytest.mark.parametrize("name", errors.__all__)
def test_every_error_is_documented_and_of_the_family(name: str) -> None:
    kind = getattr(errors, name)
    assert issubclass(kind, errors.OxcartError)
    assert kind.__doc__
    assert name in dir(errors)


def test_version_is_that_of_the_package() -> None:
    assert oxcart.__version__ == version("oxcart")


def test_an_unknown_name() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Qeueu'"):
        _ = oxcart.Qeueu
    with pytest.raises(AttributeError, match="no attribute 'JobFialed'"):
        _ = errors.JobFialed


def test_is_typed() -> None:
    assert files("oxcart").joinpath("py.typed").is_file()


@pytest.mark.parametrize(
    ("module", "unwanted"),
    [
        ("oxcart", ("oxcart.engine.worker", "oxcart.queue", "redis", "typer")),
        ("oxcart.errors", ("oxcart.broker", "oxcart.engine", "oxcart.spark", "oxcart.testing", "asyncio")),
        ("oxcart.model", ("oxcart.broker", "oxcart.engine", "asyncio")),
        ("oxcart.queue", ("oxcart.cli", "typer", "rich", "prometheus_client", "pytest")),
        ("oxcart.sync", ("oxcart.cli", "typer", "rich", "oxcart.testing")),
        ("oxcart.testing", ("pytest", "oxcart.cli")),
    ],
)
def test_an_import_brings_no_more_than_it_needs(module: str, unwanted: tuple[str, ...]) -> None:
    code = f"import sys, {module}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) & set(unwanted) == set()


def _kinds(root: type[Exception]) -> set[type[Exception]]:
    """Returns a class of ours and those below it; classes of other tests are left out."""
    below = (kind for kind in root.__subclasses__() if kind.__module__.startswith("oxcart."))
    return {root}.union(*map(_kinds, below))
