"""The sources that the repository's rules check.

Rules of this file: read once for each file of tests.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from repo.test_tidy import Source

from support.groups import costly


@pytest.fixture(scope="module")
@costly()
def sources(repo_root: Path, repo_files: list[str]) -> list[Source]:
    return [Source(name, (repo_root / name).read_text(encoding="utf-8")) for name in repo_files if name.endswith(".py")]
