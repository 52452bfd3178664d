"""The command ``oxcart demo``: a server, a producer, workers and a report in one minute."""
