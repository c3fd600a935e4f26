"""Rewritten assertions of a new checkout: each process of a run rewrites its share of the files, before it collects.

    process 1 of 4   files 1, 5, 9 ...  ──> __pycache__ ──┐
    process 2 of 4   files 2, 6, 10 ... ──> __pycache__ ──┴──> each process collects all files, rewritten by then

Without it each process rewrites every file, since all of them begin at the same moment: two thirds of a first
collection. A file that another process has not reached yet is rewritten at its collection, as pytest does it.

Rules of this file: pytest has no public function that rewrites without importing, so it uses those of its hook; a
version of pytest that renames them fails here, and the file can then be deleted.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from _pytest.assertion.rewrite import (
    PYC_TAIL,
    _read_pyc,
    _rewrite_test,
    _write_pyc,
    assertstate_key,
    get_cache_dir,
    try_makedirs,
)


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """In one of several processes, rewrite its share of the files that the command line names."""
    worker: dict[str, Any] = getattr(session.config, "workerinput", {})
    if worker and not sys.dont_write_bytecode:
        number, count = int(worker["workerid"].removeprefix("gw")), int(worker["workercount"])
        for path in sorted(_test_files(session.config.args))[number::count]:
            _rewrite(path, session.config)


def _test_files(arguments: Iterable[str]) -> Iterator[Path]:
    for argument in arguments:
        path = Path(argument.partition("::")[0]).absolute()
        yield from path.rglob("test_*.py") if path.is_dir() else [path]


def _rewrite(path: Path, config: pytest.Config) -> None:
    folder = get_cache_dir(path)
    cached = folder / (path.name.removesuffix(".py") + PYC_TAIL)
    if path.is_file() and _read_pyc(path, cached) is None and try_makedirs(folder):
        digest, code = _rewrite_test(path, config)
        _write_pyc(config.stash[assertstate_key], code, digest, cached)
