"""The command `standfast demo`."""
