"""The pipeline on a real Spark: all stores of an application in one run, from state, from snapshots, from a log alone.

Rules of this file: real sessions on the embedded log and RocksDB, the command as users call it, with the tests' own
session of Spark where one is enough.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet
from system.spark.test_spark_verify import damage, places_of, row

from standfast.ops.cli.spark.pipeline import run_pipeline_command
from standfast.ops.command.command_line import build_parser, main
from standfast.ops.shared.guard import guard
from standfast.ops.shared.output import Output
from standfast.replication.log import Outgoing
from standfast.replication.offsets import TopicPartition
from standfast.restore.digest import Digest, digest_rows
from standfast.restore.files.manifest import FILE_NAME
from standfast.restore.files.manifest_files import read_manifest
from standfast.restore.spark.folder import Folder, below
from standfast.restore.spark.inspect import inspect
from standfast.restore.spark.pipeline import jobs_of_state, run_pipeline
from standfast.restore.verify.preflight import preflight
from standfast.store.clock import SystemClock
from standfast.store.errors import InvalidRequest
from standfast.stream.task.task import Task
from support.sessions import HOUR_MS, KINDS, START_MS, Bench, four_stores, operate
from support.spark import killed_driver

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]

STORES = [
    "kv:keyvalue:key=string,value=string",
    "win:window:size=1h,retention=1d,key=string,value=string",
]
FILES = {"summary.json", "report.html", "differences.parquet"}


def arguments(bench: Bench, out: Path, *more: str) -> list[str]:
    return ["pipeline", "--log", bench.address, "--out", str(out), *more]


def state_of(bench: Bench) -> list[str]:
    return ["--state-dir", str(bench.root / "a")]


def ran(spark: Any, words: list[str]) -> int:
    """The command's exit code, on the tests' own session."""

    @contextmanager
    def own(*_: Any) -> Iterator[Any]:
        yield spark

    args: Namespace = build_parser().parse_args(words)
    return guard(lambda: run_pipeline_command(args, Output(as_json=False), own), lambda _error: None)


def summary_of(out: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((out / "summary.json").read_text())
    return found


def by_store(summary: dict[str, Any], what: str) -> dict[str, Any]:
    return {one["store"]: one[what] for one in summary["stores"]}


def live_digests(task: Task) -> dict[str, Digest]:
    return {name: digest_rows(task.stores.committed_view(name).logical_rows()) for name in KINDS}


def filled(bench: Bench, count: int = 200) -> dict[str, Digest]:
    """Two tasks of four stores, closed; the digests of the first one."""
    session = bench.active(partitions=(0, 1))
    operate(session.task(0), random.Random(1), count)
    operate(session.task(1), random.Random(2), 50)
    live = live_digests(session.task(0))
    session.close()
    return live


SMALL = ("kv", "win")


def small(bench: Bench) -> None:
    """One task of two stores, closed."""
    session = bench.active(partitions=(0,), stores=four_stores()[:2])
    kv, win = (session.task(0).store(name) for name in SMALL)
    for number in range(50):
        kv.put(f"k{number % 20}", f"v{number}", START_MS + number)
        win.put(f"k{number % 20}", f"v{number}", START_MS - START_MS % HOUR_MS, START_MS + number)
    session.task(0).commit()
    session.close()


def test_one_run_rebuilds_and_verifies_every_store_and_an_instance_tails_on(
    spark: Any, bench: Bench, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    live, out = filled(bench), tmp_path / "out"
    assert ran(spark, arguments(bench, out, *state_of(bench))) == 0
    said = capsys.readouterr()
    assert "app: equal; 4 stores" in said.out
    assert [line for line in said.err.splitlines() if line.startswith("step")] == [
        f"step {number} of 4: rebuilding and verifying {name}" for number, name in enumerate(sorted(KINDS), 1)
    ]
    summary = summary_of(out)
    assert {path.name for path in out.iterdir()} == {*FILES, "rebuilt"}
    assert by_store(summary, "verdict") == dict.fromkeys(KINDS, "equal")
    assert by_store(summary, "same_position") == {name: [0, 1] for name in KINDS}
    for name in KINDS:
        assert read_manifest(out / "rebuilt" / name).partition(0).digest == live[name].hex()
    # An instance imports all of it, and tails the later records.
    session = bench.active(partitions=(0,))
    operate(session.task(0), random.Random(3), 100)
    later = live_digests(session.task(0))
    session.close()
    folders = [word for name in KINDS for word in ("--from", str(out / "rebuilt" / name))]
    assert main(["restore", *folders, "--state-dir", str(bench.root / "taken"), "--log", bench.address]) == 0
    # Spark has stamped the positions with this machine's time, which is far ahead of the bench's.
    bench.clock.advance(SystemClock().wall_ms() - bench.clock.wall_ms())
    tailing = bench.active("taken")
    assert live_digests(tailing.task(0)) == later != live
    assert {reason for _, _, reason in tailing.statistics().counters.restored_records} == {"resume"}


def test_planted_rows_are_told_with_their_store_and_the_others_stay_equal(
    spark: Any, bench: Bench, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small(bench)
    damage(bench, lambda engine: engine.write({"kv": {b"<b>&": row(b"\xff\x00")}}))
    out = tmp_path / "out"
    assert ran(spark, arguments(bench, out, *state_of(bench))) == 1
    assert "kv: rebuilt and stored rows of partition 0 differ at one offset" in capsys.readouterr().err
    summary = summary_of(out)
    assert by_store(summary, "verdict") == {"kv": "different", "win": "equal"}
    assert (summary["verdict"], summary["differences"]) == ("different", 1)
    assert by_store(summary, "rebuilt_differs") == {"kv": [0], "win": []}
    assert parquet.read_table(out / "differences.parquet").column("key").to_pylist() == [b"<b>&"]
    page = (out / "report.html").read_text()
    assert "&lt;b&gt;&amp;" in page
    assert "0xff00" not in page and "2 B #" in page
    assert page.count("<details") == 2
    assert page.count("<details open") == 1
    for foreign in ("http", "<script", "<b>", "src=", "@import"):
        assert foreign not in page


@pytest.mark.long
def test_log_alone_is_enough_and_what_it_gave_is_a_snapshot(spark: Any, bench: Bench, tmp_path: Path) -> None:
    small(bench)
    first, second = tmp_path / "first", tmp_path / "second"
    stores = [word for store in STORES[:2] for word in ("--store", store)]
    assert ran(spark, arguments(bench, first, "--app", "app", *stores)) == 0
    summary = summary_of(first)
    assert (summary["looked_at"], summary["state"]) == ("log", None)
    assert by_store(summary, "same_position") == {name: [0, 1] for name in SMALL}
    assert by_store(summary, "matched") == {"kv": 20, "win": 20}
    # More records came since: the snapshot is equal at its own offsets, but not to the log's present content.
    bench.log.producer().append({TopicPartition("app-kv-changelog", 0): [Outgoing(b"new", b"v", START_MS)]})
    assert ran(spark, arguments(bench, second, "--snapshot", str(first / "rebuilt"))) == 0
    summary = summary_of(second)
    assert (summary["looked_at"], summary["verdict"]) == ("snapshot", "equal")
    assert by_store(summary, "same_position")["kv"] == [1]


@pytest.mark.long
def test_store_whose_topic_is_gone_is_inconclusive_and_fails_no_other(
    spark: Any, bench: Bench, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small(bench)
    bench.log.admin.delete_topic("app-win-changelog")
    out = tmp_path / "out"
    assert ran(spark, arguments(bench, out, *state_of(bench))) == 3
    said = capsys.readouterr().err
    assert "win was not rebuilt" in said
    assert "the log has no topic app-win-changelog" in said
    assert by_store(summary_of(out), "verdict") == {"kv": "equal", "win": "inconclusive"}
    assert "win was not rebuilt" in (out / "report.html").read_text()


@pytest.mark.long
def test_inspection_counts_every_changelog(spark: Any, bench: Bench) -> None:
    bench.active(partitions=(0,)).close()
    writer = bench.log.producer()
    kv, ver = TopicPartition("app-kv-changelog", 1), TopicPartition("app-ver-changelog", 0)
    writer.append({kv: [Outgoing(b"k%02d" % (n % 10), None if n % 4 == 0 else b"v" * n, 1_000 + n) for n in range(40)]})
    writer.append({ver: [Outgoing(b"k", b"v", 5_000)]})
    chosen = [preflight(bench.log, "app", spec) for spec in four_stores()]
    found = inspect(spark, chosen)
    assert sorted(found) == sorted(KINDS)
    one = found["kv"][1]
    assert (one.records, one.tombstones, one.gaps) == (40, 10, 0)
    assert 8 <= one.keys <= 12  # an estimate
    assert one.bytes == 40 * 3 + sum(n for n in range(40) if n % 4)
    assert (one.value_max_bytes, one.first_ms, one.last_ms) == (39, 1_000, 1_039)
    assert [(part.partition, part.records, part.first_ms) for part in found["ver"]] == [(0, 1, 5_000), (1, 0, -1)]
    bench.embedded.compact("app-kv-changelog", bench.clock.wall_ms())
    again = inspect(spark, [preflight(bench.log, "app", four_stores()[0])])["kv"][1]
    assert again.gaps == again.end - again.begin - again.records > 0


class Quiet:
    """Steps without a display."""

    def step(self, number: int, total: int, what: str) -> None: ...
    def at(self, part: float) -> None: ...
    def note(self, text: str) -> None: ...


@pytest.mark.long
def test_rebuild_that_a_run_completed_before_it_was_cut_short_is_kept(spark: Any, bench: Bench, tmp_path: Path) -> None:
    small(bench)
    out = Folder(str(tmp_path / "out"))

    def run() -> Any:
        jobs = jobs_of_state(bench.log, places_of(bench))
        return run_pipeline(spark, bench.log, jobs, out, Quiet(), now_ms=bench.clock.wall_ms)

    run()
    (tmp_path / "out/rebuilt/win" / FILE_NAME).unlink()
    done = run()
    assert {one.job.name: one.kept for one in done.stores} == {"kv": True, "win": False}
    assert done.verdict == "equal"
    manifest = tmp_path / "out/rebuilt/kv" / FILE_NAME
    manifest.write_text(manifest.read_text().replace('"app": "app"', '"app": "other"'))
    with pytest.raises(InvalidRequest, match="holds another rebuild"):
        run()


@pytest.mark.long
def test_killed_run_leaves_no_report_and_spark_submit_ends_it(bench: Bench, tmp_path: Path) -> None:
    small(bench)
    out = tmp_path / "out"
    killed_driver("pipeline.judged", arguments(bench, out, *state_of(bench)), tmp_path)
    assert {one.parent.name for one in out.glob(f"rebuilt/*/{FILE_NAME}")} == set(SMALL)
    assert not any((out / name).exists() for name in FILES)
    programs = Path(sys.executable).parent
    script = Path(next(iter(__import__("standfast").__path__))) / "__main__.py"
    submit = [programs / "spark-submit", "--master", "local[2]", "--driver-java-options", "-XX:TieredStopAtLevel=1"]
    ended = subprocess.run(
        [*submit, script, *arguments(bench, out, *state_of(bench)), "--json"],
        env={**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "PYSPARK_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    # spark-submit starts Python with both outputs in one; the document is its last line.
    told = json.loads(ended.stdout.strip().splitlines()[-1])
    assert told == summary_of(out)
    assert (told["verdict"], by_store(told, "rebuilt")["kv"]["kept"]) == ("equal", True)


def test_bad_input_is_refused_before_spark_starts_and_changes_nothing(
    bench: Bench, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    filled(bench, 20)
    full, done, newer = tmp_path / "full", tmp_path / "done", tmp_path / "newer"
    for folder, name, text in (
        (full, "precious", "mine"),
        (done, "summary.json", "{}"),
        (newer, FILE_NAME, '{"format": "standfast.manifest/9"}'),
    ):
        folder.mkdir()
        (folder / name).write_text(text)
    state, log, out = state_of(bench), ["--log", bench.address], ["--out", str(tmp_path / "o")]
    live_database = str(bench.root / "a/app/0_0")
    cases: list[tuple[list[str], int, str]] = [
        ([*log, *state], 2, "name a new folder with --out"),
        ([*log, *out], 2, "which stores? name state at rest"),
        ([*out, *state], 2, "which log?"),
        ([*log, *state, "--snapshot", str(newer), *out], 2, "do not go together"),
        ([*log, *state, "--out", str(full)], 2, "is not empty (it holds precious)"),
        ([*log, *state, "--out", live_database], 2, "is not empty (it holds"),
        ([*log, *state, "--out", str(done)], 2, "holds a report already"),
        ([*log, *state, *out, "--partition", "9"], 2, "no task of partition 9"),
        ([*log, *state, *out, "--file-mb", "0"], 2, "--file-mb is 0"),
        ([*log, *state, *out, "--source", "connector"], 2, "is an embedded log"),
        ([*log, *state, *out, "--kafka-jars", "a.jar"], 2, "the native source needs no jars"),
        ([*log, "--state-dir", str(newer), *out], 2, "holds no application"),
        ([*log, "--snapshot", str(tmp_path / "none"), *out], 2, "is no snapshot"),
        ([*log, "--snapshot", str(newer), *out], 2, "run the newer version"),
        ([*log, "--store", "kv:keyvalue", *out], 2, "which application?"),
        ([*log, "--app", "app", "--store", "none:keyvalue", *out], 2, "has no topic app-none-changelog"),
        ([*log, "--app", "app", "--store", "kv:table", *out], 78, "unknown kind 'table'"),
        ([*log, "--app", "app", "--store", "kv:keyvalue", "--store", "kv:keyvalue", *out], 2, "names a store twice"),
        (["--log", f"sqlite:///{tmp_path}/nothing", *state, *out], 69, "does not exist"),
        ([*log, "--state-dir", "no-such-scheme://x/y", *out], 78, "cannot be used"),
    ]
    before = files(tmp_path)
    for words, code, text in cases:
        assert main(["pipeline", *words]) == code, words
        assert text in capsys.readouterr().err, words
    assert main(["pipeline", *log, *state, "--plan", "--json"]) == 0
    assert [one["store"] for one in json.loads(capsys.readouterr().out)["stores"]] == sorted(KINDS)
    held = bench.active(partitions=(0,))
    assert main(["pipeline", *log, *state, *out]) == 2
    assert "is running" in capsys.readouterr().err
    held.close()
    assert {path for path in files(tmp_path) if "/a/" not in str(path)} == {p for p in before if "/a/" not in str(p)}


def files(folder: Path) -> set[Path]:
    """Files but those of locks and of SQLite itself."""
    return {path for path in folder.rglob("*") if path.suffix not in (".lock",) and "log" not in path.name}


@pytest.mark.long
def test_truncated_log_is_refused_with_65_unless_it_is_accepted(
    spark: Any, bench: Bench, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bench.active(partitions=(0,)).close()
    source = TopicPartition("app-kv-changelog", 0)
    bench.log.admin.change_topic(source.topic, {"cleanup.policy": "delete"})
    bench.log.producer().append({source: [Outgoing(b"k%d" % n, b"v", 1) for n in range(10)]})
    bench.log.admin.delete_records({source: 5})
    out = tmp_path / "out"
    kv = ["--app", "app", "--store", STORES[0]]
    for command in (["rebuild", "--log", bench.address, "--out", str(out), *kv], arguments(bench, out, *kv)):
        assert main(command) == 65
        assert "--allow-truncated" in capsys.readouterr().err
        assert not out.exists()
    assert ran(spark, [*arguments(bench, out, *kv), "--allow-truncated"]) == 0
    assert summary_of(out)["stores"][0]["rebuilt"]["rows"] == 5


def test_damaged_file_of_a_snapshot_ends_with_65_and_no_report(
    spark: Any, bench: Bench, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small(bench)
    out, again = tmp_path / "out", tmp_path / "again"
    assert ran(spark, arguments(bench, out, "--app", "app", "--store", STORES[0])) == 0
    file = next((out / "rebuilt/kv").glob("0-*.sst"))
    raw = bytearray(file.read_bytes())
    raw[len(raw) // 2] ^= 1
    file.write_bytes(bytes(raw))
    capsys.readouterr()
    assert ran(spark, arguments(bench, again, "--snapshot", str(out / "rebuilt"))) == 65
    assert f"{file.name} is damaged" in capsys.readouterr().err
    assert not any((again / name).exists() for name in FILES)


@pytest.mark.long
def test_address_of_state_never_becomes_a_local_folder(
    spark: Any, bench: Bench, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    small(bench)
    monkeypatch.chdir(tmp_path)
    out = tmp_path / "out"
    assert ran(spark, arguments(bench, out, "--state-dir", f"file://{bench.root}/a", "--app", "app")) == 0
    assert summary_of(out)["state"] == f"file://{bench.root}/a"
    for words in (["status"], ["restore", "--from", str(out / "rebuilt/kv")]):
        assert main([*words, "--state-dir", "s3://bucket/state"]) == 78
        assert "expected a folder of this machine" in capsys.readouterr().err
    with pytest.raises(InvalidRequest, match="is an address"):
        bench.session(state_dir="s3://bucket/state")
    with pytest.raises(InvalidRequest, match="is an address"):
        bench.session(state_dir=Path("s3://bucket/state"))
    assert not list(tmp_path.glob("s3:*"))


def test_what_is_missing_is_told_with_the_line_that_repairs_it(
    bench: Bench, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = arguments(bench, tmp_path / "o", *state_of(bench))
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "pyspark", None)
        assert main(words) == 78
    assert "needs pyspark, not installed here: pip install 'standfast[spark]'" in capsys.readouterr().err
    with monkeypatch.context() as patch:
        patch.setattr("pandas.__version__", "3.1.1")
        assert main(words) == 78
    assert "pip install 'pandas>=2.2,<3'" in capsys.readouterr().err
    filled(bench, 1)
    with monkeypatch.context() as patch:
        connector = ["--source", "connector", "--kafka-jars", str(tmp_path / "no.jar")]
        patch.setattr("standfast.ops.cli.spark.pipeline.connector_options", lambda _address: {})
        assert main([*words, *connector]) == 2
    assert "no.jar does not exist" in capsys.readouterr().err


def test_address_keeps_its_settings_at_its_end_and_shows_no_secret() -> None:
    address = "s3://key:secret@bucket/check?scheme=http&endpoint_override=127.0.0.1:9000"
    assert below(address, "rebuilt/kv") == address.replace("check", "check/rebuilt/kv")
    assert below("/data/check/", "rebuilt/kv") == "/data/check/rebuilt/kv"
    assert below("/data/what?", "kv") == "/data/what?/kv"
    folder = Folder(address)
    assert folder.local is None
    assert folder.address == address
    assert str(folder) == "s3://bucket/check"
