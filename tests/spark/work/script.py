"""A script as users of spark-submit have it."""

import sys

from pyspark.sql import SparkSession

from oxcart import current_job
from oxcart.spark import SparkJob

spark = SparkSession.builder.getOrCreate()
job = current_job()
assert isinstance(job, SparkJob)
spark.range(int(sys.argv[1])).write.parquet(job.output(sys.argv[2]))
