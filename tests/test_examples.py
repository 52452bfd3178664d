"""Every example runs, and the code in the README is one of them."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.nodes import installed, node_missing
from tests.servers import free_port, wait_until

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples"

#: Programs start several times in a test; the limits below are for a busy machine.
pytestmark = pytest.mark.timeout(600)


def environment(url: str, **more: str) -> dict[str, str]:
    return {**os.environ, "OXCART_URL": url, "PYTHONUNBUFFERED": "1", **more}


def run(*command: str, url: str, **more: str) -> str:
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=environment(url, **more),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@contextmanager
def started(*command: str, url: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        command, cwd=ROOT, env=environment(url), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.communicate(timeout=90)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()


def test_quickstart(url: str) -> None:
    output = run(sys.executable, "examples/quickstart.py", url=url)
    assert "{'to': 'ada@example.com', 'text': 'Hello Ada!'}" in output
    assert "{'to': 'bob@example.com', 'text': 'Hello you!'}" in output


def test_quickstart_without_a_server(tmp_path: Path) -> None:
    """As a newcomer runs it: nothing is set up, and nothing stays behind."""
    env = {**os.environ, "OXCART_HOME": str(tmp_path / "data")}
    done = subprocess.run(
        [sys.executable, "examples/quickstart.py"],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert (done.returncode, done.stderr.count("Traceback")) == (0, 0), done.stderr
    assert "Hello Ada!" in done.stdout


def test_cpu(url: str) -> None:
    lines = run(sys.executable, "examples/cpu.py", url=url).splitlines()
    assert [re.findall(r"'primes': (\d+)", line) for line in lines[:4]] == [
        ["4"],
        ["168"],
        ["2262"],
        ["5133"],
    ]
    assert lines[4].startswith("timeout - the attempt took longer than 0.5 s")


def test_flow(url: str) -> None:
    lines = run(sys.executable, "examples/flow.py", url=url).splitlines()
    pages = "['<page 1>', '<page 2>', '<page 3>']"
    assert lines[0] == f"{{'month': 'May', 'pages': {pages}, 'missing': ['page 4 is empty']}}"
    assert lines[1] == "DependencyCounts(processed=3, unprocessed=0, ignored=1, failed=0)"


def test_graph(url: str) -> None:
    lines = run(sys.executable, "examples/graph.py", url=url).splitlines()
    assert lines == ["11 sent: loaded", "sent: the night is over", "failed"]


def test_routing(url: str) -> None:
    lines = run(sys.executable, "examples/routing.py", url=url).splitlines()
    assert lines == ["done: flush render", "nobody can: {'any;c=latex,pdf': 1}"]


def test_steps(url: str) -> None:
    assert run(sys.executable, "examples/steps.py", url=url) == "14 words\n"


def test_deduplicate(url: str) -> None:
    assert run(sys.executable, "examples/deduplicate.py", url=url).splitlines() == [
        "simple [True, False] owner: 1",
        "throttled [True, False, False] owner: 1",
        "debounced [True, True, True] owner: 3",
        "True None",
    ]


def test_operate(url: str) -> None:
    assert run(sys.executable, "examples/operate.py", url=url).splitlines() == [
        "5 of 5 will run again",
        "5 completed",
        "5 removed",
    ]


def test_idempotent(url: str) -> None:
    assert run(sys.executable, "examples/idempotent.py", url=url).splitlines() == [
        "ran again - charged 100 [(900,)]",
        "ran again - sent before [(1,)]",
        "ran again - the version is another one by now [('Ada Lovelace', 2)]",
    ]


#: A service that dies with an order: after the commit and before the job is published, or right after that.
DYING = """
import importlib, os, sys
shop = importlib.import_module(f"examples.{sys.argv[1]}")
shop.main([])
add_many = shop.orders.add_many
def die(*given, **options):
    if sys.argv[2] == "published":
        add_many(*given, **options)
    os._exit(9)
if sys.argv[2] == "committed":
    shop.publish = die
shop.orders.add_many = die
shop.place("ada")
"""


@pytest.mark.parametrize("name", ["outbox_sqlalchemy", "outbox_django"])
@pytest.mark.parametrize("dies", ["committed", "published"])
def test_an_outbox_loses_no_job_and_doubles_none(
    url: str, store: redis.Redis, tmp_path: Path, name: str, dies: str
) -> None:
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    more = {"SHOP_DB": str(tmp_path / "shop.db"), "PYTHONPATH": path}
    died = subprocess.run(
        [sys.executable, "-c", DYING, name, dies],
        cwd=ROOT,
        env=environment(url, **more),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert died.returncode == 9, died.stderr
    assert int(store.llen("bull:orders:wait")) == (dies == "published")
    output = run(sys.executable, f"examples/{name}.py", "nobody", "grace", url=url, **more)
    assert output.splitlines() == [
        "left behind: 1",
        "nobody cannot order",
        "order 2",
        "jobs: ['ada', 'grace']",
    ]
    output = run(sys.executable, f"examples/{name}.py", "nobody", url=url, **more)
    assert output.splitlines() == ["left behind: 0", "nobody cannot order", "jobs: ['ada', 'grace']"]


def test_sealed(url: str) -> None:
    assert run(sys.executable, "examples/sealed.py", url=url, OXCART_KEYS="").splitlines() == [
        "everybody else sees ['$sealed'] sealed with 2026-11",
        "ada@example.com may come in with s3cret",
    ]


@pytest.mark.parametrize("page", ["flows", "operations"])
def test_code_of_a_guide_is_in_its_examples(page: str) -> None:
    text = (ROOT / "docs" / f"{page}.md").read_text()
    examples = [(ROOT / "docs" / name).resolve() for name in re.findall(r"\((../examples/\w+\.py)\)", text)]
    lines = {line.strip() for example in examples for line in example.read_text().splitlines()}
    for code in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        for line in filter(None, map(str.strip, code.splitlines())):
            assert any(line in known for known in lines), line


def ask(port: int, path: str, body: Any = None) -> tuple[int, Any]:
    data = None if body is None else json.dumps(body).encode()
    asked = urllib.request.Request(
        f"http://127.0.0.1:{port}{path}", data, {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(asked, timeout=20) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def test_web(url: str) -> None:
    port = free_port()
    with (
        started(sys.executable, "examples/web.py", str(port), url=url) as service,
        started(sys.executable, "-m", "oxcart.cli", "work", "examples.web:signups", url=url),
    ):
        assert service.stdout is not None
        assert service.stdout.readline() == f"listening on port {port}\n"
        status, answer = ask(port, "/signups", {"email": "ada@example.com"})
        assert status == 202
        path = f"/signups/{answer['id']}"
        wait_until(lambda: ask(port, path)[1]["state"] == "completed", "the worker has done it", 120)
        assert ask(port, path) == (
            200,
            {"state": "completed", "result": "ada@example.com is on the free plan"},
        )
        assert ask(port, "/signups/none")[0] == 404
        status, answer = ask(port, "/signups", {"plan": "pro"})
        assert status == 400
        assert "missing required field `email`" in answer["error"]
        assert ask(port, "/signups", {"email": "a", "paln": "pro"})[0] == 400


def test_service(url: str, store: redis.Redis) -> None:
    port = free_port()
    with (
        started(sys.executable, "-m", "uvicorn", "examples.service:app", "--port", str(port), url=url),
        started(sys.executable, "-m", "oxcart.cli", "work", "examples.service:orders", url=url),
    ):
        wait_until(lambda: _answers(port), "the service is up", 120)
        small, large = {"item": "pen", "cents": 300}, {"item": "book", "cents": 1500}
        status, placed = ask(port, "/orders", small)
        assert (status, placed["created"]) == (202, True)
        path = f"/orders/{placed['id']}"
        wait_until(lambda: ask(port, path)[1]["state"] == "completed", "the worker has done it", 120)
        done = {"state": "shipped", "receipt": "300 cents for a pen"}
        assert ask(port, path)[1] == {"state": "completed", "result": done, "steps": ["charge"]}
        assert ask(port, f"{path}/approve", {})[0] == 409

        path = f"/orders/{ask(port, '/orders', large)[1]['id']}"
        wait_until(lambda: ask(port, path)[1]["state"] == "delayed", "it waits for its approval", 120)
        assert ask(port, f"{path}/approve", {}) == (200, {"waited": True})
        wait_until(lambda: ask(port, path)[1]["state"] == "completed", "it was approved", 120)
        assert ask(port, path)[1]["steps"] == ["approved", "charge"]
        assert ask(port, "/orders/none")[0] == 404
        assert ask(port, "/orders", {"item": "pen"})[0] == 422


def _answers(port: int) -> bool:
    try:
        return ask(port, "/orders/none")[0] == 404
    except OSError:
        return False


def test_script(url: str, store: redis.Redis) -> None:
    assert run(sys.executable, "examples/script.py", url=url).splitlines() == [
        "schedules: ['30 2 * * *']",
        "one backup: [True, False] True",
        "cancelled: cancelled",
        "orders: 6",
        "load: permanent",
        "replayed: 5 loaded",
    ]


@pytest.mark.node
def test_node(url: str) -> None:
    missing = node_missing()
    if missing is not None:
        pytest.skip(missing)
    modules = installed("v5") / "node_modules"
    with started(sys.executable, "examples/node/worker.py", url=url):
        output = run("node", "examples/node/producer.js", url=url, NODE_PATH=str(modules))
    assert output.splitlines() == ["Hello Ada, from Python", "Hello Grace, from Python"]


def test_observed(url: str) -> None:
    said = run(sys.executable, "examples/observed.py", url=url).splitlines()
    assert said[:2] == [
        "report: the bank does not answer, attempt 1, final: False",
        "event='charged' job_name='charge' attempt=2 cents=500 queue='orders'",
    ]
    assert said[2:4] == ["checkout", "  add mails"]
    # Spans of the server's clock and of this machine's may begin in any order.
    assert sorted(said[4:]) == sorted(
        [
            "    wait orders",
            "    process orders retried",
            "      step reserve",
            "    wait orders",
            "    process orders completed",
            "    wait mails",
            "    process mails completed",
        ]
    )


def test_lifespan(url: str) -> None:
    assert run(sys.executable, "examples/lifespan.py", url=url).splitlines() == ["[1, 2, 3] 1"]


def code_of(example: str) -> str:
    """Returns an example without its docstrings."""
    return re.sub(r'^ *"""[^"]*"""\n+', "", (EXAMPLES / example).read_text(), flags=re.MULTILINE)


class TestReadme:
    text = (ROOT / "README.md").read_text()

    def test_its_code_is_that_of_examples(self) -> None:
        quickstart, lifespan = re.findall(r"```python\n(.*?)```", self.text, re.DOTALL)
        assert quickstart.split() == code_of("quickstart.py").split()
        assert len([line for line in quickstart.splitlines() if line.strip()]) <= 20
        *functions, worker = lifespan.strip().split("\n\n\n")
        for function in functions:
            assert function in code_of("lifespan.py")
        assert worker.removeprefix("worker = ") in code_of("lifespan.py")

    def test_is_short(self) -> None:
        assert len(self.text.splitlines()) < 150

    @pytest.mark.parametrize(
        "file",
        ["README.md", "CHANGELOG.md", "docs/troubleshooting.md", "docs/flows.md", "docs/operations.md"],
    )
    def test_its_links_lead_somewhere(self, file: str) -> None:
        page = ROOT / file
        targets = re.findall(r"\]\((?!https?:)([^)#\s]+)", page.read_text())
        missing = [target for target in targets if not (page.parent / target).exists()]
        assert missing == []

    def test_its_commands_exist(self) -> None:
        makefile = (ROOT / "Makefile").read_text()
        for target in set(re.findall(r"make ([a-z-]+)", self.text)):
            assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


@pytest.mark.parametrize("file", ["README.md", "docs/troubleshooting.md", "docs/operations.md"])
def test_every_oxcart_command_that_is_named_exists(file: str) -> None:
    text = (ROOT / file).read_text()
    named = set(re.findall(r"`oxcart ([a-z-]+)", text))
    assert named
    listed = subprocess.run(
        [sys.executable, "-m", "oxcart.cli", "--help"], capture_output=True, text=True, check=True
    ).stdout
    known = set(re.findall(r"^  ([a-z-]+) ", listed, re.MULTILINE))
    assert named <= known
