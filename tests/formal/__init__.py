"""The formal job model against the real server."""
