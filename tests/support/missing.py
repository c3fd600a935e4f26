"""Tests whose programs are missing: on a developer's machine skipped with the reason, in CI failed."""

from __future__ import annotations

import os
from typing import NoReturn

import pytest


def missing(why: str) -> NoReturn:
    """End the running test; `why` names the missing program and how to get it."""
    if os.environ.get("CI") or os.environ.get("STANDFAST_CI"):
        pytest.fail(f"CI must have it: {why}", pytrace=False)
    pytest.skip(why)
