"""A fixture: promtool, of Debian's package `prometheus`, unpacked once without installing.

Rules of this file: where it cannot be fetched, its tests fail with the package to install.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from standfast.store.errors import Unavailable
from support.debian import ensure_program
from support.missing import missing

Promtool = Callable[..., str]


@pytest.fixture(scope="session")
def promtool() -> Promtool:
    """Runs promtool; returns its output, and fails the test if it reports a problem."""
    try:
        program = ensure_program("prometheus", "promtool", print)
    except Unavailable as error:
        missing(str(error))

    def run(*arguments: str | Path, text: bytes = b"") -> str:
        done = subprocess.run([program, *arguments], input=text, capture_output=True, check=False, timeout=60)
        said = (done.stdout + done.stderr).decode()
        assert done.returncode == 0, said
        return said

    return run
