"""Trips: how many calls, in how many files of the product, one operation takes. `make trips`.

    put                   one row into a key-value store
    commit                of a task with one new row
    standby's record      the round of a standby in which it writes one record
    assign                from the assignment of a task to its first read, with an empty changelog
    cold restore          the same with 100 records in the changelog, and no directory
    SF.COMMIT             of a sidecar's task with one new row
    App.run, one record   the rounds of an application that process one record and commit it

On the embedded log, in one process each, without threads but the sidecar's own. The least of several counts where an
operation can be repeated: caches are filled by then, and others meet work of intervals, such as a heartbeat.

Rules of this file: public faces alone; it prints and judges nothing.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import standfast as sf
from standfast.store.clock import ManualClock
from support.resp import Client
from support.serve import Sidecar
from trips.hook import Trip, counted, install

TEXT = sf.serde.string
START_MS = 1_357_000_000_000
ROUNDS = 500  # until what is waited for must have come
ROWS = 100
REPEATS = 5
COMMITS = 20  # of the sidecar, whose threads go on beside them


def least(found: dict[str, Trip], name: str, trip: Trip) -> None:
    """Keep the trip with the fewest calls."""
    if name not in found or trip.calls < found[name].calls:
        found[name] = trip


class Trips:
    """The operations on one embedded log."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.clock = ManualClock(START_MS)
        self.address = f"sqlite:///{root}/log"

    def session(self, directory: str, store: str = "kv") -> sf.Session:
        """A session without threads."""
        stores = [sf.KeyValueStore(store, TEXT, TEXT)]
        return sf.Session(
            store, log=self.address, state_dir=self.root / directory, stores=stores, partitions=2,
            background=False, clock=self.clock,
        )  # fmt: skip

    def live(self) -> dict[str, Trip]:
        """An active task, and its standby on another instance."""
        found: dict[str, Trip] = {}
        with self.session("a") as active, self.session("b") as standby:
            active.assign(active=[1])
            active.wait_ready(30)
            with counted() as found["assign"]:
                active.assign(active=[0, 1])
                active.wait_ready(30)
                active.task(0).store("kv").get("k")
            standby.assign(standby=[0])
            task = active.task(0)
            store = task.store("kv")
            for number in range(REPEATS):
                with counted() as put:
                    store.put("k", f"v{number}")
                with counted() as commit:
                    task.commit()
                least(found, "put", put)
                least(found, "commit", commit)
                least(found, "standby's record", self._follow(standby, f"v{number}"))
        return found

    def _follow(self, standby: sf.Session, value: str) -> Trip:
        for _ in range(ROUNDS):
            self.clock.advance(100)
            with counted() as trip:
                standby.poll_once()
            if standby.tasks and standby.read("kv", 0, allow_stale=True).store.get("k") == value:
                return trip
        raise AssertionError("the standby lacks the record")

    def restore(self) -> dict[str, Trip]:
        """A task whose rows are in the log alone."""
        with self.session("first", "cold") as session:
            session.assign(active=[0])
            session.wait_ready(30)
            for number in range(ROWS):
                session.task(0).store("cold").put(f"k{number}", "v")
            session.task(0).commit()
        found: dict[str, Trip] = {}
        for directory in ("warm", "cold"):
            with self.session(directory, "cold") as session, counted() as trip:
                session.assign(active=[0])
                session.wait_ready(30)
                assert session.task(0).store("cold").get("k99") == "v"
            least(found, "cold restore", trip)
        return found

    def app(self) -> dict[str, Trip]:
        """An application that counts one record, as its `run` does in rounds."""
        stores = [sf.KeyValueStore("counts", TEXT, sf.serde.int64)]
        app = sf.App("app", log=self.address, state_dir=self.root / "app", clock=self.clock, stores=stores)
        counts = app.stream("in", key=TEXT, value=TEXT).group_by_key().count("counts")
        counts.to_stream().to("out", value=sf.serde.int64)
        log = sf.open_log(self.address)
        for topic in ("in", "out"):
            log.admin.create_topic(topic, 1, sf.TopicPolicy())
        log.close()
        app.open(background=False)
        found: dict[str, Trip] = {}
        for number in range(REPEATS):
            with app.producer() as producer:
                producer.send("in", key="k", value=str(number))
            least(found, "App.run, one record", self._process(app, number + 1))
        app.close()
        return found

    def _process(self, app: sf.App, records: int) -> Trip:
        whole = Trip()
        for _ in range(ROUNDS):
            self.clock.advance(100)
            with counted() as trip:
                processed = app.poll_once()
            done = self._committed(app) >= records
            if processed or done:
                whole.add(trip)
            if done:
                return whole
        raise AssertionError("the record is not committed")

    def _committed(self, app: sf.App) -> int:
        assert app.session is not None
        return sum(task.stores.cut.sources.get("in/0", 0) for task in app.session.all_tasks().values())

    def sidecar(self) -> dict[str, Trip]:
        """A commit of a sidecar, whose process counts."""
        sidecar = Sidecar(self.root, "serve", self.address, {}, "serve")
        sidecar.command[1:4] = ["-m", "trips.sidecar"]
        sidecar.start(stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        process = sidecar.process
        assert process is not None
        client = Client(Path(sidecar.info["resp_socket"]))
        found: dict[str, Trip] = {}
        try:
            sidecar.declare()
            sidecar.assign(1, (0,))
            sidecar.wait_ready()
            client("AUTH", "kv", "x")
            client("SELECT", 0)
            for number in range(COMMITS):
                client("SET", "k", f"v{number}")
                _say(process, "begin")
                client("SF.COMMIT", "OFFSETS", "in", 0, number + 1)
                least(found, "SF.COMMIT", Trip(_say(process, "end")))
        finally:
            client.close()
            sidecar.stop()
        return found


def _say(process: subprocess.Popen[bytes], word: str) -> dict[str, int]:
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(f"{word}\n".encode())
    process.stdin.flush()
    answer: dict[str, int] = json.loads(process.stdout.readline())
    return answer


def main() -> int:
    """Print the table."""
    install()
    with tempfile.TemporaryDirectory(prefix="trips-") as folder:
        trips = Trips(Path(folder))
        parts: list[Callable[[], dict[str, Trip]]] = [trips.live, trips.restore, trips.app, trips.sidecar]
        found = [part() for part in parts]
    print(f"{'operation':22} {'calls':>7} {'files':>6}")
    for part in found:
        for name, trip in part.items():
            print(f"{name:22} {trip.calls:7,} {trip.files:6}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
