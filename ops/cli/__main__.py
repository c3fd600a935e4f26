"""`python -m standfast.ops.cli`.

Rules of this file: it only calls the command.
"""

from standfast.ops.command.command_line import main

if __name__ == "__main__":
    raise SystemExit(main())
