"""A task closes while another thread is in the middle of a range: the range ends with an error, and all is released.

A serde or rows that wait decide the other thread's place, so no test depends on time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import hiredis
import pytest
from unit.ops.test_control_plane import Plane, on_plane

from standfast.ops.observe.health import live
from standfast.ops.sidecar.control import plane as control_plane
from standfast.store import serde
from standfast.store.errors import Closed, Fenced, Held
from standfast.store.rocks.engine import RocksEngine
from standfast.store.rocks.opening import RocksShared
from standfast.store.specs import KeyValueStore, SessionStore, WindowStore
from standfast.store.task.task_stores import TaskStores
from standfast.stream.task.task import Task
from support.resp import Client
from support.serve import Sidecars
from support.stores import TEXT, Open, at

WAIT_S = 20.0
ROWS = 600  # more than one chunk of a scan


class Stop:
    """The place where a reading thread waits in the middle of a step."""

    def __init__(self) -> None:
        self.armed = False
        self.reached = threading.Event()
        self.go_on = threading.Event()

    def value(self, raw: bytes) -> str:
        if self.armed:
            self.reached.set()
            assert self.go_on.wait(WAIT_S)
        return raw.decode()

    def rows(self) -> Iterator[int]:
        yield 1
        self.reached.set()
        assert self.go_on.wait(WAIT_S)
        yield 2


def stores_that_stop(stop: Stop, engine: Any) -> list[Any]:
    value = serde.pair("waits", str.encode, stop.value)
    return [
        KeyValueStore("kv", TEXT, value, engine=engine),
        WindowStore("win", TEXT, value, window_size_ms=1_000, retention_ms=120_000, engine=engine),
        SessionStore("ses", TEXT, value, retention_ms=120_000, engine=engine),
    ]


def fill(task: TaskStores) -> None:
    for number in range(ROWS):
        key = f"{number:03}"
        task.store("kv").put(key, "1")
        task.store("win").put(key, "1", 1_000)
        task.store("ses").put(key, 1, 2, "1")
    task.commit(at(1))
    task.store("kv").put("000", "buffered")


def closed_within_a_step(stop: Stop, found: Any, close: Callable[[], None], match: str | None = None) -> None:
    """Close while another thread is within a step of a range, which ends with an error then."""
    next(found)
    stop.armed = True
    with ThreadPoolExecutor(1) as reader:
        rest = reader.submit(list, found)
        try:
            assert stop.reached.wait(WAIT_S)
            close()
        finally:
            stop.go_on.set()
        with pytest.raises(Closed, match=match):
            rest.result(WAIT_S)


@pytest.mark.parametrize("engine", ["rocksdb", "memory"])
@pytest.mark.parametrize("store", ["kv", "win", "ses"])
def test_task_closes_while_another_thread_is_within_a_range_and_opens_again(
    open_task: Open, engine: Any, store: str
) -> None:
    stop = Stop()
    task = open_task(*stores_that_stop(stop, engine))
    fill(task)
    found = task.store(store).all()
    closed_within_a_step(stop, found, task.close)
    stop.armed = False
    again = open_task(*stores_that_stop(stop, engine))  # the directory was released
    assert len(list(again.store("kv").all())) == (ROWS if engine == "rocksdb" else 0)


def test_range_that_another_thread_closes_in_a_step_ends_with_an_error_and_frees_its_scan(open_task: Open) -> None:
    stop = Stop()
    task = open_task(*stores_that_stop(stop, "rocksdb"))
    fill(task)
    found = task.store("kv").all()
    closed_within_a_step(stop, found, found.close, match="iterator of store 'kv' is closed")
    assert found._items.gi_frame is None


def test_range_that_a_close_cuts_short_is_not_taken_for_its_end(open_task: Open) -> None:
    task = open_task(*stores_that_stop(Stop(), "rocksdb"))

    def ends_with_the_task() -> Iterator[int]:
        yield 1
        task.close()  # as from another thread, between two steps of this one

    found = task.store("kv").rows.iterate(ends_with_the_task())
    next(found)
    with pytest.raises(Closed):
        next(found)


def test_iterator_that_is_made_while_the_store_closes_is_refused(open_task: Open) -> None:
    task = open_task(*stores_that_stop(Stop(), "rocksdb"))
    rows = task.store("kv").rows

    class ClosesFirst(type(rows.iterators)):  # type: ignore[misc]
        def add(self, item: Any) -> None:
            rows.close()
            super().add(item)

    rows.iterators = ClosesFirst()
    with pytest.raises(Closed):
        rows.iterate(iter((1, 2)))
    assert not rows.iterators


def test_engine_is_closed_although_a_store_of_the_task_cannot_be(open_task: Open) -> None:
    task = open_task(*stores_that_stop(Stop(), "rocksdb"))

    def fails_at_its_end() -> Iterator[int]:
        try:
            yield 1
        finally:
            raise OSError("it cannot be closed")

    found = task.store("kv").rows.iterate(fails_at_its_end())
    next(found)
    with pytest.raises(OSError, match="cannot be closed"):
        task.close()
    open_task(*stores_that_stop(Stop(), "rocksdb"))


@pytest.mark.usefixtures("earlier_objects_stay")  # each attempt to open the directory collects garbage
def test_directory_that_this_process_does_not_let_go_of_keeps_no_other_task_back_and_fails_livez(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rocks_shared: RocksShared
) -> None:
    async def test(made: Plane) -> None:
        await made.assign(1, 0)
        await made.ready()
        await made.assign(2)
        kept = RocksEngine(tmp_path / "s" / "app" / "0_0", shared=rocks_shared)
        try:
            await made.assign(3, 0, 1)
            await made.until(lambda: made.plane.table.now.open.keys() == {1})
            with pytest.raises(Held, match="holds it"):
                made.plane.table.running(0)
            await made.until(lambda: not live(made.answers.facts(loop_age_ms=0)).ok)
            assert "only a new process helps" in live(made.answers.facts(loop_age_ms=0)).text(verbose=False)
        finally:
            kept.close()
        await made.ready()
        await made.until(lambda: live(made.answers.facts(loop_age_ms=0)).ok)

    monkeypatch.setattr(control_plane, "LOCKED_MS_MAX", 200)
    on_plane(tmp_path, test)


def within_a_range(task: Task, stop: Stop) -> Iterator[int]:
    found: Iterator[int] = task.stores.store("kv").rows.iterate(stop.rows())
    next(found)
    return found


@pytest.mark.parametrize("how", ["revoke", "lost", "generation"])
def test_partition_goes_and_comes_back_while_a_range_of_it_is_being_read(tmp_path: Path, how: str) -> None:
    async def test(made: Plane) -> None:
        await made.assign(1, 0)
        await made.ready()
        stop = Stop()
        with ThreadPoolExecutor(1) as reader:
            rest = reader.submit(list, within_a_range(made.plane.table.running(0), stop))
            try:
                assert stop.reached.wait(WAIT_S)
                if how == "generation":
                    await made.assign(2)
                else:
                    await made.revoke(generation=1, partitions=[0], mode="lost" if how == "lost" else "clean")
                await made.assign(3, 0)
                await made.ready()
            finally:
                stop.go_on.set()
            with pytest.raises(Fenced if how == "lost" else Closed):
                rest.result(WAIT_S)

    on_plane(tmp_path, test)


# -- the process ------------------------------------------------------------------------------------------------------

ROUNDS = 2
READERS = 1
ROWS_SCANNED = 5_000  # so many are read in a thread of the pool


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_scans_that_never_stop_keep_no_partition_from_moving_and_answer_whole_or_with_an_error(
    sidecars: Sidecars,
) -> None:
    sidecar = sidecars.start(serve__workers=1)
    sidecar.declare([{"name": "kv", "kind": "keyvalue"}], partitions=1)
    sidecar.assign(1, active=(0,))
    sidecar.wait_ready()
    socket = Path(sidecar.info["resp_socket"])
    with closing(Client(socket)) as writer:
        rows = [text for number in range(ROWS_SCANNED) for text in (f"{number:05}", "v")]
        for request in (("AUTH", "kv", ""), ("MSET", *rows), ("SF.COMMIT", "SEQ", 1)):
            assert not isinstance(writer(*request), hiredis.ReplyError), request[0]
    stopped = threading.Event()

    def scan() -> list[Any]:
        """The number of rows in each answer, or its error."""
        found = []
        while not stopped.is_set():
            with closing(Client(socket)) as client:
                answer = client("SF.RANGE", "kv", "", "")
            found.append(len(answer) // 2 if isinstance(answer, list) else str(answer).split()[0])
        return found

    with ThreadPoolExecutor(READERS) as readers:
        scans = [readers.submit(scan) for _ in range(READERS)]
        try:
            for number in range(ROUNDS):
                sidecar.call("POST", "/v1/revoke", {"generation": 1 + number, "partitions": [0]})
                sidecar.assign(2 + number, active=(0,))
                sidecar.wait_ready()
        finally:
            stopped.set()
        answers = {answer for one in scans for answer in one.result(WAIT_S)}
    assert ROWS_SCANNED in answers
    assert answers <= {ROWS_SCANNED, "LOADING", "NOTASSIGNED", "FENCED", "UNAVAILABLE"}
    assert sidecar.http is not None and sidecar.http.get("/livez").status_code == 200
