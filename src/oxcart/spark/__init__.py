"""The data pipeline: every job's history, exactly once, as tables that can be asked questions.

The event streams and job records are the source, open tables are the result, and Spark does the work
between them. A job's way through the rooms: ``source`` (what Spark sees of the server) → ``lake``
(versions of tables) → ``transforms`` (pure functions from bronze to silver to gold) → ``report``.

Importing `oxcart` imports nothing of this, and importing this package imports no pyspark: that is what
`oxcart.spark.session` does when a session is opened.
"""

from __future__ import annotations
