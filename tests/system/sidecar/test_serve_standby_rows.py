"""Rows of a standby over HTTP: only on request, with its lag, a page at a time, through its worker."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

import standfast as sf
from standfast.ops.client.connect import SidecarClient
from standfast.ops.command.command_line import main
from standfast.ops.shared.error_codes import LIMIT, TOO_LARGE, Refused
from standfast.ops.sidecar.worker.process import ASKED_BYTES_MAX, ASKED_MAX, Reads
from standfast.ops.sidecar.worker.protocol import RowsPage, order_line, parse_order, parse_report, report_line
from standfast.store.errors import Unavailable
from support.groups import costly
from support.serve import Sidecar, Sidecars, wait_for

ROWS = 2_500
HOUR_MS = 3_600_000
STORES: list[Any] = [
    sf.KeyValueStore("kv", sf.serde.bytes, sf.serde.bytes),
    sf.WindowStore("win", sf.serde.bytes, sf.serde.bytes, window_size_ms=1_000, retention_ms=HOUR_MS),
]
ONE = "/v1/stores/kv/get?key=k00007&partition=0"


@pytest.fixture(scope="module")
@costly()
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Sidecar, Sidecar, SidecarClient]]:
    """Two sidecars on one log: partition 0 is active in the first and stands by in the second, without lag."""
    made = Sidecars(tmp_path_factory.mktemp("standby-rows"))
    first, second = made.start("a"), made.start("b")
    with (
        sf.connect(first.run_dir, stores=STORES, partitions=2) as active,
        sf.connect(second.run_dir, stores=STORES, partitions=2) as other,
    ):
        active.assign(active=[0])
        active.wait_ready(30)
        task = active.task(0)
        pairs = [(b"k%05d" % number, b"v%d" % number) for number in range(ROWS)]
        task.store("kv").put_all(pairs, timestamp=1_000)
        for start in (0, 1_000, 2_000):
            task.store("win").put(b"w", b"%d" % start, start, timestamp=start)
        task.commit({("in", 0): ROWS})
        other.assign(active=[1], standby=[0])
        other.wait_ready(30)
        wait_for(lambda: caught_up(second), told=second.told)
        yield first, second, active
    made.close()


def caught_up(sidecar: Sidecar) -> bool:
    rows = [one for one in sidecar.call("GET", "/v1/lags")["lags"] if one["role"] == "standby"]
    return len(rows) == len(STORES) and not any(one["lag"] for one in rows)


@pytest.mark.slow
def test_standby_gives_rows_to_those_who_ask_for_a_standby_only(pair: Any) -> None:
    _, standby, _ = pair
    refused = standby.call("GET", ONE, status=409)
    assert (refused["reason"], "standby" in refused["message"]) == ("NOT_ACTIVE", True)
    assert standby.call("GET", ONE + "&stale=0", status=409)["reason"] == "NOT_ACTIVE"
    found = standby.call("GET", ONE + "&stale=1")
    assert found["partitions"] == [{"partition": 0, "role": "standby", "lag_records": 0}]
    assert [(row["key"], row["value"]) for row in found["rows"]] == [("k00007", "v7")]
    windows = standby.call("GET", "/v1/stores/win/fetch?key=w&from=500&to=2000&partition=0&stale=1")["rows"]
    assert [(row["window_start"], row["value"]) for row in windows] == [(1_000, "1000"), (2_000, "2000")]


@pytest.mark.slow
def test_standby_refuses_no_rows_of_the_active_task_beside_it(pair: Any, capsys: pytest.CaptureFixture[str]) -> None:
    _, beside, _ = pair
    assert [one["partition"] for one in beside.call("GET", "/v1/stores/kv/scan")["partitions"]] == [1]
    absent = beside.call("GET", "/v1/stores/kv/get?key=k00007", status=404)
    assert absent["message"].endswith("not read: the standbys of partitions 0, ask their active instances")
    assert beside.call("GET", "/v1/stores/kv/get?key=k00007&stale=1", status=409)["reason"] == "NOT_ACTIVE"
    assert main(["get", "kv", "k00007", "--run-dir", str(beside.run_dir)]) == 1
    assert "not read: the standbys of partitions 0" in capsys.readouterr().err


@pytest.mark.slow
def test_rows_of_a_standby_come_in_pages(pair: Any) -> None:
    _, standby, _ = pair
    path, after, keys, pages = "/v1/stores/kv/scan?partition=0&stale=1&limit=9000", "", [], 0
    while True:
        found = standby.call("GET", path + (f"&after={after}" if after else ""))
        keys += [row["key"] for row in found["rows"]]
        pages += 1
        assert len(found["rows"]) <= 1_000
        if not found["truncated"]:
            break
        after = found["after"]
    assert (keys, pages) == ([f"k{number:05d}" for number in range(ROWS)], 3)


@pytest.mark.slow
def test_command_that_is_refused_at_a_sidecar_names_the_flags_that_read_a_standby(
    pair: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    _, standby, _ = pair
    where = ["--run-dir", str(standby.run_dir)]
    assert main(["scan", "kv", "--limit", "1", *where]) == 0  # of the active task beside the standby
    assert (
        "not read: the standbys of partitions 0; ask their active instances, or give --stale" in capsys.readouterr().err
    )
    for flags in (["--stale"], ["--partition", "0"]):
        assert main(["scan", "kv", "--limit", "1", *where, *flags]) == 1, flags
        told = capsys.readouterr().err.partition("; as flags of this command: ")[2]
        assert ("--partition P" in told) == ("--partition" not in flags), told
        assert ("--stale" in told) == ("--stale" not in flags), told
    assert main(["scan", "kv", "--limit", "1", *where, "--partition", "0", "--stale"]) == 0


@pytest.mark.slow
def test_what_cannot_be_read_of_a_standby_is_refused_as_of_an_active_task(pair: Any) -> None:
    _, standby, _ = pair
    for query, status, reason in (
        ("kv/get?key=nobody&partition=0&stale=1", 404, "NOT_FOUND"),
        ("kw/get?key=k00007&partition=0&stale=1", 404, "NO_SUCH_STORE"),
        ("win/get?key=w&partition=0&stale=1", 400, "BAD_REQUEST"),
        ("kv/get?key=k00007&partition=0&stale=2", 409, "NOT_ACTIVE"),
        ("kv/get?partition=0&stale=1", 400, "BAD_REQUEST"),
        ("kv/scan?after=x&partition=0&stale=1", 400, "BAD_REQUEST"),
        ("kv/get?key=k00007&partition=7&stale=1", 409, "NOT_ASSIGNED"),
    ):
        assert standby.call("GET", f"/v1/stores/{query}", status=status)["reason"] == reason, query
    long = f"kv/get?key={'k' * (ASKED_BYTES_MAX + 1)}&partition=0&stale=1"
    assert standby.call("GET", f"/v1/stores/{long}", status=413)["reason"] == "TOO_LARGE"


@pytest.mark.slow
def test_lag_is_told_and_a_worker_that_died_gives_rows_again(pair: Any) -> None:
    _, standby, active = pair
    task = active.task(0)
    task.store("kv").put(b"k00007", b"newer", timestamp=2_000)
    task.commit({("in", 0): ROWS + 1})
    wait_for(lambda: standby.call("GET", ONE + "&stale=1")["rows"][0]["value"] == "newer", told=standby.told)
    (pid,) = standby.worker_pids()
    os.kill(pid, signal.SIGKILL)
    seen = set()

    def answers() -> bool:
        assert standby.http is not None
        found = standby.http.get(ONE + "&stale=1")
        seen.add(found.status_code)
        return found.status_code == 200 and bool(found.json()["rows"][0]["value"] == "newer")

    wait_for(answers, told=standby.told)
    assert seen <= {200, 404, 409, 503}, "while it starts there is nobody to ask, and nothing else"


# -- requests ---------------------------------------------------------------------------------------------------------


def test_what_is_asked_of_a_worker_is_bounded_and_lost_with_it() -> None:
    reads = Reads()
    with pytest.raises(Refused) as large:
        reads.ask("/v1/stores/kv/get", "k" * ASKED_BYTES_MAX)
    assert large.value.reason is TOO_LARGE
    asked = [reads.ask("/v1/stores/kv/get", "key=a") for _ in range(ASKED_MAX)]
    with pytest.raises(Refused) as many:
        reads.ask("/v1/stores/kv/get", "key=a")
    assert many.value.reason is LIMIT
    order, first = asked[0]
    reads.answer(RowsPage(order.id, 200, {"rows": []}))
    assert first.result(0).document == {"rows": []}
    reads.answer(RowsPage(order.id, 200))  # twice, and for no request
    gone = asked[1][1]
    assert gone.cancel()
    reads.answer(RowsPage(asked[1][0].id, 200))
    reads.ask("/v1/stores/kv/get", "key=a")
    reads.lose()
    with pytest.raises(Unavailable, match="ended"):
        asked[2][1].result(0)


def test_reads_go_through_the_pipe_as_they_are() -> None:
    order, _ = Reads().ask("/v1/stores/kv/get", 'key=%20"x')
    assert parse_order(order_line(order)) == order
    rows = RowsPage(3, 200, {"rows": [{"key": "a\nb"}], "after": None})
    assert parse_report(report_line(rows)) == rows
    assert report_line(rows).count(b"\n") == 1
