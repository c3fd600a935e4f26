"""The counter store from end to end: data door, changelog, restore, JSON reads, verify, Spark's rows and columns.

Rules of this file: real parts only.
"""

from __future__ import annotations

import struct
from pathlib import Path

import standfast as sf
from standfast.ops.observe.reads import ReadRequest, live_part, read
from standfast.replication.log import Record
from standfast.restore.digest import digest_rows
from standfast.restore.spark.batches import StoreShape
from standfast.restore.spark.rows import Counts, fold_rows, partitions_of
from standfast.restore.spark_table.columns import store_columns
from standfast.restore.spark_table.options import Given
from standfast.restore.verify.verify import fold_of
from standfast.store.clock import ManualClock
from support.door import Desk, open_session
from support.spark_folds import sorted_batches


def total(number: int) -> bytes:
    return struct.pack(">q", number)


def test_counter_counts_at_the_door_and_is_restored_verified_and_read(tmp_path: Path, clock: ManualClock) -> None:
    spec = sf.CounterStore("hits", sf.serde.bytes, sf.serde.bytes)
    with open_session(tmp_path, clock, stores=[spec]) as session:
        session.assign(active=[0])
        session.wait_ready(10)
        talk = Desk(session).talk(None)
        assert [talk("SF.CADD", "hits", "a", 3), talk("SF.CADD", "hits", "b", 1), talk("SF.CADD", "hits", "a", 4)] == [
            3,
            1,
            7,
        ]
        assert "does not fit" in talk.refused("SF.CADD", "hits", "a", 2**63 - 1)
        assert "use the commands of that kind" in talk.refused("SF.PUT", "hits", "a", "x")
        session.task(0).commit(source_offsets={})
    # Another state directory: everything comes from the changelog.
    with open_session(tmp_path, clock, stores=[spec], state_dir=tmp_path / "cold") as session:
        session.assign(active=[0])
        session.wait_ready(10)
        store = session.task(0).store(spec)
        assert (store.total(b"a"), store.total(b"b"), store.total(b"c")) == (7, 1, 0)
        rows = set(store.logical_rows())
        assert rows == {(b"a", -1, total(7)), (b"b", -1, total(1))}
        part = live_part(sf.CounterStore("hits", sf.serde.string, sf.serde.int64), store.rows, 0, "active", 0)
        assert read([part], ReadRequest("get", "hits", key="a")).rows == [{"partition": 0, "key": "a", "value": 7}]
    log = [Record(0, 1, b"a", total(3)), Record(1, 1, b"b", total(1)), Record(2, 2, b"a", total(7))]
    fold = fold_of(spec)
    fold.add(log)
    assert set(fold.rows()) == rows
    shape, counts = StoreShape("hits", spec.definition(), {0: 3}), Counts()
    found: dict[bytes, bytes] = {}
    for facts, batches in partitions_of(sorted_batches(shape, 0, log)):
        folded = fold_rows(shape, facts, counts)
        found |= {
            key: row
            for batch in batches
            for one in folded.fold(batch)
            for key, row in zip(one.keys, one.rows, strict=True)
        }
    assert found == {b"a": total(7), b"b": total(1)}
    assert counts.digest == digest_rows(rows)
    assert list(store_columns(spec, Given("store"))) == ["partition", "key", "value"]
