"""Builds silver and gold, day by day, where they are out of date.

A (day, queue) is built from its bronze and from the events of jobs that were open at the end of the queue's
previous day. The queue's last day grows by spans: new bronze, and the events of jobs that were open at the
end of the previous span. A row is settled with the span in which it ends. Rows that are open, or younger than
`HOLD_MS`, are in files that the next span replaces. A mark of the lake notes what a day was built from. So a
later run knows whether the day must be rebuilt: the previous day hands on other events, or rows arrived that
are older than the settled ones. All tables of a day appear at once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

import msgspec
from pyspark.sql import functions as fn

from oxcart.broker.export import ATTEMPTS, EVENTS
from oxcart.spark.build.turn import Turn, never
from oxcart.spark.lake.bronze import BRONZE
from oxcart.spark.lake.delta import Delta, has_logs
from oxcart.spark.lake.tables import OPEN, TALLIES, Tables
from oxcart.spark.lake.versions import Change, File, Lake, Version
from oxcart.spark.read.entries import COLUMNS, COUNTS, ENTRY, GAP, RECREATED, REFILL, REFILLED
from oxcart.spark.transforms import build, events
from oxcart.spark.transforms.lanes import join_lanes
from oxcart.spark.transforms.metrics import WINDOWS
from oxcart.spark.transforms.schedules import RUN

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

#: Marks that note what was built, and from what: one per queue, so that a change has its own queues alone.
BUILT = "built:"
#: A script writes events after a job's end (``retries-exhausted``, ``stalled``), which may be in the next
#: batch. So the newest rows are not settled before this many ms of the stream have passed.
HOLD_MS = 100
_MADE = (*build.SILVER, *build.GOLD)
#: Text in the record of a child's attempt, and in that of a schedule's run.
_PARENT, _RULE = '"parent":', '"rule":'
_FOR_EVER = 1 << 62

Progress = Callable[[str, int, int], None]


class Basis(msgspec.Struct, frozen=True):
    """What a (day, queue) is built from, besides its bronze.

    Attributes:
        before: The day whose open jobs it begins with; empty for none.
        carried: A fingerprint of these jobs.
        last: Whether it is the queue's last day.
    """

    before: str
    carried: str
    last: bool


class Built(msgspec.Struct, frozen=True):
    """The note about a (day, queue) that was built.

    Attributes:
        basis: What it was built from.
        through: The time by which a settled row has ended, in ms.
        handed: A fingerprint of the open jobs that it hands on; empty for none, and on the last day.
        related: Whether the queue had jobs of flows or schedules, on this day or an earlier one.
        tallied: Whether the day has tallies to go on from; earlier releases wrote none.
    """

    basis: Basis
    through: int
    handed: str
    related: bool = msgspec.field(default=False, name="kin")  # as lakes have it
    tallied: bool = False


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
                wanted = stale(_seen(self._lake.head(), present)) if taken else {}
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

        Delta logs are brought along.

        Raises:
            LakeConflict: Another writer changed the same files first.
            MissingExtra: The lake has Delta logs, and deltalake is not installed.
        """
        present = _waiting(self._lake.head())
        days = {day for _, day, _ in self._lake.head().parts(BRONZE) if first <= day <= last}
        for at, day in enumerate(sorted(days)):
            self._progress("rebuild", at, len(days))
            with self.turn.taken():
                head = _seen(self._lake.head(), present)
                if queues := {queue for _, found, queue in head.parts(BRONZE) if found == day}:
                    self._build(day, queues, present, whole=True)
        self._progress("rebuild", len(days), len(days))
        built = sorted({*days, *self.refresh()})
        if has_logs(self._lake):
            Delta(self._lake).follow()
        return built

    def _day(self, day: str, queues: Mapping[str, bool], present: frozenset[str]) -> None:
        for whole in (True, False):
            if chosen := {queue for queue, wanted in queues.items() if wanted is whole}:
                self._build(day, chosen, present, whole=whole)

    def _build(self, day: str, queues: set[str], present: frozenset[str], *, whole: bool) -> None:
        base = _seen(self._lake.head(), present)
        fresh = [file for file in base.of(BRONZE, days=[day], queues=queues) if whole or file.pending]
        bronze = self._tables.load(BRONZE, fresh)
        facts = _look(bronze) if fresh else {}
        noted = _noted(base)
        if not whole:
            late = {queue for queue in queues if _facts(facts, queue).oldest <= noted[queue][day].through}
            if late:
                self._build(day, late, present, whole=True)
                if queues - late:
                    self._build(day, queues - late, present, whole=False)
                return
        known = bases(base)
        basis = {queue: known[day, queue] for queue in queues}
        through = {}
        for queue in queues:
            newest = _facts(facts, queue).newest - HOLD_MS
            before = -1 if whole else noted[queue][day].through
            through[queue] = max(before, newest) if basis[queue].last else _FOR_EVER
        gapless = not base.of("gaps", days=[day], queues=queues) or whole
        related = {queue: _facts(facts, queue).related or _had_related(noted, queue) for queue in queues}
        skipped = _skipped(facts, base, day, queues)
        if not any(related.values()):
            skipped |= {"flows", "firings"}
        made = build.tables(
            bronze,
            self._carried(base, day, basis, whole=whole),
            earlier=None if whole else self._earlier(base, day, {q: noted[q][day].through for q in queues}),
            through=_by_queue(through),
            gapless=gapless and not any(one.gaps for one in facts.values()),
            without=skipped,
        )
        try:
            files = self._write(made, day, basis, through, skipped)
            open_ = made["open"].withColumn("day", fn.lit(day).cast("date"))
            files += self._tables.write(open_, OPEN, True)
            if growing := [queue for queue, one in basis.items() if one.last]:
                tallies = _of_day(made[TALLIES], day, basis).filter(fn.col("queue").isin(growing))
                files += self._tables.write(tallies.repartition(1), TALLIES, True)
        finally:
            build.release(made)
        for queue, one in basis.items():
            mine = [file for file in files if file.table == OPEN and file.queue == queue]
            handed = "" if one.last else _fingerprint(self._lake, mine)
            noted.setdefault(queue, {})[day] = Built(one, through[queue], handed, related[queue], True)
        gone = frozenset(
            file.path
            for file in base.files.values()
            if file.day == day and file.queue in queues and file.table != BRONZE and (whole or file.pending)
        )
        taken = [file for file in fresh if file.pending]
        self._lake.publish(
            Change(
                f"build {day}",
                add=[*files, *(msgspec.structs.replace(file, pending=False) for file in taken)],
                remove=gone | {file.path for file in taken},
                marks={f"{BUILT}{queue}": msgspec.to_builtins(noted[queue]) for queue in queues},
            ),
            base,
        )

    def _write(
        self,
        made: Mapping[str, DataFrame],
        day: str,
        basis: Mapping[str, Basis],
        through: Mapping[str, int],
        skipped: set[str],
    ) -> list[File]:
        files: list[File] = []
        settled = _by_queue(through)
        for name in _MADE:
            if name in skipped:
                continue
            rows = _of_day(made[name], day, basis)
            if name in build.GOLD:
                rows = rows.repartition(1)  # a cached result keeps its partitions: each would be a file
            pending: Column | bool = False
            if name in build.ENDS:
                ends = fn.col(build.ENDS[name])
                pending = ends.isNull() | (ends > settled)
            elif name == "queue_metrics":
                length = fn.create_map(*(fn.lit(part) for pair in WINDOWS.items() for part in pair))
                pending = fn.col("start_ms") + length[fn.col("window")] > settled
            elif name == "failures":
                pending = settled < fn.lit(_FOR_EVER)
            files += self._tables.write(rows, name, pending)
        return files

    def _carried(
        self, base: Version, day: str, basis: Mapping[str, Basis], *, whole: bool
    ) -> DataFrame | None:
        parts = {(one.before if whole else day, queue) for queue, one in basis.items()}
        files = [file for file in base.of(OPEN) if (file.day, file.queue) in parts]
        return self._tables.load(OPEN, files) if files else None

    def _earlier(self, base: Version, day: str, after: Mapping[str, int]) -> build.Earlier:
        tallies = self._tables.load(TALLIES, base.of(TALLIES, days=[day], queues=after))
        known = [file for file in base.of("gaps", days=[day], queues=after) if not file.pending]
        gaps = join_lanes(self._tables.load("gaps", known))
        # Only after a gap: then the settled bronze is read for the first record after each.
        settled = [file for file in base.of(BRONZE, days=[day], queues=after) if not file.pending]
        lost = gaps.filter((fn.col("stream") == ATTEMPTS) & fn.col("last_lost").isNotNull())
        behind = lost.select("queue", "life", (fn.col("last_lost") + 1).alias("ordinal"))
        records = self._tables.load(BRONZE, settled if known else ()).filter(fn.col("stream") == ATTEMPTS)
        first = records.join(fn.broadcast(behind), ["queue", "life", "ordinal"], "left_semi")
        return build.Earlier(_by_queue(after), tallies, gaps, first.select(*COLUMNS))


def _waiting(version: Version) -> frozenset[str]:
    """The paths of bronze that was not built from yet."""
    return frozenset(file.path for file in version.of(BRONZE) if file.pending)


def _seen(version: Version, present: frozenset[str]) -> Version:
    """The version without bronze that arrived after a pass began."""
    files = {
        path: file
        for path, file in version.files.items()
        if file.table != BRONZE or not file.pending or path in present
    }
    return msgspec.structs.replace(version, files=files)


def bases(version: Version) -> dict[tuple[str, str], Basis]:
    """Returns what every (day, queue) would be built from now."""
    days: dict[str, set[str]] = {}
    for _, day, queue in version.parts(BRONZE):
        days.setdefault(queue, set()).add(day)
    noted = _noted(version)
    found = {}
    for queue, known in days.items():
        before = ""
        for day in sorted(known):
            was = noted.get(queue, {}).get(before)
            found[day, queue] = Basis(before, was.handed if was else "", day == max(known))
            before = day
    return found


def stale(version: Version) -> dict[str, dict[str, bool]]:
    """Returns the days and queues that must be built, each with whether as a whole."""
    noted = _noted(version)
    fresh = {(file.day, file.queue) for file in version.of(BRONZE) if file.pending}
    found: dict[str, dict[str, bool]] = {}
    for (day, queue), basis in bases(version).items():
        was = noted.get(queue, {}).get(day)
        if was is not None and was.basis == basis and (day, queue) not in fresh:
            continue
        grows = (
            was is not None
            and was.tallied
            and was.basis.last
            and msgspec.structs.replace(basis, last=True) == was.basis
        )
        found.setdefault(day, {})[queue] = not grows
    return found


def without_notes(version: Version, parts: Iterable[tuple[str, str]]) -> dict[str, object]:
    """Returns marks without the notes of some (day, queue): the next build makes them as a whole."""
    noted = _noted(version)
    dropped: dict[str, set[str]] = {}
    for day, queue in parts:
        if day in noted.get(queue, {}):
            dropped.setdefault(queue, set()).add(day)
    return {
        f"{BUILT}{queue}": msgspec.to_builtins(
            {day: built for day, built in noted[queue].items() if day not in days}
        )
        for queue, days in dropped.items()
    }


def _noted(version: Version) -> dict[str, dict[str, Built]]:
    """The notes, by queue and day."""
    return {
        name.removeprefix(BUILT): msgspec.convert(value, dict[str, Built])
        for name, value in version.marks.items()
        if name.startswith(BUILT)
    }


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
        any_of(kind.isin(GAP, RECREATED)).alias("gaps"),
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


def _skipped(facts: Mapping[str, _Facts], base: Version, day: str, queues: set[str]) -> set[str]:
    """Tables that get no rows, and need not be computed."""
    found = set()
    for table, has in (("gaps", "gaps"), ("counts", "counts"), ("quarantine", "refused")):
        if not any(getattr(one, has) for one in facts.values()):
            found.add(table)
    known = base.of("failures", days=[day], queues=queues)
    if not known and not any(one.failed for one in facts.values()):
        found.add("failures")
    return found


def _had_related(noted: Mapping[str, Mapping[str, Built]], queue: str) -> bool:
    return any(one.related for one in noted.get(queue, {}).values())


def _fingerprint(lake: Lake, files: Iterable[File]) -> str:
    """A hash of events, whatever their order and files; empty for none."""
    from pyarrow import parquet

    ids: list[str] = []
    for path in lake.paths(files):
        found = parquet.read_table(path, columns=["stream", "entry_id"], partitioning=None)
        pairs = zip(found["stream"].to_pylist(), found["entry_id"].to_pylist(), strict=True)
        ids += (f"{stream} {entry_id}" for stream, entry_id in pairs)
    return hashlib.sha256("\n".join(sorted(ids)).encode()).hexdigest()[:16] if ids else ""


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
