"""Counters of stores over the processes that had them: they never fall, whichever process has the task."""

from __future__ import annotations

from dataclasses import replace

import pytest

from standfast.ops.observe.store_totals import StoreTotals
from standfast.restore.replay.bulk import BulkStatistics
from standfast.stream.task.statistics import SessionCounters, SessionStatistics, StoreStatistics, TaskStatistics

STORE = StoreStatistics("kv", "keyvalue", 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, {"put": 0, "get": 0}, 0, 0, 0, 0, 0, 0)


def task(puts: int, logged: int = 0, stalled_ms: int = 0) -> TaskStatistics:
    store = replace(STORE, ops={"put": puts, "get": 0}, logged_records=logged)
    return TaskStatistics("0_0", 0, "active", "running", 0, "", 0, {}, {}, (store,), write_stall_ms=stalled_ms)


def of(*tasks: TaskStatistics) -> SessionStatistics:
    return SessionStatistics("app", "a", True, (), (), 0, tasks, (), SessionCounters(), BulkStatistics())


def puts(totals: StoreTotals, shown: TaskStatistics) -> int:
    (found,) = totals.totals([shown])
    return found.stores[0].ops["put"]


def test_counters_of_a_task_that_moves_are_those_of_both_processes() -> None:
    totals = StoreTotals()
    totals.take("1", of(task(10, logged=5, stalled_ms=7)))
    assert puts(totals, task(10)) == 10
    totals.take("2", of(task(3, logged=1)))
    assert puts(totals, task(3)) == 13, "the document of the first worker is older than the move"
    totals.take("1", of())
    (found,) = totals.totals([task(3, logged=1)])
    assert (found.stores[0].ops["put"], found.stores[0].logged_records, found.write_stall_ms) == (13, 6, 7)


def test_counters_of_a_task_that_is_opened_again_in_the_same_process_go_on() -> None:
    totals = StoreTotals()
    totals.take("1", of(task(10)))
    totals.take("1", of(task(2)))
    assert puts(totals, task(2)) == 12
    totals.take("1", of(task(4)))
    assert puts(totals, task(4)) == 14


@pytest.mark.parametrize("again", [1, 2])
def test_counters_of_a_process_that_has_ended_stay(again: int) -> None:
    totals = StoreTotals()
    totals.take("1", of(task(10)))
    for _ in range(again):
        totals.gone("1")
    totals.take("2", of(task(1)))
    assert puts(totals, task(1)) == 11
    assert puts(totals, replace(task(1), task="0_0", stores=task(1).stores)) == 11


def test_task_without_a_document_keeps_its_counters_for_later() -> None:
    totals = StoreTotals()
    totals.take("1", of(task(10)))
    totals.gone("1")
    assert totals.totals([]) == ()
    assert puts(totals, task(0)) == 10
