"""The runner of mutants: what it counts as caught, and that it tests the copy and nothing else."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.mutants import catalogue, page
from tests.mutants.catalogue import Mutant, StaleMutant
from tests.mutants.page import ROOT, PageError, Row
from tests.mutants.runner import Bench, Result, Verdict, chosen, run, table

PRODUCT = "def double(number: int) -> int:\n    return 2 * number\n"
CHECKS = """
import pytest
import oxcart
from oxcart import double

@pytest.fixture
def four():
    return double(2)

def test_double():
    assert double(2) == 4

def test_says_nothing():
    double(2)

def test_raises():
    [1, 2, 3, 4, 5][double(2)]

def test_with_a_fixture(four):
    assert four == 4

def test_hangs():
    while double(2) != 4:
        pass

def test_is_skipped():
    pytest.skip("no")
"""


class FakeRow(Row):
    """A row whose cell is a node id of pytest."""

    def tests(self) -> dict[str, tuple[str, ...]]:
        return {self.shown_by: (self.shown_by,)}


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    package = tmp_path / "src" / "oxcart"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(PRODUCT)
    (tmp_path / "checks").mkdir()
    (tmp_path / "checks" / "test_product.py").write_text(CHECKS)
    return Bench(tmp_path / "src", limit=90, root=tmp_path)


def row(test: str) -> FakeRow:
    return FakeRow("1", "doubles", f"checks/test_product.py::{test}")


MUTANT = Mutant("m", "doubles", "__init__.py", "2 * number", "3 * number")


def verdict(bench: Bench, test: str, mutant: Mutant = MUTANT) -> Result:
    return bench.try_out(mutant, (row(test),))


class TestVerdicts:
    def test_a_failed_assertion_is_a_catch(self, bench: Bench) -> None:
        found = verdict(bench, "test_double")
        assert (found.verdict, found.reason) == (Verdict.CAUGHT, "checks/test_product.py::test_double")

    def test_a_test_that_passes_is_reported(self, bench: Bench) -> None:
        assert verdict(bench, "test_says_nothing").verdict is Verdict.SURVIVED

    def test_a_skipped_test_catches_nothing(self, bench: Bench) -> None:
        assert verdict(bench, "test_is_skipped").verdict is Verdict.SURVIVED

    @pytest.mark.parametrize("test", ["test_raises", "test_with_a_fixture"])
    def test_another_error_and_a_broken_fixture_do_not_count(self, bench: Bench, test: str) -> None:
        broken = replace(MUTANT, becomes="2 * number + 1 if number < 0 else [][number]")
        assert verdict(bench, test, broken).verdict is Verdict.BROKEN

    @pytest.mark.parametrize(
        "becomes",
        [
            "2 * number\n\nraise ImportError('gone')",
            "2 * number\n\nimport nothing_of_this_name",
            "2 * numbre",
        ],
    )
    def test_an_import_error_and_a_missing_name_do_not_count(self, bench: Bench, becomes: str) -> None:
        found = verdict(bench, "test_double", replace(MUTANT, becomes=becomes))
        assert found.verdict is Verdict.BROKEN

    def test_a_test_that_cannot_be_collected_does_not_count(self, bench: Bench) -> None:
        gone = replace(MUTANT, snippet="def double(", becomes="def triple(")
        assert verdict(bench, "test_double", gone).verdict is Verdict.BROKEN

    def test_a_mutant_that_times_out_does_not_count(self, bench: Bench) -> None:
        bench._limit = 3
        found = verdict(bench, "test_hangs")
        assert (found.verdict, found.reason) == (Verdict.SLOW, "no verdict within 3 s")

    @pytest.mark.parametrize("snippet", ["4 * number", "number"])
    def test_a_snippet_that_is_gone_or_not_unique_is_reported(self, bench: Bench, snippet: str) -> None:
        found = verdict(bench, "test_double", replace(MUTANT, snippet=snippet))
        assert found.verdict is Verdict.STALE
        assert f"m: __init__.py has the snippet {0 if snippet[0] == '4' else 2} times" in found.reason


class TestRun:
    def test_tests_that_fail_without_a_mutant_are_not_tried(self, bench: Bench) -> None:
        lines: list[str] = []
        known = (row("test_raises"), replace(row("test_double"), rule="also doubles"))
        mutants = [MUTANT, replace(MUTANT, name="n", row="also")]
        (bench._source / "oxcart" / "__init__.py").write_text(
            PRODUCT.replace("2 * number", "2 * number + 9 - 9")
        )
        mutants = [replace(one, snippet="+ 9 - 9", becomes="+ 9") for one in mutants]
        (bench._root / "checks" / "test_product.py").write_text(CHECKS.replace("[double(2)]", "[9]"))
        found = run(bench, mutants, known, say=lines.append)
        assert [one.verdict for one in found] == [Verdict.UNSOUND, Verdict.CAUGHT]
        assert any("test_raises does not pass without a mutant" in line for line in lines)
        assert table(found, known).endswith("1 of 2 mutants caught")

    def test_the_source_itself_is_left_alone(self, bench: Bench) -> None:
        before = (bench._source / "oxcart" / "__init__.py").read_text()
        verdict(bench, "test_double")
        assert (bench._source / "oxcart" / "__init__.py").read_text() == before

    def test_some_can_be_chosen(self) -> None:
        known = [MUTANT, replace(MUTANT, name="other", file="engine/worker.py")]
        assert chosen(known, None) == known
        assert chosen(known, "oth") == chosen(known, "engine/*.py") == known[1:]
        assert chosen(known, "doubles") == known


class TestCatalogue:
    def test_faults_are_named(self, tmp_path: Path) -> None:
        (tmp_path / "oxcart").mkdir()
        (tmp_path / "oxcart" / "__init__.py").write_text(PRODUCT)
        known = (row("test_double"), replace(row("test_double"), rule="lonely"))
        mutants = (
            MUTANT,
            MUTANT,
            replace(MUTANT, name="a", row="nothing"),
            replace(MUTANT, name="b", file="gone.py"),
            replace(MUTANT, name="c", becomes="(("),
            replace(MUTANT, name="d", becomes=MUTANT.snippet),
            replace(MUTANT, name="e", tests=("test_other",)),
        )
        found = catalogue.faults(mutants, known, tmp_path)
        assert [line.partition(":")[2].strip()[:37] for line in found] == [
            "two mutants have this name",
            "0 rows begin with 'nothing', expected",
            "gone.py does not exist",
            "the mutant is not valid Python: '(' w",
            "the mutant changes nothing",
            "the row does not name test_other: dou",
            "lonely",
        ]

    def test_tests_may_be_narrowed(self) -> None:
        one = Row("1", "r", "`test_new_ids_are_random_uuids`, `TestLifetime`")
        ids = replace(MUTANT, tests=("TestLifetime::test_many_at_once", "test_new_ids_are_random_uuids[x]"))
        assert ids.node_ids(one) == (
            "tests/formal/test_timeouts.py::TestLifetime::test_many_at_once",
            "tests/broker/bullmq/test_codec.py::TestIds::test_new_ids_are_random_uuids[x]",
        )
        with pytest.raises(StaleMutant, match="no test is named test_nowhere"):
            MUTANT.node_ids(Row("1", "r", "`test_nowhere`"))


class TestPage:
    def test_a_file_narrows_names_or_stands_for_its_tests(self) -> None:
        shown = "`TestKeys` in `tests/broker/test_encryption.py`; `tests/cli/test_dead.py`"
        assert Row("1", "r", shown).tests() == {
            "TestKeys": ("tests/broker/test_encryption.py::TestKeys",),
            "tests/cli/test_dead.py": ("tests/cli/test_dead.py",),
        }

    def test_a_name_of_several_files_needs_its_file(self) -> None:
        with pytest.raises(PageError, match="TestKeys is the name of several tests"):
            Row("1", "r", "`TestKeys`").tests()

    def test_rows_have_their_section(self) -> None:
        (one,) = page.rows("# T\n\n## 1. A\n\n| rule | shown by |\n|---|---|\n| r | `test_x` |\n")
        assert one == Row("1. A", "r", "`test_x`")


#: Every way in which a test, or the product under test, starts the product again.
PROCESSES = """
import asyncio, multiprocessing, os, shutil, subprocess, sys
from pathlib import Path
import oxcart
from oxcart.engine import renewer

COPY = Path(os.environ["OXCART_MUTANT_SOURCE"]).resolve()

def origin():
    return oxcart.__file__

def output(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True, cwd="/").stdout

def test_all_are_the_copy():
    show = "import oxcart; print(oxcart.__file__)"
    found = [origin(), output(sys.executable, "-c", show), renewer.command()[-1]]
    found.append(output(sys.executable, "-m", "oxcart.cli"))
    found.append(output(str(Path(sys.executable).with_name("oxcart"))))
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        found.append(pool.apply(origin))
    assert all(COPY in Path(one.strip()).parents for one in found), found
"""


def test_every_process_of_a_test_runs_the_copy(tmp_path: Path) -> None:
    (tmp_path / "test_processes.py").write_text(PROCESSES)
    bench = Bench(root=tmp_path)
    with bench._copy() as copy:
        (copy / "oxcart" / "cli" / "__init__.py").write_text("def main() -> None:\n    print(__file__)\n")
        (copy / "oxcart" / "cli" / "__main__.py").write_text("from oxcart.cli import main\n\nmain()\n")
        found = bench._pytest(copy, ["test_processes.py"], stop=False)
    assert found.record is not None, found.output
    assert [one["outcome"] for one in found.record["tests"]] == ["passed"], found.output


def test_a_product_from_elsewhere_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "test_nothing.py").write_text("def test_nothing(): ...\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "tests.mutants.witness", "test_nothing.py"],
        cwd=tmp_path,
        env={
            "PYTHONPATH": str(ROOT),
            "OXCART_MUTANT_SOURCE": str(tmp_path),
            "OXCART_MUTANT_RECORD": str(tmp_path / "record"),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 9
    assert f"not from {tmp_path}" in done.stderr + done.stdout


#: Mutants that take a second each; `make conformance-mutants` tries out all.
QUICK = ("id-is-no-version-4", "completed-may-run-again", "lowest-priority-is-inherited", "tripled")


@pytest.mark.timeout(600)  # five runs of pytest on a machine that may be busy
def test_some_mutants_of_the_page_are_caught() -> None:
    before = _digest()
    wanted = [one for one in catalogue.mutants() if one.name in QUICK]
    assert len(wanted) == len(QUICK)
    lines: list[str] = []
    found = run(Bench(), wanted, page.rows(), say=lines.append)
    assert [one.verdict for one in found] == [Verdict.CAUGHT] * len(QUICK), lines
    assert _digest() == before


def _digest() -> str:
    """Returns a digest of the repository's own source."""
    made = hashlib.sha256()
    for file in sorted(catalogue.SOURCE.rglob("*.*")):
        if file.suffix in (".py", ".lua"):
            made.update(file.read_bytes())
    return made.hexdigest()
