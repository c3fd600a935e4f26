"""The command `standfast bench`: how fast this machine restores."""
