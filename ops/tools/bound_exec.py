"""Replace this process by a program that ends with the process that started it, however that ends.

    python -m standfast.ops.tools.bound_exec PARENT_PID PROGRAM ARGUMENT...

Rules of this file: Linux. The process id stays, the program changes. The kernel watches the thread of the parent that
started it.
"""

from __future__ import annotations

import os
import sys

from standfast.store.process.parent import bind_to_parent


def main(arguments: list[str]) -> None:
    """Bind this process to its parent, and become the program."""
    parent, program = int(arguments[0]), arguments[1]
    if not bind_to_parent(parent):
        raise SystemExit(1)  # the parent ended before the binding, which would not fire any more
    # exec and not a child: the starter has recorded this process id, and signals it.
    os.execv(program, arguments[1:])  # noqa: S606


if __name__ == "__main__":
    main(sys.argv[1:])
