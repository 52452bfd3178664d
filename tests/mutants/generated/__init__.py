"""Mutants that a tool makes (`make mutants`), beside those that people wrote for the rows of a page.

cosmic-ray makes them in an environment of its own, and the bench of `tests.mutants` tries them out.
`rooms.toml` says which tests judge which file, and explains every mutant that may survive.
"""
