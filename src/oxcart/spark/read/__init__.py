"""What the pipeline reads from a server: event streams, job records, and positions in them."""
