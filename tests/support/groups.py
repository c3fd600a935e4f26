"""Groups of tests that `make test` runs in one process: tests that share a costly fixture, started once.

    @pytest.fixture(scope="session")
    @costly("spark")               tests that use the fixture go to one process, whatever their file
    @pytest.fixture(scope="module")
    @costly()                      tests of one file that use it go to one process
    pytest.mark.xdist_group(name)  files that share something else, as parsed sources, go to one process

    each process   writes the groups of its collected tests ──> a file named by the run
    xdist          reads it once all have collected, and schedules whole groups, costly ones first; quick tests of a
                   file go by QUICK, others one by one

Rules of this file: a group is that of a costly fixture for many files, else a mark's, else a file's. xdist's own way to
group writes into the ids of tests, which pytest from 9.2 on forbids; no test would fail then, but each process would
start every costly fixture. Here a run without groups is an error.
"""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import pytest

from support.needs import fetch_ahead, needed_ahead

# A test with two of them belongs to the first, since a session of Spark costs more than a broker. A test that starts a
# broker or a Spark of its own has the mark without the fixture.
SHARED = ("spark", "kafka", "packaging")
OF_A_FILE = ""
# So many tests that are not marked slow are one step of the schedule. One by one, a process would wait after each two
# of them, which take milliseconds, until the process that schedules has had a turn on a busy machine.
QUICK = 20
_GROUP = "standfast_costly_group"

F = TypeVar("F", bound=Callable[..., Any])


def costly(group: str = OF_A_FILE) -> Callable[[F], F]:
    """Mark a fixture as costly; stands below `@pytest.fixture`. Without a group it is shared within its file."""

    def mark(function: F) -> F:
        setattr(function, _GROUP, group)
        return function

    return mark


def _costly_groups(item: pytest.Item) -> list[str]:
    """Groups of the costly fixtures that a test uses."""
    definitions: dict[str, Any] = getattr(getattr(item, "_fixtureinfo", None), "name2fixturedefs", {})
    functions = (one.func for found in definitions.values() for one in found)
    return [group for function in functions if (group := getattr(function, _GROUP, None)) is not None]


def group_of(item: pytest.Item) -> str | None:
    """The group of a test, None if it may run anywhere. Tests on a broker wait more than they compute, so two processes
    have one each: `pytest.mark.kafka(2)` names the second."""
    groups = _costly_groups(item)
    shared = next((name for name in SHARED if name in groups), None)
    named = item.get_closest_marker("xdist_group")
    if shared is None and named is not None:
        return str(named.args[0])
    if shared is None and groups:
        return item.nodeid.partition("::")[0]
    shared = shared or next((name for name in SHARED if item.get_closest_marker(name)), None)
    mark = item.get_closest_marker("kafka") if shared == "kafka" else None
    return f"kafka-{mark.args[0]}" if mark is not None and mark.args else shared


def scopes_of(items: Iterable[pytest.Item]) -> dict[str, str]:
    """The scope in the schedule of each test that is not scheduled by itself: its group, or its share of a file."""
    scopes: dict[str, str] = {}
    quick: Counter[str] = Counter()
    for item in items:
        scope = group_of(item)
        if scope is None and item.get_closest_marker("slow") is None:
            file = item.nodeid.partition("::")[0]
            scope = f"{file} {quick[file] // QUICK}"
            quick[file] += 1
        if scope is not None:
            scopes[item.nodeid] = scope
    return scopes


def _groups_file(run: str) -> Path:
    return Path(tempfile.gettempdir()) / f"standfast-test-groups-{run}.json"


@pytest.hookimpl(tryfirst=True)  # before xdist reports that this process has collected
def pytest_collection_finish(session: pytest.Session) -> None:
    """In the first process of a run, write the scopes to the file, and the programs to begin with."""
    worker: dict[str, Any] = getattr(session.config, "workerinput", {})
    if worker.get("workerid") == "gw0":
        text = json.dumps({"groups": scopes_of(session.items), "ahead": needed_ahead(session.items)})
        _groups_file(worker["testrunuid"]).write_text(text, encoding="utf-8")


RUN = pytest.StashKey[str]()


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Before a process starts, give it the run's id; keep it here, too."""
    node.config.stash[RUN] = node.workerinput["testrunuid"]


def _take_groups(config: pytest.Config) -> dict[str, str]:
    """The groups that the first process wrote; all have collected by now. Programs that take long are begun with."""
    path = _groups_file(config.stash[RUN])
    found = json.loads(path.read_text(encoding="utf-8"))
    path.unlink()
    fetch_ahead(config, found["ahead"])
    groups: dict[str, str] = found["groups"]
    return groups


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """In the process that schedules the tests."""
    if config.getvalue("dist") != "loadgroup":
        return None
    from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

    class ByGroup(LoadScopeScheduling):  # type: ignore[misc]
        """Whole groups, those of many tests first, then test by test."""

        @cached_property
        def groups(self) -> dict[str, str]:
            return _take_groups(config)

        def _split_scope(self, nodeid: str) -> str:
            return self.groups.get(nodeid, nodeid)

        def remove_node(self, node: Any) -> str | None:
            """Give the unfinished groups of a process that ended to others, but for the test that ended it.

            xdist 3.8 gives its finished groups away, too, and a process that gets one waits for its next test for ever.
            """
            groups = {scope: tests for scope, tests in self.assigned_work.pop(node).items() if not all(tests.values())}
            if not groups:
                return None
            tests = next(iter(groups.values()))
            ended = next(name for name, done in tests.items() if not done)
            tests[ended] = True
            self.workqueue.update({scope: tests for scope, tests in groups.items() if not all(tests.values())})
            self.schedule()
            return ended

        def schedule(self) -> None:
            """As xdist's; a process that comes later begins with two groups, as the first ones do: it runs a test when
            it knows its next."""
            again = self.collection is not None
            super().schedule()
            if again:
                super().schedule()

    return ByGroup(config, log)
