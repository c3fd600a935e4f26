"""Definitions behind the fixtures in `tests/fixtures/yesterday`: files and calls of an earlier version.

    app        a session: stores of every kind on both engines, one store without a changelog, two tasks, a standby
    streams    an application: windows on update and on close, sessions, timers, a repartition, a table
    sidecar    a sidecar with its settings file and a snapshot

Rules of this file: the generator (`fixtures/yesterday/make.py`) and `test_yesterday.py` share it. Changes here must
keep the fixtures' meaning: stores, topology and settings are those that wrote the files. Timestamps lie in the year
2100, so that no retention reaches them, however old the files are.
"""

from __future__ import annotations

import functools
import json
import os
import random
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import standfast as sf
from standfast.stream.task.task import Task
from support.apps import Running, create, write
from support.crash.oracle import read_back
from support.places import TESTS
from support.serve import Sidecar
from support.sessions import Bench

FIXTURES = TESTS / "fixtures/yesterday"
ARCHIVES = ("log", "state", "standby", "streams", "rebuilt", "snapshot")
START_MS = 4_102_444_800_000
LATER_MS = 2_000_000_000_000  # the machine's time when the fixtures are opened
MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
# Deletes stay in changelogs for ever, so that no position is too old to be followed on from.
KEPT: dict[str, str] = {"delete.retention.ms": "3153600000000"}
UNLOGGED = "notes"
REBUILT = ("kv", "win", "ses", "ver")
SIDECAR_KEYS = tuple(f"s{number}" for number in range(12))


# -- a session ---------------------------------------------------------------------------------------------------------


def session_stores() -> list[Any]:
    text = sf.serde.string
    found: list[Any] = []
    for end, engine in (("", "rocksdb"), ("-memory", "memory")):
        more: dict[str, Any] = {"engine": engine, "changelog": KEPT}
        found += [
            sf.KeyValueStore(f"kv{end}", text, text, **more),
            sf.WindowStore(f"win{end}", text, text, window_size_ms=MINUTE_MS, retention_ms=2 * HOUR_MS, **more),
            sf.SessionStore(f"ses{end}", text, text, retention_ms=2 * HOUR_MS, **more),
            sf.VersionedStore(f"ver{end}", text, text, history_retention_ms=HOUR_MS, **more),
        ]
    return [
        *found,
        sf.KeyValueStore("plain", text, sf.serde.json, timestamped=False, caching=False, changelog=KEPT),
        sf.WindowStore(
            "dup",
            text,
            text,
            window_size_ms=MINUTE_MS,
            retention_ms=2 * HOUR_MS,
            retain_duplicates=True,
            changelog=KEPT,
        ),
        sf.KeyValueStore(UNLOGGED, text, text, logging=False),
    ]


def operate(task: Task, first: int, last: int) -> None:
    """Operations `first` to `last` of a task, with a commit of the source offset after every tenth."""
    rng = random.Random(f"{task.id}/{first}")
    stores: dict[str, Any] = {name: task.store(name) for name in task.stores.specs}
    for number in range(first, last):
        now_ms = START_MS + number * 2 * MINUTE_MS
        task.observe("clicks", task.id.partition, now_ms)
        for name, store in stores.items():
            key, value = f"k{rng.randrange(15)}", None if rng.random() < 0.2 else f"{name} {number}"
            at_ms = now_ms - rng.randrange(20 * MINUTE_MS)
            match name.removesuffix("-memory"):
                case "win" | "dup":
                    store.put(key, value, at_ms // MINUTE_MS * MINUTE_MS, now_ms)
                case "ses":
                    store.put(key, at_ms // MINUTE_MS * MINUTE_MS, now_ms, value, now_ms)
                case "plain":
                    store.put(key, value and {"text": value})
                case _:
                    store.put(key, value, at_ms)
        if number % 10 == 9 or number == last - 1:
            task.commit({("clicks", task.id.partition): number + 1})


def rows_of(task: Task) -> dict[str, list[list[Any]]]:
    """Committed rows of each store: key and value in hex, and the timestamp (-1: none)."""
    return {
        name: sorted([key.hex(), stamp, value.hex()] for key, stamp, value in store.logical_rows())
        for name, store in task.stores.stores.items()
    }


def reads_of(task: Task, rows: Mapping[str, list[list[Any]]]) -> dict[str, list[list[Any]]]:
    """The same stores through their public reads, as JSON values."""
    found = {}
    for name, store in task.stores.stores.items():
        keys = sorted({bytes.fromhex(row[0]).decode() for row in rows[name]}) if name.startswith("ver") else []
        found[name] = [list(row) for row in read_back(store, keys)]
    return found


# -- an application ----------------------------------------------------------------------------------------------------

STREAMS = "streams"
STREAM_INPUTS, STREAM_OUTPUTS = ("visits-in", "names-in"), ("hops", "finals", "sessions", "alarms", "places", "names")
HOPS = sf.HoppingWindows(60_000, 20_000, 5_000)
TUMBLES = sf.TumblingWindows(30_000, 10_000)
VISITS = sf.SessionWindows(8_000, 15_000)


class Reminder(sf.Processor):
    """Counts per key, and forwards the count by a timer 50 seconds after each record, and by stream time."""

    stores = ("seen",)

    def init(self, context: sf.Context) -> None:
        self.context = context
        self.seen = context.store("seen")
        context.schedule(25_000, sf.STREAM_TIME, self.tick)

    def process(self, record: sf.Record) -> None:
        self.seen.put(record.key, (self.seen.get(record.key) or 0) + 1, record.timestamp)
        self.context.timer(record.key, record.timestamp + 50_000)

    def on_timer(self, timer: sf.Timer) -> None:
        self.context.forward(sf.Record(timer.key, {"due": timer.time, "seen": self.seen.get(timer.key)}, timer.time))

    def tick(self, now_ms: int) -> None:
        self.seen.put("#tick", now_ms // 25_000, now_ms)


def declare_streams(app: sf.App) -> None:
    visits = app.stream("visits-in", watermarks=lambda: sf.BoundedDisorder(5_000))
    by_key = visits.group_by_key()
    by_key.window(HOPS).count("hop-counts").to("hops")
    by_key.window(TUMBLES).count("tumble-counts", emit=sf.ON_WINDOW_CLOSE).to("finals")
    by_key.window(VISITS).count("visit-counts").to("sessions")
    visits.process(Reminder, name="reminder").to("alarms")
    places = visits.select_key(lambda _key, value: value["place"]).repartition("places")
    places.group_by_key().count("place-counts").to("places")
    app.table("names-in", "name-table").to_stream().to("names")


def streams_stores() -> list[Any]:
    text, whole = sf.serde.string, sf.serde.json
    day_ms = 24 * HOUR_MS
    return [
        sf.WindowStore("hop-counts", text, whole, window_size_ms=60_000, retention_ms=day_ms, changelog=KEPT),
        sf.WindowStore("tumble-counts", text, whole, window_size_ms=30_000, retention_ms=day_ms, changelog=KEPT),
        sf.SessionStore("visit-counts", text, whole, retention_ms=day_ms, changelog=KEPT),
        sf.KeyValueStore("seen", text, whole, changelog=KEPT),
        sf.KeyValueStore("place-counts", text, whole, changelog=KEPT),
        sf.KeyValueStore("name-table", text, text),
    ]


def open_streams(bench: Bench, directory: str) -> Running:
    return Running(bench, declare_streams, directory, name=STREAMS, stores=streams_stores(), stream_time="max")


def feed_streams(bench: Bench, first: int, last: int) -> None:
    """Records `first` to `last` of both inputs."""
    for partition in range(2):
        rng = random.Random(f"{partition}/{first}")
        visits = [
            (
                f"v{rng.randrange(4)}",
                json.dumps({"n": number, "place": f"p{rng.randrange(3)}"}),
                START_MS + number * 3_000 - rng.randrange(8_000),
            )
            for number in range(first, last)
        ]
        write(bench, "visits-in", *visits, partition=partition)
        names = [(f"v{rng.randrange(4)}", f"name {number}", START_MS + number) for number in range(first, last, 5)]
        write(bench, "names-in", *names, partition=partition)


def create_topics(bench: Bench) -> None:
    create(bench, 2, "clicks", *STREAM_INPUTS, *STREAM_OUTPUTS)


# -- a sidecar ---------------------------------------------------------------------------------------------------------


def sidecar_stores() -> list[Any]:
    """The stores of `sidecar.toml`, as a client declares them."""
    text = sf.serde.string
    return [
        sf.KeyValueStore("kv", text, text, changelog=KEPT),
        sf.WindowStore("win", text, text, window_size_ms=MINUTE_MS, retention_ms=24 * HOUR_MS, changelog=KEPT),
        sf.SessionStore("ses", text, text, retention_ms=24 * HOUR_MS, changelog=KEPT),
        sf.VersionedStore("ver", text, text, history_retention_ms=24 * HOUR_MS, changelog=KEPT),
    ]


def make_sidecar(root: Path) -> Sidecar:
    """A sidecar on the settings file, with its log and state below `root`; not started."""
    sidecar = Sidecar(root, "sidecar", f"sqlite:///{root}/log", {}, "sidecar")
    sidecar.command += ["--config", str(FIXTURES / "sidecar.toml")]
    return sidecar


def connect(sidecar: Sidecar) -> Any:
    client = sf.connect(sidecar.run_dir, stores=sidecar_stores(), partitions=2)
    client.assign(active=range(2))
    client.wait_ready(30)
    return client


def write_through(client: Any, first: int, last: int) -> None:
    """Operations `first` to `last` of both partitions, each with a commit."""
    for partition in range(2):
        task = client.task(partition)
        for number in range(first, last):
            key, at_ms = SIDECAR_KEYS[number % len(SIDECAR_KEYS)], START_MS + number * MINUTE_MS
            task.store("kv").put(key, f"kv {number}", timestamp=at_ms)
            task.store("win").put(key, f"win {number}", at_ms, timestamp=at_ms)
            task.store("ses").put(key, at_ms, at_ms + 1_000, f"ses {number}")
            task.store("ver").put(key, f"ver {number}", at_ms)
            task.commit({("clicks", partition): number + 1})


def read_through(client: Any) -> dict[str, Any]:
    """The rows that a client reads of each partition."""
    found: dict[str, Any] = {}
    for partition in range(2):
        task = client.task(partition)
        found[str(partition)] = {
            "offset": task.source_offsets()["clicks", partition],
            "kv": [list(row) for row in task.store("kv").all()],
            "win": [[one.key, one.start, value] for one, value in task.store("win").all()],
            "ses": [
                [one.key, one.start, one.end, value]
                for key in SIDECAR_KEYS
                for one, value in task.store("ses").fetch(key)
            ],
            "ver": [
                [key, one.valid_from, one.value]
                for key in SIDECAR_KEYS
                for one in task.store("ver").range(key, 0, 2 * START_MS)
            ],
        }
    return found


# -- files and calls ---------------------------------------------------------------------------------------------------


def unpack(root: Path, *names: str) -> None:
    """Copies of the kept folders below `root`; the kept ones are never opened themselves."""
    for name in names or ARCHIVES:
        with tarfile.open(FIXTURES / f"{name}.tar.gz") as archive:
            archive.extractall(root, filter="data")


def place_snapshot(root: Path) -> None:
    """The snapshot as the state directory of the sidecar to come."""
    shutil.copytree(root / "snapshot", root / "sidecar/sidecar")


def run_calls(root: Path, sidecar: Sidecar) -> dict[str, dict[str, Any]]:
    """Run the script of calls over the copies below `root`; exit code, document and text of each call."""
    out = root / "out"
    out.mkdir()
    standfast = root / "standfast"
    standfast.write_text(f'#!/bin/sh\nexec "{sys.executable}" -P -m standfast.ops.cli "$@"\n')
    standfast.chmod(0o755)
    given = {"OUT": str(out), "RUN_DIR": str(sidecar.run_dir), "SETTINGS": str(FIXTURES)}
    environment = {**os.environ, **given, "PATH": f"{root}:{os.environ['PATH']}", "COLUMNS": "120"}
    done = subprocess.run(
        ["sh", "-eu", str(FIXTURES / "calls.sh")], cwd=root, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return {
        code.stem: {
            "exit": int(code.read_text()),
            "out": code.with_suffix(".out").read_text(),
            "err": code.with_suffix(".err").read_text(),
        }
        for code in sorted(out.glob("*.code"))
    }


def shape(value: Any) -> Any:
    """The fields of a document and their kinds; for a list, the fields that all of its entries have."""
    if isinstance(value, dict):
        return {key: shape(one) for key, one in value.items()}
    if isinstance(value, list):
        shapes = [shape(one) for one in value]
        return [functools.reduce(_in_common, shapes)] if shapes else []
    if isinstance(value, bool) or value is None:
        return "bool" if isinstance(value, bool) else "null"
    return "number" if isinstance(value, (int, float)) else "text"


def _in_common(one: Any, other: Any) -> Any:
    """The shape of two entries of one list; null where their kinds differ."""
    if isinstance(one, dict) and isinstance(other, dict):
        return {key: _in_common(one[key], other[key]) for key in one if key in other}
    if isinstance(one, list) and isinstance(other, list):
        return [_in_common(one[0], other[0])] if one and other else []
    return one if one == other else "null"


def missing_fields(wanted: Any, found: Any, where: str) -> list[str]:
    """Fields of a shape that a document lacks, as sentences. Further fields are allowed, and null for any kind.

    The names in a counter of `status` (phases, reasons) are data, which depends on past events.
    """
    if where.startswith("status.counters."):
        return []
    if isinstance(wanted, dict):
        if not isinstance(found, dict):
            return [f"{where} is {type(found).__name__}, not an object"]
        lost = [f"{where}.{key} is gone" for key in wanted if key not in found]
        return lost + [
            text for key in wanted if key in found for text in missing_fields(wanted[key], found[key], f"{where}.{key}")
        ]
    if isinstance(wanted, list):
        if not isinstance(found, list):
            return [f"{where} is {type(found).__name__}, not a list"]
        if wanted and not found:
            return [f"{where} is empty"]
        return [text for one in found[:50] for kind in wanted for text in missing_fields(kind, one, f"{where}[]")]
    kind = shape(found)
    return [] if "null" in (wanted, kind) or wanted == kind else [f"{where} is {kind}, not {wanted}"]
