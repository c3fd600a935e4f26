"""Snapshots in the comparison: their storages, the snapshot of a ground, and the bytes that the next ones upload.

    folder      a folder of this disk; a restore copies its files
    s3          a bucket of a server on loopback that is compatible with S3, over a folder of this disk
    links       a copy of the snapshot's directory whose table files are hard links: no copy, no sha256

    bytes       one task on its own application; uploaded bytes of
                  first           all of its rows, by their first owner
                  next            1 % of the rows changed, the same owner, no compaction in between
                  compacted       1 % changed, and every file was compacted
                  taken over      1 % changed, by the standby that took over: it made its files from the log
                  begun with one  1 % changed, by a new owner that began with the last snapshot

Rules of this file: every storage lies below the folder of the run. The server is the tests' own.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compare_data import NUMBER_BYTES, VALUES, Shape, some_values
from side_standfast import busy

import standfast as sf
from standfast.restore.snapshot.opening import open_storage

if TYPE_CHECKING:
    from compare_runs import Ground, Place

HERE = Path(__file__).resolve().parent
SNAPSHOT = "snapshot"  # the kept state of a ground at its snapshot
SNAPSHOT_SHARE = 0.99  # of the records; the rest is the tail
FOLDER, S3, LINKS = "folder", "s3", "links"
STATES = (FOLDER, S3, LINKS)
BYTES = "snapshot-bytes"
CHANGED_SHARE = 0.01
STORE, COMMIT_ROWS = "kv", 10_000
WAIT_S, POLL_S = 600.0, 0.05


@dataclass
class Storages:
    """Addresses of the storages that the scenarios need, by state."""

    addresses: dict[str, str] = field(default_factory=dict)

    def of(self, state: str) -> str:
        """The address for a restore; local state comes before any snapshot, so links name a storage without need."""
        return self.addresses[FOLDER if state == LINKS else state]


@contextmanager
def storages(folder: Path, scenarios: Sequence[str], say: Any) -> Iterator[Storages]:
    """The storages, below `folder`; the server of buckets runs within the block."""
    found = Storages({FOLDER: str(folder / "snapshots")})
    if f"snapshot-{S3}" not in scenarios:
        yield found
        return
    sys.path.append(str(HERE.parents[1] / "tests"))
    from support.buckets import CREDENTIALS, buckets, find_s3_server

    os.environ.update(CREDENTIALS)  # the sides read them there, as any application
    with buckets(find_s3_server(say), folder / "buckets") as server:
        found.addresses[S3] = server.address("compare")
        yield found


def store_snapshots(place: Place, ground: Ground, state: Path) -> None:
    """Store a snapshot of a ground's stopped instance in each storage."""
    for address in place.storages.addresses.values():
        command = [sys.executable, "-P", "-m", "standfast", "snapshot", "create"]
        done = subprocess.run(
            [*command, "--to", address, "--state-dir", str(state)], capture_output=True, text=True, check=False
        )
        if done.returncode != 0 or "uploaded" not in done.stdout:
            raise RuntimeError(f"no snapshot of {ground.app} was stored:\n{done.stdout}{done.stderr}")


def link_state(kept: Path, run: Path) -> None:
    """Copy a kept state directory; table files, which never change, become hard links."""

    def copy(source: str, target: str) -> None:
        if source.endswith(".sst"):
            os.link(source, target)
        else:
            shutil.copy2(source, target)

    shutil.copytree(kept, run, copy_function=copy)


def check_begun(ground: Ground, state: str, mark: dict[str, Any]) -> None:
    """Raise RuntimeError if a restore read the log instead of the snapshot: its time would be another's."""
    if state in (FOLDER, S3) and mark["snapshots"] != ground.shape.partitions:
        raise RuntimeError(
            f"{ground.app} began {mark['snapshots']} tasks with a snapshot, of {ground.shape.partitions}"
        )
    if mark["restored"] > ground.shape.records // 2:
        raise RuntimeError(f"{ground.app} replayed {mark['restored']} records, which its snapshot has")


class Owner:
    """One owner of the only task of an application, with its snapshots in a folder."""

    def __init__(self, place: Place, app: str, directory: str, *, restore: bool) -> None:
        raw = sf.serde.bytes
        self.to, self.app = str(place.folder / f"{app}-snapshots"), app
        self.session = sf.Session(
            app,
            log=f"kafka://{place.address}",
            state_dir=place.folder / f"{app}-state" / directory,
            stores=[sf.KeyValueStore(STORE, raw, raw)],
            partitions=1,
            snapshots=sf.SnapshotPolicy(to=self.to, keep=10, restore=restore),
        )

    def run(self) -> None:
        """Own the task."""
        self.session.assign(active=[0])
        self.session.wait_ready(WAIT_S)

    def follow(self) -> None:
        """Follow the task until no record is missing."""
        self.session.assign(standby=[0])
        self._until(self._without_lag, "a standby without lag")

    def put(self, rows: Iterator[tuple[bytes, bytes]]) -> None:
        """Put rows, with a commit now and then."""
        task = self.session.task(0)
        put = task.store(STORE).put
        for number, (key, value) in enumerate(rows, 1):
            put(key, value)
            if number % COMMIT_ROWS == 0:
                task.commit()
        task.commit()

    def compact(self) -> None:
        """Compact every file, and wait until no flush and no compaction runs or is due."""
        task = self.session.task(0)
        task.stores.engine.flush()
        task.stores.engine.compact(STORE)
        self._until(lambda: not busy(task), "an idle database")

    def snapshot(self, step: str) -> dict[str, Any]:
        """Make a snapshot; returns the bytes and files uploaded, by its own count and by the storage's list."""
        # Here, since it loads the library of storages, which programs that only share this folder do without.
        from standfast.restore.snapshot.catalogue import listed

        storage = open_storage(self.to, self.app)
        there = {one.key.rpartition("/")[2] for one in storage.list("files")}
        counts = self.session.counters.snapshots
        before, started = counts.uploaded_bytes, time.monotonic()
        name = self.session.snapshot(0)
        elapsed_ms = (time.monotonic() - started) * 1_000
        (made,) = (kept.snapshot for kept in listed(storage).whole if str(kept.snapshot.name) == name)
        new = {file.sha256: file.bytes for file in made.files if file.sha256 not in there}
        return {
            "step": step,
            "uploaded_bytes": counts.uploaded_bytes - before,
            "uploaded_files": len(new),
            "snapshot_bytes": made.bytes,
            "snapshot_files": len(made.files),
            "elapsed_ms": elapsed_ms,
            "correct": counts.uploaded_bytes - before == sum(new.values()),
        }

    def _without_lag(self) -> bool:
        stores = [store for task in self.session.statistics().tasks for store in task.stores]
        return bool(stores) and all(store.lag == 0 for store in stores)

    def _until(self, reached: Any, what: str) -> None:
        deadline = time.monotonic() + WAIT_S
        while not reached():
            if time.monotonic() > deadline:
                raise RuntimeError(f"{self.app} waits for {what} for longer than {WAIT_S:.0f} s")
            time.sleep(POLL_S)


def upload_bytes(place: Place, shape: Shape, number: int) -> dict[str, Any]:
    """The bytes that each kind of snapshot uploads, of a task with one row a key."""
    app = f"standfast-bytes-{number}"
    chance, keys = random.Random(shape.seed), shape.all_keys()
    values = some_values(shape.seed, shape.value_bytes)
    steps: list[dict[str, Any]] = []

    def changed(turn: int) -> Iterator[tuple[bytes, bytes]]:
        """A row for each key in turn 0, for a random 1 % of them later."""
        some = (
            range(len(keys)) if turn == 0 else chance.sample(range(len(keys)), max(int(len(keys) * CHANGED_SHARE), 1))
        )
        return ((keys[one], b"%0*d%s" % (NUMBER_BYTES, turn, values[one % VALUES])) for one in some)

    one, two = Owner(place, app, "one", restore=False), Owner(place, app, "two", restore=False)
    three = None
    try:
        one.run()
        one.put(changed(0))
        # Compacted, so that no compaction of the rows' own files falls between this snapshot and the next one.
        one.compact()
        steps.append(one.snapshot("first"))
        one.put(changed(1))
        steps.append(one.snapshot("next"))
        one.put(changed(2))
        one.compact()
        steps.append(one.snapshot("compacted"))
        two.follow()
        one.session.close()
        two.run()
        two.put(changed(3))
        steps.append(two.snapshot("taken over"))
        two.session.close()
        three = Owner(place, app, "three", restore=True)
        three.run()
        three.put(changed(4))
        steps.append(three.snapshot("begun with one"))
        begun = three.session.counters.snapshots.restores["restored"]
    finally:
        for task in (one, two, three):
            if task is not None:
                task.session.close()
        for name in ("snapshots", "state"):
            shutil.rmtree(place.folder / f"{app}-{name}", ignore_errors=True)
    place.log.admin.delete_topic(f"{app}-{STORE}-changelog")
    return {"steps": steps, "correct": begun == 1 and all(step["correct"] for step in steps)}
