"""Exactly once on a real broker: stalled processes, transactions that time out, aborted records.

    zombie      a process stops in the middle of a commit; another one takes its task; the first goes on
    time-out    of a transaction, of a commit, of an abort: the producer is recreated, and each record counts once
    aborted     records of an aborted or still open transaction are in no store

Rules of this file: names are the test's own. Waits are for a condition, with a bound. Tests compare committed records
of the log.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import standfast as sf
from standfast.ops.tools.broker import Broker
from standfast.replication.kafka.bounds import bounds_of
from standfast.replication.kafka.writer import KafkaWriter
from standfast.replication.offsets import TaskId
from standfast.restore.verify.verify import committed_views, verify_task
from standfast.store.native_module import SWITCH
from standfast.stream.tasks import attempts
from support.kafka import light_broker
from support.kafka_bench import WAIT_S, KafkaBench, rows, transaction
from support.places import SUPPORT
from support.waits import until

pytestmark = [pytest.mark.kafka(2), pytest.mark.slow]

CHILD = SUPPORT / "crash/kafka_child.py"
STOP_AT = 5


@pytest.fixture(autouse=True, params=["compiled", pytest.param("python", marks=pytest.mark.long)])
def client(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both clients of Kafka read and write, also in the children, which have this environment."""
    if request.param == "python":
        monkeypatch.setenv(SWITCH, "0")


@pytest.fixture
def bench(tmp_path: Path, kafka_address: str) -> Iterator[KafkaBench]:
    made = KafkaBench(tmp_path, kafka_address)
    yield made
    made.close()


@pytest.fixture(scope="module")
def stopped_broker(kafka_files: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker of this file alone, which tests stop for a while.

    Its controller, which stands still with it, must not fence it for that: a broker without its partitions may lose
    the ends of transactions for ever (`LOST_END` in support/kafka.py).
    """
    settings = {"broker.session.timeout.ms": "120000"}
    with light_broker(tmp_path_factory.mktemp("kafka"), settings) as broker:
        yield broker


# -- zombies ----------------------------------------------------------------------------------------------------------


@contextmanager
def child(bench: KafkaBench, place: str, count: int, options: str = "", lease_ms: int = 60_000) -> Iterator[Any]:
    """A writer in a process of its own that stops itself; `lines()` are its output."""
    settings = {
        "app": bench.app,
        "log": bench.address + options,
        "state_dir": str(bench.root / "child"),
        "source": bench.source.topic,
        "place": place,
        "count": count,
        "name": "old",
        "lease_ms": lease_ms,
    }
    out = bench.root / "child.out"
    with out.open("wb") as stdout, (bench.root / "child.err").open("wb") as stderr:
        process = subprocess.Popen([sys.executable, str(CHILD), json.dumps(settings)], stdout=stdout, stderr=stderr)

    def lines() -> list[str]:
        return out.read_text().split()

    def stopped() -> bool:
        assert process.poll() is None, (bench.root / "child.err").read_text()
        return lines() == ["stopped"] and state_of(Path(f"/proc/{process.pid}/stat")) == "T"

    try:
        until(stopped, "the child stops itself")
        yield process, lines
    finally:
        process.kill()
        process.wait()


def ended(bench: KafkaBench, process: subprocess.Popen[bytes], lines: Callable[[], list[str]]) -> list[str]:
    """Let the child go on, to its end; returns its output after the stop."""
    process.send_signal(signal.SIGCONT)
    assert process.wait(WAIT_S) == 0, (bench.root / "child.err").read_text()
    return lines()[1:]


@pytest.mark.parametrize(
    "place", ["within", *(pytest.param(place, marks=pytest.mark.long) for place in ("before", "after"))]
)
def test_writes_of_a_zombie_never_show_and_it_gives_the_task_up(bench: KafkaBench, place: str) -> None:
    with child(bench, place, count=10) as (process, lines):
        owner = bench.active("new")
        kept = STOP_AT + (place == "after")  # records in the log are committed, whatever the end of the process
        assert bench.offset(owner) == kept
        bench.write(owner, 8, "new")
        assert ended(bench, process, lines) == ["fenced", "gone"]
        bench.write(owner, 10, "new")
    expected = [(f"k{number}", "old" if number < kept else "new") for number in range(10)]
    assert bench.logged() == expected
    assert bench.committed() == 10
    assert rows(owner) == dict(expected)
    owner.close()
    again = bench.active("child")  # the zombie's disk adds no row to the log's
    assert again.counters.wipes == {}
    assert rows(again) == dict(expected)


@pytest.mark.long
def test_standby_takes_over_from_a_stopped_owner_when_its_lease_has_run_out(bench: KafkaBench) -> None:
    with child(bench, "within", count=10, lease_ms=1_500) as (process, lines):
        standby = bench.session("new", background=True, lease_ms=1_500)
        standby.assign(standby=[0])
        until(lambda: standby.tasks()[0].role == "active", "the standby takes over")
        standby.wait_ready(WAIT_S)
        bench.write(standby, 10, "new")
        assert ended(bench, process, lines) == ["fenced", "gone"]
    assert bench.logged() == [(f"k{number}", "old" if number < STOP_AT else "new") for number in range(10)]
    assert bench.committed() == 10


def test_commit_of_offsets_alone_by_a_fenced_owner_moves_nothing(bench: KafkaBench) -> None:
    first = bench.active("a")
    bench.write(first, 2, "old")
    second = bench.active("b")
    with pytest.raises(sf.Fenced):
        first.task(0).commit({bench.source: 99})
    assert bench.committed() == bench.offset(second) == 2


# -- time-outs --------------------------------------------------------------------------------------------------------


def test_owner_whose_transaction_timed_out_is_not_fenced_and_goes_on(bench: KafkaBench) -> None:
    with child(bench, "within", count=10, options="?transaction.timeout.ms=1000") as (process, lines):
        # The broker aborts the open transaction: the records are there, below an end that readers may pass.
        until(lambda: stable(bench), "the broker ends the transaction")
        assert ended(bench, process, lines) == ["again", "done"]
    assert bench.logged() == [(f"k{number}", "old") for number in range(10)]
    assert bench.committed() == 10


def stable(bench: KafkaBench) -> bool:
    cluster = bench.log._cluster
    written = bounds_of(cluster, [bench.changelog], committed=False)[bench.changelog].end
    return bounds_of(cluster, [bench.changelog])[bench.changelog].end == written > 2 * STOP_AT + 1


def state_of(stat: Path) -> str:
    """The state letter of a process or of one of its threads."""
    return stat.read_text().rpartition(")")[2].split()[0]


def stand_still(pid: int) -> None:
    """Stop a process, and wait until all of its threads have stopped."""
    os.kill(pid, signal.SIGSTOP)
    until(lambda: {state_of(stat) for stat in Path(f"/proc/{pid}/task").glob("*/stat")} == {"T"}, "it stands still")


@pytest.mark.long
@pytest.mark.parametrize("place", ["records", "commit"])
def test_after_a_time_out_each_record_counts_once(
    stopped_broker: Broker, tmp_path: Path, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker stalls as the records, or the end of the transaction, are sent; it handles received requests later."""
    bench = KafkaBench(tmp_path, stopped_broker.address)
    bench.active().close()  # a new broker may take longer than the time-out below to load its coordinators
    session = bench.active(options="?timeout.ms=2500")
    bench.write(session, 5, "x")
    name = {"records": "_deliver", "commit": "_commit"}[place]
    inner: Any = getattr(KafkaWriter, name)

    def while_stopped(self: KafkaWriter, *arguments: Any, **named: Any) -> Any:
        stand_still(stopped_broker.running.pid)
        return inner(self, *arguments, **named)

    monkeypatch.setattr(KafkaWriter, name, while_stopped)
    try:
        with pytest.raises(sf.Unavailable, match=stopped_broker.address) as raised:
            bench.write(session, 6, "x")
        assert isinstance(raised.value, sf.CommitUnknown) == (place == "commit"), "only its end is in doubt"
        with pytest.raises(sf.Closed, match="must be opened again"):
            session.task(0)
        with pytest.raises(sf.Unavailable):
            session.reopen(0)
    finally:
        os.kill(stopped_broker.running.pid, signal.SIGCONT)
    monkeypatch.setattr(KafkaWriter, name, inner)

    def answered(call: Callable[[], object]) -> bool:
        # A broker that stalled for long is without its partitions for a while.
        try:
            call()
        except sf.Unavailable as error:
            print("not yet:", error)
            return False
        return True

    found: list[int] = []

    def written() -> bool:
        # A request of the opening that timed out may reach the broker after the next one, which it fences. That one has
        # written nothing then, and its error asks to reopen the task.
        return (
            answered(lambda: session.reopen(0))
            and answered(lambda: session.wait_ready(WAIT_S))
            and answered(lambda: found.append(bench.offset(session)))
            and answered(lambda: bench.write(session, 10, "x"))
        )

    until(written, "the task is opened again, and records are written")
    assert found[0] in (5, 6)
    expected = [(f"k{number}", "x") for number in range(10)]
    logged: list[list[tuple[str, str]]] = []
    # The writer's client remembers the leaders, a new one has to ask for them.
    until(lambda: answered(lambda: logged.append(bench.logged())), "the changelog can be read")
    assert logged[-1] == expected
    assert rows(session) == dict(expected)
    until(lambda: answered(bench.committed), "the offsets can be read")
    assert bench.committed() == 10
    bench.close()


# -- aborted records --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("before", [pytest.param(0, marks=pytest.mark.long), 3])
@pytest.mark.parametrize("role", ["active", "standby"])
def test_rows_of_a_commit_whose_end_cannot_be_read_yet_are_kept(bench: KafkaBench, role: str, before: int) -> None:
    """The brokers acknowledge a commit first and then write its end: rows above the stable end are not lost."""
    owner = bench.active("a")
    bench.write(owner, before, "good")
    foreign = transaction(bench, "bad")  # in place of an unwritten end: readers stop before it
    bench.write(owner, before + 5, "good")
    kept = rows(owner)
    owner.close()
    again = bench.active("a") if role == "active" else bench.session("a", take_over=False)
    if role == "standby":
        again.assign(standby=[0])
    assert again.counters.store_wipes == {}
    assert rows(again) == kept == {f"k{number}": "good" for number in range(before + 5)}
    foreign.abort_transaction(10)
    other = bench.active("b", take_over=False)
    bench.write(other, before + 6, "good")
    if role == "standby":
        until(lambda: again.poll_once() >= 0 and len(rows(again)) == before + 6, "the standby goes on")
    else:
        with pytest.raises(sf.Fenced):
            bench.write(again, before + 7, "late")
    assert not list(again.state_path.glob(".aside/*"))


def test_task_is_not_opened_while_an_open_transaction_hides_rows_of_its_changelog(bench: KafkaBench) -> None:
    """Such is an acknowledged commit whose end the brokers lost: a store without its rows would look whole."""
    owner = bench.active("a")
    bench.write(owner, 3, "good")
    standby = bench.session("b", take_over=False)
    standby.assign(standby=[0])
    until(lambda: standby.poll_once() >= 0 and len(rows(standby)) == 3, "the standby follows")
    owner.close()
    foreign = transaction(bench, "hidden")
    cold = bench.session("cold", take_over=False)
    for session in (cold, standby):
        with pytest.raises(sf.Unavailable, match=r"open although its task has a new owner.*KAFKA-20734"):
            session.assign(active=[0])
    assert not cold.tasks() and standby.tasks()[0].role == "standby"
    foreign.commit_transaction(10)
    standby.assign(active=[0])
    standby.wait_ready(WAIT_S)
    assert rows(standby) == {"k0": "hidden", "k1": "good", "k2": "good"}
    bench.write(standby, 4, "good")
    cold.assign(active=[0])
    cold.wait_ready(WAIT_S)
    assert rows(cold) == {"k0": "hidden"} | {f"k{number}": "good" for number in (1, 2, 3)}


def test_shared_task_is_opened_once_no_transaction_hides_its_rows_and_delays_no_other(
    bench: KafkaBench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(attempts, "LATER_MS", 200)
    given: dict[str, Any] = {"placement": "shared", "partitions": 2, "background": True, "restart_grace_ms": 0}
    bench.session("a", **given).close()  # which has created the changelog
    foreign = transaction(bench, "hidden")
    session = bench.session("b", **given)
    until(lambda: 1 in session.tasks(), "the other task is here")
    until(lambda: "task_waits_for_transaction" in {getattr(one, "event", "") for one in caplog.records}, "one waits")
    assert 0 not in session.tasks()
    foreign.commit_transaction(10)
    until(lambda: 0 in session.tasks(), "the task is here")
    session.wait_ready(WAIT_S)
    assert rows(session) == {"k0": "hidden"}


def test_aborted_records_are_in_no_store_and_verify_does_not_miss_them(bench: KafkaBench) -> None:
    owner = bench.active("a")
    bench.write(owner, 3, "good")
    standby = bench.session("b", take_over=False)
    standby.assign(standby=[0])
    foreign = transaction(bench, *("bad" for _ in range(200)))
    good = {f"k{number}": "good" for number in range(3)}

    def followed() -> bool:
        standby.poll_once()
        return rows(standby) == good

    until(followed, "the standby has what is committed")
    foreign.abort_transaction(10)
    cold = bench.active("cold", take_over=False)
    assert rows(cold) == good
    bench.write(cold, 4, "good")
    good["k3"] = "good"
    until(followed, "the standby passes the aborted records")
    later = bench.active("later", take_over=False)
    assert rows(later) == good
    for session in (standby, later):
        stores = session.tasks()[0].stores
        views, positions = committed_views(stores), stores.cut.positions
        [verdict] = verify_task(TaskId(0, 0), views, positions, bench.log, bench.app, now_ms=session.clock.wall_ms())
        assert (verdict.verdict, verdict.matched) == ("equal", 4), verdict
