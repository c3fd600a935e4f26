"""The command `standfast bench`."""
