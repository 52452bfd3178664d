"""How jobs are stored and moved."""
