"""`--pure`: only files of tests that import pure modules of ours and nothing else, for `make check`.

Rules of this file: a file's text decides before its import, because importing all of them takes longer than the
selected tests. `repo/test_tidy.py` lists the pure modules.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import pytest

OURS = re.compile(r"^\s*(?:from|import) (standfast[\w.]*)(?: import \(?([\w, \n]*))?", re.MULTILINE)
# Beside the plain values: pure modules take the time as an argument, tests use the clock that it comes from.
CLOCK = "store/clock.py"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--pure", action="store_true", help="only tests of pure modules")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """True for a test file that needs more than pure modules."""
    if not config.getoption("pure") or not collection_path.name.startswith("test_"):
        return None
    return not is_pure(collection_path.read_text(encoding="utf-8")) or None


def is_pure(text: str) -> bool:
    """Whether a file imports some of our modules, and only pure ones or values that pure modules take."""
    from repo.test_tidy import PLAIN, PURE

    pure, given = _modules(PURE), _modules(PLAIN | {CLOCK})
    wanted = set()
    for module, names in OURS.findall(text):
        inner = [f"{module}.{name.split()[0]}" for name in names.split(",") if name.split()]
        found = {one for one in inner if one in pure}
        wanted |= found if found and len(found) == len(inner) else {module}
    return bool(wanted & pure) and wanted <= pure | given and "from support.sessions" not in text


def _modules(paths: Iterable[str]) -> frozenset[str]:
    return frozenset(f"standfast.{path.removesuffix('.py').replace('/', '.')}" for path in paths)
