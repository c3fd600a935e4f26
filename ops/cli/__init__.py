"""The command `standfast`."""

from standfast.ops.cli.command_line import main

__all__ = ["main"]
