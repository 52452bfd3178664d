"""The page docs/performance.md, generated from docs/performance.json: ``make performance``.

Benchmarks write their figures below ``build``; ``--take`` copies those into the JSON. The page and its charts
are made from the JSON alone, so that they can be made anew without a measurement.
"""
