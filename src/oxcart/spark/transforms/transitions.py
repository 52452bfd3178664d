"""Every move of a job from state to state, checked against the model's table.

A move is legal, illegal, or (null) unknown. It is unknown where it may hide lost moves: the first move of a
generation whose beginning is unknown, a move over a gap in the stream, and a move while attempt records are
lost, because without its record the state after an attempt is a guess.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as fn

from oxcart.model.state import INITIAL, TERMINAL, TRANSITIONS
from oxcart.spark.transforms.events import OVER

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_REMOVED = "removed"
#: The columns that identify a move.
_MOVE = ("queue", "life", "ordinal")
#: Every allowed move as text, replays included: the beginning of the generation shows which are replays.
MOVES = sorted({f"{move.source}>{move.target}" for move in TRANSITIONS})


def transitions(
    generations: DataFrame, gaps: DataFrame | None, record_gaps: DataFrame | None = None
) -> DataFrame:
    """Returns the moves; entering the present state again is no move.

    Args:
        generations: The events of jobs, by generation.
        gaps: The gaps of the streams; None for no gaps.
        record_gaps: The times between which attempt records are lost; None for none.
    """
    source, target = fn.col("from_state"), fn.col("state")
    first = source.isNull()
    legal = (
        fn.when(target == _REMOVED, True)  # an operator's, from anywhere
        .when(first & (fn.col("born") == "added"), target.isin(*(str(state) for state in INITIAL)))
        .when(first, fn.lit(None))
        .when(
            source.isin(*(str(state) for state in TERMINAL), _REMOVED),
            (fn.col("born") == "replayed") & (target == "scheduled"),
        )
        .otherwise(fn.concat(source, fn.lit(">"), target).isin(*MOVES))
    )
    # A removal after the end changes no state, and a later day does not have the state before it.
    swept = (target == _REMOVED) & ((first & fn.col("born").isNull()) | source.isin(*OVER))
    moves = (
        generations.filter(target.isNotNull() & (first | (source != target)))
        .filter(~fn.coalesce(swept, fn.lit(False)))
        .withColumn("legal", legal)
        .select(
            "day",
            "queue",
            "job_id",
            "first_id",
            "life",
            "ordinal",
            "at_ms",
            "event",
            "from_state",
            fn.col("state").alias("to_state"),
            "legal",
            fn.col("r.steps").alias("steps"),
            fn.coalesce("from_ordinal", fn.lit(0)).alias("_after"),
            fn.coalesce("from_ms", "at_ms").alias("_since"),
        )
    )
    if gaps is None:
        return moves.drop("_after", "_since")
    holes = fn.broadcast(
        gaps.filter(fn.col("stream") == "events").select(
            fn.col("queue").alias("_queue"),
            fn.col("life").alias("_life"),
            fn.col("first_lost").alias("_first"),
            fn.coalesce("last_lost", "first_lost").alias("_last"),
        )
    )
    wrong = moves.filter(~fn.coalesce(fn.col("legal"), fn.lit(True)))
    hidden = wrong.join(
        holes,
        (wrong["queue"] == holes["_queue"])
        & (wrong["life"] == holes["_life"])
        # A refilled event is inside its gap.
        & (fn.col("_last") >= fn.col("_after"))
        & (fn.col("_first") <= fn.col("ordinal")),
        "left_semi",
    ).select(*_MOVE)
    if record_gaps is not None:
        unsure = fn.broadcast(record_gaps.withColumnRenamed("queue", "_queue"))
        hidden = hidden.unionByName(
            wrong.join(
                unsure,
                (wrong["queue"] == unsure["_queue"])
                & (fn.col("at_ms") >= fn.col("from_ms"))
                & (fn.col("_since") <= fn.coalesce("until_ms", "at_ms")),
                "left_semi",
            ).select(*_MOVE)
        ).distinct()
    hidden = hidden.withColumn("_hidden", fn.lit(True))
    return (
        moves.join(fn.broadcast(hidden), list(_MOVE), "left")
        .withColumn("legal", fn.when(fn.col("_hidden").isNull(), fn.col("legal")))
        .drop("_hidden", "_after", "_since")
        .select(
            "day",
            "queue",
            "job_id",
            "first_id",
            "life",
            "ordinal",
            "at_ms",
            "event",
            "from_state",
            "to_state",
            "legal",
            "steps",
        )
    )
