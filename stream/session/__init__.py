"""Sessions: assignment of tasks, instances of a group, and take-overs."""
