"""The side of standfast in the comparison: it puts each record of its source under the record's key.

    python proof/benchmarks/side_standfast.py '{"app": ..., "bootstrap": ..., ...}'     (fields: compare_process.py)

    stdin      processed | lag | digest [FROM_MS TO_MS] | stop, or the end of stdin
    stdout     JSON, one object a line: the events restore, processed, drained with at_ns (CLOCK_MONOTONIC), and answers

Rules of this file: an application as a user writes it, with default settings except those that all sides share, and
the wait for an instance that stopped, which none of the others has.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any
from zlib import crc32

import standfast as sf
from standfast.store.rocks.engine import AT_WORK

STORE = "kv"
WAIT_S = 0.005

# Only as a program: others of this folder import `busy`, and have arguments of their own.
PLAN: dict[str, Any] = json.loads(sys.argv[1]) if __name__ == "__main__" else {}
PRINTING = threading.Lock()


class State:
    """State that the threads of this process share."""

    processed = 0
    begun = 0
    restoring = False
    app: sf.App


def say(fields: dict[str, Any]) -> None:
    """Print one line of JSON."""
    with PRINTING:
        print(json.dumps(fields), flush=True)


def event(name: str) -> None:
    """Report an event with its time, which is now."""
    now_ns = time.monotonic_ns()
    session = State.app.session
    restored = snapshots = 0
    if name != "restore" and session is not None:
        counters = session.statistics().counters
        restored = sum(counters.restored_records.values())
        snapshots = counters.snapshots.restores["restored"]
    say({"event": name, "at_ns": now_ns, "restored": restored, "snapshots": snapshots})


class Watcher(sf.Listener):
    """Reports the first task's restore: its database is open, its plan is made, and no record is replayed yet."""

    def on_state_changed(self, task: Any, role: str, state: str) -> None:
        if role == "active":
            restoring()


def restoring() -> None:
    """Report the beginning of the first restore."""
    if not State.restoring:
        State.restoring = True
        event("restore")


def watch_snapshots() -> None:
    """Begin the clock before a snapshot is looked for, since no listener is called before its download."""
    from standfast.stream.snapshots.beginning import FromSnapshot

    begin = FromSnapshot.begin

    def timed(self: FromSnapshot, *given: Any, **named: Any) -> Any:
        restoring()
        return begin(self, *given, **named)

    FromSnapshot.begin = timed


class Put(sf.Processor):
    """Puts each record of the source."""

    def init(self, context: sf.Context) -> None:
        self.put = context.store(STORE).put
        self.begun = False

    def process(self, record: sf.Record) -> None:
        self.put(record.key, record.value, record.timestamp)
        State.processed += 1
        if not self.begun:
            self.begun = True
            begun()


class PutWindow(Put):
    """Puts each record into the window that it falls into."""

    def process(self, record: sf.Record) -> None:
        start_ms = record.timestamp - record.timestamp % PLAN["window_ms"]
        self.put(record.key, record.value, start_ms, record.timestamp)
        State.processed += 1
        if not self.begun:
            self.begun = True
            begun()


def begun() -> None:
    """Report that every partition has processed a record, and later that RocksDB has nothing left to do."""
    State.begun += 1
    if State.begun == PLAN["partitions"]:
        now_ns = time.monotonic_ns()
        threading.Thread(target=wait_drained, args=(now_ns,), daemon=True).start()


def wait_drained(processed_ns: int) -> None:
    """Report `processed`, and `drained` once RocksDB's own figures show no work."""
    # A restore counts as ended only when no flush and no compaction is due, on every side.
    say({"event": "processed", "at_ns": processed_ns, "restored": 0})
    while any(busy(task) for task in session().all_tasks().values()):
        time.sleep(WAIT_S)
    event("drained")


def busy(task: Any) -> bool:
    """Whether a flush or a compaction of a task's database runs, or is due."""
    found = task.stores.engine.statistics()
    return found.pending_compaction_bytes > 0 or any(found.properties[name] for name in AT_WORK)


def session() -> sf.Session:
    """The session of the running application."""
    found = State.app.session
    assert found is not None
    return found


def answer(command: str, words: list[str]) -> dict[str, Any]:
    """The answer to a command."""
    if command == "processed":
        return {"processed": State.processed}
    if command == "lag":
        tasks = () if State.app.session is None else State.app.session.statistics().tasks
        roles = [task.role for task in tasks]
        lag = max((store.lag for task in tasks for store in task.stores), default=0)
        return {"active": roles.count("active"), "standby": roles.count("standby"), "lag": lag}
    if command == "digest":
        return digest(*map(int, words)) if words else digest(-(1 << 63), (1 << 63) - 1)
    raise ValueError(command)


def digest(from_ms: int, upto_ms: int) -> dict[str, Any]:
    """Rows and the sum of their CRC-32 over key, window start (0 without one) and value."""
    count = total = 0
    for key, start_ms, value in rows():
        if from_ms <= start_ms < upto_ms:
            count += 1
            total += crc32(value, crc32(start_ms.to_bytes(8, "big", signed=True), crc32(key)))
    return {"rows": count, "sum": total}


def rows() -> Iterator[tuple[bytes, int, bytes]]:
    """Every row of every partition."""
    for partition in range(PLAN["partitions"]):
        store = session().read(STORE, partition, allow_stale=True).store
        with store.all() as found:
            for key, value in found:
                yield (key[0], key[1], value) if PLAN["kind"] == "window" else (key, 0, value)


def build() -> sf.App:
    """The application."""
    raw = sf.serde.bytes
    if PLAN["kind"] == "window":
        times = {"window_size_ms": PLAN["window_ms"], "retention_ms": PLAN["retention_ms"]}
        spec: Any = sf.WindowStore(STORE, raw, raw, caching=False, **times)
    else:
        spec = sf.KeyValueStore(STORE, raw, raw, caching=False)
    snapshots = None
    if PLAN["snapshots"]:
        watch_snapshots()
        snapshots = sf.SnapshotPolicy(to=PLAN["snapshots"])  # without a schedule: it is only begun with
    app = sf.App(
        PLAN["app"],
        log=f"kafka://{PLAN['bootstrap']}",
        state_dir=PLAN["state_dir"],
        stores=[spec],
        guarantee=PLAN["guarantee"],
        commit_interval_ms=PLAN["commit_ms"],
        standby_replicas=PLAN["standbys"],
        lease_ms=PLAN["detect_ms"],
        restart_grace_ms=0,  # each run is a new instance: it would wait for the return of the stopped one
        listeners=[Watcher()],
        snapshots=snapshots,
    )
    processor = PutWindow if PLAN["kind"] == "window" else Put
    processor.stores = (STORE,)
    app.source(PLAN["source"], key=raw, value=raw)(processor)
    return app


def main() -> None:
    """Run until `stop` or the end of stdin."""
    State.app = build()

    def listen() -> None:
        try:
            for line in sys.stdin:
                command, *words = line.split()
                if command == "stop":
                    break
                say({"answer": command, **answer(command, words)})
        finally:  # also when a command fails: the parent sees this process end
            State.app.stop()

    threading.Thread(target=listen, daemon=True).start()
    State.app.run()


if __name__ == "__main__":
    main()
