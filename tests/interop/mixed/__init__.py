"""One set of queues that Node 5.62.0, Node 6.7.0, PyPI bullmq and Oxcart share.

`python -m tests.interop.mixed` runs it at full size, with `--without-us` by the peers alone; the form that CI
runs is `tests/interop/test_mixed_fleet.py`.
"""
