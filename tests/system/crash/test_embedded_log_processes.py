"""The embedded log under several processes at once: appends, kills, compaction and retention beside a writer.

Rules of this file: real processes, started from a list and ended by their own id. The tests follow their output, and
never wait for some time.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from standfast.replication.embedded.log import EmbeddedLog
from standfast.replication.log import Committed, Record, TopicPolicy
from standfast.replication.offsets import Bounds, TopicPartition

P0, P1 = TopicPartition("board", 0), TopicPartition("board", 1)

# Appends `batches` batches of `size` records "writer number" and prints the next offset after each. Its clock stands at
# 0, so that retention is decided by the timestamps alone: to it, every append is long ago.
APPEND = """
import json, sys
from standfast.replication.embedded.log import EmbeddedLog
from standfast.replication.log import Outgoing
from standfast.replication.offsets import TopicPartition
from standfast.store.clock import ManualClock
path, name, batches, size, keys = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:6])
log = EmbeddedLog(path, clock=ManualClock(0))
producer = log.producer()
print("ready", flush=True)
number = 0
for _ in range(batches):
    batch = []
    for _ in range(size):
        batch.append(Outgoing(b"%d" % (number % keys), f"{name} {number}".encode(), number))
        number += 1
    end = producer.append({TopicPartition("board", 0): batch})[TopicPartition("board", 0)]
    print(json.dumps([end - size, end]), flush=True)
log.close()
"""

# Transacts equal batches into two partitions with an offset commit, for ever; prints each acknowledged position.
TRANSACT = """
import sys
from standfast.replication.embedded.log import EmbeddedLog
from standfast.replication.log import Committed, GroupCommit, Outgoing
from standfast.replication.offsets import TopicPartition
log = EmbeddedLog(sys.argv[1])
writer = log.writer("board-0", group="board", owner=sys.argv[2])
p0, p1 = TopicPartition("board", 0), TopicPartition("board", 1)
done = log.reader().bounds([p0])[p0].end
while True:
    batch = [Outgoing(b"%d" % number, b"x" * 200, number) for number in range(done, done + 500)]
    done += 500
    writer.transact({p0: batch, p1: batch}, GroupCommit("board", {p0: Committed(done, f"cut {done}")}))
    print(done, flush=True)
"""


def start(code: str, *arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-P", "-c", code, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(process: subprocess.Popen[str]) -> list[str]:
    """Printed lines not read yet; the process must have ended well."""
    printed, problems = rest_of(process)
    assert process.returncode == 0, problems
    return printed.splitlines()


def rest_of(process: subprocess.Popen[str]) -> tuple[str, str]:
    """Output and errors until its end. communicate() would pass over what readline() has read ahead."""
    assert process.stdout is not None
    assert process.stderr is not None
    with process:
        return process.stdout.read(), process.stderr.read()


@pytest.fixture
def log(tmp_path: Path) -> Iterator[EmbeddedLog]:
    opened = EmbeddedLog(tmp_path / "log.sqlite")
    yield opened
    opened.close()


def contents(log: EmbeddedLog, source: TopicPartition = P0) -> list[Record]:
    reader = log.reader()
    reader.assign({source: reader.bounds([source])[source].begin})
    found: list[Record] = []
    while batch := reader.fetch(2_000):
        found += [record for fetched in batch for record in fetched.records]
    return found


@pytest.mark.slow
def test_three_writing_processes_get_every_offset_once_and_lose_none(log: EmbeddedLog) -> None:
    batches, size = 60, 40
    log.admin.create_topic("board", 1, TopicPolicy())
    writers = [start(APPEND, log.path, name, batches, size, 1_000) for name in "abc"]
    claimed: list[tuple[int, int]] = []
    for process in writers:
        ready, *lines = finish(process)
        assert ready == "ready"
        claimed += [tuple(json.loads(line)) for line in lines]
    total = 3 * batches * size
    claimed.sort()
    assert claimed == [(start_at, start_at + size) for start_at in range(0, total, size)]
    found = contents(log)
    assert [record.offset for record in found] == list(range(total))
    for name in "abc":
        mine = [record.timestamp for record in found if (record.value or b"").startswith(name.encode())]
        assert mine == list(range(batches * size))
    assert log.integrity_check() == []


@pytest.mark.slow
@pytest.mark.crash
def test_killed_writer_leaves_no_half_transaction(log: EmbeddedLog) -> None:
    log.admin.create_topic("board", 2, TopicPolicy())
    for run, transactions in enumerate((1, 2, 5, 9)):
        process = start(TRANSACT, log.path, f"run-{run}")
        assert process.stdout is not None
        acknowledged = 0
        for _ in range(transactions):
            acknowledged = int(process.stdout.readline())
        process.kill()  # SIGKILL, somewhere in the transactions that follow
        rest, _ = rest_of(process)
        acknowledged = max([acknowledged, *(int(line) for line in rest.split("\n")[:-1])])
        bounds = log.reader().bounds([P0, P1])
        assert bounds[P0] == bounds[P1]
        end = bounds[P0].end
        assert end in (acknowledged, acknowledged + 500)
        assert log.group("board").committed() == {P0: Committed(end, f"cut {end}")}
        for source in (P0, P1):
            assert [record.timestamp for record in contents(log, source)] == list(range(end))
    assert log.integrity_check() == []


@pytest.mark.slow
def test_compaction_beside_a_writing_process_loses_nothing(log: EmbeddedLog) -> None:
    batches, size, keys = 80, 100, 37
    log.admin.create_topic("board", 1, TopicPolicy(frozenset({"compact"})))
    process = start(APPEND, log.path, "w", batches, size, keys)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    removed = rounds = 0
    while process.poll() is None:
        removed += log.compact("board", 0)
        rounds += 1
        seen = {record.key for record in contents(log)}
        assert len(seen) in (0, keys)  # no key is ever missing once it was written
    assert len(finish(process)) == batches
    removed += log.compact("board", 0)
    total = batches * size
    expected = {b"%d" % (number % keys): b"w %d" % number for number in range(total)}
    found = contents(log)
    assert {record.key: record.value for record in found} == expected
    assert (len(found), removed) == (keys, total - keys)
    assert rounds > 1
    assert log.reader().bounds([P0]) == {P0: Bounds(0, total)}
    assert log.integrity_check() == []


@pytest.mark.slow
def test_retention_beside_a_writing_process_loses_nothing(log: EmbeddedLog) -> None:
    batches, size, keep_ms = 80, 100, 500
    log.admin.create_topic("board", 1, TopicPolicy(retention_ms=keep_ms))
    process = start(APPEND, log.path, "w", batches, size, 10)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    removed = now_ms = 0
    while process.poll() is None:
        removed += log.apply_retention(now_ms)
        found = contents(log)
        assert [record.offset for record in found] == [record.timestamp for record in found]
        now_ms = found[-1].timestamp if found else now_ms  # stream time, from the records
    assert len(finish(process)) == batches
    total = batches * size
    removed += log.apply_retention(total - 1)
    assert [record.offset for record in contents(log)] == list(range(total - 1 - keep_ms, total))
    assert removed == total - 1 - keep_ms
    assert log.integrity_check() == []
