"""The repository checks itself: sources outside of a session, and changes of files, in few files.

    ids, random numbers, process, host, variables    store/outside.py
    time                                             store/clock.py (readings: test_tidy.py), given as a `Clock`
    files of the state directory                     store/files.py; free bytes of its disk store/file_errors.py

Rules of this file: as in `test_tidy.py`. A simulation replaces the functions of these files; a call past them
is outside of its world. EXCEPTIONS lists the files that may, with reasons; an exception without need is a problem.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator, Mapping

import pytest
from repo.test_tidy import Source, plant, references

pytestmark = pytest.mark.xdist_group("sources")  # one process parses the sources once

ROOMS = {"store", "replication", "restore", "stream"}  # the rooms of a session
OUTSIDE, CLOCK, FILES, SPACE = "store/outside.py", "store/clock.py", "store/files.py", "store/file_errors.py"

DRAWN = ("uuid", "secrets", "random", "os.urandom", "os.getpid", "os.environ", "os.environb", "os.getenv", "os.getppid",
         "os.uname", "socket.gethostname", "socket.getfqdn", "platform.node", "os.statvfs",
         "shutil.disk_usage",
         "standfast.store.clock.SystemClock")  # fmt: skip
CHANGES = {
    "shutil": {"rmtree", "copyfile", "copy", "copy2", "copytree", "move", "chown", "copyfileobj"},
    "fcntl": {"flock", "lockf"},
    "os": {"replace", "rename", "unlink", "remove", "rmdir", "mkdir", "makedirs", "link", "symlink", "truncate",
           "ftruncate", "fsync", "fdatasync", "chmod", "fchmod", "chown", "utime", "mkfifo"},
}  # fmt: skip
CALLS = frozenset(f"{module}.{name}" for module, names in CHANGES.items() for name in names)
METHODS = {"write_text", "write_bytes", "unlink", "mkdir", "rmdir", "touch", "symlink_to", "hardlink_to", "chmod"}
METHODS |= {"rename"}
WRITING = {"O_CREAT", "O_WRONLY", "O_RDWR", "O_TRUNC", "O_APPEND"}
MODE = re.compile("[rbt]*[wxa+][bt+]*")  # of a file that is opened for writing
# To parse and walk every file takes long, and most name nothing of all that.
MAYBE = re.compile(
    r"uuid|secrets|random|urandom|getpid|getppid|environ|getenv|gethostname|getfqdn|uname|platform|SystemClock|shutil|statvfs|"
    r"fcntl|fsync|fdatasync|truncate|\bos\.\w|open\(|\.replace\(|\.(?:" + "|".join(sorted(METHODS)) + r")\("
)

DRAWS = "draws"
FILE_CHANGES = "changes of files"
LOG_FILE = "the embedded log's own files: a simulation stands in for the log as a whole"
KAFKA = "clients of a broker wait in real time: a simulation stands in for the log as a whole"
SPARK = "jobs of Spark and its files, which no session runs"
CHILD = "a child process, its start and its pipes: a simulation has no process"
GIVEN = "the clock of a caller that gives none"
FAILPOINT = "ends this very process where a test of crashes says so"
LOGGER = "the lines of this process for people, and their file"

# Files that may go past them: (path, or a folder with its "/"; which rule) -> why.
EXCEPTIONS: Mapping[tuple[str, str], str] = {
    ("replication/embedded/", DRAWS): LOG_FILE,
    ("replication/embedded/", FILE_CHANGES): LOG_FILE,
    ("replication/kafka/", DRAWS): KAFKA,
    ("replication/lease/", DRAWS): CHILD,
    ("replication/progress.py", FILE_CHANGES): "memory that a child process shares",
    ("replication/tail/tailer.py", DRAWS): GIVEN,
    ("restore/replay/restorer.py", DRAWS): GIVEN,
    ("restore/snapshot/at_point.py", FILE_CHANGES): "the folder above a restored state directory, made by a command",
    ("restore/spark/", DRAWS): SPARK,
    ("restore/spark/", FILE_CHANGES): SPARK,
    ("restore/spark_table/", DRAWS): SPARK,
    ("restore/spark_table/", FILE_CHANGES): SPARK,
    ("store/failpoint.py", DRAWS): FAILPOINT,
    ("store/log.py", DRAWS): LOGGER,
    ("store/log.py", FILE_CHANGES): LOGGER,
    ("store/process/child.py", DRAWS): CHILD,
    ("store/process/interrupts.py", DRAWS): "waits of threads for each other, which take real time under any clock",
    ("store/process/parent.py", DRAWS): CHILD,
    ("store/process/program.py", DRAWS): CHILD,
    ("store/rocks/files.py", FILE_CHANGES): "a scratch folder of links, in which RocksDB reads a closed database",
    ("stream/app/app.py", DRAWS): GIVEN,
    ("stream/app/testing.py", FILE_CHANGES): "the folder of a test driver, which its end removes",
    ("stream/session/lease.py", DRAWS): "asks whether the clock is the machine's: only then has the lease a process",
    ("stream/session/host.py", DRAWS): GIVEN,
    ("stream/topology/metadata_room.py", DRAWS): "numbers of a fixed seed",
}


def check_draws(source: Source) -> Iterator[str]:
    """Uses of the outside, beside the files that draw from it."""
    if source.path in (OUTSIDE, CLOCK, SPACE) or not MAYBE.search(source.text):
        return
    for line, name in references(source):
        if any(name == one or name.startswith(f"{one}.") for one in DRAWN):
            yield f"{source.path}:{line}: {name} draws from outside; ask {OUTSIDE}, or take a Clock ({CLOCK})"


def check_file_changes(source: Source) -> Iterator[str]:
    """Changes of files beside the file that makes them."""
    if source.path == FILES or not MAYBE.search(source.text):
        return
    lines = {line for line, name in references(source) if name in CALLS}
    lines |= {node.lineno for node in source.nodes if isinstance(node, ast.Call) and _changes(node)}
    for line in sorted(lines):
        yield f"{source.path}:{line}: changes a file; a simulation hears of changes by {FILES} alone"


def _changes(call: ast.Call) -> bool:
    """Whether a call of a method of a path, or of `open`, changes a file."""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else ""
    if ast.unparse(call.func) == "os.open":
        return any(isinstance(node, ast.Attribute) and node.attr in WRITING for node in ast.walk(call))
    if name == "open" or ast.unparse(call.func) == "open":
        given = [*call.args, *(keyword.value for keyword in call.keywords if keyword.arg == "mode")]
        return any(isinstance(one, ast.Constant) and MODE.fullmatch(str(one.value)) for one in given)
    if name == "replace":  # of a path; text is replaced by two arguments, values of data classes by keywords
        return len(call.args) == 1 and not call.keywords
    return name in METHODS and ast.unparse(call.func).rpartition(".")[0] != "files"


CHECKS = {DRAWS: check_draws, FILE_CHANGES: check_file_changes}


def check_outside(sources: Collection[Source], rule: str, excepted: Collection[tuple[str, str]]) -> Iterator[str]:
    """Problems of one rule in the rooms of a session, and exceptions from it that nothing needs."""
    own = [place for place, of in excepted if of == rule]
    needed = set()
    for source in sources:
        found = list(CHECKS[rule](source)) if source.room in ROOMS else []
        within = [one for one in own if source.path == one or (one.endswith("/") and source.path.startswith(one))]
        needed |= set(within) if found else set()
        yield from () if within else found
    for place in own:
        if place not in needed:
            yield f"{place}: needs no exception for {rule} any more: take it out of EXCEPTIONS"


@pytest.mark.parametrize("rule", CHECKS)
def test_a_session_reaches_the_outside_by_few_files(rule: str, sources: list[Source]) -> None:
    problems = list(check_outside(sources, rule, EXCEPTIONS))
    assert not problems, "\n" + "\n".join(problems)


PLANTED = {
    DRAWS: plant(
        "stream/a.py",
        "import uuid\nuuid.uuid4()",
        "from secrets import token_hex\ntoken_hex(8)",
        "import random as r\nr.random()",
        "import os\nos.environ['A']",
        "from os import getpid",
        "import socket\nsocket.gethostname()",
        "from standfast.store.clock import SystemClock\nSystemClock()",
    ),
    FILE_CHANGES: plant(
        "stream/a.py",
        "path.write_text('')",
        "path.rename(other)",
        "path.replace(other)",
        "path.unlink(missing_ok=True)",
        "(path / 'a').mkdir()",
        "path.open('xb')",
        "open(path, mode='r+b')",
        "import os\nos.open(path, os.O_RDWR | os.O_CREAT)",
        "import os\nos.fsync(3)",
        "from shutil import rmtree\nrmtree(path)",
        "import fcntl\nfcntl.flock(3, fcntl.LOCK_EX)",
    ),
}
GOOD = {
    DRAWS: "from standfast.store.clock import Clock, real_clock\n"
    "from standfast.store.outside import new_id\nnew_id('a', 8)",
    FILE_CHANGES: "from standfast.store import files\nfiles.rename(a, b)\n'a'.replace('a', 'b')\npath.open('rb')\n"
    "at.replace(tzinfo=None)\nimport os\nos.open(path, os.O_RDONLY)\nopen(path, 'r')",
}


@pytest.mark.parametrize(("rule", "source"), [(rule, one) for rule, planted in PLANTED.items() for one in planted])
def test_a_way_around_is_found(rule: str, source: Source) -> None:
    assert list(check_outside([source], rule, ()))


@pytest.mark.parametrize("rule", GOOD)
def test_a_file_that_asks_the_ports_breaks_no_rule(rule: str) -> None:
    assert list(check_outside(plant("stream/a.py", GOOD[rule]), rule, ())) == []
    assert list(check_outside(plant("ops/a.py", PLANTED[rule][0].text), rule, ())) == []


@pytest.mark.parametrize("rule", CHECKS)
def test_an_exception_that_nothing_needs_is_found(rule: str) -> None:
    bad, good = PLANTED[rule][0], Source("stream/b.py", "x = 1\n")
    assert list(check_outside([bad], rule, [("stream/", rule)])) == []
    assert list(check_outside([bad, good], rule, [("stream/a.py", rule)])) == []
    assert list(check_outside([good], rule, [("stream/b.py", rule)]))
