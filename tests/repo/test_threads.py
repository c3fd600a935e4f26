"""Every thread and process of the product has its row in the table of docs/internals/testing.md.

Rules of this file: constructions are found in the source, by their names, and so are the calls of the object from which
a session's parts get their threads. A row names a file and its functions, or a folder.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

PAGE = "docs/internals/testing.md"
ROOMS = ("store", "replication", "restore", "stream", "ops")
TABLE = re.compile(r"<!-- threads -->\n(.*?)<!-- /threads -->", re.DOTALL)
WORDS = {"stepped", "stood in for", "outside"}
CALLS = {"Thread", "ThreadPoolExecutor", "ProcessPoolExecutor", "start_new_thread", "Popen", "posix_spawn", "fork",
         "forkpty", "run_in_executor", "to_thread"}  # fmt: skip
OF_MODULES = {"threading": {"Timer"}, "subprocess": {"run", "call", "check_call", "check_output"},
              "multiprocessing": {"Process", "Pool"}}  # fmt: skip
HANDED = {"threads", "_threads", "_background"}  # names of the objects that a session hands to its parts
OF_HANDED = {"start", "pool", "repeat"}


def constructions(source: str) -> Iterator[str]:
    """The functions of a module, each by its name, that start a thread or a process."""
    tree = ast.parse(source)
    from_modules = {
        one.asname or one.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for one in node.names
        if one.name in OF_MODULES.get(node.module or "", ())
    }

    def within(node: ast.AST, where: str) -> Iterator[str]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Call) and _starts(child.func, from_modules):
                yield where
            named = isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef))
            yield from within(child, child.name if named else where)

    return within(tree, "")


def _starts(function: ast.expr, from_modules: set[str]) -> bool:
    if isinstance(function, ast.Name):
        return function.id in CALLS | from_modules
    if not isinstance(function, ast.Attribute):
        return False
    of = function.value
    owner = of.attr if isinstance(of, ast.Attribute) else of.id if isinstance(of, ast.Name) else ""
    handed = owner in HANDED and function.attr in OF_HANDED
    return handed or function.attr in CALLS or function.attr in OF_MODULES.get(owner, ())


def check_rows(page: str, found: Iterable[tuple[str, str]], tests: set[str]) -> Iterator[str]:
    """Problems of the table, beside the constructions as pairs of file and function."""
    match = TABLE.search(page)
    rows = [] if match is None else [line for line in match.group(1).splitlines() if line.startswith("| `")]
    left: dict[tuple[str, str], str] = {}
    for row in rows:
        where, _, word, test = (cell.strip() for cell in row.strip("|").split("|"))
        if word not in WORDS:
            yield f"{where}: {word!r} is none of {sorted(WORDS)}"
        if test.strip("`") not in tests:
            yield f"{where}: there is no test file {test}"
        path, *functions = re.findall(r"`([^`]+)`", where)
        left |= {(path, function): row for function in functions or [""]}
    unused = set(left)
    for path, function in found:
        rows_of = {(path, function), *((f"{parent}/", "") for parent in Path(path).parents)} & left.keys()
        if not rows_of:
            yield f"{path}: `{function}` starts a thread or a process, and the table of {PAGE} has no row for it"
        unused -= rows_of
    for path, function in sorted(unused):
        yield f"{path} {function}: the table of {PAGE} has a row, and nothing is started there"


def test_every_thread_and_process_has_its_row() -> None:
    files = [path for room in ROOMS for path in sorted(Path(room).rglob("*.py"))]
    found = [(path.as_posix(), function) for path in files for function in constructions(path.read_text())]
    tests = {path.name for path in Path("tests").rglob("test_*.py")}
    assert list(check_rows(Path(PAGE).read_text(), found, tests)) == []


def test_a_construction_without_a_row_is_found() -> None:
    source = """
import threading
from subprocess import run

class One:
    def begin(self):
        threading.Thread(target=self.go)

def two(threads):
    with threads.pool(2, "name") as pool:
        pool.submit(run(["ls"]))

async def three(self):
    await asyncio.to_thread(four)
"""
    assert list(constructions(source)) == ["begin", "two", "two", "three"]
    assert list(check_rows("", [("store/one.py", "begin")], set())) == [
        f"store/one.py: `begin` starts a thread or a process, and the table of {PAGE} has no row for it"
    ]


def test_a_row_without_a_construction_is_found() -> None:
    row = "<!-- threads -->\n| `{}` | some | {} | `test_it.py` |\n<!-- /threads -->"
    folder = row.format("store/", "outside")
    assert list(check_rows(folder, [("store/process/one.py", "begin")], {"test_it.py"})) == []
    assert list(check_rows(folder, [], {"test_it.py"})) == [
        f"store/ : the table of {PAGE} has a row, and nothing is started there"
    ]
    function = row.format("store/one.py` `begin", "inside")
    assert list(check_rows(function, [("store/one.py", "begin")], set())) == [
        "`store/one.py` `begin`: 'inside' is none of ['outside', 'stepped', 'stood in for']",
        "`store/one.py` `begin`: there is no test file `test_it.py`",
    ]
