"""The command `standfast`."""

from standfast.ops.command.command_line import main

__all__ = ["main"]
