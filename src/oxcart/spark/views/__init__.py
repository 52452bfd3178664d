"""Tables that a query computes from gold, as SQL that DuckDB and Spark both run."""
