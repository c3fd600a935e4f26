"""A sidecar on a real small disk: it refuses writes at its floor, keeps room for commits, and reports its state.

Rules of this file: file systems of their own, real processes and sockets. A value follows from its key and its round,
so that the rows show their commits.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import hiredis
import pytest

import standfast as sf
from support.disk import fill, free_bytes
from support.resp import Client
from support.serve import FOUR, Sidecar, Sidecars, wait_for

pytestmark = pytest.mark.slow

Mount = Callable[[int], Path]
MIB = 1 << 20
FLOOR = 12 * MIB
ROWS = 50
WAIT_S = 60.0
DISK_MIB = 64
VALUE = b"v" * 4_000
SETTINGS: dict[str, Any] = {"state__disk_floor": f"{FLOOR}B", "store__memory": "4MiB", "serve__workers": 1}


def started(sidecars: Sidecars, root: Path, **settings: Any) -> Sidecar:
    """A sidecar with all its files on this disk, and partition 0 ready."""
    sidecars.root = root
    sidecar = sidecars.start("a", f"sqlite:///{root}/log", **{**SETTINGS, **settings})
    sidecar.declare(FOUR, partitions=1)
    sidecar.assign(1, active=(0,), lease_ms=3_600_000)
    sidecar.wait_ready()
    return sidecar


def again(sidecar: Sidecar) -> None:
    """Kill it and restart it: partition 0 is ready."""
    sidecar.kill()
    sidecar.start()
    sidecar.declare(FOUR, partitions=1)
    sidecar.assign(1, active=(0,), lease_ms=3_600_000)
    sidecar.wait_ready()


@contextmanager
def client_of(sidecar: Sidecar) -> Iterator[Client]:
    """A connection with default store kv, which has read the source offsets."""
    client = Client(Path(sidecar.info["resp_socket"]))
    try:
        assert client("AUTH", "kv", "x") == b"OK"
        yield client
    finally:
        client.close()


def reason(sidecar: Sidecar) -> str:
    """The disk's line of /readyz; empty if the disk is well."""
    assert sidecar.http is not None
    answer = sidecar.http.get("/readyz", headers={"Accept": "application/json"}).json()
    return next((line for line in answer["reasons"] if line.startswith("disk:")), "")


def write_until_refused(client: Client) -> tuple[int, str]:
    """Write rows round after round until one is refused; returns the number of acknowledged commits, and the refusal.

    The rows of the last round stay uncommitted.
    """
    for commits in range(10_000):
        for number in range(ROWS):
            answer = client("SET", f"{commits}-{number}", VALUE)
            if isinstance(answer, hiredis.ReplyError):
                return commits, str(answer)
        answer = client("SF.COMMIT", "OFFSETS", "flights", 0, commits + 1)
        assert isinstance(answer, list), answer
    raise AssertionError("the disk is larger than that")


def test_a_sidecar_refuses_writes_at_its_floor_and_commits_what_it_had_taken(
    sidecars: Sidecars, small_disk: Mount
) -> None:
    root = small_disk(DISK_MIB)
    sidecar = started(sidecars, root)
    with client_of(sidecar) as client:
        assert client("SF.OFFSETS") == []
        commits, refusal = write_until_refused(client)
        assert commits > 0
        assert refusal.startswith("MISCONF ") and str(root) in refusal and str(FLOOR) in refusal
        assert free_bytes(root) > FLOOR // 2, "nothing was near its end"
        assert client("GET", "0-0") == VALUE
        assert client("SF.COMMIT", "OFFSETS", "flights", 0, commits + 1)[0] == 1, "the rows before it are committed"
        wait_for(lambda: "disk_floor" in reason(sidecar), WAIT_S, told=sidecar.told)
        status = sidecar.call("GET", "/v1/status")["disk"]
        assert status["full"] and status["floor_bytes"] == FLOOR
        assert sidecar.http is not None and "standfast_disk_full 1.0" in sidecar.http.get("/metrics").text
        found = client("SF.OFFSETS")
        assert found == [b"flights", 0, commits + 1]
        told = sidecar.call("POST", "/v1/snapshots", {"name": "copy"}, status=507)
        assert told["reason"] == "DISK_FULL" and told["error"] == "DiskFull"
    assert "No space left" not in sidecar.told() and "disk is full" not in sidecar.told()
    again(sidecar)
    with client_of(sidecar) as client:
        assert client("SF.OFFSETS") == [b"flights", 0, commits + 1]
        rows = [client("GET", f"{round_}-{number}") for round_ in range(commits) for number in range(ROWS)]
        assert rows == [VALUE] * len(rows), "what was acknowledged is there"
        assert client("GET", f"{commits + 1}-0") is None


class Rounds:
    """Commits rounds of rows, and keeps the possible content of the sidecar: `done` rounds, or one more."""

    def __init__(self, sidecar: Sidecar, *, whole: bool) -> None:
        """`whole`: rows are in if and only if their offset is."""
        self.sidecar = sidecar
        self.whole = whole
        self.done = 0
        self.outcomes: Counter[str] = Counter()
        self.offsets: Any = None  # the last answer to SF.OFFSETS
        self.unknown = False  # whether the last answer leaves it open if round `done` is in

    @property
    def refused(self) -> int:
        """The number of refusals."""
        return self.outcomes.total() - self.outcomes["OK"]

    def run(self, client: Client, until: Callable[[], bool]) -> None:
        """Rounds one after another, going on after any reply, until the condition holds."""
        self.restart(client)
        while not until():
            answer = self.round(client)
            if answer is None:
                self.done += 1
                self.outcomes["OK"] += 1
                continue
            word = answer.partition(" ")[0]
            self.outcomes[word] += 1
            assert word in ("UNKNOWN", "MISCONF", "FENCED", "UNAVAILABLE", "LOADING"), answer
            self.unknown = word == "UNKNOWN"
            if self.unknown:
                assert "SF.OFFSETS" in answer
                assert "retry" not in answer and "again:" not in answer and "try again" not in answer, answer
                told = client.refused("SF.COMMIT", "OFFSETS", "flights", 0, self.done + 1)
                assert told.startswith(("FENCED", "UNAVAILABLE", "LOADING", "MISCONF")), (
                    "it has not read the source offsets"
                )
            self.restart(client)

    def round(self, client: Client) -> str | None:
        """Write and commit one round; returns the first refusal, None for an acknowledgement."""
        for number in range(ROWS):
            answer = client("SET", f"{self.done}-{number}", VALUE)
            if isinstance(answer, hiredis.ReplyError):
                return str(answer)
        answer = client("SF.COMMIT", "OFFSETS", "flights", 0, self.done + 1)
        return str(answer) if isinstance(answer, hiredis.ReplyError) else None

    def restart(self, client: Client) -> None:
        """Request the source offsets until a reply has them, and compare them with the possible ones."""

        def told() -> bool:
            assert client("SELECT", 0) == b"OK"
            self.offsets = client("SF.OFFSETS")
            if not isinstance(self.offsets, hiredis.ReplyError):
                return True
            time.sleep(0.05)  # the disk is full, or the task is reopened: refused until that is over
            return False

        wait_for(told, WAIT_S, told=lambda: f"{self.offsets} {self.sidecar.told()}")
        found = self.offsets[2] if self.offsets else 0
        assert found in ((self.done, self.done + 1) if self.unknown else (self.done,)), self.sidecar.told()
        self.done, self.unknown = found, False

    def check(self, client: Client) -> None:
        """Every round below `done` is there, and no row of the one after it."""
        self.restart(client)
        rows = [client("GET", f"{round_}-{number}") for round_ in range(self.done) for number in range(ROWS)]
        assert rows == [VALUE] * len(rows), "what was acknowledged is there"
        if self.whole:
            assert [client("GET", f"{self.done}-{number}") for number in range(ROWS)] == [None] * ROWS


@pytest.mark.parametrize("guarantee", ["exactly_once", pytest.param("at_least_once", marks=pytest.mark.long)])
@pytest.mark.parametrize(
    "floor", [pytest.param(FLOOR, id="floor"), pytest.param(0, id="no-floor", marks=pytest.mark.long)]
)
def test_a_disk_filled_from_outside_in_the_middle_of_commits_loses_nothing_and_tells_no_lie(
    sidecars: Sidecars, small_disk: Mount, guarantee: str, floor: int
) -> None:
    root = small_disk(DISK_MIB)
    sidecar = started(sidecars, root, app__guarantee=guarantee, state__disk_floor=f"{floor}B")
    rounds = Rounds(sidecar, whole=guarantee == "exactly_once")
    stop = threading.Event()
    with client_of(sidecar) as client, ThreadPoolExecutor(1) as thread:
        try:
            running = thread.submit(rounds.run, client, stop.is_set)
            for _ in range(3):
                done, refused = rounds.done, rounds.refused
                wait_for(
                    lambda done=done: rounds.done >= done + 5 or running.done(), told=sidecar.told, timeout_s=WAIT_S
                )
                filler = fill(root)
                wait_for(
                    lambda refused=refused: rounds.refused > refused or running.done(),
                    told=sidecar.told,
                    timeout_s=WAIT_S,
                )
                filler.unlink()
        finally:
            stop.set()
        running.result(60)
        rounds.check(client)
    print(rounds.outcomes)
    assert floor or rounds.outcomes["UNKNOWN"], "a commit met the full disk"
    again(sidecar)
    with client_of(sidecar) as client:
        rounds.check(client)
        enough = rounds.done + 3
        rounds.run(client, lambda: rounds.done >= enough)


STORES = [sf.KeyValueStore("kv", sf.serde.string, sf.serde.bytes)]


def test_the_python_client_tells_a_full_disk_from_a_commit_in_doubt(sidecars: Sidecars, small_disk: Mount) -> None:
    root = small_disk(DISK_MIB)
    sidecars.root = root
    sidecar = sidecars.start("a", f"sqlite:///{root}/log", **{**SETTINGS, "state__disk_floor": "0B"})
    with sf.connect(sidecar.run_dir, stores=STORES, partitions=1) as client:
        client.assign(active=[0])
        client.wait_ready(30)
        task = client.task(0)
        task.store("kv").put("a", VALUE * 20)
        filler = fill(root)
        with pytest.raises(sf.CommitUnknown, match=r"ask SF\.OFFSETS"):
            task.commit({("flights", 0): 1})
        filler.unlink()
        client.wait_ready(30)
        found: list[Any] = []

        def opened() -> bool:
            try:
                found.append(client.task(0).source_offsets())
            except (sf.NotReady, sf.Unavailable, sf.Fenced):
                return False
            return True

        wait_for(opened, WAIT_S, told=sidecar.told)
        assert (task.store("kv").get("a") is not None) == (found[0] == {("flights", 0): 1})
        os.kill(sidecar.pid, signal.SIGSTOP)
        committing = ThreadPoolExecutor(1).submit(task.commit, {("flights", 0): 2})
        wait_for(lambda: committing.running())
        sidecar.kill()
        with pytest.raises(sf.CommitUnknown, match="the connection ended before the answer"):
            committing.result(30)
