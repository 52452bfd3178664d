"""What can be seen of a running worker from outside: metrics, health, logs."""
