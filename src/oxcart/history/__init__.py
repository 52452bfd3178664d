"""Answers from a lake in a second: DuckDB reads the files of one version, without Spark and Java.

``reader`` runs SQL over the tables, ``questions`` has the questions that are asked most. The pipeline in
`oxcart.spark` fills the lake; this package only reads it, and imports no pyspark.
"""

from __future__ import annotations
