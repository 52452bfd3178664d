"""Millions of jobs of all kinds through workers that come and go: `make soak`.

`mix` says what the jobs are, `crew` runs them and is replaced all the time, `keys` accounts for every key on
the server, and `verdict` compares memory and leftovers with their bounds.
"""
