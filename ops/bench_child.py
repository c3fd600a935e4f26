"""One timed run of a benchmark, in a process of its own: so its memory is its own and it leaves nothing warm.

    python -m standfast.ops.bench_child '{"step": "restore", "folder": ..., ...}'   ->   one JSON document on stdout

    write      put + commit in batches through a session        fill     write a changelog, as fast as the log takes it
    read       point gets and scans of committed rows           log      read that changelog and do nothing with it
    restore    open a session on an empty directory, wait until its restore gate opens

Rules of this file: only the public path (Session, task, store) is timed, with RocksDB and the embedded log at its
default of synchronous=FULL. Keys and values are made before the clock starts. The same arguments give the same data.
"""

from __future__ import annotations

import hashlib
import json
import random
import resource
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeAlias

from standfast.replication.changelog import changelog_policy
from standfast.replication.log import TopicPolicy
from standfast.replication.offsets import TopicPartition
from standfast.replication.open_log import open_log
from standfast.store import serde
from standfast.store.clock import SystemClock
from standfast.store.names import changelog_topic
from standfast.store.specs import KeyValueStore
from standfast.stream.session import Session

APP = "bench"
STORE = "store"
SOURCE = "bench-source"
CHANGELOG = TopicPartition(changelog_topic(APP, STORE), 0)
FILL_RECORDS = 5_000
FETCH_RECORDS = 5_000
VALUES = 1_000  # different values; records take them in turn
NEAR_RECORDS = 10_000  # "near": all versions of a key lie within so many records
READY_S = 3_600.0
START_MS = 1_356_998_400_000
GETS_MAX = 200_000

Measured: TypeAlias = dict[str, Any]


@dataclass(frozen=True)
class Step:
    """What to do. Sizes in bytes; `versions` records a key, lying `order` "near" or "far" from each other."""

    step: str
    folder: str
    records: int
    key_bytes: int
    value_bytes: int
    batch: int
    memory_bytes: int
    run: int = 0
    versions: int = 1
    order: str = "far"

    def encode(self) -> str:
        """The process's argument."""
        return json.dumps(asdict(self))


def key_of(number: int, key_bytes: int) -> bytes:
    """A key that looks random and is always the same."""
    return hashlib.blake2b(number.to_bytes(8, "big"), digest_size=key_bytes).digest()


def values_of(value_bytes: int) -> list[bytes]:
    """Values that do not compress."""
    rng = random.Random(1)
    return [rng.randbytes(value_bytes) for _ in range(VALUES)]


def key_numbers(records: int, versions: int, order: str) -> Iterator[int]:
    """Which key each record has. "far": every key once, in one order, then all again. "near": shuffled in stretches."""
    distinct = max(records // versions, 1)
    if order == "far":
        for number in range(records):
            yield number % distinct
        return
    span = max(min(NEAR_RECORDS, records) // versions, 1)
    for first in range(0, distinct, span):
        numbers = list(range(first, min(first + span, distinct))) * versions
        random.Random(first).shuffle(numbers)
        yield from numbers


def write(step: Step) -> Measured:
    """Put `records` rows with distinct keys and commit each batch together with its source offset."""
    keys = [key_of(number, step.key_bytes) for number in range(step.records)]
    values = values_of(step.value_bytes)
    with _session(step, f"write-{step.run}") as session:
        task = session.task(0)
        put = task.store(STORE).put

        def run() -> None:
            for first in range(0, len(keys), step.batch):
                batch = keys[first : first + step.batch]
                for number, key in enumerate(batch, first):
                    put(key, values[number % VALUES], START_MS + number)
                task.commit({(SOURCE, 0): first + len(batch)})

        return _timed(run, step.records)


def read(step: Step) -> Measured:
    """Point gets of present and absent keys, and whole scans, over committed and flushed rows."""
    keys = [key_of(number, step.key_bytes) for number in range(step.records)]
    values = values_of(step.value_bytes)
    with _session(step, f"read-{step.run}") as session:
        task = session.task(0)
        store = task.store(STORE)
        for first in range(0, len(keys), FILL_RECORDS):
            for number, key in enumerate(keys[first : first + FILL_RECORDS], first):
                store.put(key, values[number % VALUES], START_MS + number)
            task.commit()
        task.stores.flush()
        task.stores.engine.compact(STORE)
        wanted = random.Random(2 + step.run).sample(keys, min(GETS_MAX, len(keys)))
        absent = [key_of(step.records + number, step.key_bytes) for number in range(len(wanted))]
        measured = {
            "get": _timed(lambda: _get_all(store.get, wanted, present=True), len(wanted)),
            "get_absent": _timed(lambda: _get_all(store.get, absent, present=False), len(absent)),
        }
        for name, reverse in (("scan", False), ("scan_reverse", True)):

            def run(reverse: bool = reverse) -> None:
                found = sum(1 for _ in store.all(reverse))
                assert found == len(keys), f"{found} of {len(keys)} rows were found"

            measured[name] = _timed(run, len(keys))
        return measured


def fill(step: Step) -> Measured:
    """Write the changelog that restores read."""
    values = values_of(step.value_bytes)
    log = open_log(_address(step))
    try:
        log.admin.create_topic(CHANGELOG.topic, 1, changelog_policy(_spec()))
        producer = log.producer()
        started_ms = SystemClock().monotonic_ms()
        batch = []
        for number, key in enumerate(key_numbers(step.records, step.versions, step.order)):
            batch.append((key_of(key, step.key_bytes), values[number % VALUES], START_MS + number, ()))
            if len(batch) == FILL_RECORDS:
                producer.append({CHANGELOG: batch})  # type: ignore[dict-item]
                batch = []
        if batch:
            producer.append({CHANGELOG: batch})  # type: ignore[dict-item]
        end = log.reader().bounds([CHANGELOG])[CHANGELOG].end
        return {"records": end, "elapsed_ms": SystemClock().monotonic_ms() - started_ms}
    finally:
        log.close()


def read_log(step: Step) -> Measured:
    """Fetch the whole changelog: what a restore cannot be faster than."""
    log = open_log(_address(step))
    try:
        reader = log.reader()
        begin, end = reader.bounds([CHANGELOG])[CHANGELOG]

        def run() -> None:
            reader.assign({CHANGELOG: begin})
            while reader.assignment()[CHANGELOG] < end:
                reader.fetch(FETCH_RECORDS)

        return _timed(run, end - begin)
    finally:
        log.close()


def restore(step: Step) -> Measured:
    """From an empty directory to an open gate; the session's own opening is counted in."""
    log = open_log(_address(step))
    log.admin.create_topic(SOURCE, 1, TopicPolicy())
    records = log.reader().bounds([CHANGELOG])[CHANGELOG].end
    log.close()
    sessions: list[Session] = []

    def run() -> None:
        session = Session(
            APP,
            log=_address(step),
            state_dir=Path(step.folder) / f"restore-{step.run}",
            stores=[_spec()],
            partitions=1,
            memory_bytes=step.memory_bytes,
        )
        sessions.append(session)
        session.assign(active=[0])
        session.wait_ready(READY_S)

    before = _memory_bytes("VmRSS")
    try:
        measured = _timed(run, records)
        measured["peak_rss_bytes"] = _memory_bytes("VmHWM")
        measured["rss_before_bytes"] = before
        store = sessions[0].task(0).store(STORE)
        last = key_of(max(records // step.versions, 1) - 1, step.key_bytes)
        assert store.get(last) is not None, "a restored key is missing"
        return measured
    finally:
        for session in sessions:
            session.close()


def main(arguments: list[str]) -> int:
    """Run one step; prints what it measured."""
    step = Step(**json.loads(arguments[0]))
    print(json.dumps(STEPS[step.step](step)))
    return 0


STEPS: dict[str, Callable[[Step], Measured]] = {
    "write": write,
    "read": read,
    "fill": fill,
    "log": read_log,
    "restore": restore,
}


def _spec() -> KeyValueStore:
    return KeyValueStore(STORE, key=serde.bytes, value=serde.bytes)


def _address(step: Step) -> str:
    return f"sqlite:///{step.folder}/log/"


def _session(step: Step, name: str) -> Session:
    """A session with an empty store and an empty log of its own, ready."""
    folder = Path(step.folder) / name
    address = f"sqlite:///{folder}/log/"
    log = open_log(address)
    log.admin.create_topic(SOURCE, 1, TopicPolicy())
    log.close()
    session = Session(
        APP,
        log=address,
        state_dir=folder / "state",
        stores=[_spec()],
        partitions=1,
        memory_bytes=step.memory_bytes,
    )
    session.assign(active=[0])
    session.wait_ready(READY_S)
    return session


def _get_all(get: Callable[[bytes], bytes | None], keys: list[bytes], *, present: bool) -> None:
    for key in keys:
        assert (get(key) is not None) == present, f"key {key.hex()} gave the wrong answer"


def _timed(run: Callable[[], None], count: int) -> Measured:
    """Run it once: wall time, processor time of all threads, and how long threads waited for a processor."""
    clock = SystemClock()
    waited, used = _waited_ms(), resource.getrusage(resource.RUSAGE_SELF)
    started_ms = clock.monotonic_ms()
    run()
    elapsed_ms = max(clock.monotonic_ms() - started_ms, 1)
    after = resource.getrusage(resource.RUSAGE_SELF)
    now_waited = _waited_ms()
    return {
        "records": count,
        "elapsed_ms": elapsed_ms,
        "rate": count * 1_000 / elapsed_ms,
        "cpu_ms": round((after.ru_utime + after.ru_stime - used.ru_utime - used.ru_stime) * 1_000),
        "waited_for_cpu_ms": None if waited is None or now_waited is None else round(now_waited - waited),
    }


def _waited_ms() -> float | None:
    """Milliseconds for which threads of this process were ready to run and had no processor; None if unknown."""
    total_ns = 0
    try:
        for thread in Path("/proc/self/task").iterdir():
            total_ns += int((thread / "schedstat").read_text(encoding="ascii").split()[1])
    except (OSError, IndexError, ValueError):
        return None
    return total_ns / 1e6


def _memory_bytes(name: str) -> int | None:
    """A line of /proc/self/status in bytes; VmHWM is the largest resident size so far. None where there is none."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith(f"{name}:")), None)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
