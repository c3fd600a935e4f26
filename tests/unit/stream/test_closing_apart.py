"""Stores that are closed in a thread of their own."""

from __future__ import annotations

import logging
import threading

import pytest

from standfast.replication.offsets import TaskId
from standfast.stream.task.closing import Closings


def test_stores_are_closed_one_after_the_other_while_their_owner_goes_on_and_join_waits_for_all(
    caplog: pytest.LogCaptureFixture,
) -> None:
    closings, go = Closings(), threading.Event()
    closed: list[str] = []

    def waits() -> None:
        go.wait()

    def fails() -> None:
        raise OSError("no such device")

    with caplog.at_level(logging.ERROR, "standfast"):
        closings.add(TaskId(0, 0), waits)
        closings.add(TaskId(0, 1), fails)
        closings.add(TaskId(0, 2), lambda: closed.append(threading.current_thread().name))
        assert closed == []
        go.set()
        closings.join()
    assert closed == ["standfast-closing"]
    assert [record.getMessage() for record in caplog.records] == ["task 0_1: closing its stores failed: no such device"]
    closings.add(TaskId(0, 3), lambda: closed.append("again"))
    closings.join()
    assert closed[1:] == ["again"]
