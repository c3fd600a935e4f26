"""A process of `test_interruptions.py`: breaks calls of a session off, each at one point of our code, and goes on.

    python support/interrupted_child.py '{"log": ..., "folder": ..., "seed": 7, "runs": 50, "calls": ["commit"]}'

    stdout   JSON, one a line: {"call", "point", "fault"} for each fault, and {"runs", "points"} for each call
    stderr   the threads' stacks, if a run hangs: the process ends then

`runs` 0 means each point, once. After each run a task that does not run is opened again, as the documentation asks
for; then another writer must get the log's lock, and the state must be that of the log.

Rules of this file: the main thread makes the calls and is broken off; the session's threads run as in an application.
"""

from __future__ import annotations

import contextlib
import faulthandler
import fcntl
import gc
import json
import os
import random
import sys
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import standfast as sf
from standfast.replication.log import Log, Outgoing, TopicPolicy
from standfast.replication.offsets import TopicPartition
from standfast.replication.tail.open_log import open_log
from standfast.store.errors import StandfastError
from support import interruption
from support.interruption import Interrupted, Point, broken_off, record

HANG_S = 15.0
LATE_S = 5.0
KEYS = 20
TEXT, INT = sf.serde.string, sf.serde.int64


class Fault(Exception):
    """A run left the session, or the log, in a state that it must not have."""


class Bench:
    """One application on one log; `held` is None when a run has closed its session."""

    def __init__(self, given: dict[str, Any]) -> None:
        self.address = given["log"]
        self.folder = given["folder"]
        self.name, self.number = given.get("app", "app"), 0
        self.guarantee = given.get("guarantee", "exactly_once")
        self.settings: dict[str, Any] = {"take_over": False, **given.get("settings", {})}
        self.log: Log = open_log(self.address)
        self.log.admin.create_topic(f"{self.name}-probe", 1, TopicPolicy())
        self.probe = self.log.producer()
        self.held: sf.Session | None = None
        self.kept: list[BaseException] = []
        self.begin()

    def begin(self) -> None:
        """Begin with a new application: the one before may have kept locks."""
        self.number += 1
        self.app = f"{self.name}{self.number}"
        self.offset, self.held = 0, None
        self.source = TopicPartition(f"{self.app}-in", 0)
        for topic in ("in", "out"):
            self.log.admin.create_topic(f"{self.app}-{topic}", 1, TopicPolicy())
        self.open()
        self.ready()
        for number in range(3):
            self.put(number)
            self.commit()
            self.offset += 1

    @property
    def session(self) -> sf.Session:
        """The open session."""
        assert self.held is not None
        return self.held

    def open(self) -> None:
        self.held = None
        self.held = sf.Session(
            self.app,
            log=self.address,
            state_dir=self.folder,
            partitions=1,
            guarantee=self.guarantee,
            stores=[
                sf.KeyValueStore("counts", TEXT, INT),
                sf.WindowStore("windows", TEXT, INT, window_size_ms=1_000, retention_ms=60_000),
                sf.KeyValueStore("memory", TEXT, INT, engine="memory"),
            ],
            **self.settings,
        )

    def assign(self) -> None:
        self.session.assign(active=[0])

    def put(self, number: int) -> None:
        task = self.session.task(0)
        for name in ("counts", "memory"):
            store = task.store(name)
            store.put(f"k{number % KEYS}", (store.get(f"k{number % KEYS}") or 0) + 1, number + 1)
        task.store("windows").put("all", number, number * 100, number + 1)
        task.send(f"{self.app}-out", b"%d" % number, b"", number + 1)

    def commit(self) -> None:
        self.session.commit({self.source: self.offset + 1})

    def read(self) -> None:
        reader = self.session.reader("source")
        try:
            out = TopicPartition(f"{self.app}-out", 0)
            reader.bounds([out])
            reader.assign({out: 0})
            for _ in range(200):
                if reader.fetch(10, 50):
                    break
            else:
                raise Fault("the reader got no record in ten seconds")
            reader.remove([out])
            with self.session.read("counts", 0).store.all() as rows:
                list(rows)
        finally:
            reader.close()

    def ready(self) -> None:
        """Make the session usable again as the documentation says."""
        if self.held is None:
            self.open()
        if not self.session.tasks():
            self.assign()
        task = self.session.tasks().get(0)
        if task is None or task.state.value not in ("running", "restoring"):
            self.session.reopen(0)
        self.session.wait_ready(LATE_S)

    def close(self) -> None:
        self.session.close()

    def check(self) -> None:
        """Raise Fault unless the state is that of the log, and another writer gets the log's lock."""
        self.probe.append({TopicPartition(f"{self.name}-probe", 0): [Outgoing(b"", b"", 1, ())]})
        task = self.session.task(0)
        task.discard()  # rows of a put, or of a commit that had not begun
        found = task.source_offsets().get(self.source, 0)
        if found not in (self.offset, self.offset + 1):
            raise Fault(f"offset {found} after {self.offset}")
        self.offset = found
        counts, memory = dict(task.store("counts").all()), dict(task.store("memory").all())
        expected = {f"k{key}": len(range(key, found, KEYS)) for key in range(min(KEYS, found))}
        if self.guarantee == "exactly_once" and counts != expected:
            raise Fault(f"rows differ: {counts} for {expected}")
        if counts != memory or any(counts.get(key, 0) < count for key, count in expected.items()):
            raise Fault(f"rows differ: {counts}, {memory} in memory, for {expected}")

    def check_closed(self) -> None:
        """Raise Fault if a lock of the state directory is left."""
        path = Path(self.folder) / self.app / "LOCK"
        fd = os.open(path, os.O_RDWR)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Fault("the state directory stays locked") from None
        finally:
            os.close(fd)


# Per call: the step that is broken off, before it the step that makes ready for it, and after it the way back.
def calls(bench: Bench) -> dict[str, tuple[Callable[[], Any], Callable[[], Any], Callable[[], Any]]]:
    def nothing() -> None:
        pass

    def closed() -> None:
        if bench.held is not None:
            bench.close()
            bench.check_closed()

    def after_open() -> None:
        if bench.held is None:
            bench.check_closed()

    def after_close() -> None:
        bench.close()
        bench.check_closed()
        bench.held = None

    def opened() -> None:
        closed()
        bench.open()

    def failed() -> None:
        bench.ready()
        bench.put(bench.offset)
        bench.session.task(0).fail(Interrupted())

    def again() -> None:
        bench.ready()
        bench.session.task(0).discard()

    return {
        "open": (closed, bench.open, after_open),
        "assign": (opened, bench.assign, nothing),
        "put": (again, lambda: bench.put(bench.offset), lambda: bench.session.task(0).discard()),
        "commit": (lambda: (again(), bench.put(bench.offset)), bench.commit, nothing),
        "reopen": (failed, lambda: bench.session.reopen(0), nothing),
        "reader": (again, bench.read, nothing),
        "close": (again, bench.close, after_close),
    }


def main() -> None:
    given = json.loads(sys.argv[1])
    if given.get("wide"):
        interruption.widen(contextlib, threading, weakref)
    rng = random.Random(given["seed"])
    faulthandler.enable()
    sys.unraisablehook = lambda _: None
    bench = Bench(given)
    steps = calls(bench)
    for name in given.get("calls") or steps:
        ready, act, back = steps[name]
        faulthandler.dump_traceback_later(60, exit=True)
        ready()
        passed = record(act)
        back()
        bench.ready()
        bench.check()
        points = sorted(passed)
        chosen = rng.choices(points, k=given["runs"]) if given["runs"] else points
        if given.get("only"):
            chosen = [one for one in points if str(one) == given["only"]]
        for at in chosen:
            occurrence = rng.randint(1, passed[at])
            fault = run(bench, ready, act, back, at, occurrence, name)
            if fault:
                print(
                    json.dumps({"call": name, "point": str(at), "occurrence": occurrence, "fault": fault}), flush=True
                )
        print(json.dumps({"call": name, "runs": len(chosen), "points": len(points)}), flush=True)
    faulthandler.dump_traceback_later(HANG_S, exit=True)
    bench.ready()
    bench.close()
    bench.check_closed()
    bench.probe.close()
    bench.log.close()
    faulthandler.cancel_dump_traceback_later()


def run(
    bench: Bench,
    ready: Callable[[], Any],
    act: Callable[[], Any],
    back: Callable[[], Any],
    at: Point,
    n: int,
    name: str,
) -> str:
    faulthandler.dump_traceback_later(2 * HANG_S, exit=True)
    print(f"{name} {at} {n}", file=sys.stderr, flush=True)
    step = "ready"
    began = time.monotonic()
    try:
        ready()
        step = "act"
        try:
            broken_off(at, n, act)
        except (Interrupted, StandfastError) as error:
            bench.kept.append(error)
            del bench.kept[:-3]
        faulthandler.dump_traceback_later(HANG_S, exit=True)
        began = time.monotonic()
        step = "back"
        back()
        step = "ready again"
        bench.ready()
        step = "check"
        bench.check()
        took = time.monotonic() - began
        if took > LATE_S:
            return f"took {took:.1f} s"
    except (Exception, Interrupted) as error:
        told = f"{step}: {type(error).__name__}: {error} (after {time.monotonic() - began:.1f} s)"
        import traceback

        traceback.print_exc()
        gc.collect()
        bench.kept.clear()
        if bench.held is not None:
            with contextlib.suppress(Exception):
                bench.close()
        gc.collect()
        bench.begin()
        return told
    return ""


if __name__ == "__main__":
    main()
