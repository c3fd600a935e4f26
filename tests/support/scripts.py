"""Golden scripts: a plain text of commands with the answers below them, played anew and compared.

Rules of this file: `STANDFAST_REWRITE=1` writes the answers into the scripts: commit such a change only if you
understand every line of it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path


def check_script(path: Path, run: Callable[[str], str]) -> None:
    """Play a script; the answers must be those that stand in it."""
    played = run(path.read_text(encoding="utf-8"))
    if os.environ.get("STANDFAST_REWRITE") == "1":
        path.write_text(played, encoding="utf-8")
    assert played == path.read_text(encoding="utf-8")
