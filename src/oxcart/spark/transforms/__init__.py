"""From bronze to silver to gold: pure functions ``DataFrame → DataFrame``.

They read no clock, no file and no server. Whether rows come from a stream, a closed day or a rebuild, the
same rows in give the same rows out. The order is that of the stream (``life``, ``ordinal``).

``events`` finds the generations of jobs in bronze. ``attempts``, ``jobs`` and ``transitions`` have their
history, ``flows`` and ``firings`` that of trees and schedules. ``gaps`` and ``counts`` are about the stream
itself. ``metrics``, ``failures`` and ``usage`` are summaries.
"""
