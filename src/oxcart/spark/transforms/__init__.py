"""From bronze to silver to gold: pure functions ``DataFrame → DataFrame``.

They read no clock, no file and no server, and do not know whether their rows come from a stream, a day that
is closed or a rebuild: the same rows in give the same rows out. Order is that of the stream (life, ordinal).

``events`` finds the lives of jobs in bronze; ``attempts``, ``jobs`` and ``transitions`` are what happened in
them; ``flows`` and ``firings`` are those of trees and schedules; ``gaps`` and ``counts`` are what the stream
says of itself; ``metrics``, ``failures``, ``critical_paths`` and ``schedules`` sum up.
"""
