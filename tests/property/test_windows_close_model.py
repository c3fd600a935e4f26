"""Windows that close by watermarks, by silence and by records, against an oracle: each window once, with its records.

An application on the test driver and the oracle of `support.closing` take the same steps: records, watermarks of one
partition, silence, idle and stalled partitions, commits, restarts. After each step results, late records and counts
of drops must be equal.

Rules of this file: times are small and lie about the close time, so that most records meet a boundary.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import standfast as sf
from standfast.stream import open_windows
from support.closing import Given, Seen, Shape
from support.closing_app import KEYS, LATE, Model, Plan, application, edge_of, mark_of, stamp_of


def results(driver: sf.testing.Driver) -> list[Given]:
    return [(one.key.end, one.key.start, one.key.key, tuple(sorted(one.value))) for one in driver.read("out")]


LENGTHS, GRACES = st.integers(1, 6), st.integers(0, 3)
SHAPES = {
    "tumbling": st.builds(lambda size, grace: Shape("tumbling", size, size, grace), LENGTHS, GRACES),
    "hopping": st.builds(lambda a, b, grace: Shape("hopping", max(a, b), min(a, b), grace), LENGTHS, LENGTHS, GRACES),
    "sliding": st.builds(lambda size, grace: Shape("sliding", size, size, grace), LENGTHS, GRACES),
    "session": st.builds(lambda size, grace: Shape("session", size, size, grace), LENGTHS, GRACES),
}
WAYS = st.sampled_from([(True, False), (False, True), (True, True)])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("record"), st.sampled_from(KEYS), st.integers(-8, 8), st.integers(0, 1)),
        st.tuples(st.just("record"), st.just("a"), st.integers(-2, 3), st.integers(0, 1)),
        # The last time that is late, and the first ones that are not.
        st.tuples(st.just("edge"), st.sampled_from(KEYS), st.integers(-1, 1), st.integers(0, 1)),
        # A watermark about the close time; it comes with a record that no window sees.
        st.tuples(st.just("mark"), st.sampled_from(KEYS), st.integers(-4, 12), st.integers(0, 1)),
        st.tuples(st.just("wait"), st.just(""), st.sampled_from([999, 1_001, 3_000]), st.just(0)),
        st.tuples(st.sampled_from(["commit", "restart"]), st.just(""), st.just(0), st.just(0)),
    ),
    min_size=15,
    max_size=40,
)


def play(plan: Plan, steps: list[tuple[str, str, int, int]], limit: int) -> None:
    model, given_limit = Model(plan), open_windows.LIMIT_ENTRIES
    open_windows.LIMIT_ENTRIES = limit
    once: set[tuple[int, int, int, str]] = set()
    late: list[int] = []
    try:
        app = application(plan)
        with sf.testing.Driver(app, partitions=plan.partitions) as driver:
            for number, (what, key, step, where) in enumerate(steps):
                partition = where % plan.partitions
                if what in ("record", "edge"):
                    of = stamp_of if what == "record" else edge_of
                    stamp = of(model, plan, key, partition, step)
                    expected = model.record(Seen(number, key, stamp), partition, None, counted=True)
                    driver.pipe("in", key, {"n": number}, stamp, partition=partition)
                elif what == "mark":
                    mark_ms = mark_of(model, plan, key, partition, step)
                    expected = model.record(Seen(number, key, mark_ms), partition, mark_ms, counted=False)
                    driver.pipe("in", key, {"mark": mark_ms}, mark_ms, partition=partition)
                elif what == "wait":
                    expected = model.wait(step)
                    driver.advance_wall_clock(step)
                else:
                    expected = model.restart() if what == "restart" else []
                    driver.restart() if what == "restart" else driver.commit()
                found = results(driver)
                assert sorted(found) == sorted(expected)
                for end, start, of_key, numbers in found:
                    window = (end, start, model.task_of(of_key, 0) if plan.through else -min(numbers), of_key)
                    assert window not in once
                    once.add(window)
                check_late(app, driver, plan, model, late)
    finally:
        open_windows.LIMIT_ENTRIES = given_limit


def check_late(app: sf.App, driver: sf.testing.Driver, plan: Plan, model: Model, late: list[int]) -> None:
    missed = sorted(number for one in model.windows for number in one.missed)
    counts = app.drops.counts
    assert counts["late_record"] == model.late_records
    if plan.late:
        late += [one.value["n"] for one in driver.read(LATE)]
        assert sorted(late) == missed
        assert counts["late_window"] == sum(one.late for one in model.windows)
    elif plan.shape.kind != "hopping":  # of a record that all of its hopping windows miss each one is counted
        assert counts["late_window"] == sum(one.late for one in model.windows) + len(missed)


@pytest.mark.slow
@pytest.mark.parametrize(
    "through", [pytest.param(False, id="direct"), pytest.param(True, id="through", marks=pytest.mark.long)]
)
@pytest.mark.parametrize(
    "kind", ["session", *(pytest.param(kind, marks=pytest.mark.long) for kind in ("hopping", "sliding", "tumbling"))]
)
@given(st.data())
@settings(max_examples=12)
def test_each_window_is_given_once_when_time_has_passed_it(kind: str, through: bool, data: st.DataObject) -> None:
    marks, silence = data.draw(WAYS)
    plan = Plan(
        data.draw(SHAPES[kind]),
        data.draw(st.sampled_from([1, 2])),
        through,
        marks,
        silence,
        data.draw(st.booleans()),
    )
    play(plan, data.draw(STEPS), data.draw(st.sampled_from([1, 3, 100_000])))
