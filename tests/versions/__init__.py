"""Workers of two versions on one queue."""
