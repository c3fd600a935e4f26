"""Import paths that pages name, and those that were promised, stay importable.

Rules of this file: PROMISED is a contract: a line leaves it with a release only. Paths in pages are found by their
form: `from standfast.a.b import C`, `standfast.a.b`, and files as `store/errors.py`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path

import pytest
from repo.test_tidy import ROOMS

# Modules beside the front door, with the names that users import from them.
PROMISED: Mapping[str, str] = {
    "standfast.aio": "Session",
    "standfast.ops.cli": "main",
    "standfast.ops.http": "OpsServer",
    "standfast.replication.credits": "",
    "standfast.replication.handover": "Handover WakeUp Closed",
    "standfast.replication.placement": "",
    "standfast.replication.standby": "Standby Applied Kept",
    "standfast.restore.digest": "",
    "standfast.restore.fold": "",
    "standfast.restore.gate": "",
    "standfast.restore.plan": "",
    "standfast.restore.spark_data_source": "StandfastSource",
    "standfast.serde": "string json bytes Registry",
    "standfast.stream.punctuation": "PunctuationQueue",
    "standfast.stream.watermarks": "",
    "standfast.stream.windows": "TumblingWindows HoppingWindows SlidingWindows SessionWindows UnlimitedWindows Window",
    "standfast.testing": "Driver",
}
SF = """App ARRIVAL_TIME EVENT_TIME HoppingWindows KeyValueStore ON_WINDOW_CLOSE ON_WINDOW_UPDATE PROCESSING_TIME
    Processor Record STREAM_TIME Session SessionStore SessionWindows SlidingWindows SnapshotPolicy Source
    TumblingWindows UnlimitedWindows VersionedStore WALL_CLOCK_TIME Window WindowStore Windowed connect"""
ROOM = "|".join(ROOMS)
IMPORT = re.compile(rf"from (standfast\.(?:{ROOM})[a-z_.]*) import (\w+(?:, \w+)*)")
DOTTED = re.compile(rf"\bstandfast\.(?:{ROOM})(?:\.\w+)+")
FILE = re.compile(rf"(?<![\w/.])(?:(?:{ROOM})/[a-z_/]+|standfast/[a-z_]+)\.py\b")


def named_in(page: str) -> Iterator[tuple[str, str]]:
    """(module, name in it) of each import path in a page; the name is "" for a module, or a path of either."""
    for module, names in IMPORT.findall(page):
        yield from ((module, name) for name in names.split(", "))
    for dotted in DOTTED.findall(page):
        yield dotted, ""


def missing(module: str, name: str = "") -> str:
    """The reason why a path cannot be imported; "" if it can."""
    dotted = f"{module}.{name}" if name else module
    parent, _, last = dotted.rpartition(".")
    try:
        import_module(dotted)
    except ModuleNotFoundError as error:  # a name in a module, or nothing
        return "" if hasattr(import_module(parent), last) else str(error)
    return ""


@pytest.fixture(scope="module")
def pages(repo_root: Path, repo_files: list[str]) -> dict[str, str]:
    kinds = (".md", ".py")
    names = [one for one in repo_files if one.startswith(("docs/", "examples/")) and one.endswith(kinds)]
    names += ["README.md", "SECURITY.md"]  # CHANGELOG.md names former paths
    return {name: (repo_root / name).read_text(encoding="utf-8") for name in names}


@pytest.mark.slow
def test_import_paths_of_pages_can_be_imported(pages: dict[str, str]) -> None:
    found = {path for page in pages.values() for path in named_in(page)}
    assert len(found) > 10
    assert [problem for path in sorted(found) if (problem := missing(*path))] == []


@pytest.mark.slow
def test_promised_import_paths_can_be_imported() -> None:
    import standfast

    lacking = [name for name in SF.split() if not hasattr(standfast, name)]
    for module, names in PROMISED.items():
        front = module.removeprefix("standfast.")
        home = getattr(standfast, front) if "." not in front else import_module(module)
        lacking += [f"{module}.{name}" for name in names.split() if not hasattr(home, name)]
    assert lacking == []


def test_files_that_pages_name_are_there(pages: dict[str, str], repo_files: list[str]) -> None:
    found = {name: set(FILE.findall(page)) - set(repo_files) for name, page in pages.items()}
    assert {name: files for name, files in found.items() if files} == {}


def test_path_that_is_gone_is_found() -> None:
    page = (
        "`from standfast.store.errors import Held, Gone` in store/errors.py, standfast.ops.http.OpsServer, store/a.py"
    )
    assert list(named_in(page)) == [
        ("standfast.store.errors", "Held"),
        ("standfast.store.errors", "Gone"),
        ("standfast.store.errors", ""),
        ("standfast.ops.http.OpsServer", ""),
    ]
    assert missing("standfast.store.errors", "Held") == missing("standfast.store.errors", "") == ""
    assert missing("standfast.store.errors", "Gone") and missing("standfast.store.gone", "")
    assert FILE.findall(page) == ["store/errors.py", "store/a.py"]
