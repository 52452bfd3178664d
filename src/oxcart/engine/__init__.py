"""Runs jobs: claims, leases, execution, recovery. One noun, one loop, one file."""
