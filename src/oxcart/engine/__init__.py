"""How jobs run: claims, leases, execution, recovery. One noun, one loop, one file."""
