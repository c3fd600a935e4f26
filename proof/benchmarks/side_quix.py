"""The side of Quix Streams in the comparison: it puts each record of its source under the record's key.

    <its own environment>/bin/python proof/benchmarks/side_quix.py '{"app": ..., ...}'   (fields: compare_process.py)

    stdin      processed | digest | stop, or the end of stdin
    stdout     JSON, one object a line: the events restore, processed, drained with at_ns (CLOCK_MONOTONIC), and answers

Rules of this file: an application as a user writes it, with default settings except those that all sides share;
nothing of standfast. Values are stored as bytes, so that JSON costs nothing.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from typing import Any
from zlib import crc32

from quixstreams import Application  # pyright: ignore[reportMissingImports]
from quixstreams.state.manager import StateStoreManager  # pyright: ignore[reportMissingImports]
from quixstreams.state.recovery import RecoveryPartition  # pyright: ignore[reportMissingImports]

BUSY = (
    *("rocksdb.compaction-pending", "rocksdb.num-running-compactions", "rocksdb.num-running-flushes"),
    *("rocksdb.mem-table-flush-pending", "rocksdb.estimate-pending-compaction-bytes"),
)
PLAN: dict[str, Any] = json.loads(sys.argv[1])
PRINTING = threading.Lock()
START = bytes(8)  # rows of a key-value store have no window


class State:
    """State that the threads of this process share."""

    processed = 0
    restored = 0
    begun: set[int] = set()  # noqa: RUF012 - one process, one state
    restoring = False
    app: Application
    manager: StateStoreManager


def say(fields: dict[str, Any]) -> None:
    """Print one line of JSON."""
    with PRINTING:
        print(json.dumps(fields), flush=True)


def event(name: str, at_ns: int | None = None) -> None:
    """Report an event with its time, by default now."""
    say({"event": name, "at_ns": at_ns or time.monotonic_ns(), "restored": State.restored})


def watch() -> None:
    """Report the first partition's assignment; count the replayed records, with one addition a partition."""
    # Quix Streams has no event for the replay's begin; the assignment comes some milliseconds before it.
    assign = StateStoreManager.on_partition_assign
    complete = RecoveryPartition.complete_recovery

    def on_partition_assign(self: Any, *args: Any, **kwargs: Any) -> Any:
        State.manager = self
        if not State.restoring:
            State.restoring = True
            event("restore")
        return assign(self, *args, **kwargs)

    def complete_recovery(self: Any) -> None:
        State.restored += self.recovery_consume_position - max(self._initial_offset + 1, 0)
        complete(self)

    StateStoreManager.on_partition_assign = on_partition_assign
    RecoveryPartition.complete_recovery = complete_recovery


def put(value: bytes, key: Any, timestamp: int, headers: Any, state: Any) -> None:
    """Put each record of the source."""
    state.set_bytes(b"v", value)
    State.processed += 1


def note_partition(topic: str, partition: int, offset: int) -> None:
    """Report that every partition has processed a record, and later that RocksDB has nothing left to do."""
    if partition not in State.begun:
        State.begun.add(partition)
        if len(State.begun) == PLAN["partitions"]:
            event("processed")
            threading.Thread(target=wait_drained, daemon=True).start()


def partitions() -> list[Any]:
    """All partitions of the store."""
    return [
        partition
        for stores in State.manager.stores.values()
        for store in stores.values()
        for partition in store.partitions.values()
    ]


def wait_drained() -> None:
    """Report `drained` once RocksDB's own figures show no work."""
    while any(one._db.property_int_value(name) for one in partitions() for name in BUSY):
        time.sleep(0.005)
    event("drained")


def digest() -> dict[str, Any]:
    """Rows and the sum of their CRC-32 over key, window start (0) and value."""
    count = total = 0
    for partition in partitions():
        for key, value in partition.get_or_create_column_family("default").items():
            count += 1
            total += crc32(value, crc32(START, crc32(key.removesuffix(b"|v"))))
    return {"rows": count, "sum": total}


def listen() -> None:
    """Answer the commands on stdin."""
    try:
        for line in sys.stdin:
            command = line.strip()
            if command == "stop":
                break
            say({"answer": command, **(digest() if command == "digest" else {"processed": State.processed})})
    finally:  # also when a command fails: the parent sees this process end
        State.app.stop()


def main() -> None:
    """Run until `stop` or the end of stdin."""
    watch()
    State.app = Application(
        broker_address=PLAN["bootstrap"],
        consumer_group=PLAN["app"],
        auto_offset_reset="earliest",
        state_dir=PLAN["state_dir"],
        processing_guarantee=PLAN["guarantee"].replace("_", "-"),
        commit_interval=PLAN["commit_ms"] / 1_000,
        consumer_extra_config={"session.timeout.ms": PLAN["detect_ms"]},
        on_message_processed=note_partition,
        loglevel="WARNING",
    )
    topic = State.app.topic(PLAN["source"], key_deserializer="bytes", value_deserializer="bytes")
    State.app.dataframe(topic).update(put, stateful=True, metadata=True)
    threading.Thread(target=listen, daemon=True).start()
    State.app.run()


if __name__ == "__main__":
    main()
