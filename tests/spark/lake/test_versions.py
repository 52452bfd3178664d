"""Versions of tables: exactly one writer gets a number, and readers see whole versions only."""

from __future__ import annotations

import multiprocessing
import os
import resource
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from oxcart.spark.lake import versions as lakes
from oxcart.spark.lake.upkeep import compact, expire, forget
from oxcart.spark.lake.versions import Change, File, Lake, LakeConflict, LakeError
from tests.servers import wait_until

pa = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")

DAY = "2026-11-02"


def put(lake: Lake, values: list[int], table: str = "t", day: str = DAY, queue: str = "q") -> File:
    """A file of the lake, not yet published."""
    made = lake.staging() / "x.parquet"
    parquet.write_table(pa.table({"v": pa.array(values, pa.int64())}), made)
    return lake.take(made, table, day, queue)


def rows(lake: Lake, table: str = "t", number: int | None = None) -> list[int]:
    version = lake.head() if number is None else lake.at(number)
    found: list[int] = []
    for path in lake.paths(version.of(table)):
        found += parquet.read_table(path, partitioning=None)["v"].to_pylist()
    return sorted(found)


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path / "lake")


def test_an_empty_lake_has_version_0(lake: Lake) -> None:
    assert lake.head().number == 0
    assert lake.head().of("t") == []


def test_files_exist_only_once_published(lake: Lake) -> None:
    file = put(lake, [1, 2])
    assert rows(lake) == []
    assert lake.publish(Change("add", add=[file])).number == 1
    assert rows(lake) == [1, 2]
    assert (file.rows, file.day, file.queue) == (2, DAY, "q")


def test_versions_are_found_again_over_many_manifests(lake: Lake) -> None:
    for value in range(70):
        lake.publish(Change("add", add=[put(lake, [value])], marks={"n": value}))
    fresh = Lake(lake.root)
    assert rows(fresh) == list(range(70))
    assert fresh.head().marks == {"n": 69}
    assert rows(fresh, number=33) == list(range(33))
    assert rows(fresh, number=32) == list(range(32))


def test_a_part_is_replaced_at_once(lake: Lake) -> None:
    lake.publish(Change("add", add=[put(lake, [1]), put(lake, [2], queue="other")]))
    base = lake.head()
    lake.publish(Change("rebuild", add=[put(lake, [3])], replace=frozenset({("t", DAY, "q")})), base)
    assert rows(lake) == [2, 3]
    assert rows(lake, number=base.number) == [1, 2]


def test_two_that_append_both_succeed(lake: Lake) -> None:
    base = lake.head()
    mine, yours = put(lake, [1]), put(lake, [2])
    lake.publish(Change("mine", add=[mine]), base)
    assert Lake(lake.root).publish(Change("yours", add=[yours]), base).number == 2
    assert rows(lake) == [1, 2]


def test_second_replacement_of_a_part_is_a_conflict(lake: Lake) -> None:
    lake.publish(Change("add", add=[put(lake, [1])]))
    base = lake.head()
    part = frozenset({("t", DAY, "q")})
    lake.publish(Change("rebuild", add=[put(lake, [2])], replace=part), base)
    with pytest.raises(
        LakeConflict, match=rf"other: since version 1 .*rebuild, version 2.*t {DAY} q; run it again"
    ):
        Lake(lake.root).publish(Change("other", add=[put(lake, [3])], replace=part), base)
    assert rows(lake) == [2]


def test_a_mark_that_is_not_as_expected_is_a_conflict(lake: Lake) -> None:
    lake.publish(Change("a", marks={"batch": 1}))
    lake.publish(Change("b", marks={"batch": 2}, expects={"batch": 1}))
    with pytest.raises(LakeConflict, match="mark 'batch' is 2, not 1"):
        lake.publish(Change("c", marks={"batch": 2}, expects={"batch": 1}))
    lake.publish(Change("d", marks={"batch": None}))
    assert lake.head().marks == {}


def test_a_manifest_has_only_the_marks_that_it_sets(lake: Lake) -> None:
    """Every queue has marks: a batch every few seconds must not write them all."""
    lake.publish(Change("build", marks={f"built:{number}": "x" * 100 for number in range(100)}))
    lake.publish(Change("ingest", marks={"ingest": 1, "built:7": None}))
    assert lake.manifest(2).marks == {"ingest": 1, "built:7": None}
    for number in range(3, 40):
        lake.publish(Change("ingest", marks={"ingest": number}))
    fresh = Lake(lake.root)
    assert fresh.head().marks == lake.head().marks
    assert (len(fresh.head().marks), fresh.head().marks["ingest"]) == (100, 39)
    expire(lake, keep=1, older_than_ms=0)
    assert Lake(lake.root).head().marks == lake.head().marks


class Shared(Lake):
    """A lake of two threads: when one reads the cached versions for the nth time, the other publishes."""

    looks = 0

    @property
    def _known(self) -> lakes.Version:
        found: lakes.Version = self.__dict__["known"]
        self.looks -= 1
        if self.looks == 0:
            other = Lake(self.root)
            other.publish(Change("other", add=[put(other, [3])], marks={"n": 3}))
            self.head()
        return found

    @_known.setter
    def _known(self, version: lakes.Version) -> None:
        self.__dict__["known"] = version


@pytest.mark.parametrize("looks", range(1, 5))
def test_version_lookup_is_safe_beside_other_threads(lake: Lake, looks: int) -> None:
    for number in (1, 2):
        lake.publish(Change("ingest", add=[put(lake, [number])], marks={"n": number}))
    shared = Shared(lake.root)
    shared.at(1)
    shared.looks = looks
    asked = shared.at(2)
    assert (asked.number, len(asked.files), asked.marks) == (2, 2, {"n": 2})
    shared.looks = 0
    assert shared.head() == Lake(lake.root).head()


def _race(root: str, name: str, rounds: int, done: Any) -> None:
    lake = Lake(root)
    done.put((name, [lake.publish(Change(name, marks={})).number for _ in range(rounds)]))


def test_processes_that_race_get_every_number_once(lake: Lake) -> None:
    context = multiprocessing.get_context("fork")
    done = context.Queue()
    racers = [context.Process(target=_race, args=(str(lake.root), f"w{i}", 20, done)) for i in range(3)]
    for racer in racers:
        racer.start()
    numbers = sorted(number for _ in racers for number in done.get(timeout=60)[1])
    for racer in racers:
        racer.join()
    assert numbers == list(range(1, 61))
    assert [number for number, _, _ in lake.history()] == numbers


def test_a_reader_never_sees_half_of_a_rewrite(lake: Lake) -> None:
    """Every version of two tables holds the same number; readers that scan during rewrites see no other."""
    parts = frozenset({("a", DAY, "q"), ("b", DAY, "q")})
    stop = threading.Event()
    wrong: list[Any] = []
    seen: set[int] = set()

    def read() -> None:
        reader = Lake(lake.root)
        while not stop.is_set():
            version = reader.head()
            both = [
                parquet.read_table(path, partitioning=None)["v"].to_pylist()
                for table in ("a", "b")
                for path in reader.paths(version.of(table))
            ]
            if both:
                seen.add(both[0][0])
                if len(both) != 2 or both[0] != both[1]:
                    wrong.append(both)

    readers = [threading.Thread(target=read) for _ in range(2)]
    for thread in readers:
        thread.start()
    for value in range(30):
        files = [put(lake, [value] * 3, table="a"), put(lake, [value] * 3, table="b")]
        lake.publish(Change("rewrite", add=files, replace=parts))
    wait_until(lambda: seen, "a reader has read")
    stop.set()
    for thread in readers:
        thread.join()
    assert wrong == []


def test_compaction_keeps_every_row_and_what_is_added_meanwhile(lake: Lake) -> None:
    for value in range(5):
        lake.publish(Change("add", add=[put(lake, [value]), put(lake, [value + 100], queue="other")]))
    assert compact(lake, "t") == 8
    assert len(lake.head().of("t")) == 2
    assert rows(lake) == [0, 1, 2, 3, 4, 100, 101, 102, 103, 104]
    base = lake.head()
    lake.publish(Change("add", add=[put(lake, [5])]))
    gone = frozenset(file.path for file in base.of("t", queues=["q"]))
    lake.publish(Change("compact", add=[put(lake, [0, 1, 2, 3, 4])], remove=gone), base)
    assert rows(lake) == [0, 1, 2, 3, 4, 5, 100, 101, 102, 103, 104]


def test_compaction_of_files_with_fewer_columns_makes_the_others_null(lake: Lake) -> None:
    made = lake.staging() / "x.parquet"
    parquet.write_table(pa.table({"v": [1], "more": ["x"]}), made)
    wide = lake.take(made, "t", DAY, "q")
    lake.publish(Change("add", add=[put(lake, [0]), wide, put(lake, [2])]))
    assert compact(lake) == 2
    (path,) = lake.paths(lake.head().of("t"))
    found = parquet.read_table(path, partitioning=None).to_pydict()
    assert sorted(zip(found["v"], found["more"], strict=True), key=str) == [(0, None), (1, "x"), (2, None)]


def test_forgetting_deletes_what_only_older_versions_name(lake: Lake) -> None:
    for value in range(40):
        lake.publish(Change("add", add=[put(lake, [value])]))
    first, *_ = lake.head().of("t")
    orphan = put(lake, [999])
    head = lake.publish(Change("less", remove=frozenset({first.path}))).number
    lake.publish(Change("add", add=[put(lake, [40])]))
    assert forget(lake, head) == 1
    assert not (lake.root / first.path).exists()
    assert (lake.root / orphan.path).exists(), "a writer may be about to publish it"
    fresh = Lake(lake.root)
    assert [number for number, _, _ in fresh.history()] == [head, head + 1]
    assert len(rows(fresh)) == 40
    assert forget(fresh, head) == 0


def test_expiry_deletes_what_no_kept_version_names(tmp_path: Path) -> None:
    now = [1_000_000_000_000]
    lake = Lake(tmp_path / "lake", clock=lambda: now[0])
    for value in range(40):
        lake.publish(Change("add", add=[put(lake, [value])]))
    compact(lake)
    orphan = put(lake, [999])
    old = lake.root / orphan.path
    os.utime(old, (1, 1))
    now[0] += 10 * 86_400_000
    # Files count as old only by their own time.
    for path in lake.root.rglob("*.parquet"):
        os.utime(path, (now[0] / 1000 - 86_400 * 5,) * 2)
    assert expire(lake, keep=1) == 41
    fresh = Lake(lake.root)
    assert rows(fresh) == list(range(40))
    assert [number for number, _, _ in fresh.history()] == [41]
    with pytest.raises(LakeError, match="no version 40: it has expired"):
        fresh.at(40)
    lake.publish(Change("add", add=[put(lake, [1])]))
    assert len(rows(Lake(lake.root))) == 41


def test_a_writer_killed_before_it_publishes_leaves_the_lake_as_it_was(lake: Lake) -> None:
    lake.publish(Change("add", add=[put(lake, [1])]))
    child = os.fork()
    if child == 0:
        put(lake, [2])
        (lake.root / "_versions" / ".half").write_text('{"number": 2')
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    assert rows(lake) == [1]
    assert lake.publish(Change("add", add=[put(lake, [2])])).number == 2


def test_a_lake_that_cannot_grow_says_what_to_do_and_loses_nothing(lake: Lake) -> None:
    lake.publish(Change("add", add=[put(lake, [1])]))
    file = put(lake, [2])
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (16, hard[1]))
        with pytest.raises(LakeError, match=r"cannot grow.*oxcart pipeline expire.*nothing is lost"):
            lake.publish(Change("add", add=[file]))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, hard)
        signal.signal(signal.SIGXFSZ, before)
    assert rows(lake) == [1]
    lake.publish(Change("add", add=[file]))
    assert rows(lake) == [1, 2]
    assert [name for name in os.listdir(lake.root / "_versions") if name.startswith(".")] == []


def test_unreadable_manifest_raises_lake_error(lake: Lake) -> None:
    lake.publish(Change("add"))
    (lake.root / "_versions" / lakes.manifest_name(1)).write_text("{")
    with pytest.raises(LakeError, match=r"cannot be read .*restore it from a backup"):
        Lake(lake.root).head()


def test_queues_of_any_name_have_their_place(lake: Lake) -> None:
    for queue in ("a/b", "..", "{tag}", "ü x", "a=b"):
        lake.publish(Change("add", add=[put(lake, [1], queue=queue)]))
    version = lake.head()
    assert sorted(file.queue for file in version.of("t")) == sorted(["a/b", "..", "{tag}", "ü x", "a=b"])
    assert all((lake.root / file.path).resolve().is_relative_to(lake.root) for file in version.of("t"))
    assert [file.queue for file in version.of("t", queues=["a/b"])] == ["a/b"]
    assert version.of("t", days=["2026-01-01"]) == []
