"""``format("oxcart")``: queues as a source and a sink of Spark.

    spark.read.format("oxcart").option("pattern", "*").load()                      # the jobs there are
    spark.readStream.format("oxcart").option("content", "events").option("queues", "emails,video").load()
    df.write.format("oxcart").option("queue", "emails").option("key", "user").mode("append").save()

Spark asks a source for its columns before it decides between a table and a stream. So a stream must set the
option ``content`` to ``events``.

`oxcart.spark.session` registers it; other sessions register it by
``spark.dataSource.register(OxcartSource)``.
"""

from __future__ import annotations

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from oxcart.model.errors import ValidationError
from oxcart.spark.lake.bronze import FILES
from oxcart.spark.options import (
    EVENT_STREAM,
    JOBS,
    WRITE,
    QueueSelection,
    ServerAddress,
    check_options,
    read_count,
    read_flag,
)
from oxcart.spark.read.entries import SCHEMA
from oxcart.spark.read.events import MAX_ROWS, EventReader
from oxcart.spark.read.jobs import JOB_SCHEMA, JobReader
from oxcart.spark.sink import Aim, JobStreamWriter, JobWriter

_KIND = "content"


class OxcartSource(DataSource):
    """Queues as a source and a sink; `oxcart.spark.options.OPTIONS` lists the options."""

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "oxcart"

    def schema(self) -> str:
        """Returns the columns of jobs, of events, or of files of events."""
        content = self.options.get(_KIND, "jobs")
        if content not in ("jobs", "events"):
            raise ValidationError(_KIND, "jobs or events", content)
        if content == "jobs":
            return JOB_SCHEMA
        return FILES if self.options.get("lake") else SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        """Returns the reader of jobs."""
        if self.options.get(_KIND, "jobs") != "jobs":
            raise ValidationError(_KIND, "jobs", "events", "events are a stream: use spark.readStream")
        check_options(self.options, JOBS)
        return JobReader(ServerAddress.read(self.options), QueueSelection.read(self.options))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """Returns the reader of events."""
        options = self.options
        if options.get(_KIND) != "events":
            raise ValidationError(
                _KIND, "events", options.get(_KIND), 'a stream has events: add .option("content", "events")'
            )
        check_options(options, EVENT_STREAM)
        return EventReader(
            ServerAddress.read(options),
            QueueSelection.read(options),
            starting=options.get("startingOffsets", "earliest"),
            max_rows=read_count(options.get("maxRowsPerBatch", str(MAX_ROWS)), "maxRowsPerBatch"),
            attempts=read_flag(options.get("attempts", "true"), "attempts"),
            samples=read_flag(options.get("samples", "false"), "samples"),
            spool=options.get("spool") or None,
            lake=options.get("lake") or None,
        )

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Returns the writer of jobs from a table."""
        return JobWriter(*self._aim(schema, overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        """Returns the writer of jobs from a stream."""
        return JobStreamWriter(*self._aim(schema, overwrite))

    def _aim(self, schema: StructType, overwrite: bool) -> tuple[ServerAddress, Aim]:
        check_options(self.options, WRITE)
        if overwrite:
            raise ValidationError("mode", "append", "overwrite", 'jobs are added: use .mode("append")')
        return ServerAddress.read(self.options), Aim.read(self.options, schema)
