"""The drop-in for users of PyPI's bullmq: the same files give the same results on both packages.

Their package runs in an environment of its own. Each script calls some of the public methods. Together they
must call every method of the installed package, so that a new version shows what we lack.
"""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest
import redis
from benchmarks.systems import pypi_environment

from oxcart.compat import bullmq
from tests.compat.run import SCRIPTS, parameters, public
from tests.servers import ValkeyServer

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
OURS = "oxcart.compat.bullmq"
NAMES = sorted(path.stem for path in SCRIPTS.glob("*.py") if path.stem != "seen")

#: Scripts whose jobs fail: neither package writes a line of it to stderr.
QUIET = ("working", "finishing", "odd_input")

#: The methods that each script calls on their package, recorded during the runs.
_called: dict[str, set[str]] = {}


@pytest.fixture(scope="module")
def theirs() -> str:
    """The Python that has PyPI's bullmq."""
    return str(pypi_environment() / "bin" / "python")


def run(python: str, file: str, *args: str, stdin: str = "", quiet: bool = False) -> Any:
    """Returns the output of a file. Fails with its stderr if it fails or should be quiet but is not."""
    command = [python, str(HERE / file), *args]
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    assert not quiet or done.stderr == ""
    return json.loads(done.stdout.splitlines()[-1])


def run_theirs(theirs: str, script: str, valkey: ValkeyServer) -> Any:
    valkey.client().flushall()
    answer = run(theirs, "run.py", "bullmq", script, str(valkey.port))
    _called[script] = set(answer["called"])
    return answer


def test_every_public_name_and_method_is_here(theirs: str) -> None:
    wanted = run(theirs, "run.py", "bullmq", "public")
    assert len(wanted) > 10  # otherwise nothing was checked
    have = public(bullmq)
    missing = {
        kind: sorted(set(attributes) - set(have.get(kind, ())))
        for kind, attributes in wanted.items()
        if kind not in have or set(attributes) - set(have[kind])
    }
    assert missing == {}


def test_every_parameter_can_be_given_by_its_name(theirs: str) -> None:
    have = parameters(bullmq)
    wanted = run(theirs, "run.py", "bullmq", "parameters")
    assert "flows" in wanted["FlowProducer.addBulk"]
    missing = {name: [one for one in names if one not in have[name]] for name, names in wanted.items()}
    assert {name: names for name, names in missing.items() if names} == {}


def test_every_name_is_here_or_listed_as_missing(theirs: str, valkey: ValkeyServer) -> None:
    """Walks all modules, classes and objects of their package."""
    wanted = run(theirs, "run.py", "bullmq", "surface", str(valkey.port))
    assert {"types.job_options.JobOptions", "worker.Worker.clientName", "utils"} <= set(wanted)
    port = str(valkey.port)
    missing = run(sys.executable, "run.py", OURS, "missing", port, stdin=json.dumps(wanted))
    listed = names_that_are_not_here()
    assert [name for name in missing if not any(fnmatchcase(name, one) for one in listed)] == []
    stale = [one for one in listed if not any(fnmatchcase(name, one) for name in missing)]
    assert stale == [], "listed as missing, but here"


def names_that_are_not_here() -> list[str]:
    """The first column of a table of the migration page; a star stands for any text."""
    page = (HERE.parent.parent / "docs" / "migrating-from-bullmq.md").read_text()
    table = page.partition("### Names that are not here")[2].partition("\n### ")[0]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    return [name for row in rows for name in re.findall(r"`([^`]+)`", row)]


@pytest.mark.parametrize("script", NAMES)
def test_a_script_finds_the_same_on_both(script: str, theirs: str, valkey: ValkeyServer) -> None:
    expected = run_theirs(theirs, script, valkey)["found"]
    valkey.client().flushall()
    found = run(sys.executable, "run.py", OURS, script, str(valkey.port), quiet=script in QUIET)["found"]
    assert found.keys() == expected.keys()
    for what, value in expected.items():
        assert found[what] == value, what
    left = [key for key in valkey.client().scan_iter("*:ox:*") if ":ox:call" in key or ":ox:worker" in key]
    assert left == [], "every script closes what it opens"


def test_the_scripts_call_every_public_method(theirs: str, valkey: ValkeyServer) -> None:
    for script in set(NAMES) - set(_called):  # this test runs alone
        run_theirs(theirs, script, valkey)
    called = set().union(*_called.values())
    wanted = run(theirs, "run.py", "bullmq", "public")
    methods = {f"{kind}.{attribute}" for kind, attributes in wanted.items() for attribute in attributes}
    assert sorted(methods - called) == []


def test_their_readme_runs_with_one_line_changed(
    theirs: str, valkey: ValkeyServer, store: redis.Redis
) -> None:
    tell = "import importlib.metadata as m; print(m.metadata('bullmq').get_payload())"
    readme = subprocess.check_output([theirs, "-c", tell], text=True)
    expected = run(theirs, "readme.py", "bullmq", str(valkey.port), stdin=readme)
    assert len(expected) >= 3
    assert expected[0]["job"]["data"] == {"foo": "bar"}
    store.flushall()
    found = run(sys.executable, "readme.py", OURS, str(valkey.port), stdin=readme)
    assert found == expected


def test_known_faults_of_bullmq_are_not_ours(theirs: str, valkey: ValkeyServer, store: redis.Redis) -> None:
    """If a new release of theirs fixes a fault, remove its row from docs/migrating-from-bullmq.md."""
    faults = run(theirs, "faults.py", "bullmq", str(valkey.port))
    assert len(faults) == 10
    assert [name for name, there in faults.items() if not there] == []
    store.flushall()
    ours = run(sys.executable, "faults.py", OURS, str(valkey.port))
    assert [name for name, there in ours.items() if there] == []
    assert ours.keys() == faults.keys()


def test_deliberate_differences_are_the_documented_ones(
    theirs: str, valkey: ValkeyServer, store: redis.Redis
) -> None:
    """Each has its row in docs/migrating-from-bullmq.md, with the reason."""
    there = run(theirs, "decided.py", "bullmq", str(valkey.port))
    store.flushall()
    here = run(sys.executable, "decided.py", OURS, str(valkey.port))
    assert {what: (there[what], value) for what, value in here.items()} == {
        "an empty queue name": ("accepted", "refused"),
        "a set": (True, "nothing"),
        "the name of a connection": ("bull:q:w:w", "bull:cQ==:w:w"),
        "a float backoff": (["error", "active"], ["failed", "delayed"]),
        "starts on the server": (None, "1"),
        "starts of the job": (0, 0),
    }


async def test_half_an_emoji_of_their_producer_reaches_our_processor(
    theirs: str, valkey: ValkeyServer, url: str
) -> None:
    add = f"""
import asyncio, bullmq
async def main():
    queue = bullmq.Queue("cut", {{"connection": {url!r}}})
    await queue.add("n", {{"s": "cut \\ud83d"}})
    await queue.close()
asyncio.run(main())
"""
    subprocess.run([theirs, "-c", add], check=True, timeout=60)
    seen: asyncio.Queue[Any] = asyncio.Queue()

    async def process(job: bullmq.Job, token: str) -> str:
        await seen.put(job.data)
        return str(job.data["s"])[-1]

    worker = bullmq.Worker("cut", process, {"connection": url})
    assert await asyncio.wait_for(seen.get(), 20) == {"s": "cut \ud83d"}
    await worker.close()
    queue = bullmq.Queue("cut", {"connection": url})
    job = await queue.getJob("1")
    assert job is not None
    assert job.returnvalue == "\ud83d"
    await queue.close()
