"""The repository checks itself: import direction, pure modules, limits, banned calls, lists that must agree.

Rules of this file: a rule is a function from sources to problems (`path:line: what, and what to do`) and stands in
RULES beside planted sources that break it, so that every rule is shown to bite. Rules read text and syntax trees and
import nothing of ours. Rules for text, lists and folders are in `test_tidy_lists.py`.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest

from support.syntax import nodes, parsed

ROOMS = ("store", "replication", "restore", "stream", "ops")  # each may import those before it

pytestmark = pytest.mark.xdist_group("sources")  # one process parses the sources once

FILE_LINES_MAX = 700
FUNCTION_LINES_MAX = 70

# Modules that only decide: no I/O, thread or clock. Time comes in as `now_ms`.
PURE = {
    "store/names.py",
    "replication/leases.py",
    "replication/shapes.py",
    "store/types/segments.py",
    "store/session_key.py",
    "store/task/commit_record.py",
    "store/timestamps.py",
    "store/traits.py",
    "store/value_timestamp.py",
    "store/types/versioned_row.py",
    "store/window_key.py",
    "ops/sidecar/control/assignment.py",
    "ops/sidecar/control/schema.py",
    "ops/observe/health.py",
    "ops/page/history.py",
    "ops/page/model.py",
    "ops/doctor/reset_plan.py",
    "ops/sidecar/worker/moves.py",
    "ops/observe/verdict.py",
    "ops/sidecar/worker/protocol.py",
    "replication/topics/app_topics.py",
    "replication/columns.py",
    "replication/commit_metadata.py",
    "replication/metadata_parts.py",
    "replication/credits.py",
    "replication/fetch_limits.py",
    "replication/discovery.py",
    "replication/embedded/wal.py",
    "replication/offsets.py",
    "replication/pauses.py",
    "replication/record_limits.py",
    "replication/placement/actives.py",
    "replication/placement/explained.py",
    "replication/placement/formats.py",
    "replication/placement/group_standbys.py",
    "replication/placement/look.py",
    "replication/placement/model.py",
    "replication/placement/no_room.py",
    "replication/placement/place.py",
    "replication/placement/quotas.py",
    "replication/placement/task_ranges.py",
    "replication/placement/reasons.py",
    "replication/placement/standbys.py",
    "replication/standby.py",
    "replication/takeover.py",
    "replication/topics/fixes.py",
    "replication/topics/rules.py",
    "replication/topics/settings.py",
    "replication/topics/tombstones.py",
    "restore/replay/bulk_plan.py",
    "restore/compare.py",
    "restore/digest.py",
    "restore/fold.py",
    "restore/gate.py",
    "restore/verdict.py",
    "restore/files/manifest.py",
    "restore/forecast/forecast.py",
    "restore/plan.py",
    "restore/progress.py",
    "restore/report/text.py",
    "restore/snapshot/manifest.py",
    "restore/snapshot/names.py",
    "restore/snapshot/planning.py",
    "restore/snapshot/points.py",
    "restore/spark/split_plan.py",
    "stream/control.py",
    "stream/open_windows.py",
    "replication/checks.py",
    "stream/outgoing.py",
    "stream/loss.py",
    "stream/tasks/life.py",
    "stream/tasks/commit_plan.py",
    "stream/task/states.py",
    "stream/punctuation.py",
    "stream/restart.py",
    "stream/source_gate.py",
    "stream/source_offsets.py",
    "stream/silence.py",
    "stream/stream_time.py",
    "stream/watermarks.py",
    "stream/windows.py",
}
# Imports of ours that pure modules may have beside each other: plain values, the shapes of the ports, and the checks of
# arguments.
PLAIN = {
    "store/arguments.py",
    "store/errors.py",
    "store/engine.py",
    "store/results.py",
    "store/specs.py",
    "replication/log.py",
}
NAMED = re.compile(rf"standfast\.({'|'.join(ROOMS)})(\.\w+)+(:\w+)?")  # the whole of a string that names a module
PURE_LIBRARIES = {"xxhash", "msgpack", "msgspec", "sortedcontainers"}
PURE_STDLIB = {
    *(
        "__future__",
        "abc",
        "base64",
        "bisect",
        "collections",
        "dataclasses",
        "datetime",
        "enum",
        "fractions",
        "functools",
        "html",
    ),
    *("datetime", "hashlib", "heapq", "itertools", "json", "math", "operator", "re", "shlex", "statistics", "string"),
    *("struct", "types", "typing", "zlib"),
}
# Pure modules that make something once, by one thread at a time: their answers depend on no thread.
LOCKED = {"replication/shapes.py"}
IMPURE_BUILTINS = {"open", "input", "print", "breakpoint"}

# The only folders that may import an outside library, without those below them; a file where one file is enough.
LIBRARY_HOMES = {
    "rocksdict": ("store/rocks",),
    "sqlite3": ("replication/embedded",),  # of the standard library, but a database all the same
    "confluent_kafka": ("replication/kafka", "store/schema"),  # the latter: its client of a schema registry
    "prometheus_client": ("ops/observe",),
    "pyspark": ("restore/spark", "restore/spark_table"),
    "pandas": ("restore/spark", "restore/spark_table"),
    "pyarrow": ("restore/spark", "restore/spark_table"),
    "numpy": ("restore/spark", "restore/spark_table"),  # comes with pandas
    "starlette": ("ops/http", "ops/page", "ops/sidecar", "ops/sidecar/control"),
    "uvicorn": ("ops/http", "ops/sidecar"),
    "h11": ("ops/http",),  # comes with uvicorn
    "uvloop": ("ops/sidecar",),
    "hiredis": ("ops/sidecar/resp",),
    "rich": ("ops/shared",),
    "jinja2": ("restore/report", "ops/page"),
    "sortedcontainers": ("store/buffer", "store/memory.py"),
    "msgpack": ("store/serde.py",),
    "obstore": ("restore/snapshot/storage.py",),
    "msgspec": ("replication/shapes.py", "restore/files", "restore/snapshot", "ops/sidecar/control"),
    "opentelemetry": ("stream/tracing",),
    "xxhash": ("restore/digest.py",),
    "typing_extensions": ("store/specs.py",),  # for type checkers only, which bring it
}

CLOCK_FILE = "store/clock.py"
CLOCK_CALLS = {
    f"time.{name}{unit}"
    for name in ("time", "monotonic", "perf_counter", "process_time", "thread_time")
    for unit in ("", "_ns")
} | {
    "time.sleep",
    *(f"datetime.datetime.{name}" for name in ("now", "utcnow", "today")),
    "datetime.date.today",
}

BANNED_IMPORTS = {"pickle", "marshal", "shelve", "dill", "cloudpickle"}
BANNED_CALLS = {
    "eval": "runs what it reads",
    "exec": "runs what it reads",
    "yaml.load": "runs what it reads; use yaml.safe_load",
    "os.system": "goes through a shell; use subprocess with a list",
    "tempfile.mktemp": "can be raced; use mkstemp",
}
BANNED_IN_TESTS = {
    "unittest.mock": "use the real part; fakes that pass the contract suite ship with the library",
    "pytest.skip": "no skipped tests; use a strict xfail with its reason",
    "pytest.importorskip": "no skipped tests",
    "pytest.mark.skip": "no skipped tests",
    "pytest.mark.skipif": "no skipped tests",
}

SKIPPING = {"tests/support/missing.py"}  # the skip for missing programs; with CI set that is a failure


class Source(NamedTuple):
    """One Python file: its path from the root, and its text."""

    path: str
    text: str

    @property
    def room(self) -> str | None:
        top = self.path.partition("/")[0]
        return top if top in ROOMS else None

    @property
    def tree(self) -> ast.Module:
        return parsed(self.text)

    @property
    def nodes(self) -> tuple[ast.AST, ...]:
        return nodes(self.text)


def imports(source: Source) -> Iterator[tuple[int, str, str]]:
    """(line, module, name) of every import, also inside functions; name is "" for `import module`."""
    for node in source.nodes:
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield from ((node.lineno, node.module or "", alias.name) for alias in node.names)


def named(source: Source) -> Iterator[tuple[int, str, str]]:
    """As `imports`, of each module that a string names: for `import_module`, for a table, as a program to start."""
    for node in source.nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and NAMED.fullmatch(node.value):
            yield node.lineno, node.value.partition(":")[0], ""


def references(source: Source) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of every imported or used name, aliases resolved: `t.sleep` becomes `time.sleep`."""
    known: dict[str, str] = {}
    for node in source.nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                top = alias.name if alias.asname else alias.name.partition(".")[0]
                known[alias.asname or top] = top
        elif isinstance(node, ast.ImportFrom) and not node.level:
            for alias in node.names:
                known[alias.asname or alias.name] = f"{node.module}.{alias.name}"
                yield node.lineno, f"{node.module}.{alias.name}"
    for node in source.nodes:
        if isinstance(node, ast.Name | ast.Attribute):
            head, _, rest = ast.unparse(node).partition(".")
            yield node.lineno, f"{known.get(head, head)}.{rest}" if rest else known.get(head, head)


def our_path(module: str, name: str, paths: frozenset[str]) -> str:
    """File that `from module import name` reads: a module `name` of a folder, else `module` itself."""
    base = module.removeprefix("standfast.").replace(".", "/")
    read = (f"{base}/{name}.py", f"{base}.py", f"{base}/{name}/__init__.py", f"{base}/__init__.py")
    return next((path for path in read if path in paths), f"{base}.py" if "/" in base else f"{base}/__init__.py")


def check_import_direction(source: Source, paths: frozenset[str]) -> Iterator[str]:
    if source.room is None:
        return
    allowed = ROOMS[: ROOMS.index(source.room) + 1]
    for line, module, name in imports(source):
        parts = module.split(".")
        if parts[0] != "standfast":
            continue
        room = parts[1] if len(parts) > 1 else name if module == "standfast" and name in ROOMS else None
        if room is None:
            yield f"{source.path}:{line}: imports the front door; import the module itself"
        elif room not in allowed:
            yield f"{source.path}:{line}: {source.room} must not import {room} (rooms import only {', '.join(allowed)})"
        elif our_path(module, name, paths).endswith("__init__.py"):
            yield f"{source.path}:{line}: imports a folder's __init__, which makes cycles; import the module itself"


def check_names_of_modules(source: Source, paths: frozenset[str]) -> Iterator[str]:
    """A string that names a module is an arrow like an import."""
    if source.room is None:
        return
    for line, module, _ in named(source):
        room = module.split(".")[1]
        if ROOMS.index(room) > ROOMS.index(source.room):
            yield f"{source.path}:{line}: {source.room} must not name {module}: let the room above give it"


def check_absolute_imports(source: Source, paths: frozenset[str]) -> Iterator[str]:
    for node in source.nodes:
        if isinstance(node, ast.ImportFrom) and node.level:
            yield f"{source.path}:{node.lineno}: relative import; write standfast.<room>.<module>"
    for line, module, _ in imports(source):
        if module.partition(".")[0] in ROOMS:
            yield f"{source.path}:{line}: `{module}` makes a second copy of the module; write standfast.{module}"


def check_purity(source: Source, paths: frozenset[str]) -> Iterator[str]:
    if source.path not in PURE:
        return
    for line, module, name in imports(source):
        top = module.partition(".")[0]
        ours = top == "standfast" and our_path(module, name, paths) in PURE | PLAIN
        lock = source.path in LOCKED and (module, name) == ("threading", "Lock")
        if not (ours or lock or top in PURE_STDLIB or top in PURE_LIBRARIES):
            yield f"{source.path}:{line}: a pure module imports {module}; give it the value instead, or widen PURE"
    for node in source.nodes:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in IMPURE_BUILTINS:
            yield f"{source.path}:{node.lineno}: a pure module calls {node.func.id}()"


def check_library_homes(source: Source, paths: frozenset[str]) -> Iterator[str]:
    if source.room is None:
        return
    homes = (source.path, source.path.rpartition("/")[0])
    for line, module, _ in imports(source):
        top = module.partition(".")[0]
        if top in LIBRARY_HOMES:
            if not any(home in LIBRARY_HOMES[top] for home in homes):
                yield f"{source.path}:{line}: {top} may be imported only in {', '.join(LIBRARY_HOMES[top])}"
        elif top != "standfast" and top not in ROOMS and top not in sys.stdlib_module_names:
            yield f"{source.path}:{line}: {top} has no home; name its one folder in LIBRARY_HOMES"


def check_clock(source: Source, paths: frozenset[str]) -> Iterator[str]:
    if source.room is None or source.path == CLOCK_FILE:
        return
    for line, name in references(source):
        if name in CLOCK_CALLS:
            yield f"{source.path}:{line}: {name} reads the clock; take a Clock or now_ms ({CLOCK_FILE})"


def check_header(source: Source, paths: frozenset[str]) -> Iterator[str]:
    docstring = ast.get_docstring(source.tree)
    if not docstring:
        yield f"{source.path}:1: no module docstring; say what the file is, its rules, what it must not know"
    elif source.room and not source.path.endswith("__init__.py") and "Rules of this file:" not in docstring:
        yield f'{source.path}:1: the header lacks "Rules of this file: ..."'


def check_sizes(source: Source, paths: frozenset[str]) -> Iterator[str]:
    lines = source.text.count("\n")
    if lines > FILE_LINES_MAX:
        yield f"{source.path}: {lines} lines, {FILE_LINES_MAX} at most; split it by meaning"
    for node in source.nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            size = (node.end_lineno or node.lineno) - node.lineno + 1
            if size > FUNCTION_LINES_MAX:
                yield f"{source.path}:{node.lineno}: {node.name} has {size} lines, {FUNCTION_LINES_MAX} at most"


def check_banned(source: Source, paths: frozenset[str]) -> Iterator[str]:
    for line, module, _ in imports(source):
        if module.partition(".")[0] in BANNED_IMPORTS:
            yield f"{source.path}:{line}: {module} runs code that it reads; write bytes with struct, msgpack or JSON"
    for node in source.nodes:
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        keywords = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
        if called in BANNED_CALLS:
            yield f"{source.path}:{node.lineno}: {called}() {BANNED_CALLS[called]}"
        if called.rpartition(".")[2] == "Options" and keywords.get("raw_mode") != "True":
            yield f"{source.path}:{node.lineno}: Options() without raw_mode=True unpickles what it reads"
        if keywords.get("shell") == "True":
            yield f"{source.path}:{node.lineno}: shell=True; pass a list"
        if called == "print" and source.room not in (None, "ops"):
            yield f"{source.path}:{node.lineno}: print() outside ops; return it or tell a listener"


def check_init_holds_no_logic(source: Source, paths: frozenset[str]) -> Iterator[str]:
    if source.room is None or not source.path.endswith("/__init__.py"):
        return
    for node in source.tree.body[1:]:
        names_public = isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
        if not (names_public or isinstance(node, ast.Import | ast.ImportFrom)):
            yield f"{source.path}:{node.lineno}: an __init__ re-exports and nothing else"


def check_tests(source: Source, paths: frozenset[str]) -> Iterator[str]:
    if not source.path.startswith("tests/") or source.path in SKIPPING:
        return
    for line, name in references(source):
        for banned, advice in BANNED_IN_TESTS.items():
            if name == banned or name.startswith(f"{banned}."):
                yield f"{source.path}:{line}: {banned}: {advice}"


class Rule(NamedTuple):
    """A check, and sources that break it; each planted source must give at least one problem."""

    check: Callable[[Source, frozenset[str]], Iterator[str]]
    planted: tuple[Source, ...]


def plant(path: str, *texts: str) -> tuple[Source, ...]:
    return tuple(Source(path, text) for text in texts)


HEAD = '"""A file. Rules of this file: none."""\n'
LONG_FUNCTION = "def f() -> None:\n" + "    x = 1\n" * FUNCTION_LINES_MAX

RULES = (
    Rule(
        check_import_direction,
        plant("store/a.py", "import standfast.replication.log", "def f():\n    from standfast.stream import app")
        + plant(
            "replication/a.py", "from standfast import restore", "import standfast", "from standfast import Session"
        )
        + plant("stream/a.py", "from standfast.store import KeyValueStore", "import standfast.ops.cli"),
    ),
    Rule(
        check_names_of_modules,
        plant("stream/a.py", "import_module('standfast.ops.http.server')", "HOME = 'standfast.ops.cli:main'"),
    ),
    Rule(
        check_absolute_imports,
        plant("store/a.py", "from . import names", "from .names import check_name", "from .. import store")
        + plant("tests/a.py", "import store.names", "from replication import log"),
    ),
    Rule(
        check_purity,
        plant("restore/plan.py", "import os", "from pathlib import Path", "import threading", "import rocksdict")
        + plant("restore/plan.py", "from standfast.store.clock import Clock", "f = open('x')", "import time"),
    ),
    Rule(
        check_library_homes,
        plant(
            "store/memory.py", "import rocksdict", "from rocksdict import Rdict", "import sqlite3", "import unheard_of"
        )
        + plant("replication/embedded/log.py", "from confluent_kafka import Consumer", "import sqlite3\nimport msgpack")
        + plant("ops/command/command_line.py", "import prometheus_client", "def f():\n    import pyspark.sql"),
    ),
    Rule(
        check_clock,
        plant("store/a.py", "import time\ntime.time()", "import time as t\nt.sleep(1)", "from time import monotonic_ns")
        + plant("ops/a.py", "from datetime import datetime\ndatetime.now()", "import datetime\ndatetime.date.today()")
        + plant("stream/a.py", "import time\nf = time.perf_counter", "from time import sleep as nap\nnap(1)"),
    ),
    Rule(check_header, plant("store/a.py", "x = 1", '"""What it is."""') + plant("tests/a.py", "x = 1")),
    Rule(check_sizes, plant("tests/a.py", "x = 1\n" * (FILE_LINES_MAX + 1), LONG_FUNCTION, f"async {LONG_FUNCTION}")),
    Rule(
        check_banned,
        plant("store/a.py", "import pickle", "from marshal import loads", "eval('1')", "yaml.load(f)", "print('x')")
        + plant("store/rocks/engine.py", "Options()", "rocksdict.Options(raw_mode=False)", "o = Options(other=True)")
        + plant("ops/a.py", "subprocess.run('ls', shell=True)", "os.system('ls')"),
    ),
    Rule(check_init_holds_no_logic, plant("store/__init__.py", f"{HEAD}x = 1", f"{HEAD}def f() -> None: ...")),
    Rule(
        check_tests,
        plant("tests/a.py", "from unittest import mock", "from unittest.mock import patch")
        + plant(
            "tests/a.py",
            "import pytest\npytest.skip('x')",
            "import pytest\n@pytest.mark.skipif(True, reason='')\ndef test_a(): ...",
        ),
    ),
)
RULE_NAMES = [rule.check.__name__.removeprefix("check_") for rule in RULES]


@pytest.mark.parametrize("rule", RULES, ids=RULE_NAMES)
def test_repository_keeps_the_rule(rule: Rule, sources: list[Source]) -> None:
    paths = frozenset(source.path for source in sources)
    problems = [problem for source in sources for problem in rule.check(source, paths)]
    assert not problems, "\n" + "\n".join(problems)


PLANTED = [
    pytest.param(rule, source, id=name) for rule, name in zip(RULES, RULE_NAMES, strict=True) for source in rule.planted
]


@pytest.mark.parametrize(("rule", "source"), PLANTED)
def test_rule_finds_a_planted_violation(rule: Rule, source: Source) -> None:
    assert list(rule.check(source, frozenset({"store/names.py", source.path}))), source.text


def test_every_listed_pure_module_exists(repo_files: list[str]) -> None:
    missing = sorted((PURE | PLAIN | {CLOCK_FILE}) - set(repo_files))
    assert not missing, f"listed in test_tidy.py but not on disk: {missing}"


def test_a_good_module_breaks_no_rule() -> None:
    text = f"{HEAD}from standfast.store import names\nfrom standfast.store.names import check_name\nimport struct\n"
    paths = frozenset({"store/names.py", "restore/plan.py"})
    good = Source("restore/plan.py", text)
    assert [problem for rule in RULES for problem in rule.check(good, paths)] == []
    options = Source("store/rocks/engine.py", f"{HEAD}import rocksdict\nrocksdict.Options(raw_mode=True)\n")
    assert [problem for rule in RULES for problem in rule.check(options, paths)] == []
