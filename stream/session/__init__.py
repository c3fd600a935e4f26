"""Sessions: assignment of tasks, instances of a group, ownership and take-overs."""
