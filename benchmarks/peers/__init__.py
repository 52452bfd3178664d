"""The measured processes, one per system, all with the same roles (see `benchmarks.measured`)."""
