"""Which tests of `make test` go to the same process: those that share something dear, started once in a process.

    each process   tells the groups of what it collected     ──> a file named by the run
    xdist          reads it once all have collected, and hands out whole groups, dear ones first; other tests one by one

Rules of this file: a group is a mark, or a file. xdist's own way to group writes into the ids of tests, which pytest
from 9.2 on does not let it; nothing would fail then, but everything dear would be started in each process. Here a run
without groups is an error.
"""

from __future__ import annotations

import json
import tempfile
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

# Who has two of the marks goes by the first, since a session of Spark costs more than a broker.
SHARED = ("spark", "kafka", "packaging")
# Tests on a broker wait more than they compute: two processes have one each. These files are about half of the work.
SECOND_BROKER = {
    "test_crash_kafka.py",
    "test_kafka_log.py",
    "test_kafka_streams.py",
    "test_own_loop_examples.py",
    "test_source_changelog_kafka.py",
}
# Files that start something dear once for all of their tests, and need nothing of other files.
TOGETHER = {
    "test_broker_fetch.py",
    "test_cli.py",
    "test_control.py",
    "test_demo_board.py",
    "test_demo_run.py",
    "test_demo_scenarios.py",
    "test_demo_scenarios_replication.py",
    "test_http.py",
    "test_kafka_broker_down.py",
    "test_page_browser.py",
    "test_tidy.py",
    "test_tidy_lists.py",
}


def group_of(item: pytest.Item) -> str | None:
    """The group of a test, None if it may run anywhere."""
    if item.path.name in TOGETHER:
        return item.path.name
    mark = next((mark for mark in SHARED if item.get_closest_marker(mark)), None)
    return "kafka-2" if mark == "kafka" and item.path.name in SECOND_BROKER else mark


def _groups_file(run: str) -> Path:
    return Path(tempfile.gettempdir()) / f"standfast-test-groups-{run}.json"


@pytest.hookimpl(tryfirst=True)  # before xdist tells that this process has collected
def pytest_collection_finish(session: pytest.Session) -> None:
    """In the first process of a run."""
    worker: dict[str, Any] = getattr(session.config, "workerinput", {})
    if worker.get("workerid") == "gw0":
        groups = {item.nodeid: group for item in session.items if (group := group_of(item))}
        _groups_file(worker["testrunuid"]).write_text(json.dumps(groups), encoding="utf-8")


RUN = pytest.StashKey[str]()


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Before a process is started: it is told the run's id, and so are we."""
    node.config.stash[RUN] = node.workerinput["testrunuid"]


def _take_groups(config: pytest.Config) -> dict[str, str]:
    """What the first process wrote; all have collected by now."""
    path = _groups_file(config.stash[RUN])
    groups: dict[str, str] = json.loads(path.read_text(encoding="utf-8"))
    path.unlink()
    return groups


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """In the process that hands the tests out."""
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

    return ByGroup(config, log)
