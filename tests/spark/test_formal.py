"""The tables in the words of the formal model: states, categories, dead letters, cancellations."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, cast

import pytest
import redis
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import initialize, run_state_machine_as_test

pytest.importorskip("pyspark")

from oxcart.model.failure import Category
from oxcart.model.state import TERMINAL, State
from oxcart.spark.options import QueueSelection, ServerAddress
from oxcart.spark.pipeline import Pipeline, Plan
from oxcart.spark.read.attachment import attach
from tests.formal.machine import Life
from tests.servers import ValkeyServer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STEPS = 50
EXAMPLES = int(os.environ.get("OXCART_STEPS", "20"))
STREAMS = ("events", "ox:attempts")
Entries = list[tuple[str, dict[str, str]]]


class RecordedLife(Life):
    """Random histories whose entries are kept, with ids of the test."""

    entries: ClassVar[dict[str, Entries]] = {}
    ends: ClassVar[dict[str, State]] = {}
    lives: ClassVar[int] = 0

    @initialize()
    def open(self) -> None:
        super().open()
        self.store.hset("bull:q:meta", "opts.maxLenEvents", "10000")
        assert attach(ServerAddress(url=self.server.url), "q", "main") is not None

    def teardown(self) -> None:
        RecordedLife.lives += 1
        for stream in STREAMS:
            for entry_id, fields in cast(Entries, self.store.xrange(f"bull:q:{stream}")):
                if "jobId" in fields:
                    fields["jobId"] = self.named(fields["jobId"])
                RecordedLife.entries.setdefault(stream, []).append((entry_id, fields))
        RecordedLife.ends |= {self.named(one.id): one.state for one in self.expected.values()}
        super().teardown()

    @staticmethod
    def named(job_id: str) -> str:
        return f"{RecordedLife.lives}-{job_id}"


@pytest.mark.timeout(900)
def test_the_tables_of_random_lives_have_no_illegal_move_and_the_models_states(
    spark: SparkSession, valkey: ValkeyServer, store: redis.Redis, tmp_path: Path
) -> None:
    """``OXCART_STEPS_SEED`` repeats a run, as in tests/formal/test_random_steps.py."""
    chosen = int(os.environ.get("OXCART_STEPS_SEED", random.randrange(2**32)))
    print(f"OXCART_STEPS_SEED={chosen}")
    RecordedLife.server = valkey
    seed(chosen)(RecordedLife)
    options = settings(
        max_examples=EXAMPLES,
        stateful_step_count=STEPS,
        deadline=None,
        database=None,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(RecordedLife, settings=options, _min_steps=STEPS - 1)
    store.flushall()
    store.hset("bull:q:meta", "opts.maxLenEvents", "500000")
    pipe = store.pipeline()
    for stream, entries in RecordedLife.entries.items():
        for entry_id, fields in entries:
            pipe.xadd(f"bull:q:{stream}", cast(Any, fields), id=entry_id)
    pipe.execute()
    pipeline = Pipeline(
        spark, Plan(tmp_path / "lake", ServerAddress(url=valkey.url), QueueSelection(("q",)), samples=False)
    )
    pipeline.once()
    found = {row.job_id: row for row in pipeline.query(NEWEST).collect()}
    assert {job: found[job].state for job in RecordedLife.ends} == {
        job: str(state) for job, state in RecordedLife.ends.items()
    }
    failed = [row for row in found.values() if row.state in set(TERMINAL) - {State.COMPLETED}]
    assert [row for row in failed if row.category not in set(Category) or not row.reason] == []
    assert failed, "random histories without a failed job"
    moves = pipeline.query("SELECT from_state, to_state, legal, job_id, event FROM transitions").collect()
    assert [tuple(move) for move in moves if move.legal is not True] == []
    assert len(moves) > len(found)


#: The last life of every job.
NEWEST = """
SELECT * FROM (SELECT *, row_number() OVER (PARTITION BY job_id ORDER BY
    cast(split(first_id, '-')[0] AS bigint) DESC, cast(split(first_id, '-')[1] AS bigint) DESC) AS n
  FROM jobs)
WHERE n = 1
"""
