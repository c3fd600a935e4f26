"""Snapshots of an application in buckets of S3, Azure and Google: stored, restored, outages, refusals."""

from __future__ import annotations

import itertools
import json
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any

import pytest
from system.crash.test_crash_snapshots import PRUNES, RESTORES, UPLOADS, check_snapshots, child, folded
from unit.stream.test_session_snapshots import KV, keeper_of, put, restored, rows

import standfast as sf
from standfast.ops.command.command_line import main
from standfast.restore.snapshot.catalogue import listed, verify_files
from standfast.restore.snapshot.opening import open_storage
from standfast.restore.snapshot.storage import PART_BYTES, Storage
from support.crash.seeds import seed_of_run
from support.crash.snapshot_child import APP, STORE, session_of
from support.proxy import Refusal, proxy
from support.sessions import Bench
from support.storages.served import Served

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
NUMBERS = itertools.count()
WITHIN_S = 60
Out = pytest.CaptureFixture[str]


@pytest.fixture
def to(served: Served) -> str:
    """A storage of the test's own."""
    return served.address(f"state-{next(NUMBERS)}")


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    for place in (
        "restore.snapshot.storage.PATIENCE_S",
        "stream.snapshots.care.START_PATIENCE_S",
        "stream.snapshots.beginning.PATIENCE_S",
    ):
        monkeypatch.setattr(f"standfast.{place}", 1)


def said_of(out: Out, *arguments: str) -> tuple[int, str]:
    code = main(["snapshot", *arguments])
    return code, "".join(out.readouterr())


@pytest.mark.long
def test_a_database_with_files_of_many_parts_comes_back(bench: Bench, to: str) -> None:
    first = bench.active(stores=KV, snapshots=sf.SnapshotPolicy(to=to))
    chance, task = Random(4711), first.task(0)
    values = {f"k{number}": chance.randbytes(240_000).hex() for number in range(48)}
    for number, (key, value) in enumerate(values.items()):
        task.store("kv").put(key, value)
        if number % 8 == 7:
            task.commit()
    first.snapshot(0)
    first.close()
    (kept,) = listed(open_storage(to, "app")).whole
    assert max(file.bytes for file in kept.snapshot.files) > PART_BYTES
    second = bench.active("b", stores=KV, snapshots=sf.SnapshotPolicy(to=to))
    assert restored(second)["restored"] == 1
    assert rows(second) == values


def test_the_command_line_creates_lists_shows_verifies_restores_and_prunes(
    bench: Bench, to: str, tmp_path: Path, capsys: Out
) -> None:
    session = bench.active(stores=KV, snapshots=sf.SnapshotPolicy(to=to))
    put(session, "a")
    older = session.snapshot(0)
    put(session, "b")
    session.close()
    code, said = said_of(capsys, "create", "--to", to, "--state-dir", str(tmp_path / "a"), "--app", "app")
    assert (code, "uploaded" in said) == (0, True)
    newer = said.split()[0]
    given = ["--from", to, "--app", "app"]
    code, said = said_of(capsys, "list", *given, "--json")
    assert code == 0
    assert [one["snapshot"] for one in json.loads(said)["snapshots"]] == [newer, older]
    code, said = said_of(capsys, "show", newer, *given)
    assert code == 0 and newer in said
    assert said_of(capsys, "verify", *given) == (0, f"snapshot  verdict\n{newer}   whole\n{older}   whole\n")
    code, said = said_of(capsys, "restore", *given, "--state-dir", str(tmp_path / "b"))
    assert code == 0, said
    code, said = said_of(capsys, "prune", *given, "--keep", "1")
    assert code == 0 and older in said and newer not in said
    code, said = said_of(capsys, "list", *given, "--json")
    assert [one["snapshot"] for one in json.loads(said)["snapshots"]] == [newer]
    second = bench.active("b", stores=KV)
    assert rows(second) == {"a": "1", "b": "1"}
    assert second.counters.restored_records[("kv", 0, "resume")] == 0


@pytest.mark.long
def test_throttled_requests_are_repeated_until_the_snapshot_is_whole(bench: Bench, served: Served) -> None:
    prefix = f"state-{next(NUMBERS)}"
    with proxy(served.port) as front:
        session = bench.active(
            stores=KV, snapshots=sf.SnapshotPolicy(to=served.address(prefix, host=front.host), every_records=1)
        )
        put(session, "a")
        front.refusal = Refusal(503, "ServerBusy", lambda number: number % 2 == 1)
        name = session.snapshot(0)
        assert front.refused > 10
    (kept,) = listed(open_storage(served.address(prefix), "app")).whole
    assert (str(kept.snapshot.name), verify_files(open_storage(served.address(prefix), "app"), kept.snapshot)) == (
        name,
        [],
    )


@pytest.mark.usefixtures("impatient")
def test_an_outage_disturbs_no_commit_and_ends_with_a_snapshot(bench: Bench, served: Served, to: str) -> None:
    session = bench.active(stores=KV, snapshots=sf.SnapshotPolicy(to=to, every_records=1))
    keeper, made = keeper_of(session), session.counters.snapshots.made
    keeper.round()
    put(session, "a")
    with served.outage():
        keeper.round()
        put(session, "b")
        assert (made["failed"], rows(session)) == (1, {"a": "1", "b": "1"})
    bench.clock.advance(60_000)
    keeper.round()
    assert made["made"] == 1


@pytest.mark.usefixtures("impatient")
def test_a_server_that_ends_in_the_middle_of_an_upload_has_no_snapshot_and_the_next_one_is_whole(
    bench: Bench, served: Served, to: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = bench.active(stores=KV, snapshots=sf.SnapshotPolicy(to=to, every_records=1))
    keeper, made = keeper_of(session), session.counters.snapshots.made
    keeper.round()
    put(session, "a")
    stopped: list[Any] = []

    def stop(file: Any) -> None:
        if not stopped:
            stopped.append(file)
            served.stop()

    monkeypatch.setattr(keeper, "_step", stop)
    try:
        keeper.round()
    finally:
        served.start()
    assert stopped
    assert (made["failed"], made["made"]) == (1, 0)
    storage = open_storage(to, "app")
    assert listed(storage).whole == () and listed(storage).broken == {}
    bench.clock.advance(60_000)
    keeper.round()
    (kept,) = listed(storage).whole
    assert verify_files(storage, kept.snapshot) == []


@pytest.mark.usefixtures("impatient")
def test_a_server_that_ends_in_the_middle_of_a_download_costs_a_replay_and_no_row(
    bench: Bench, served: Served, to: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    first = bench.active(stores=KV, snapshots=sf.SnapshotPolicy(to=to))
    put(first, "a", "b")
    first.snapshot(0)
    first.close()
    whole, stopped = Storage.download, []

    def stop(self: Storage, key: str, *given: Any) -> None:
        if not stopped:
            stopped.append(key)
            served.stop()
        whole(self, key, *given)

    monkeypatch.setattr(Storage, "download", stop)
    try:
        second = bench.active("b", stores=KV, snapshots=sf.SnapshotPolicy(to=to))
    finally:
        served.start()
    assert stopped
    assert (rows(second), restored(second)["failed"]) == ({"a": "1", "b": "1"}, 1)
    assert "restored from its changelogs alone" in caplog.text


@pytest.mark.usefixtures("impatient")
def test_wrong_credentials_are_said_and_never_shown(
    bench: Bench,
    served: Served,
    to: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capsys: Out,
) -> None:
    for name, value in served.wrong.items():
        monkeypatch.setenv(name, value)
    session = bench.active(stores=KV, snapshots=sf.SnapshotPolicy(to=to, every_records=1))
    keeper_of(session).round()
    put(session, "a")
    keeper_of(session).round()
    with pytest.raises(sf.Unavailable, match="credentials") as refused:
        session.snapshot(0)
    assert rows(session) == {"a": "1"}
    said = [caplog.text, str(refused.value)]
    for arguments in (["list"], ["verify"], ["prune"], ["restore", "--state-dir", str(bench.root / "b")]):
        code, text = said_of(capsys, *arguments, "--from", to, "--app", "app")
        assert code == 69, text
        said.append(text)
    for text in said:
        assert "403" in text and "credentials" in text
        assert not [secret for secret in served.secrets if secret in text]
    assert not (bench.root / "b/app/0_0").exists()


@pytest.mark.usefixtures("impatient")
def test_a_bucket_that_is_not_there_is_said_with_the_fix_by_every_command(
    bench: Bench, served: Served, capsys: Out
) -> None:
    with pytest.raises(sf.Unavailable, match="create it"):
        open_storage(served.none, "app").prove()
    given = ["--from", served.none, "--app", "app"]
    for arguments in (
        ["list"],
        ["verify"],
        ["show", "0_0/1-1"],
        ["prune"],
        ["restore", "--state-dir", str(bench.root / "b")],
    ):
        code, said = said_of(capsys, *arguments, *given)
        assert code == 69, (arguments, said)
        assert "'none'" in said and "create it" in said, said
    session = bench.active(stores=KV, snapshots=sf.SnapshotPolicy(to=served.none))
    put(session, "a")
    with pytest.raises(sf.Unavailable, match="create it"):
        session.snapshot(0)
    assert rows(session) == {"a": "1"}


@pytest.mark.long
def test_a_killed_process_with_a_schedule_is_restored_from_its_snapshot(to: str, tmp_path: Path) -> None:
    storage = open_storage(to, APP)
    with child(tmp_path, 4711, to=to, every_ms=200) as process:
        wait(lambda: len(listed(storage).whole) >= 2, process)
        process.kill()
        process.communicate(timeout=WITHIN_S)
        assert process.returncode == -signal.SIGKILL
    assert listed(storage).broken == {}
    with closing(session_of(tmp_path, "b", to=to)) as session:
        assert session.counters.snapshots.restores["restored"] == 1
        found = {key.encode(): value.encode() for key, value in session.task(0).store(STORE).all()}
    assert found == {key: value[8:] for key, value in folded(tmp_path).items()}


@pytest.mark.crash
@pytest.mark.long
def test_every_listed_snapshot_is_whole_after_kills(to: str, tmp_path: Path) -> None:
    seed = seed_of_run()
    print(f"seed {seed}")
    chance = Random(seed)
    for place in (*UPLOADS, *PRUNES):
        times = chance.randrange(1, 4)
        with child(tmp_path, chance.randrange(1 << 30), f"{place}=kill:{times}", to=to) as process:
            process.communicate(timeout=WITHIN_S)
            assert process.returncode == -signal.SIGKILL, place
        check_snapshots(tmp_path, to)
    assert check_snapshots(tmp_path, to) > 0
    for turn, place in enumerate(RESTORES):
        directory = f"restored-{turn}"
        with child(tmp_path, seed, f"{place}=kill:1", directory=directory, rounds=0, to=to) as process:
            process.communicate(timeout=WITHIN_S)
            assert process.returncode == -signal.SIGKILL, place
        with closing(session_of(tmp_path, directory, to=to)) as session:
            found = {key.encode(): value.encode() for key, value in session.task(0).store(STORE).all()}
        assert found == {key: value[8:] for key, value in folded(tmp_path).items()}


def wait(reached: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + WITHIN_S
    while not reached():
        assert process.poll() is None, f"the process ended with {process.returncode}"
        assert time.monotonic() < deadline
        time.sleep(0.1)
