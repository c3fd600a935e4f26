"""Options that a crash run drew for its children end with its test.

Rules of this file: fixtures only, each of a few lines.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from support.crash.options import OPTIONS


@pytest.fixture(autouse=True)
def options_of_one_run() -> Iterator[None]:
    """No later test in this process has them."""
    yield
    os.environ.pop(OPTIONS, None)
