"""Work side by side: order, budget, errors. No Spark; threads meet at events.

Rules of this file: a thread waits for another thread's step, never for a time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from standfast.restore.spark.side_by_side import Work, side_by_side
from standfast.store.errors import StateLost, Unavailable

WAIT_S = 60


def run(
    works: list[Work[str]], told: list[str] | None = None, *, budget: int = 4, at_once: int | None = None
) -> list[str]:
    said: list[str] = [] if told is None else told
    return side_by_side(works, budget=budget, at_once=at_once, tell=said.append)


def test_results_are_in_order_whichever_ends_first_and_two_run_at_once() -> None:
    second = threading.Event()

    def first_work() -> str:
        assert second.wait(WAIT_S)  # only if both are under way
        return "first"

    def second_work() -> str:
        second.set()
        return "second"

    assert run([Work("a", 2, first_work), Work("b", 2, second_work)]) == ["first", "second"]


@pytest.mark.parametrize(
    ("tasks", "at_once", "most"),
    [([2, 2, 2, 2], None, 2), ([9, 9, 1], None, 1), ([1, 1, 1], 1, 1), ([9, 9, 9], 3, 3)],
)
def test_no_more_begin_than_the_budget_allows(tasks: list[int], at_once: int | None, most: int) -> None:
    lock, running, seen, begun = threading.Lock(), set[int](), list[int](), list[int]()
    met = threading.Barrier(most) if len(tasks) % most == 0 else None

    def work(number: int) -> Callable[[], str]:
        def do() -> str:
            with lock:
                running.add(number)
                seen.append(sum(1 for _ in running))
            if met is not None:
                met.wait(WAIT_S)  # so many are under way at once
            with lock:
                running.discard(number)
            return str(number)

        return do

    works = [
        Work(str(number), size, work(number), lambda number=number: begun.append(number))  # type: ignore[misc]
        for number, size in enumerate(tasks)
    ]
    assert run(works, at_once=at_once) == [str(number) for number in range(len(tasks))]
    assert begun == list(range(len(tasks)))
    assert max(seen) <= most


def test_error_lets_what_is_under_way_end_begins_nothing_else_and_all_errors_are_told() -> None:
    failed, ended, told = threading.Event(), list[str](), list[str]()

    def slow() -> str:
        assert failed.wait(WAIT_S)
        ended.append("a")
        return "a"

    def fails(error: Exception) -> Callable[[], str]:
        def do() -> str:
            failed.set()
            raise error

        return do

    works = [
        Work("a", 1, slow),
        Work("b", 1, fails(StateLost("gone", reason="truncated"))),
        Work("c", 2, fails(Unavailable("no answer"))),
        Work("d", 4, lambda: "never"),
    ]
    with pytest.raises(StateLost, match="gone"):
        run(works, told)
    assert ended == ["a"]
    assert told == ["c failed, too: no answer", "not started: d"]


def test_interrupted_caller_cancels_what_is_under_way() -> None:
    cancelled = threading.Event()

    def until_cancelled() -> str:
        assert cancelled.wait(WAIT_S)
        raise Unavailable("cancelled")

    def interrupted() -> None:
        raise KeyboardInterrupt

    works = [Work("a", 1, until_cancelled), Work("b", 1, lambda: "b", interrupted)]
    with pytest.raises(KeyboardInterrupt):
        side_by_side(works, budget=4, tell=print, cancel=cancelled.set)
