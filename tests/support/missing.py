"""What a test does whose programs are not there: on somebody's machine it is skipped and says so, in CI it fails."""

from __future__ import annotations

import os
from typing import NoReturn

import pytest


def missing(why: str) -> NoReturn:
    """End the test that runs; `why` says what is missing and how to get it."""
    if os.environ.get("CI") or os.environ.get("STANDFAST_CI"):
        pytest.fail(f"CI must have it: {why}", pytrace=False)
    pytest.skip(why)
