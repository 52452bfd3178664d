"""Spark as a worker: executors that run jobs, and jobs that are Spark applications."""
