"""Rows of an instance with workers, by real lines: two sessions answer as two workers, each in threads of its own."""

from __future__ import annotations

import json
import random
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

import standfast as sf
from standfast.ops.http.rows import Rows
from standfast.ops.http.worker_answers import WorkerAnswers
from standfast.ops.http.worker_frames import ANSWER, ASK, ASKED_MAX, BEAT, STATUS, read_frame, send_frame
from standfast.ops.http.worker_lines import WorkerLine, WorkerLines
from standfast.ops.http.worker_rows import WorkerRows
from standfast.ops.shared.error_codes import NotActive, NotAssigned, NotFound
from standfast.replication.offsets import TaskId
from standfast.store.clock import SystemClock
from standfast.stream.task.groups import TaskGroup, all_specs
from standfast.stream.workers.orders import ReportedTask
from standfast.stream.workers.seen import InstanceSeen, WorkerSeen
from support.serve import wait_for
from support.sessions import KINDS, Bench, four_stores, operate

pytestmark = pytest.mark.slow


class Instance:
    """A supervisor's view of two sessions, without its processes."""

    app = "app"

    def __init__(self, sessions: list[sf.Session]) -> None:
        self.sessions = sessions
        self.groups = {0: TaskGroup(4, tuple(four_stores()))}
        self.specs = all_specs(self.groups)
        self.look()

    def look(self) -> None:
        """As a supervisor does after reports of its workers."""
        self.seen = InstanceSeen(tuple(self._worker(number) for number in range(len(self.sessions))), gate_open=True)

    def _worker(self, number: int) -> WorkerSeen:
        tasks = {
            task_id: ReportedTask(task.role, task.state.value, 0, 1)
            for task_id, task in self.sessions[number].all_tasks().items()
        }
        return WorkerSeen(number + 1, number + 1, True, 1, 0, tasks)

    def group_of_store(self, store: str) -> int:
        return 0


@pytest.fixture
def instance(bench: Bench) -> Instance:
    first = bench.session("a", partitions=4)
    first.assign(active=[0, 2])
    first.wait_ready(30)
    second = bench.session("b", partitions=4)
    second.assign(active=[1, 3], standby=[0])
    second.wait_ready(30)
    for session, partitions in ((first, (0, 2)), (second, (1, 3))):
        for partition in partitions:
            operate(session.task(partition), random.Random(partition), 120)
    bench.settle(first, second)
    return Instance([first, second])


@pytest.fixture
def rows(instance: Instance, monkeypatch: pytest.MonkeyPatch) -> Iterator[WorkerRows]:
    monkeypatch.setattr("standfast.ops.http.worker_lines.SILENT_MS", 60_000)  # the machine may be busy
    lines = WorkerLines(SystemClock(), lambda pid, status: None)
    for number, session in enumerate(instance.sessions):
        ours, theirs = socket.socketpair()
        lines.began(number + 1, ours)
        WorkerAnswers(session, theirs)
    wait_for(lambda: all(line.heard_ms is not None for line in lines.all()), 30)
    supervisor: Any = instance
    yield WorkerRows(supervisor, lines)
    lines.close()


def scan(rows: WorkerRows, store: str, limit: int) -> list[dict[str, Any]]:
    """All rows, by answers of at most `limit`."""
    found: list[dict[str, Any]] = []
    after = ""
    while True:
        answer = rows.document(f"/v1/stores/{store}/scan", f"limit={limit}{after}")
        assert len(answer["rows"]) <= limit and [one["partition"] for one in answer["partitions"]] == [0, 1, 2, 3]
        found += answer["rows"]
        if not answer["truncated"]:
            assert answer["after"] is None
            return found
        assert len(answer["rows"]) == limit
        after = f"&after={answer['after']}"


def expected(instance: Instance, store: str) -> list[dict[str, Any]]:
    owners = [instance.sessions[partition % 2] for partition in range(4)]
    documents = [Rows(owner) for owner in owners]
    return [
        row
        for partition, one in enumerate(documents)
        for row in one.document(f"/v1/stores/{store}/scan", f"partition={partition}&limit=10000")["rows"]
    ]


@pytest.mark.parametrize("store", KINDS)
def test_scan_over_workers_gives_each_row_once_whatever_the_bounds_are(
    instance: Instance, rows: WorkerRows, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = expected(instance, store)
    assert len(whole) > 40
    assert rows.document(f"/v1/stores/{store}/scan", "limit=10000")["rows"] == whole
    for limit in (1, 7, len([row for row in whole if row["partition"] == 0]), len(whole)):
        assert scan(rows, store, limit) == whole
    # Pages of a few rows between the processes make the same answer.
    monkeypatch.setattr("standfast.ops.http.worker_rows.PAGE_ROWS", 3)
    monkeypatch.setattr("standfast.ops.http.worker_rows.PAGE_BYTES", 20)
    assert rows.document(f"/v1/stores/{store}/scan", "limit=10000")["rows"] == whole
    assert scan(rows, store, 7) == whole


def test_answer_that_is_too_large_is_cut_and_says_where_it_goes_on(
    instance: Instance, rows: WorkerRows, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = expected(instance, "kv")
    monkeypatch.setattr("standfast.ops.http.worker_rows.REPLY_BYTES_MAX", 600)
    found: list[dict[str, Any]] = []
    after, answers = "", 0
    while True:
        answer = rows.document("/v1/stores/kv/scan", f"limit=10000{after}")
        found, answers = found + answer["rows"], answers + 1
        if not answer["truncated"]:
            break
        after = f"&after={answer['after']}"
    assert found == whole and answers > 3


def test_get_and_fetch_find_a_key_in_whichever_worker_has_it(instance: Instance, rows: WorkerRows) -> None:
    row = next(one for one in expected(instance, "kv") if one["partition"] == 3)
    answer = rows.document("/v1/stores/kv/get", f"key={row['key']}")
    assert row in answer["rows"] and answer["not_read"] == []
    assert rows.document("/v1/stores/kv/get", f"key={row['key']}&partition=3")["rows"] == [row]
    window = next(one for one in expected(instance, "win") if one["partition"] == 1)
    assert window in rows.document("/v1/stores/win/fetch", f"key={window['key']}")["rows"]
    with pytest.raises(NotFound, match="has no row of this key"):
        rows.document("/v1/stores/kv/get", "key=none")
    with pytest.raises(NotFound, match="no such path"):
        rows.document("/v1/stores/kv/drop", "")


def test_errors_are_those_of_a_session(instance: Instance, rows: WorkerRows) -> None:
    with pytest.raises(sf.UnknownStore, match="no store 'k', did you mean 'kv'"):
        rows.document("/v1/stores/k/scan", "")
    with pytest.raises(sf.InvalidRequest, match="give a whole number"):
        rows.document("/v1/stores/kv/scan", "limit=x")
    with pytest.raises(sf.InvalidRequest, match="`after` is not from an answer"):
        rows.document("/v1/stores/kv/scan", "after=x")
    with pytest.raises(sf.InvalidRequest, match="use fetch or scan"):
        rows.document("/v1/stores/win/get", "key=a")
    with pytest.raises(NotAssigned, match="partition 9 is not held by this instance"):
        rows.document("/v1/stores/kv/scan", "partition=9")


def test_task_that_has_left_its_worker_gives_an_error_and_no_short_answer(instance: Instance, rows: WorkerRows) -> None:
    instance.sessions[0].assign(active=[0])  # the supervisor has not heard of that yet
    with pytest.raises(sf.NotReady, match="partition 2 has left worker 1"):
        rows.document("/v1/stores/kv/scan", "")
    instance.look()
    instance.seen = InstanceSeen(instance.seen.workers, {TaskId(0, 2): ""})
    with pytest.raises(sf.NotReady, match="partitions 2 of store 'kv' are in no worker yet"):
        rows.document("/v1/stores/kv/scan", "")
    with pytest.raises(sf.NotReady, match="are in no worker yet"):
        rows.document("/v1/stores/kv/scan", "partition=2")
    assert rows.document("/v1/stores/kv/scan", "partition=0")["rows"]


def test_write_beside_a_scan_neither_repeats_nor_hides_a_row(
    instance: Instance, rows: WorkerRows, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = expected(instance, "win")
    monkeypatch.setattr("standfast.ops.http.worker_rows.PAGE_ROWS", 3)
    ask = WorkerLine.ask
    pages: list[Any] = []

    def ask_and_write(line: WorkerLine, *given: Any) -> Any:
        page = ask(line, *given)
        if not pages:  # a row before all others, by which their numbers change
            task, start_ms = instance.sessions[0].task(0), whole[0]["window_start"]
            task.store("win").put("a", "new", start_ms, start_ms)
            task.commit()
        pages.append(page)
        return page

    monkeypatch.setattr(WorkerLine, "ask", ask_and_write)
    assert rows.document("/v1/stores/win/scan", "limit=10000")["rows"] == whole
    assert expected(instance, "win")[0]["key"] == "a"


def test_standby_is_read_only_if_stale_rows_are_allowed(instance: Instance, rows: WorkerRows) -> None:
    copy = instance.seen.workers[1]
    instance.seen = InstanceSeen((WorkerSeen(1, 1, True, 1, 0, {}), copy))
    answer = rows.document("/v1/stores/kv/scan", "limit=10000")
    assert {one["partition"] for one in answer["rows"]} == {1, 3} and answer["not_read"] == [0]
    with pytest.raises(NotActive, match="partition 0 is a standby here"):
        rows.document("/v1/stores/kv/scan", "partition=0")
    stale = rows.document("/v1/stores/kv/scan", "partition=0&stale=1&limit=10000")
    assert [one["role"] for one in stale["partitions"]] == ["standby"]
    assert stale["rows"] == [row for row in expected(instance, "kv") if row["partition"] == 0]


# -- one worker, whose supervisor the test plays ---------------------------------------------------------------------


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Both ends of a line; the worker closes its own."""
    ours, theirs = socket.socketpair()
    yield ours, theirs
    ours.close()


def next_of(kind: bytes, line: socket.socket) -> dict[str, Any]:
    """The body of the worker's next frame of a kind."""
    for _ in range(60):  # with its beats alone 15 s
        frame = read_frame(line)
        assert frame is not None, "the line ended"
        if frame.kind == kind:
            found: dict[str, Any] = json.loads(frame.body)
            return found
    raise AssertionError("the worker sends its beats alone")


def answer_of(line: socket.socket, store: str) -> dict[str, Any]:
    """The worker's answer to one scan."""
    asked = {"path": f"/v1/stores/{store}/scan", "query": "", "rows": 10, "bytes": 1_000}
    send_frame(line, ASK, 1, json.dumps(asked).encode())
    return next_of(ANSWER, line)


def test_rows_that_cannot_be_sent_are_an_error_and_the_next_ones_are_read(
    bench: Bench, ends: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = sf.serde.string
    # More digits than Python writes: a serde of one's own may make any value.
    endless = sf.serde.Serde("endless", lambda value: b"x", lambda raw: 10**5_000)
    stores = [sf.KeyValueStore("kv", text, text), sf.KeyValueStore("endless", text, endless)]
    session = bench.active(stores=stores)
    for name, value in (("kv", "v"), ("endless", 1)):
        session.task(0).store(name).put("k", value)
    session.task(0).commit()
    ours, theirs = ends
    WorkerAnswers(session, theirs)
    assert answer_of(ours, "endless")["status"] == 500
    assert answer_of(ours, "kv")["document"]["rows"][0]["value"] == "v"
    monkeypatch.setattr("standfast.ops.http.worker_answers.BODY_BYTES_MAX", 20, raising=False)
    large = answer_of(ours, "kv")
    assert (large["status"], large["document"]["reason"]) == (413, "TOO_LARGE")


def test_status_that_failed_once_is_sent_by_the_next_round(
    bench: Bench, ends: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    session = bench.active()
    statistics = session.statistics
    failed: list[bool] = []

    def fails_once() -> Any:
        if not failed:
            failed.append(True)
            raise RuntimeError("dictionary changed size during iteration")
        return statistics()

    monkeypatch.setattr(session, "statistics", fails_once)
    ours, theirs = ends
    WorkerAnswers(session, theirs)
    assert next_of(STATUS, ours)["app"] == "app" and failed


# -- one line, whose worker the test plays ---------------------------------------------------------------------------


@pytest.fixture
def line() -> Iterator[tuple[WorkerLine, socket.socket]]:
    ours, theirs = socket.socketpair()
    made = WorkerLine(7, ours, SystemClock(), lambda one: None)
    yield made, theirs
    made.close()
    theirs.close()


def asking(line: WorkerLine) -> tuple[threading.Thread, list[Any]]:
    found: list[Any] = []

    def ask() -> None:
        try:
            found.append(line.ask("/v1/stores/kv/scan", "", 10, 10))
        except sf.Unavailable as error:
            found.append(str(error))

    thread = threading.Thread(target=ask)
    thread.start()
    return thread, found


def test_worker_that_is_not_heard_is_named_after_a_second_and_later_requests_at_once(
    line: tuple[WorkerLine, socket.socket],
) -> None:
    made, theirs = line
    with pytest.raises(sf.Unavailable, match="process 7 is starting"):
        made.ask("/", "", 1, 1)
    send_frame(theirs, BEAT)
    wait_for(lambda: made.heard_ms is not None, 10)
    thread, found = asking(made)
    thread.join(10)
    assert found and "process 7 has not answered for 1" in found[0] and "interpreter is held" in found[0]
    assert made.silent_ms() > 1_000
    with pytest.raises(sf.Unavailable, match="has not answered for"):
        made.ask("/", "", 1, 1)
    send_frame(theirs, BEAT)
    wait_for(lambda: made.silent_ms() == 0, 10)


def test_worker_has_a_bounded_number_of_requests_those_of_impatient_clients_included(
    line: tuple[WorkerLine, socket.socket],
) -> None:
    made, theirs = line
    send_frame(theirs, BEAT)
    wait_for(lambda: made.heard_ms is not None, 10)
    asked = [asking(made) for _ in range(ASKED_MAX)]
    for thread, found in asked:
        thread.join(10)
        assert "has not answered" in found[0]
    send_frame(theirs, BEAT)
    wait_for(lambda: made.silent_ms() == 0, 10)
    with pytest.raises(sf.Unavailable, match=f"has {ASKED_MAX} requests for rows already"):
        made.ask("/", "", 1, 1)
    frames = [read_frame(theirs) for _ in range(ASKED_MAX)]
    assert {one.kind for one in frames if one is not None} == {ASK}
    assert frames[0] is not None
    send_frame(theirs, b"=", frames[0].number, b'{"status": 200, "document": {}}')
    wait_for(lambda: len(made._open) < ASKED_MAX, 10)
    thread, found = asking(made)
    last = read_frame(theirs)
    assert last is not None
    send_frame(theirs, b"=", last.number, b'{"status": 200, "document": {"rows": []}}')
    thread.join(10)
    assert found == [(200, {"rows": []}, len(b'{"status": 200, "document": {"rows": []}}'))]


def test_requests_fail_at_once_when_the_worker_ends(line: tuple[WorkerLine, socket.socket]) -> None:
    made, theirs = line
    send_frame(theirs, BEAT)
    wait_for(lambda: made.heard_ms is not None, 10)
    thread, found = asking(made)
    assert read_frame(theirs) is not None
    theirs.shutdown(socket.SHUT_RDWR)
    thread.join(10)
    assert found == ["process 7 has ended: ask again"]


def test_supervisor_that_reads_nothing_holds_up_no_call_of_the_session(instance: Instance) -> None:
    session = instance.sessions[0]
    ours, theirs = socket.socketpair()
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4_096)
    WorkerAnswers(session, theirs)  # its first status already is more than the line takes
    body = b'{"path": "/v1/stores/kv/scan", "query": "limit=10000", "rows": 10000, "bytes": 16000000}'
    for number in range(ASKED_MAX):
        send_frame(ours, ASK, number, body)
    for number in range(100):
        session.task(0).store("kv").put(f"beside {number}", "v")
        session.task(0).commit()
    assert session.statistics().tasks
    ours.close()
