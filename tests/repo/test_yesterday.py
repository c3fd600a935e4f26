"""Files and calls of an earlier version go on working: state, log, rebuilt folders, a snapshot, settings, scripts.

Rules of this file: every test works on copies of the kept files (`tests/fixtures/yesterday`), and compares with results
that the version that made them wrote beside them. A change of formats adds fixtures; it never changes these.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import standfast as sf
from standfast.ops.command.command_line import main
from standfast.ops.config.config import load_config
from standfast.ops.config.show import document
from standfast.restore.files.manifest_files import read_manifest
from standfast.restore.verify.import_tasks import import_tasks
from support import yesterday
from support.apps import headers_of, written
from support.serve import Sidecars
from support.sessions import Bench

EXPECTED: dict[str, Any] = json.loads(gzip.decompress((yesterday.FIXTURES / "expected.json.gz").read_bytes()))
SESSION: dict[str, Any] = EXPECTED["session"]
KEPT_STORES = [spec.name for spec in yesterday.session_stores() if spec.engine == "rocksdb" and spec.logging]


@pytest.fixture
def later(bench: Bench) -> Bench:
    """The bench, years after the files were written."""
    bench.clock.now_ms = yesterday.LATER_MS
    return bench


def open_session(bench: Bench, directory: str) -> sf.Session:
    """An owner of both tasks on this directory, restored."""
    return bench.active(directory, (0, 1), stores=yesterday.session_stores())


def check_session(session: sf.Session, *, unlogged: bool) -> None:
    """Rows, reads and source offsets equal those of the earlier version."""
    for partition in range(2):
        rows, reads = (dict(SESSION[part][str(partition)]) for part in ("rows", "reads"))
        if not unlogged:
            rows[yesterday.UNLOGGED] = reads[yesterday.UNLOGGED] = []
        task = session.task(partition)
        found = yesterday.rows_of(task)
        assert found == rows
        assert yesterday.reads_of(task, found) == reads
        assert task.source_offsets() == {("clicks", partition): SESSION["offsets"][str(partition)]}
    assert session.statistics().counters.wipes == {}


def reasons(session: sf.Session) -> dict[str, set[str]]:
    """Why stores kept in files read from their changelogs."""
    found: dict[str, set[str]] = {}
    for store, _, reason in session.statistics().counters.restored_records:
        if store in KEPT_STORES:
            found.setdefault(store, set()).add(reason)
    return found


def test_kept_files_are_those_that_the_earlier_version_wrote() -> None:
    sums = dict(line.split("  ")[::-1] for line in (yesterday.FIXTURES / "SHA256SUMS").read_text().splitlines())
    found = {name: hashlib.sha256((yesterday.FIXTURES / name).read_bytes()).hexdigest() for name in sums}
    assert set(sums) >= {f"{name}.tar.gz" for name in yesterday.ARCHIVES}
    assert found == sums, "fixtures are added to, never made again"


@pytest.mark.slow
def test_state_of_the_earlier_version_opens_as_it_is(later: Bench) -> None:
    yesterday.unpack(later.root, "log", "state")
    session = open_session(later, "state")
    check_session(session, unlogged=True)
    assert reasons(session) == {}  # no changelog was read again: every position stands at its end
    for partition in range(2):
        yesterday.operate(session.task(partition), 90, 100)
    session.close()
    again = open_session(later, "state")
    assert again.task(0).source_offsets() == {("clicks", 0): 100}
    assert yesterday.rows_of(again.task(0)) != SESSION["rows"]["0"]


@pytest.mark.slow
def test_standby_of_the_earlier_version_reads_on_and_takes_over(later: Bench) -> None:
    yesterday.unpack(later.root, "log", "standby")
    session = later.session("standby", stores=yesterday.session_stores())
    session.assign(standby=(0, 1))
    later.settle(session)
    session.assign(active=(0, 1))
    session.wait_ready(30)
    check_session(session, unlogged=False)
    assert all(why == {"resume"} for why in reasons(session).values())


@pytest.mark.slow
def test_state_that_a_kill_left_behind_restores_the_rest_of_the_earlier_log(later: Bench) -> None:
    yesterday.unpack(later.root, "log", "standby")
    session = open_session(later, "standby")
    check_session(session, unlogged=False)
    assert reasons(session) == {name: {"resume"} for name in KEPT_STORES}


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_empty_directory_restores_the_log_of_the_earlier_version(later: Bench, workers: int) -> None:
    yesterday.unpack(later.root, "log")
    session = later.active(
        "new", (0, 1), stores=yesterday.session_stores(), restore_workers=workers, bulk_restore_records=1
    )
    check_session(session, unlogged=False)


@pytest.mark.slow
@pytest.mark.parametrize("folder", ["state", "standby", "streams"])
def test_state_of_the_earlier_version_equals_its_changelogs(
    later: Bench, folder: str, capsys: pytest.CaptureFixture[str]
) -> None:
    yesterday.unpack(later.root, "log", folder)
    code = main(["verify", "--state-dir", str(later.root / folder), "--log", later.address, "--json"])
    found = json.loads(capsys.readouterr().out)
    assert (code, found["verdict"]) == (0, "equal")
    assert {one["store"] for one in found["stores"]} >= set(KEPT_STORES if folder != "streams" else ("seen",))


@pytest.mark.slow
def test_folders_that_the_earlier_version_rebuilt_are_taken_in(later: Bench) -> None:
    yesterday.unpack(later.root, "log", "rebuilt")
    folders = [later.root / "rebuilt" / name for name in yesterday.REBUILT]
    manifests = {name: read_manifest(folder) for name, folder in zip(yesterday.REBUILT, folders, strict=True)}
    taken = import_tasks(later.root / "taken", folders, log=later.log)
    assert {(one.store, one.task.partition, one.digest.hex()) for one in taken} == {
        (name, one.partition, one.digest) for name, manifest in manifests.items() for one in manifest.partitions
    }
    session = open_session(later, "taken")
    check_session(session, unlogged=False)
    assert not set(reasons(session)) & set(yesterday.REBUILT)  # their files were enough


# Settings that a file does not have and whose default was changed on purpose since.
DEFAULTS_SINCE: dict[str, dict[str, str]] = {"settings": {}, "sidecar": {"group.lease": "1500ms"}}


@pytest.mark.parametrize("name", ["settings", "sidecar"])
def test_settings_of_the_earlier_version_mean_what_they_meant(name: str) -> None:
    wanted = EXPECTED["settings"][name]["settings"] | DEFAULTS_SINCE[name]
    found = document(load_config(yesterday.FIXTURES / f"{name}.toml", {}), None)["settings"]
    assert {key: found.get(key, "it is gone") for key in wanted} == wanted


@pytest.mark.slow
def test_snapshot_of_an_earlier_sidecar_becomes_a_sidecars_state(sidecars: Sidecars, tmp_path: Path) -> None:
    yesterday.unpack(tmp_path, "log", "snapshot")
    yesterday.place_snapshot(tmp_path)
    sidecar = yesterday.make_sidecar(tmp_path)
    sidecars.all.append(sidecar)
    client = yesterday.connect(sidecar.start())
    assert yesterday.read_through(client) == EXPECTED["sidecar"]
    yesterday.write_through(client, 40, 42)
    assert client.task(1).source_offsets()["clicks", 1] == 42
    client.close()


@pytest.mark.slow
@pytest.mark.parametrize("start", ["with its state", "from its log"])
def test_application_of_the_earlier_version_goes_on(later: Bench, start: str) -> None:
    """Open windows, sessions, timers, stream times and watermarks equal those before."""
    yesterday.unpack(later.root, "log", "streams")
    if start == "from its log":
        shutil.rmtree(later.root / "streams")
    running = yesterday.open_streams(later, "streams")
    yesterday.feed_streams(later, 60, 90)
    running.run()
    running.commit()
    found = {
        topic: {
            str(partition): [
                [one.key and one.key.hex(), one.value and one.value.hex(), one.timestamp, headers_of(one)]
                for one in written(later, topic, partition)
            ]
            for partition in range(2)
        }
        for topic in yesterday.STREAM_OUTPUTS
    }
    for topic, wanted in EXPECTED["streams"].items():
        assert any(wanted.values())
        # Two tasks write to each partition, in any order.
        assert {one: sorted(map(repr, rows)) for one, rows in found[topic].items()} == {
            one: sorted(map(repr, rows)) for one, rows in wanted.items()
        }, topic
    assert running.session.statistics().counters.wipes == {}


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(600)  # a hundred commands one after the other take 100 s beside two other processes
def test_script_of_calls_goes_on_working(sidecars: Sidecars, tmp_path: Path) -> None:
    """The script ends with the same exit codes, and its documents keep every field; a document may have more fields."""
    yesterday.unpack(tmp_path)
    yesterday.place_snapshot(tmp_path)
    sidecar = yesterday.make_sidecar(tmp_path)
    sidecars.all.append(sidecar)
    client = yesterday.connect(sidecar.start())
    found = yesterday.run_calls(tmp_path, sidecar)
    client.close()
    problems = []
    gone = found["topic-alter"]
    assert (gone["exit"], "is gone: `kafka-configs.sh --alter`" in gone["err"]) == (2, True)
    for name, wanted in EXPECTED["calls"].items():
        if name == "topic-alter":
            continue
        call = found[name]
        if call["exit"] != wanted["exit"]:
            problems.append(f"{name}: exit code {call['exit']}, it was {wanted['exit']}: {call['err']}")
        elif "shape" in wanted:
            problems += yesterday.missing_fields(wanted["shape"], json.loads(call["out"]), name)
        elif wanted["text"] != bool(call["out"].strip()):
            problems.append(f"{name}: printed {call['out']!r}")
    assert problems == []


def test_field_that_is_gone_or_changed_is_found() -> None:
    wanted = yesterday.shape({"a": [{"b": 1, "c": "x"}, {"b": 2}], "d": None, "e": True})
    assert wanted == {"a": [{"b": "number"}], "d": "null", "e": "bool"}
    good = {"a": [{"b": 5, "more": 1}], "d": "now text", "e": None, "f": 1}
    assert yesterday.missing_fields(wanted, good, "doc") == []
    assert yesterday.missing_fields(wanted, {"a": [{}], "d": 1, "e": 1}, "doc") == [
        "doc.a[].b is gone",
        "doc.e is number, not bool",
    ]
    assert yesterday.missing_fields(wanted, {"a": [], "e": True}, "doc") == ["doc.d is gone", "doc.a is empty"]
