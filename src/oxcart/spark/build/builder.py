"""Builds silver and gold, day by day, where they are out of date.

A (day, queue) is built from its bronze and from the events of jobs that were open at the end of the queue's
previous day. The queue's last day grows by spans: new bronze, and the events of jobs that were open at the
end of the previous span. A row is settled with the span in which it ends. Rows that are open, or younger than
`HOLD_MS`, are in files that the next span replaces. Notes say what a day was built from
(`oxcart.spark.build.notes`). All tables of a day appear at once.

A file has the rows of several queues. Where a build replaces a file that has rows of other queues too, these
rows are copied into a file of their own, which the next build then leaves alone.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

import msgspec
from pyspark.sql import functions as fn

from oxcart.broker.export import ATTEMPTS, EVENTS
from oxcart.model.target import base_of
from oxcart.spark.build.notes import Basis, Built, Ledger, fresh_days, fresh_files, write_notes
from oxcart.spark.build.turn import Turn, never
from oxcart.spark.lake.bronze import BRONZE
from oxcart.spark.lake.columns import BUILDS, OPEN, WINDOWS
from oxcart.spark.lake.files import FIRST_DAY
from oxcart.spark.lake.join import joined, without_streams
from oxcart.spark.lake.tables import TALLIES, Tables
from oxcart.spark.lake.versions import Change, File, Lake, Version
from oxcart.spark.read.entries import COLUMNS, COUNTS, ENTRY, GAP, RECREATED, REFILL, REFILLED
from oxcart.spark.transforms import build, events
from oxcart.spark.transforms.lanes import join_lanes
from oxcart.spark.transforms.schedules import RUN

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

#: A script writes events after a job's end (``retries-exhausted``, ``stalled``), which may be in the next
#: batch. So the newest rows are not settled before this many ms of the stream have passed.
HOLD_MS = 100
_MADE = (*build.SILVER, *build.GOLD)
#: A span of fewer rows of bronze is one task and one file per table: a shuffle would cost more.
_ONE_TASK = 50_000
#: Pending files of a table and day that may stay beside those of a build; more are joined.
_MOST_PENDING = 16
#: Text in the record of a child's attempt, and in that of a schedule's run.
_PARENT, _RULE = '"parent":', '"rule":'
_FOR_EVER = 1 << 62

log = logging.getLogger("oxcart.spark.pipeline")

Progress = Callable[[str, int, int], None]


class _Facts(msgspec.Struct, frozen=True):
    """Facts of new bronze of a queue: the times of entries, and which kinds of rows there are."""

    newest: int
    oldest: int
    gaps: bool
    counts: bool
    refused: bool
    failed: bool
    related: bool


_NO_FACTS = _Facts(0, _FOR_EVER, False, False, False, False, False)


class Builder:
    """Builds silver and gold.

    Args:
        spark: The session.
        lake: The lake.
        progress: Called with the kind of work, how much is done, and how much there is.
    """

    def __init__(self, spark: SparkSession, lake: Lake, *, progress: Progress | None = None) -> None:
        self._tables = Tables(spark, lake)
        self._lake = lake
        self._ledger = Ledger(lake)
        self._progress = progress or (lambda what, done, all_: None)
        #: The right to build; an erasure holds it too.
        self.turn = Turn(lake)

    def refresh(self, stop: Callable[[], bool] = never) -> list[str]:
        """Builds the days that are out of date now, each once and oldest first; returns them.

        Bronze that arrives meanwhile waits for the next pass, so that a pass ends however busy the queues
        are. A day that an earlier day of the same pass hands other events to is built in that pass.

        Args:
            stop: Ends the pass after the day at work when it returns True.

        Raises:
            LakeConflict: Another writer changed the same files first.
        """
        done: list[str] = []
        present = _waiting(self._lake.head())
        while not stop():
            with self.turn.taken(stop) as taken:
                wanted = self._ledger.look(self._lake.head()).stale(present) if taken else {}
                # A day hands events on to later days alone.
                later = sorted(day for day in wanted if not done or day > done[-1])
                if not later:
                    break
                self._progress("build", len(done), len(done) + len(later))
                self._day(later[0], wanted[later[0]], present)
                done.append(later[0])
        self._progress("build", len(done), len(done))
        return done

    def rebuild(self, first: str, last: str) -> list[str]:
        """Rebuilds the days of a range from bronze, then days that depend on them; returns all of them.

        Days whose bronze retention has dropped are left as they are.

        Raises:
            LakeConflict: Another writer changed the same files first.
        """
        present = _waiting(self._lake.head())
        days = [day for day in self._lake.head().days(BRONZE) if first <= day <= last]
        for at, day in enumerate(days):
            self._progress("rebuild", at, len(days))
            with self.turn.taken():
                head = self._lake.head()
                queues = set(self._ledger.look(head).of(day))
                for file in fresh_files(head, present):
                    queues |= self._lake.streams(file) if file.day == day else set()
                if queues and not _is_dropped(head, day):
                    self._build(day, queues, present, set(), whole=True)
        self._progress("rebuild", len(days), len(days))
        return sorted({*days, *self.refresh()})

    def _day(self, day: str, queues: Mapping[str, bool], present: frozenset[str]) -> None:
        done: set[str] = set()
        for whole in (True, False):
            if chosen := {queue for queue, wanted in queues.items() if wanted is whole}:
                self._build(day, chosen, present, done, whole=whole)

    def _build(
        self, day: str, queues: set[str], present: frozenset[str], done: set[str], *, whole: bool
    ) -> None:
        """Builds some queues of a day.

        Args:
            day: The day.
            queues: The queues.
            present: The new bronze that may be used.
            done: The queues of the day that this pass has built; these are added. New bronze counts as taken
                once all of its queues are built. If the process is killed before, its queues are rebuilt.
            whole: Whether from all bronze of the day.
        """
        base = self._lake.head()
        new = [file for file in fresh_files(base, present) if file.day == day]
        if whole and _is_dropped(base, day):
            # Its other bronze is gone: a rebuild would lose rows.
            self._settle_alone(base, day, new)
            return
        known_files = [file for file in base.of(BRONZE, days=[day]) if not file.pending] if whole else []
        chosen = [file for file in (*known_files, *new) if _may_have(file, queues)]
        bronze = self._tables.load(BRONZE, chosen, streams=queues)
        facts = _look(bronze) if chosen else {}
        ledger = self._ledger.look(base)
        noted = ledger.of(day)
        if not whole:
            late = {queue for queue in queues if _facts(facts, queue).oldest <= noted[queue].through}
            if late:
                self._build(day, late, present, done, whole=True)
                if queues - late:
                    self._build(day, queues - late, present, done, whole=False)
                return
        fresh = fresh_days(base, present)
        basis = {queue: ledger.basis(queue, day, fresh.get(queue, ())) for queue in queues}
        through = {}
        for queue in queues:
            newest = _facts(facts, queue).newest - HOLD_MS
            before = -1 if whole else noted[queue].through
            through[queue] = max(before, newest) if basis[queue].last else _FOR_EVER
        # A gap has the day on which it was noticed; its refilled events may be of an earlier one.
        since = min(day, *(one.before or day for one in basis.values()))
        gapless = not any(
            self._of_queues(base, "gaps", other, queues) for other in base.days("gaps") if other >= since
        )
        related = {queue: _facts(facts, queue).related or ledger.had_related(queue, day) for queue in queues}
        skipped = self._skipped(facts, base, day, queues)
        if not any(related.values()):
            skipped |= {"flows", "firings"}
        made = build.tables(
            bronze,
            self._carried(base, day, basis, whole=whole),
            earlier=None
            if whole
            else self._earlier(base, day, {queue: noted[queue].through for queue in queues}),
            through=_by_queue(through),
            gapless=gapless and not any(one.gaps for one in facts.values()),
            without=skipped,
        )
        parts = 1 if sum(file.rows for file in chosen) < _ONE_TASK else None
        files: list[File] = []
        try:
            self._write(files, made, day, basis, through, skipped, parts)
            open_ = made["open"].withColumn("day", fn.lit(day).cast("date"))
            handed = self._tables.write(open_, OPEN, True, streams=queues, parts=parts)
            files += handed
            if growing := [queue for queue, one in basis.items() if one.last]:
                tallies = _of_day(made[TALLIES], day, basis).filter(fn.col("queue").isin(growing))
                files += self._tables.write(tallies, TALLIES, True, streams=growing, parts=1)
        except BaseException:
            self._lake.discard(files)
            raise
        finally:
            build.release(made)
        prints = _fingerprints(self._lake, handed)
        done |= queues
        taken = [file for file in new if self._lake.streams(file) <= done]
        # Queues of new bronze that stays: if the process is killed now, they must not go on from this build.
        unsure = {queue for file in new if file not in taken for queue in self._lake.streams(file)}
        of_day = {
            queue: msgspec.structs.replace(built, stale=built.stale and queue not in done - unsure)
            for queue, built in noted.items()
        }
        for queue, one in basis.items():
            if whole and queue not in facts:
                of_day.pop(queue, None)  # an erasure left nothing of it
                continue
            hands = "" if one.last else prints.get(queue, "")
            of_day[queue] = Built(one, through[queue], hands, related[queue], queue in unsure)
        gone, kept = self._replaced(base, day, queues, whole=whole)
        self._lake.publish(
            Change(
                f"build {day}",
                add=[
                    *files,
                    *kept,
                    *write_notes(self._lake, day, of_day),
                    *(file.settled() for file in taken),
                ],
                remove=frozenset(
                    {
                        *(file.path for file in (*gone, *taken)),
                        *(file.path for file in base.of(BUILDS, days=[day])),
                    }
                ),
            ),
            base,
        )

    def _of_queues(self, base: Version, table: str, day: str, queues: set[str]) -> list[File]:
        """The files of a table and day that have rows of some queues."""
        near = [file for file in base.of(table, days=[day]) if _may_have(file, queues)]
        return [file for file in near if self._lake.streams(file) & queues]

    def _replaced(
        self, base: Version, day: str, queues: set[str], *, whole: bool
    ) -> tuple[list[File], list[File]]:
        """Files that a build of some queues replaces, and new files with their rows of other queues."""
        gone: list[File] = []
        kept: list[File] = []
        for table in (*_MADE, OPEN, TALLIES):
            files = [file for file in base.of(table, days=[day]) if whole or file.pending]
            mine = [file for file in files if _may_have(file, queues) and self._lake.streams(file) & queues]
            others = [file for file in files if file.pending and file not in mine]
            if len(others) > _MOST_PENDING:
                mine += others
            gone += mine
            for pending in (True, False):
                mixed = [
                    file for file in mine if file.pending is pending and self._lake.streams(file) - queues
                ]
                if mixed:
                    made = joined(self._lake, mixed, pending=pending, keep=without_streams(queues))
                    kept += [] if made is None else [made]
        return gone, kept

    def _write(
        self,
        files: list[File],
        made: Mapping[str, DataFrame],
        day: str,
        basis: Mapping[str, Basis],
        through: Mapping[str, int],
        skipped: set[str],
        parts: int | None,
    ) -> None:
        """Writes the rows of a build; adds the files to ``files``."""
        settled = _by_queue(through)
        for name in _MADE:
            if name in skipped:
                continue
            rows = _of_day(made[name], day, basis)
            pending: Column | bool = False
            if name in build.ENDS:
                ends = fn.col(build.ENDS[name])
                pending = ends.isNull() | (ends > settled)
            elif name == "queue_metrics":
                length = fn.create_map(*(fn.lit(part) for pair in WINDOWS.items() for part in pair))
                pending = fn.col("start_ms") + length[fn.col("window")] > settled
            elif name == "failures":
                pending = settled < fn.lit(_FOR_EVER)
            if parts is None and name in build.GOLD:
                rows = rows.repartition(1)  # a cached result keeps its partitions: each would be a file
            files += self._tables.write(rows, name, pending, streams=basis, parts=parts)

    def _carried(
        self, base: Version, day: str, basis: Mapping[str, Basis], *, whole: bool
    ) -> DataFrame | None:
        """The events of jobs that were open before these rows."""
        found: DataFrame | None = None
        by_day: dict[str, set[str]] = {}
        for queue, one in basis.items():
            by_day.setdefault(one.before if whole else day, set()).add(queue)
        for before, queues in by_day.items():
            if files := self._of_queues(base, OPEN, before, queues):
                rows = self._tables.load(OPEN, files, streams=queues)
                found = rows if found is None else found.unionByName(rows)
        return found

    def _earlier(self, base: Version, day: str, after: Mapping[str, int]) -> build.Earlier:
        queues = set(after)
        tallies = self._tables.load(TALLIES, self._of_queues(base, TALLIES, day, queues), streams=queues)
        known = [file for file in self._of_queues(base, "gaps", day, queues) if not file.pending]
        gaps = join_lanes(self._tables.load("gaps", known, streams=queues))
        # Only after a gap: then the settled bronze is read for the first record after each.
        settled = [file for file in base.of(BRONZE, days=[day]) if not file.pending] if known else []
        lost = gaps.filter((fn.col("stream") == ATTEMPTS) & fn.col("last_lost").isNotNull())
        behind = lost.select("queue", "life", (fn.col("last_lost") + 1).alias("ordinal"))
        records = self._tables.load(BRONZE, settled, streams=queues).filter(fn.col("stream") == ATTEMPTS)
        first = records.join(fn.broadcast(behind), ["queue", "life", "ordinal"], "left_semi")
        return build.Earlier(_by_queue(after), tallies, gaps, first.select(*COLUMNS))

    def _skipped(self, facts: Mapping[str, _Facts], base: Version, day: str, queues: set[str]) -> set[str]:
        """Tables that get no rows, and need not be computed."""
        found = set()
        for table, has in (("gaps", "gaps"), ("counts", "counts"), ("quarantine", "refused")):
            if not any(getattr(one, has) for one in facts.values()):
                found.add(table)
        if not any(one.failed for one in facts.values()) and not self._of_queues(
            base, "failures", day, queues
        ):
            found.add("failures")
        return found

    def _settle_alone(self, base: Version, day: str, files: list[File]) -> None:
        """Takes new bronze of a day that cannot be rebuilt, without building from it."""
        log.warning("rows of %s came after its bronze was dropped, and are in events alone", day)
        settled = [file.settled() for file in files]
        gone = frozenset(file.path for file in files)
        self._lake.publish(Change(f"settle {day}", add=settled, remove=gone), base)


def _may_have(file: File, queues: Iterable[str]) -> bool:
    """Whether a file may have rows of some queues, by its statistics."""
    if not file.low:
        return True
    return any(file.low <= name <= file.high for queue in queues for name in {queue, base_of(queue)})


def _is_dropped(version: Version, day: str) -> bool:
    """Whether retention has dropped bronze of a day."""
    return day < str(version.marks.get(FIRST_DAY, ""))


def _waiting(version: Version) -> frozenset[str]:
    """The paths of bronze that was not built from yet."""
    return frozenset(file.path for file in fresh_files(version))


def _look(bronze: DataFrame) -> dict[str, _Facts]:
    """The facts of new bronze, by queue."""
    kind, at, extra = fn.col("kind"), fn.col("at_ms"), fn.col("extra")
    is_entry = kind == ENTRY
    # A refill counts as older than all settled rows, because the row of its gap is.
    oldest = fn.when(kind.isin(REFILL, REFILLED), 0).when(is_entry | (kind == COUNTS), at)

    def any_of(condition: Column) -> Column:
        return fn.coalesce(fn.max(condition), fn.lit(False))

    found = bronze.groupBy("queue").agg(
        fn.coalesce(fn.max(fn.when(is_entry & (fn.col("stream") == EVENTS), at)), fn.lit(0)).alias("newest"),
        fn.coalesce(fn.min(oldest), fn.lit(_FOR_EVER)).alias("oldest"),
        any_of(kind.isin(GAP, RECREATED, REFILL)).alias("gaps"),
        any_of(kind == COUNTS).alias("counts"),
        any_of(is_entry & events.refusal().isNotNull()).alias("refused"),
        any_of(fn.col("reason").isNotNull()).alias("failed"),
        any_of(
            is_entry & (fn.col("job_id").rlike(RUN) | extra.contains(_PARENT) | extra.contains(_RULE))
        ).alias("related"),
    )
    return {
        row.queue: _Facts(**{name: row[name] for name in _Facts.__struct_fields__}) for row in found.collect()
    }


def _facts(facts: Mapping[str, _Facts], queue: str) -> _Facts:
    return facts.get(queue, _NO_FACTS)


def _fingerprints(lake: Lake, files: Iterable[File]) -> dict[str, str]:
    """A hash of each stream's events, whatever their order and files."""
    from pyarrow import parquet

    ids: dict[str, list[str]] = {}
    for path in lake.paths(files):
        with parquet.ParquetFile(path) as source:
            found = source.read(["queue", "lane", "stream", "entry_id"])
        columns = (found[name].to_pylist() for name in ("queue", "lane", "stream", "entry_id"))
        for queue, lane, stream, entry_id in zip(*columns, strict=True):
            ids.setdefault(f"{queue}@{lane}" if lane else queue, []).append(f"{stream} {entry_id}")
    return {
        queue: hashlib.sha256("\n".join(sorted(mine)).encode()).hexdigest()[:16]
        for queue, mine in ids.items()
    }


def _of_day(rows: DataFrame, day: str, basis: Mapping[str, Basis]) -> DataFrame:
    """Rows that ended on the day; on a queue's last day also rows that have not ended."""
    last = [queue for queue, one in basis.items() if one.last]
    today = fn.lit(day).cast("date")
    running = fn.col("day").isNull() & fn.col("queue").isin(last)
    kept = rows.filter((fn.col("day") == today) | running) if last else rows.filter(fn.col("day") == today)
    return kept.withColumn("day", today)


def _by_queue(values: Mapping[str, int]) -> Column:
    """A number for each queue, as a map even for one queue.

    Spark writes a plain number into generated code, so that it would compile other code for every span.
    """
    pairs = (fn.lit(part) for queue, value in values.items() for part in (queue, value))
    return fn.create_map(*pairs)[fn.col("queue")].cast("bigint")
