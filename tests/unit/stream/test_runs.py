"""Runs of a task: many records at once give the same calls as one record at a time, whatever they do to the task."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

import standfast as sf
from standfast.replication.columns import RecordColumns
from standfast.replication.log import Record
from standfast.replication.offsets import TaskId

FAILS, COMMITS, READS_TIME, SCHEDULES = b"fails", b"commits", b"reads", b"schedules"
Rows = list[tuple[int, bytes]]
# A few times and many equal ones: topics take turns, and punctuations fall due between them.
ROWS = st.lists(
    st.tuples(st.integers(0, 12), st.sampled_from([b"plain", b"plain", FAILS, COMMITS, READS_TIME, SCHEDULES])),
    max_size=80,
)


def calls_of(
    rows: dict[str, Rows], limit: int, cut: int, *, on_error: Any, stream_time: Any, tracked: bool
) -> tuple[list[Any], list[Any]]:
    """The calls of the processor and the state of the inputs, if a run takes at most `limit` records."""
    calls: list[Any] = []
    watermarks = sf.BoundedDisorder(3) if tracked else None

    class Notes(sf.Processor):
        def init(self, context: sf.Context) -> None:
            self.context = context

        def process(self, record: sf.Record) -> None:
            context = self.context
            calls.append((context.topic, context.offset, context.timestamp, record.value, context.watermark_ms))
            if record.value == READS_TIME:
                calls.append(("stream time", context.stream_time_ms))
            if record.value == SCHEDULES:
                context.schedule(3, sf.STREAM_TIME, lambda now: calls.append(("due", now, context.topic)))
            if record.value == COMMITS:
                context.commit()
            if record.value == FAILS and on_error == "skip":
                raise ValueError("it fails")

    app = sf.App("runs", stores=[], stream_time=stream_time)
    for topic in rows:
        app.source(topic, value=sf.serde.bytes, on_error=on_error, watermarks=watermarks)(Notes)
    with sf.testing.Driver(app, now_ms=0) as driver:
        runner = driver._runners[TaskId(0, 0)]
        for topic, given in rows.items():
            records = [Record(number, stamp, None, value) for number, (stamp, value) in enumerate(given)]
            for first in range(0, len(records), cut):
                piece = records[first : first + cut]
                offsets, times, keys, values, _ = zip(*piece, strict=True)
                runner.add(topic, RecordColumns(offsets, times, keys, values), piece[-1].offset + 1, True)
        while count := runner.run(limit):
            assert count <= limit
            if runner.task.commit_requested:
                calls.append("commit")
                runner.task.commit_requested = False
        status = runner.status()
        state = [status.stream_time_ms, status.inputs, runner.task.counters.processed_records["0_0"]]
    return calls, state


@settings(max_examples=60, deadline=None)
@given(
    st.dictionaries(st.sampled_from(["a", "b", "c"]), ROWS, min_size=1),
    st.integers(2, 100),
    st.integers(1, 50),
    st.sampled_from(["fail", "skip"]),
    st.sampled_from(["min", "max"]),
    st.booleans(),
)
def test_long_runs_call_the_same_as_runs_of_one_record(
    rows: dict[str, Rows], limit: int, cut: int, on_error: str, stream_time: str, tracked: bool
) -> None:
    how = {"on_error": on_error, "stream_time": stream_time, "tracked": tracked}
    assert calls_of(rows, limit, cut, **how) == calls_of(rows, 1, cut, **how)  # type: ignore[arg-type]
