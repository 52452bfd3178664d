"""Every move of a job from state to state, checked against the model's table.

A move is legal, illegal, or (null) unknown: the first one of a life whose beginning is not known, and one
over a gap in the stream, may hide moves that nobody can see any more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as fn

from oxcart.model.state import INITIAL, TERMINAL, TRANSITIONS
from oxcart.spark.transforms.events import OVER

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_REMOVED = "removed"
#: Every allowed move as text, replays included: whether one is a replay is told by how the life began.
MOVES = sorted({f"{move.source}>{move.target}" for move in TRANSITIONS})


def transitions(lives: DataFrame, gaps: DataFrame | None) -> DataFrame:
    """The moves; a state that is entered again without having been left is none.

    Args:
        lives: What happened to jobs.
        gaps: What is missing of the streams; None for nothing.
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
    # A removal after the end changes no job any more, and on a later day nobody would know from what.
    swept = (target == _REMOVED) & ((first & fn.col("born").isNull()) | source.isin(*OVER))
    moves = (
        lives.filter(target.isNotNull() & (first | (source != target)))
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
            fn.coalesce("from_ordinal", fn.lit(0)).alias("_after"),
        )
    )
    if gaps is None:
        return moves.drop("_after")
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
        # A refilled event lies inside its gap.
        & (fn.col("_last") >= fn.col("_after"))
        & (fn.col("_first") <= fn.col("ordinal")),
        "left_semi",
    ).select("queue", "life", "ordinal", fn.lit(True).alias("_hidden"))
    return (
        moves.join(fn.broadcast(hidden), ["queue", "life", "ordinal"], "left")
        .withColumn("legal", fn.when(fn.col("_hidden").isNull(), fn.col("legal")))
        .drop("_hidden", "_after")
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
        )
    )
