"""Benchmarks of Oxcart and its peers. `README.md` states the method."""
