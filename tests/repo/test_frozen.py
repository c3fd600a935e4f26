"""A frozen program has what import statements reach, no metadata and no folder of files: all of standfast works there.

Rules of this file: tools that freeze programs follow import statements, and no strings. NAMED_ONLY lists the modules
that the library itself finds by a name. The run is from an archive, beside the libraries alone.
"""

from __future__ import annotations

import re
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest
from repo.test_tidy import ROOMS, Source, imports, our_path

pytestmark = pytest.mark.xdist_group("sources")  # one process parses the sources once

# Spark reads the last one.
STARTS: tuple[str, ...] = ("standfast/__init__.py", "standfast/__main__.py", "restore/spark_data_source.py")
PROGRAM_OF_CHILD = "a program that a child process runs"
# Modules that no import statement reaches from there -> why.
NAMED_ONLY = {
    "ops/cli/__main__.py": "for python -m standfast.ops.cli",
    "ops/sidecar/worker/reader.py": "of the next",
    "ops/sidecar/worker/worker.py": PROGRAM_OF_CHILD,
    "ops/tools/bound_exec.py": PROGRAM_OF_CHILD,
    "replication/lease/owner.py": PROGRAM_OF_CHILD,
    "replication/lease/worker.py": PROGRAM_OF_CHILD,
}


def reached(sources: list[Source]) -> set[str]:
    """Files that a program of STARTS has when import statements alone are followed."""
    by_path = {source.path: source for source in sources}
    paths = frozenset(by_path)
    todo = list(STARTS)
    found = set(todo)
    for path in todo:
        for _, module, name in imports(by_path[path]):
            if module.partition(".")[0] == "standfast":
                target = our_path(module, name, paths)
                folders = [parent for parent in Path(target).parents if parent.name]
                for one in (target, *(f"{folder}/__init__.py" for folder in folders)):
                    if one in paths and one not in found:
                        found.add(one)
                        todo.append(one)
    return found


def test_import_statements_reach_every_module_but_those_that_are_listed(sources: list[Source]) -> None:
    product = [source for source in sources if source.path.partition("/")[0] in (*ROOMS, "standfast")]
    assert {source.path for source in product} - reached(product) == set(NAMED_ONLY)


def test_no_module_asks_for_the_metadata_of_the_installation(sources: list[Source]) -> None:
    asks = re.compile(r"entry_points\(|pkg_resources|version\(.standfast")
    assert [one.path for one in sources if one.room is not None and asks.search(one.text)] == []


PROGRAM = """
import sys
sys.frozen = True
sys.path[:0] = sys.argv[1:3]
from contextlib import closing
from importlib import metadata
from urllib.request import urlopen
import standfast as sf
from standfast.ops.cli import main

try:
    print(metadata.version("standfast"))
except metadata.PackageNotFoundError:
    print("no metadata")
stores = [sf.KeyValueStore("kv", sf.serde.string, sf.serde.string)]
where = sys.argv[3]
with closing(sf.Session("app", log=f"sqlite:///{where}/log", state_dir=f"{where}/state", stores=stores)) as session:
    print(any(name.startswith("standfast.ops.http") for name in sys.modules))
with closing(
    sf.Session("app", log=f"sqlite:///{where}/log", state_dir=f"{where}/state", stores=stores, http_port=0)
) as session:
    print(urlopen(f"{session.http_address}/livez").status, urlopen(f"{session.http_address}/").status)
print([main([command, "--help"]) for command in ("serve", "get", "demo", "bench", "pipeline")][-1], sf.__file__)
"""


@pytest.mark.slow
def test_program_in_an_archive_without_metadata_serves_http_and_has_all_commands(
    repo_root: Path, repo_files: list[str], tmp_path: Path
) -> None:
    tops = (*ROOMS, "standfast")
    with zipfile.ZipFile(tmp_path / "app.zip", "w") as archive:
        for name in repo_files:
            if name.partition("/")[0] in tops and (name.endswith(".py") or "/data/" in name):
                archive.write(repo_root / name, name if name.startswith("standfast/") else f"standfast/{name}")
    (tmp_path / "libraries").mkdir()
    for one in Path(sysconfig.get_path("purelib")).iterdir():
        if "standfast" not in one.name:
            (tmp_path / "libraries" / one.name).symlink_to(one)
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    command = [sys.executable, "-I", "-S", program, tmp_path / "app.zip", tmp_path / "libraries", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    lines = done.stdout.splitlines()
    assert done.returncode == 0, done.stderr
    assert lines[:3] == ["no metadata", "False", "200 200"]
    assert lines[-1] == f"0 {tmp_path}/app.zip/standfast/__init__.py"
