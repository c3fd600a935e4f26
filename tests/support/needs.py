"""Programs that are fetched or compiled for tests, at the latest right before the first test that needs them.

    @needed_as("kafka_files")            a test that requests this fixture needs it
    def fetch_kafka(config, say):        called once a process, outside any test's time limit
    @needed_as("s3_server", ahead=True)  takes long: the process that schedules the tests begins with it at once

    scheduling process   s3_server: compiles ───────────────────┐
    process 1            kafka_files: fetches ──> its tests ──> │ ...
    others               tests that need neither ─────────────> └──> tests of s3_server ──> ...

Rules of this file: it knows no program. A program that several processes need at once is fetched by one of them, under
a lock of the program (`fetching`), and only the tests that need it wait.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from threading import Thread
from typing import Any

import pytest

from standfast.ops.tools.cache import Say

Fetch = Callable[[pytest.Config, Say], None]

FETCHED = pytest.StashKey[set[str]]()
AHEAD = pytest.StashKey[Thread]()  # in the scheduling process
_FETCHES: dict[str, Fetch] = {}
_TAKE_LONG: list[str] = []


def needed_as(fixture: str, *, ahead: bool = False) -> Callable[[Fetch], Fetch]:
    """Register the function that fetches for this fixture; functions run in the order of their registration."""

    def register(fetch: Fetch) -> Fetch:
        _FETCHES[fixture] = fetch
        if ahead:
            _TAKE_LONG.append(fixture)
        return fetch

    return register


def needs(item: pytest.Item) -> list[str]:
    """The fixtures with programs that a test requests, by its arguments or as a parameter with that name."""
    if not isinstance(item, pytest.Function):
        return []
    requested: set[object] = {*item.fixturenames}
    if hasattr(item, "callspec"):
        requested |= {one for one in item.callspec.params.values() if isinstance(one, str)}
    return [name for name in _FETCHES if name in requested]


def needed_ahead(items: Iterable[pytest.Item]) -> list[str]:
    """The fixtures with programs that take long, of all these tests."""
    found = {name for item in items for name in needs(item)}
    return [name for name in _TAKE_LONG if name in found]


def fetch_ahead(config: pytest.Config, names: Sequence[str]) -> None:
    """In the scheduling process, begin to fetch; a failure is each test process's own to find and to report."""

    def fetch() -> None:
        for name in names:
            _FETCHES[name](config, _sayer(config))

    config.stash[AHEAD] = thread = Thread(target=fetch, name="fetch ahead")
    thread.start()


def pytest_unconfigure(config: pytest.Config) -> None:
    """Wait for a fetch that is under way, so that it leaves nothing half made."""
    if (thread := config.stash.get(AHEAD, None)) is not None:
        thread.join()


# Around the limit of pytest-timeout, which is a wrapper of the same hook.
@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Fetch the programs of a test before it begins."""
    done = item.config.stash.setdefault(FETCHED, set())
    for name in needs(item):
        if name not in done:
            _FETCHES[name](item.config, _sayer(item.config))
            done.add(name)
    return (yield)


def _sayer(config: pytest.Config) -> Say:
    capture: Any = config.pluginmanager.getplugin("capturemanager")

    def say(text: str) -> None:
        with capture.global_and_fixture_disabled():
            print(f"\n==> setup: {text}", flush=True)

    return say
