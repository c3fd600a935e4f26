"""Status, health, reads and metrics of a session."""
