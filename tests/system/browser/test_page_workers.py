"""The page of an application with two workers in Debian's Chromium, at the width of a desk and of a telephone."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect

from support.groups import costly
from support.workers import Served

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("browser"), pytest.mark.timeout(240)]


@pytest.fixture(scope="module")
@costly()
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with closing(Served(tmp_path_factory.mktemp("served"), tasks=4)) as made:
        made.start()
        made.feed(120)
        made.await_rows()
        yield made
        made.end()


@pytest.mark.parametrize("width", [1_300, 400])
def test_page_of_an_application_with_two_workers_shows_them_and_their_tasks(
    served: Served, tab: Page, width: int
) -> None:
    tab.set_viewport_size({"width": width, "height": 900})
    tab.goto(served.address)
    expect(tab.locator("#verdict")).to_contain_text("READY 4 active")
    for number in (1, 2):
        row = tab.locator(f'tbody[data-table="workers"] tr[data-key="{number}"]')
        expect(row).to_contain_text("running")
    expect(tab.locator('tbody[data-table="tasks"] tr')).to_have_count(4)
    # A table that is wider than the page moves by itself; the page does not.
    assert tab.evaluate("document.documentElement.scrollWidth") <= width


def test_page_follows_a_worker_that_is_silent_and_one_that_is_killed(served: Served, tab: Page) -> None:
    tab.goto(served.address)
    served.hold(0, 4_000)
    expect(tab.locator("#verdict")).to_contain_text("has not answered for")
    expect(tab.locator('tbody[data-table="workers"]')).to_contain_text("silent")
    expect(tab.locator("#verdict")).to_contain_text("READY 4 active")
    pid = served.pids()[1]
    os.kill(pid, signal.SIGKILL)
    row = tab.locator('tbody[data-table="workers"] tr[data-key="2"]')
    expect(row).not_to_contain_text(str(pid))
    expect(tab.locator("#verdict")).to_contain_text("READY 4 active")
