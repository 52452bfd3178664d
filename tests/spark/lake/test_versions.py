"""Versions of all tables: one writer gets a number, and neither readers nor kills see half a change."""

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
from oxcart.spark.lake.delta import DeltaLog
from oxcart.spark.lake.upkeep import compact, expire, forget
from oxcart.spark.lake.versions import Change, File, Lake, LakeConflict, LakeError
from tests.servers import wait_until

pa = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")
deltalake = pytest.importorskip("deltalake")

DAY = "2026-11-02"


def put(lake: Lake, values: list[int], table: str = "t", day: str = DAY) -> File:
    """A file of the lake, not yet published."""
    made = lake.staging() / "x.parquet"
    parquet.write_table(pa.table({"v": pa.array(values, pa.int64())}), made)
    return lake.take(made, table, day)


def all_of(lake: Lake, *tables: str) -> frozenset[str]:
    """The paths of all files of some tables."""
    return frozenset(file.path for table in tables for file in lake.head().of(table))


def seen(lake: Lake, table: str = "t") -> list[int]:
    """The rows of a table as any reader of Delta sees them, without the snapshots."""
    return sorted(deltalake.DeltaTable(lake.root / table).to_pyarrow_table()["v"].to_pylist())


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
    assert (file.rows, file.day, file.pending) == (2, DAY, False)


def test_versions_are_found_again_over_many_commits(lake: Lake) -> None:
    for value in range(70):
        lake.publish(Change("add", add=[put(lake, [value])], marks={"n": value}))
    fresh = Lake(lake.root)
    assert rows(fresh) == list(range(70))
    assert fresh.head().marks == {"n": 69}
    assert rows(fresh, number=33) == list(range(33))
    assert rows(fresh, number=32) == list(range(32))


def test_files_are_replaced_at_once(lake: Lake) -> None:
    lake.publish(Change("add", add=[put(lake, [1]), put(lake, [2], day="2026-11-03")]))
    base = lake.head()
    gone = frozenset(file.path for file in base.of("t", days=[DAY]))
    lake.publish(Change("rebuild", add=[put(lake, [3])], remove=gone), base)
    assert rows(lake) == [2, 3] == seen(lake)
    assert rows(lake, number=base.number) == [1, 2]


def test_two_that_append_both_succeed(lake: Lake) -> None:
    base = lake.head()
    mine, yours = put(lake, [1]), put(lake, [2])
    lake.publish(Change("mine", add=[mine]), base)
    assert Lake(lake.root).publish(Change("yours", add=[yours]), base).number == 2
    assert rows(lake) == [1, 2]


def test_second_removal_of_a_file_is_a_conflict(lake: Lake) -> None:
    lake.publish(Change("add", add=[put(lake, [1])]))
    base, gone = lake.head(), all_of(lake, "t")
    lake.publish(Change("rebuild", add=[put(lake, [2])], remove=gone), base)
    with pytest.raises(
        LakeConflict, match=r"other: since version 1 .*rebuild, version 2.* has removed t/.*; run it again"
    ):
        Lake(lake.root).publish(Change("other", add=[put(lake, [3])], remove=gone), base)
    assert rows(lake) == [2] == seen(lake)


def test_a_mark_that_is_not_as_expected_is_a_conflict(lake: Lake) -> None:
    lake.publish(Change("a", marks={"batch": 1}))
    lake.publish(Change("b", marks={"batch": 2}, expects={"batch": 1}))
    with pytest.raises(LakeConflict, match="mark 'batch' is 2, not 1"):
        lake.publish(Change("c", marks={"batch": 2}, expects={"batch": 1}))
    lake.publish(Change("d", marks={"batch": None}))
    assert lake.head().marks == {}


def _race(root: str, name: str, rounds: int, done: Any) -> None:
    lake = Lake(root)
    done.put((name, [lake.publish(Change(name, marks={})).number for _ in range(rounds)]))


def test_processes_that_race_get_every_number_once(lake: Lake) -> None:
    context = multiprocessing.get_context("spawn")  # delta-rs has threads
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
        lake.publish(Change("rewrite", add=files, remove=all_of(lake, "a", "b")))
    wait_until(lambda: seen, "a reader has read")
    stop.set()
    for thread in readers:
        thread.join()
    assert wrong == []


def test_compaction_keeps_every_row_and_what_is_added_meanwhile(lake: Lake) -> None:
    for value in range(5):
        lake.publish(Change("add", add=[put(lake, [value]), put(lake, [value + 100], day="2026-11-03")]))
    assert compact(lake, "t") == 8
    assert len(lake.head().of("t")) == 2
    assert rows(lake) == [0, 1, 2, 3, 4, 100, 101, 102, 103, 104]
    base = lake.head()
    lake.publish(Change("add", add=[put(lake, [5])]))
    gone = frozenset(file.path for file in base.of("t", days=[DAY]))
    lake.publish(Change("compact", add=[put(lake, [0, 1, 2, 3, 4])], remove=gone), base)
    assert rows(lake) == [0, 1, 2, 3, 4, 5, 100, 101, 102, 103, 104] == seen(lake)


def test_compaction_of_files_with_fewer_columns_makes_the_others_null(lake: Lake) -> None:
    made = lake.staging() / "x.parquet"
    parquet.write_table(pa.table({"v": [1], "more": ["x"]}), made)
    wide = lake.take(made, "t", DAY)
    lake.publish(Change("add", add=[put(lake, [0]), wide, put(lake, [2])]))
    assert compact(lake) == 2
    (path,) = lake.paths(lake.head().of("t"))
    found = parquet.read_table(path, partitioning=None).to_pydict()
    assert sorted(zip(found["v"], found["more"], strict=True), key=str) == [(0, None), (1, "x"), (2, None)]


def test_forgetting_deletes_every_file_that_the_newest_version_does_not_name(lake: Lake) -> None:
    for value in range(40):
        lake.publish(Change("add", add=[put(lake, [value])]))
    first, *_ = lake.head().of("t")
    staged = put(lake, [999])
    orphan = lake.root / "t" / f"day={DAY}" / "of-a-killed-writer.parquet"
    orphan.write_bytes(b"x")
    lake.publish(Change("less", remove=frozenset({first.path})))
    head = lake.publish(Change("add", add=[put(lake, [40])]))
    assert forget(lake) >= 3
    assert not (lake.root / first.path).exists()
    assert not orphan.exists()
    fresh = Lake(lake.root)
    assert len(fresh.history()) == 1
    assert len(rows(fresh)) == 40 == len(seen(fresh))
    with pytest.raises(LakeConflict, match="was deleted meanwhile"):
        lake.publish(Change("late", add=[staged]))
    with pytest.raises(LakeError, match="it has expired"):
        fresh.at(head.number - 1)


def test_expiry_deletes_what_went_long_ago(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    for value in range(5):
        lake.publish(Change("add", add=[put(lake, [value])]))
    before = all_of(lake, "t")
    compact(lake)
    assert expire(lake) == 0, "a reader may still need them"
    assert all((lake.root / path).exists() for path in before)
    staged = put(lake, [6])
    assert expire(lake, older_than_ms=0) == 5
    assert not any((lake.root / path).exists() for path in before)
    lake.publish(Change("add", add=[staged]))
    fresh = Lake(lake.root)
    assert rows(fresh) == [0, 1, 2, 3, 4, 6] == seen(fresh)


class Killed(BaseException):
    """Stands for a kill: nothing of the process runs any more."""


@pytest.mark.parametrize("at", ["before the first commit", "between two tables", "before the snapshot"])
def test_a_change_whose_writer_was_killed_is_completed_or_taken_back(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    lake.publish(Change("add", add=[put(lake, [1], "a"), put(lake, [1], "b")], marks={"n": 1}))
    gone = all_of(lake, "a", "b")
    killed = Lake(lake.root)
    files = [put(killed, [2], "a"), put(killed, [2], "b")]
    commit = DeltaLog.commit
    left = {"before the first commit": 0, "between two tables": 1, "before the snapshot": 2}[at]

    def dies(log: DeltaLog, *given: Any) -> int:
        nonlocal left
        if left == 0:
            raise Killed
        left -= 1
        return commit(log, *given)

    with monkeypatch.context() as patch:
        patch.setattr(DeltaLog, "commit", dies)
        patch.setattr(Lake, "_settle", lambda *_: (_ for _ in ()).throw(OSError("dead")))
        if at == "before the snapshot":
            patch.setattr(Lake, "_create", lambda *_: (_ for _ in ()).throw(Killed))
        with pytest.raises(Killed):
            killed.publish(Change("rewrite", add=files, remove=gone, marks={"n": 2}))

    assert rows(lake, "a") == rows(lake, "b") == [1], "readers do not see half of it"
    fresh = Lake(lake.root)
    fresh.recover()
    whole = at == "before the snapshot"
    assert fresh.head().marks["n"] == (2 if whole else 1)
    wanted = [2] if whole else [1]
    assert rows(fresh, "a") == rows(fresh, "b") == seen(fresh, "a") == seen(fresh, "b") == wanted
    fresh.publish(Change("more", add=[put(fresh, [3], "a")]))
    assert seen(fresh, "a") == [*wanted, 3]
    numbers = [number for number, _, _ in fresh.history()]
    assert numbers == sorted(set(numbers))


def test_a_batch_and_its_offset_are_one_commit(lake: Lake) -> None:
    lake.publish(Change("ingest", add=[put(lake, [1])], marks={"ingest:main": {"q": {"id": "1-0", "n": 1}}}))
    table = deltalake.DeltaTable(lake.root / "t")
    assert table.transaction_version("oxcart") == 1
    (last, *_) = table.history(1)
    assert '"ingest:main":{"q":{"id":"1-0","n":1}}' in last["oxcart"]


def test_a_lake_of_an_earlier_release_says_what_to_run(lake: Lake) -> None:
    (lake.root / "_versions").mkdir(parents=True)
    with pytest.raises(LakeError, match="of an earlier release: run 'oxcart pipeline migrate"):
        lake.head()


def test_a_writer_killed_before_it_publishes_leaves_the_lake_as_it_was(lake: Lake) -> None:
    lake.publish(Change("add", add=[put(lake, [1])]))
    child = os.fork()
    if child == 0:
        (lake.root / "_snapshots" / ".half").write_text('{"number": 2')
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
    assert [name for name in os.listdir(lake.root / "_snapshots") if name.startswith(".")] == []


def test_unreadable_snapshot_raises_lake_error(lake: Lake) -> None:
    lake.publish(Change("add"))
    (lake.root / "_snapshots" / lakes.snapshot_name(1)).write_text("{")
    with pytest.raises(LakeError, match=r"cannot be read .*restore it from a backup"):
        Lake(lake.root).head()
