"""The command `standfast` as a whole: its parser, and the table of its commands."""
