"""A week of many queues in compressed time, read by a pipeline that is killed."""
