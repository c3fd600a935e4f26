"""Fixtures for all tests: hypothesis profiles, a clock, the repository's own files.

Rules of this file: fixtures only, each of a few lines; parts under test are the real ones.
"""

from __future__ import annotations

import gc
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from standfast.store.clock import ManualClock

# Found by file, not by name: tests have no package.
_TESTS = Path(__file__).resolve().parent
sys.path[:0] = [str(_TESTS), str(_TESTS.parent / "proof")]
pytest_plugins = [
    "support.serve",
    *(
        "support.needs",
        "support.groups",
        "support.tiers",
        "support.rewriting",
        "support.embedded",
        "support.kafka",
        "support.java",
        "support.sessions",
        "support.stores",
        "support.apps",
        "support.bulk",
        "support.spark",
        "support.tls",
        "support.resp",
        "support.disk",
        "support.clients",
        "support.storages.fixtures",
        "support.promtool",
        "support.page",
        "support.lease",
    ),
]

ROOT = Path(__file__).resolve().parent.parent
MEMORY = Path("/dev/shm")  # a file system in memory, on Linux
MEMORY_FREE_MIN = 6 << 30
NOT_OURS = (".git", ".venv", "build", "dist", "*.egg-info", "__pycache__", ".*_cache", ".hypothesis")

# A shell starts its background jobs with SIGINT ignored, which processes of tests would inherit: a test of an interrupt
# would see none. Python's handler is not inherited: a child has the default.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The same examples every time, so that a failure repeats on every machine. No deadline: the machine may be busy.
settings.register_profile(
    "default", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
settings.register_profile(
    "thorough", parent=settings.get_profile("default"), derandomize=False, max_examples=1_000, print_blob=True
)
settings.load_profile(os.environ.get("STANDFAST_HYPOTHESIS_PROFILE", "default"))


def pytest_configure() -> None:
    """Keep the files of tests in memory where there is room: a run would wait for a disk some 250,000 times."""
    gc.disable()  # until the tests are collected: all that is made by then lives to the end
    # A killed process loses nothing there either. `make crash` names a disk, whose delays are chances for kills.
    if "TMPDIR" in os.environ or not MEMORY.is_dir() or shutil.disk_usage(MEMORY).free < MEMORY_FREE_MIN:
        return
    if not os.statvfs(MEMORY).f_flag & os.ST_NOEXEC:  # some tests install programs
        os.environ["TMPDIR"] = tempfile.tempdir = str(MEMORY)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("spark"):  # Spark's client leaves sockets to the garbage collector
            item.add_marker(pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"))


def pytest_collection_finish() -> None:
    """Take the collected tests out of the garbage collector: they live to the end, and a collection took seconds."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture
def earlier_objects_stay() -> Iterator[None]:
    """Keep the garbage collector from all objects of earlier tests in this process, up to a gigabyte, for tests that
    collect, or whose forked children do."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture
def clock() -> ManualClock:
    """A clock at 2013-01-01T00:00:00Z that only the test moves."""
    return ManualClock(1_356_998_400_000)


@pytest.fixture(scope="session")
def repo_root() -> Path:
    """The checkout."""
    return ROOT


def _listed_by_git() -> list[str] | None:
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        listing = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None  # no git, or a copy that is not a checkout
    return [name for name in listing.stdout.split("\0") if name]


@pytest.fixture(scope="session")
def repo_files() -> list[str]:
    """Relative paths of the repository's files: tracked, or new and not ignored; without `.typing`."""
    names = _listed_by_git()
    if names is None:
        found = (path.relative_to(ROOT) for path in ROOT.rglob("*"))
        names = [
            str(path) for path in found if not any(fnmatch(part, skip) for part in path.parts for skip in NOT_OURS)
        ]
    return sorted(name for name in names if (ROOT / name).is_file() and not name.startswith(".typing/"))
