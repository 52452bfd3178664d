"""The drop-in for users of PyPI's bullmq: the same files run on both packages, and find the same.

Their package runs in an environment of its own. Each script calls its part of the public methods; together
they must call every one that the installed package has, so that a new version of it shows what we lack.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import redis
from benchmarks.systems import pypi_environment

from oxcart.compat import bullmq
from tests.compat.run import SCRIPTS, public
from tests.servers import ValkeyServer

HERE = Path(__file__).parent
OURS = "oxcart.compat.bullmq"
NAMES = sorted(path.stem for path in SCRIPTS.glob("*.py") if path.stem != "seen")

#: What each script calls on their package, noted as the scripts run.
_called: dict[str, set[str]] = {}


@pytest.fixture(scope="module")
def theirs() -> str:
    """The Python that has PyPI's bullmq."""
    return str(pypi_environment() / "bin" / "python")


def run(python: str, file: str, *args: str, stdin: str = "") -> Any:
    """What a file prints; its complaint where it fails."""
    command = [python, str(HERE / file), *args]
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


def run_theirs(theirs: str, script: str, valkey: ValkeyServer) -> Any:
    valkey.client().flushall()
    answer = run(theirs, "run.py", "bullmq", script, str(valkey.port))
    _called[script] = set(answer["called"])
    return answer


def test_every_public_name_and_method_is_here(theirs: str) -> None:
    wanted = run(theirs, "run.py", "bullmq", "public")
    assert len(wanted) > 10  # else nothing was looked at
    have = public(bullmq)
    missing = {
        kind: sorted(set(attributes) - set(have.get(kind, ())))
        for kind, attributes in wanted.items()
        if kind not in have or set(attributes) - set(have[kind])
    }
    assert missing == {}
    assert run(theirs, "run.py", "bullmq.custom_errors", "public").keys() <= vars(bullmq.custom_errors).keys()
    types = subprocess.check_output(
        [theirs, "-c", "import bullmq.types as t; print(*[n for n in dir(t) if n[0].isupper()])"], text=True
    )
    from oxcart.compat.bullmq import types as ours

    assert set(types.split()) <= set(dir(ours))


@pytest.mark.parametrize("script", NAMES)
def test_a_script_finds_the_same_on_both(script: str, theirs: str, valkey: ValkeyServer) -> None:
    expected = run_theirs(theirs, script, valkey)["found"]
    valkey.client().flushall()
    found = run(sys.executable, "run.py", OURS, script, str(valkey.port))["found"]
    assert found.keys() == expected.keys()
    for what, value in expected.items():
        assert found[what] == value, what


def test_the_scripts_call_every_public_method(theirs: str, valkey: ValkeyServer) -> None:
    for script in set(NAMES) - set(_called):  # this test alone was asked for
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


def test_faults_of_theirs_that_are_none_of_ours(
    theirs: str, valkey: ValkeyServer, store: redis.Redis
) -> None:
    """Where a new release of theirs has mended one, its row in docs/migrating-from-bullmq.md goes."""
    faults = run(theirs, "faults.py", "bullmq", str(valkey.port))
    assert len(faults) == 10
    assert [name for name, there in faults.items() if not there] == []
    store.flushall()
    ours = run(sys.executable, "faults.py", OURS, str(valkey.port))
    assert [name for name, there in ours.items() if there] == []
    assert ours.keys() == faults.keys()
