"""A small model of the scripts: every interleaving of 3 workers on 3 jobs is explored (`make model`).

`state` has the values, `actions` the transitions, named as the scripts are, `explore` visits every reachable
state and checks the invariants, `replay` drives the real scripts along random paths and compares the states.
`layout` is a second model, of partitions that are resized.
"""
