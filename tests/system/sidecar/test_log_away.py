"""A sidecar and a session whose embedded log is locked, gone or damaged: no caller waits for it, each gets the reason.

Rules of this file: a real `standfast serve`; stopped real processes lock the log, and bytes really written damage it. A
promise of two seconds is asserted with a margin that a busy machine meets.
"""

from __future__ import annotations

import fcntl
import os
import signal
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import redis

import standfast as sf
from standfast.replication.embedded.db import Database
from standfast.replication.embedded.log import EmbeddedLog
from support.away import stopped
from support.serve import Sidecar, Sidecars, wait_for

pytestmark = pytest.mark.slow

WITHIN_S = 2 + 6  # the promise, and a busy machine's delay
WAIT_S = 30.0
LINES_MAX = 25  # lines about one cause; without a limit there are 50 in a second


def server(sidecar: Sidecar, partition: int = 0) -> redis.Redis:
    path = sidecar.info["resp_socket"]
    return redis.Redis(unix_socket_path=path, db=partition, username="kv", password="x", single_connection_client=True)


def refused(call: Callable[[], Any]) -> str:
    """The refusal of a command, which must come in time."""
    began_s = time.monotonic()
    with pytest.raises(redis.ResponseError) as found:
        call()
    assert time.monotonic() - began_s < WITHIN_S
    return str(found.value)


def ready_lines(sidecar: Sidecar) -> str:
    assert sidecar.http is not None
    return sidecar.http.get("/readyz").text


def within(condition: Callable[[], bool], told: Callable[[], str]) -> None:
    wait_for(condition, WITHIN_S, told)


@pytest.fixture
def serving(sidecars: Sidecars) -> tuple[Sidecar, redis.Redis, Path]:
    """A sidecar with two active tasks and a standby, with committed and uncommitted rows."""
    sidecar = sidecars.start()
    sidecar.declare(partitions=4)
    sidecar.assign(1, (0, 1), (2,), lease_ms=600_000)
    sidecar.wait_ready()
    client = server(sidecar)
    client.set("a", "1")
    client.execute_command("SF.COMMIT")
    client.set("b", "2")
    return sidecar, client, sidecars.root / "log"


@pytest.mark.parametrize("kind", ["ours", "program"])
def test_locked_log_is_named_by_every_server_and_keeps_nobody_waiting(
    serving: tuple[Sidecar, redis.Redis, Path], kind: str
) -> None:
    sidecar, client, path = serving
    lines = sidecar.log_path.read_text().count("\n")
    with stopped(path, kind) as holder:
        named = f"process {holder.pid}"
        assert f"UNAVAILABLE log {path}" in (first := refused(lambda: client.execute_command("SF.COMMIT")))
        assert named in first
        within(lambda: f"[-]log: UNAVAILABLE: log {path}" in ready_lines(sidecar), lambda: ready_lines(sidecar))
        assert named in ready_lines(sidecar)
        for _ in range(10):
            began_s = time.monotonic()
            status = sidecar.call("GET", "/v1/status")
            assert sidecar.http is not None
            assert "standfast_ready 0" in sidecar.http.get("/metrics").text
            assert sidecar.http.get("/livez").status_code == 200
            assert sidecar.call("GET", "/v1/lags")["lags"]
            assert sidecar.call("GET", "/v1/assignment")["tasks"]
            assert time.monotonic() - began_s < WITHIN_S
            assert named in status["log_error"]
            assert not status["ready"]
            assert named in refused(lambda: client.execute_command("SF.COMMIT"))
        assert client.get("a") == b"1"  # open tasks are read and written as before
        assert client.get("b") == b"2"
        client.set("c", "3")
    within(lambda: sidecar.call("GET", "/v1/status")["ready"], lambda: ready_lines(sidecar))
    client.execute_command("SF.COMMIT")  # the same connection, with all its writes
    verdicts = sidecar.call("POST", "/v1/verify", {})["verdicts"]
    assert {one["verdict"] for one in verdicts} == {"equal"}
    assert sum(one["records"] for one in verdicts) == 3
    told = sidecar.log_path.read_text()
    assert named in told and "the log can be used again" in told
    assert told.count("\n") - lines < LINES_MAX


def test_lock_of_one_who_does_not_say_its_id_is_told_as_any_other(
    serving: tuple[Sidecar, redis.Redis, Path],
) -> None:
    sidecar, _, path = serving
    with open(f"{path}.lock", "rb") as lock:  # as a process that was stopped before it wrote its id
        fcntl.flock(lock, fcntl.LOCK_EX)
        within(lambda: "UNAVAILABLE: log" in ready_lines(sidecar), lambda: ready_lines(sidecar))
        assert f"process {os.getpid()} for" in sidecar.call("GET", "/v1/status")["log_error"]  # by the kernel's list
        sidecar.assign(2, (0, 1, 3), lease_ms=600_000)
        assert refused(lambda: server(sidecar, 3).get("a")).startswith("UNAVAILABLE")
    sidecar.wait_ready()
    within(lambda: sidecar.call("GET", "/v1/status")["ready"], lambda: ready_lines(sidecar))


def test_task_that_waits_for_a_locked_log_says_so_and_opens_by_itself(sidecars: Sidecars) -> None:
    sidecar = sidecars.start()
    sidecar.declare(partitions=4)
    with stopped(sidecars.root / "log", "ours") as holder:
        within(lambda: f"process {holder.pid}" in ready_lines(sidecar), lambda: ready_lines(sidecar))
        began_s = time.monotonic()
        sidecar.assign(1, (0, 1), (2, 3), lease_ms=600_000)
        assert time.monotonic() - began_s < WITHIN_S
        client = server(sidecar)
        assert refused(lambda: client.get("a")).startswith("UNAVAILABLE")
        assert f"process {holder.pid}" in refused(lambda: client.set("a", "1"))
        began_s = time.monotonic()
        assert sidecar.call("GET", "/v1/status")["log_error"]
        assert time.monotonic() - began_s < WITHIN_S
    sidecar.wait_ready()
    assert client.set("a", "1")

    def committed() -> bool:
        try:
            return bool(client.execute_command("SF.COMMIT"))
        except redis.ResponseError as error:  # until the next look at the log, by the sidecar's last knowledge
            assert str(error).startswith("UNAVAILABLE")
            return False

    within(committed, sidecar.told)


def test_removed_log_takes_no_commit_and_goes_on_once_it_is_back(
    serving: tuple[Sidecar, redis.Redis, Path],
) -> None:
    sidecar, client, path = serving
    path.rename(f"{path}.away")
    told = refused(lambda: client.execute_command("SF.COMMIT"))
    assert told.startswith(f"CORRUPT log {path} was removed")
    within(lambda: "[-]log: CORRUPT" in ready_lines(sidecar), lambda: ready_lines(sidecar))
    assert sidecar.call("GET", "/v1/status")["log_error"].startswith("CORRUPT")
    assert client.get("b") == b"2"
    Path(f"{path}.away").rename(path)
    within(lambda: sidecar.call("GET", "/v1/status")["ready"], lambda: ready_lines(sidecar))
    client.execute_command("SF.COMMIT")
    assert client.get("b") == b"2"


def test_worker_that_starts_while_the_log_is_away_makes_no_other_in_its_place(
    serving: tuple[Sidecar, redis.Redis, Path],
) -> None:
    sidecar, client, path = serving
    wait_for(sidecar.worker_pids, WAIT_S)
    (worker,) = sidecar.worker_pids()
    path.rename(f"{path}.away")
    os.kill(worker, signal.SIGKILL)
    wait_for(lambda: f"{path} was removed while another process has it open" in sidecar.told(), WAIT_S, sidecar.told)
    assert not path.exists()
    Path(f"{path}.away").rename(path)
    wait_for(lambda: sidecar.call("GET", "/v1/status")["ready"], WAIT_S, lambda: ready_lines(sidecar))
    client.execute_command("SF.COMMIT")


@pytest.mark.parametrize("where", ["header", "pages"])
def test_damaged_log_is_told_by_every_server_and_rows_are_read(
    serving: tuple[Sidecar, redis.Redis, Path], where: str
) -> None:
    sidecar, client, path = serving
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(PASSIVE)")  # or the damage lies under pages of the WAL
    lines = sidecar.log_path.read_text().count("\n")
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(0 if where == "header" else 8_192)
        file.write(b"\xa5" * (100 if where == "header" else size - 8_192))
    within(lambda: "CORRUPT" in ready_lines(sidecar), lambda: ready_lines(sidecar))
    assert refused(lambda: client.execute_command("SF.COMMIT")).startswith(f"CORRUPT log {path}")
    assert sidecar.call("GET", "/v1/status")["log_error"].startswith(f"CORRUPT: log {path}")
    assert client.get("a") == b"1"
    assert client.get("b") == b"2"
    assert sidecar.log_path.read_text().count("\n") - lines < LINES_MAX


# -- the library ------------------------------------------------------------------------------------------------------


def test_statistics_of_a_session_that_waits_for_the_log_are_the_last_ones_with_their_age(tmp_path: Path) -> None:
    path = tmp_path / "log"
    stores = [sf.KeyValueStore("kv", sf.serde.string, sf.serde.string)]
    with sf.Session("app", log=f"sqlite:///{path}", state_dir=tmp_path / "s", stores=stores, partitions=4) as session:
        session.assign(active=[0])
        session.wait_ready(WAIT_S)
        assert session.statistics().log_read_ms_ago < WITHIN_S * 1_000
        with stopped(path, "ours"):
            ended: list[BaseException | None] = []

            def assign() -> None:
                try:
                    session.assign(active=[0, 1, 2, 3])  # each opens a writer, under the session's lock
                except sf.Unavailable as error:
                    ended.append(error)
                else:
                    ended.append(None)

            thread = threading.Thread(target=assign)
            thread.start()
            wait_for(lambda: session.statistics().log_read_ms_ago >= 1_000 or ended, WAIT_S)
            began_s = time.monotonic()
            statistics = session.statistics()
            assert time.monotonic() - began_s < WITHIN_S
            assert "0_0" in {task.task for task in statistics.tasks}
        thread.join(WAIT_S)
        assert ended


# -- the log itself ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["ours", "program"])
def test_writer_that_is_not_patient_gives_up_with_nothing_written_and_names_the_process(
    tmp_path: Path, kind: str
) -> None:
    path = tmp_path / "log"
    with closing(EmbeddedLog(path, patient=False)) as log:
        log.group("app").join("me", lease_ms=600_000)
        assert log.trouble() is None
        with stopped(path, kind) as holder:
            began_s = time.monotonic()
            with pytest.raises(sf.Unavailable, match=f"process {holder.pid}") as found:
                log.group("app").join("other")
            assert time.monotonic() - began_s < WITHIN_S
            assert found.value.unwritten
            within(lambda: log.trouble() is not None, lambda: "no trouble is seen")
            assert f"process {holder.pid}" in str(log.trouble())
        wait_for(lambda: log.trouble() is None, WAIT_S)
        assert [member.member_id for member in log.group("app").view().members] == ["me"]


@pytest.mark.parametrize("how", ["removed", "replaced", "lock", "wal", "shm"])
def test_log_that_is_not_in_its_place_any_more_takes_no_write(tmp_path: Path, how: str) -> None:
    path = tmp_path / "log"
    with closing(EmbeddedLog(path)) as log:
        database = Database(str(path))
        if how == "replaced":
            EmbeddedLog(tmp_path / "other").close()
            (tmp_path / "other").rename(path)
        else:
            {"removed": path, "lock": Path(f"{path}.lock")}.get(how, Path(f"{path}-{how}")).unlink()
        if how not in ("wal", "shm"):  # those are checked from time to time
            with pytest.raises(sf.Corruption, match="while it was open") as found:
                database.lock()
            assert found.value.of_log and found.value.unwritten
        assert "while it was open" in str(log.trouble())
        with pytest.raises(sf.Corruption, match="while it was open"):
            log.producer()  # which would create a new log in its place
        assert path.exists() == (how != "removed")
        database.close()
