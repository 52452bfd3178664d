"""A deployment rehearsed on one machine: the units' own commands, in a network of their own.

`deploy/rehearse` starts a Valkey with the settings of the compose file, workers and the API by the command
lines of the systemd units, and a producer. Under load it drains and replaces every worker, as a rolling
update does, and then compares what was acknowledged with what ran.
"""
