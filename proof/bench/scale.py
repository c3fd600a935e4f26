"""The steps of `make bench BENCHES=scale`: what worker processes gain, beside the gain of processes without standfast.

    pace      how many turns of a plain loop take 100 us
    scale     an application with N workers: these turns, then a windowed count, for each record of 12 tasks
    turns     N bare processes that do these turns for the same number of records

Rules of this file: whole processes by the public path (App.run), on the embedded log. A rate counts from the moment
when a tenth of the records is committed, so that no start is in it.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

from bench.scale_program import pace_ns
from bench.step import Step
from standfast.ops.bench.step import FILL_RECORDS, START_MS, VALUES, Measured, address_of, key_of, start, values_of
from standfast.replication.log import Group, Outgoing, TopicPolicy
from standfast.replication.offsets import TopicPartition
from standfast.replication.tail.open_log import open_log
from standfast.store.clock import SystemClock
from standfast.store.errors import Unavailable
from standfast.store.process.child import ChildProcess

PROGRAM = "bench.scale_program"
TASKS = 12
KEYS = 1_200
STEP_MS = 10
WORK_NS = 100_000
PACE_TURNS, PACE_CALLS, PACE_TRIES = 1_000, 2_000, 5
LOOK_MS = 20
WAIT_MS, STOP_MS = 120_000, 60_000


def pace(step: Step) -> Measured:
    """The number of turns that take 100 us of processor time, by the fastest of some tries."""
    fastest = min(pace_ns(PACE_TURNS, PACE_CALLS) for _ in range(PACE_TRIES))
    return {"records": PACE_CALLS, "turns": round(WORK_NS * PACE_TURNS / fastest)}


def scale(step: Step) -> Measured:
    """One run of the application; its log is its own."""
    step = replace(step, log=f"sqlite:///{step.folder}/{step.step}-{step.run}/log")
    Path(step.folder, f"{step.step}-{step.run}").mkdir(parents=True)
    sources = [TopicPartition(step.source, number) for number in range(TASKS)]
    rng, values = random.Random(1), values_of(step.value_bytes)
    keys = [key_of(number, step.key_bytes) for number in range(KEYS)]

    def records(first: int, count: int) -> dict[TopicPartition, list[Outgoing]]:
        found: dict[TopicPartition, list[Outgoing]] = {at: [] for at in sources}
        for number in range(first, first + count):
            key = rng.randrange(KEYS)
            found[sources[key % TASKS]].append(
                Outgoing(keys[key], values[number % VALUES], START_MS + number * STEP_MS)
            )
        return found

    with closing(open_log(address_of(step))) as log, ExitStack() as held:
        log.admin.create_topic(step.source, TASKS, TopicPolicy())
        producer, group = held.enter_context(closing(log.producer())), held.enter_context(closing(log.group(step.app)))
        producer.append({at: [Outgoing(keys[number], values[0], START_MS)] for number, at in enumerate(sources)})
        program = held.enter_context(start(PROGRAM, step))
        _until(group, sources, TASKS, program)  # every task runs
        for first in range(0, step.records, FILL_RECORDS):
            producer.append(records(first, min(FILL_RECORDS, step.records - first)))
        clock = SystemClock()
        before = _until(group, sources, TASKS + step.records // 10, program)
        begin_ms = clock.monotonic_ms()
        _until(group, sources, TASKS + step.records, program)
        counted, elapsed_ms = TASKS + step.records - before, clock.monotonic_ms() - begin_ms
        program.stop(b"stop\n", STOP_MS)
        _check(program)
    return _measured(counted, elapsed_ms)


def turns(step: Step) -> Measured:
    """The bare function in `workers` processes at once, each with its share of the records."""
    count = step.workers or 1
    with ExitStack() as held:
        programs = [
            held.enter_context(start(PROGRAM, replace(step, records=step.records // count))) for _ in range(count)
        ]
        for one in programs:
            _line(one)
        for one in programs:
            one.order(b"go\n")
        lines = [_line(one) for one in programs]
    elapsed_ms = max(line["end_ms"] for line in lines) - min(line["begin_ms"] for line in lines)
    return _measured(step.records // count * count, elapsed_ms)


SCALE_STEPS: dict[str, Callable[[Step], Measured]] = {"pace": pace, "scale": scale, "turns": turns}


def _until(group: Group, sources: list[TopicPartition], records: int, program: ChildProcess[Measured]) -> int:
    """Wait until so many records are committed; returns their number. Raises Unavailable."""
    clock = SystemClock()
    last, until_ms = -1, 0
    while True:
        found = sum(one.offset for one in group.committed(sources).values())
        if found >= records:
            return found
        now_ms = clock.monotonic_ms()
        if found != last:
            last, until_ms = found, now_ms + WAIT_MS
        program.poll(LOOK_MS)
        if program.ended is not None:
            _check(program)
            raise Unavailable("the application of the benchmark ended before it had processed all records")
        if now_ms > until_ms:
            raise Unavailable(f"the application of the benchmark stood still at {found:,} of {records:,} records")


def _line(program: ChildProcess[Measured]) -> Measured:
    clock = SystemClock()
    until_ms = clock.monotonic_ms() + WAIT_MS
    while clock.monotonic_ms() < until_ms:
        for line in program.poll(LOOK_MS):
            return line
        _check(program)
    raise Unavailable("a process of the benchmark did not report")


def _check(program: ChildProcess[Measured]) -> None:
    if program.ended is not None and program.ended.code != 0:
        raise Unavailable(f"a process of the benchmark ended with {program.ended}")


def _measured(records: int, elapsed_ms: int) -> Measured:
    # The processes are not this one: their processor time is not measured.
    return {
        "records": records,
        "elapsed_ms": elapsed_ms,
        "rate": records * 1_000 / max(elapsed_ms, 1),
        "cpu_ms": None,
    }
