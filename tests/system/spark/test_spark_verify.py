"""`verify` on a real Spark: it finds planted faults, and none where there are none.

Rules of this file: real sessions on the embedded log and RocksDB; faults are planted into the RocksDB of a closed task,
as a fault of the machine would be.
"""

from __future__ import annotations

import json
import random
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet

from standfast.ops.cli.spark.verify_spark import run_verify_spark
from standfast.ops.command.command_line import main
from standfast.ops.observe.offline import open_tasks
from standfast.ops.shared.output import Output
from standfast.replication.log import Outgoing
from standfast.replication.offsets import TopicPartition
from standfast.restore.spark.folder import Folder
from standfast.restore.spark.places import TaskPlace, manifest_places, remote_places
from standfast.restore.spark.rebuild import rebuild
from standfast.restore.spark.report import DIFFERENCES, PAGE, SUMMARY, write_report
from standfast.restore.spark.verify import Verified, plan_verify, stored_stores, verify_store
from standfast.restore.verify.at_rest import find_tasks
from standfast.restore.verify.preflight import preflight
from standfast.restore.verify.verify import StoreVerdict, verify_task
from standfast.store import window_key
from standfast.store.rocks.engine import RocksEngine
from standfast.store.rocks.opening import RocksShared
from standfast.store.types.kinds import open_store
from standfast.store.types.segments import family_name, segment_interval_ms
from standfast.store.value_timestamp import TIMESTAMP
from support.sessions import DAY_MS, HOUR_MS, KINDS, START_MS, Bench, four_stores, operate

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]


def places_of(bench: Bench, directory: str = "a") -> list[TaskPlace]:
    return [TaskPlace(one.app, one.task, str(one.path)) for one in find_tasks(bench.root / directory, "app")]


def verify(spark: Any, bench: Bench, name: str, places: list[TaskPlace] | None = None, **options: Any) -> Verified:
    stored = stored_stores(places or places_of(bench), name)[name]
    plan = plan_verify(bench.log, "app", name, stored)
    return verify_store(spark, bench.log, plan, now_ms=bench.clock.wall_ms(), **options)


def only(done: Verified) -> StoreVerdict:
    (verdict,) = done.verdicts
    return verdict


def damage(bench: Bench, change: Callable[[RocksEngine], None], task: str = "0_0") -> None:
    """Change rows of a closed task behind the back of its owner."""
    engine = RocksEngine(bench.root / "a/app" / task, shared=RocksShared(8 << 20))
    change(engine)
    engine.close()


def row(value: bytes, at_ms: int = START_MS) -> bytes:
    return TIMESTAMP.pack(at_ms) + value


def filled(bench: Bench, rows: int, partitions: tuple[int, ...] = (0,)) -> None:
    """Key-value rows, and a closed application."""
    session = bench.active(partitions=partitions)
    for partition in partitions:
        task = session.task(partition)
        for number in range(rows):
            task.store("kv").put(f"k{number:06}", f"v{number}", START_MS)
        task.commit()
    session.close()


def test_equal_stores_of_every_kind_are_equal_also_after_compaction(spark: Any, bench: Bench) -> None:
    session = bench.active(partitions=(0, 1))
    operate(session.task(0), random.Random(1), 300)
    operate(session.task(1), random.Random(2), 100)
    session.close()
    for _ in range(2):
        for name in KINDS:
            done = verify(spark, bench, name)
            assert [one.verdict for one in done.verdicts] == ["equal", "equal"], name
            assert all(one.log_digest == one.store_digest for one in done.verdicts)
            assert not done.found
        for name in KINDS:
            bench.embedded.compact(f"app-{name}-changelog", bench.clock.wall_ms())


def test_verdicts_are_those_of_the_verify_of_one_process(spark: Any, bench: Bench) -> None:
    session = bench.active(partitions=(0,))
    operate(session.task(0), random.Random(3), 300)
    session.close()
    damage(bench, lambda engine: plant_everywhere(engine, random.Random(4)))
    with open_tasks(find_tasks(bench.root / "a", "app")) as (opened,):
        parts = {name: opened.part(name) for name in opened.definitions}
        stores = {name: open_store(part.spec, part.rows) for name, part in parts.items()}
        alone = verify_task(
            opened.task.task, stores, opened.cut.positions, bench.log, "app", now_ms=bench.clock.wall_ms()
        )
    for one in alone:
        other = only(verify(spark, bench, one.store, include_values=True))
        counts = ("matched", "missing", "extra", "different", "stale", "indeterminate", "records")
        assert {name: getattr(other, name) for name in counts} == {name: getattr(one, name) for name in counts}
        assert (other.verdict, other.log_digest, other.store_digest) == (
            one.verdict,
            one.log_digest,
            one.store_digest,
        )
        assert set(other.differences) == set(one.differences)
        assert other.verdict == "different"


def plant_everywhere(engine: RocksEngine, rng: random.Random) -> None:
    for family in sorted(engine.families() - {"default"}):
        rows = list(engine.scan(family))
        for key, value in rng.sample(rows, min(2, len(rows))):
            engine.write({family: {key: None if rng.random() < 0.5 or family == "ver" else value + b"?"}})


def test_first_and_last_key_and_one_of_many_are_found(spark: Any, bench: Bench) -> None:
    filled(bench, 30_000)

    def change(engine: RocksEngine) -> None:
        engine.write({"kv": {b"k000000": None, b"k029999": row(b"other"), b"k012345": row(b"v12345", START_MS + 1)}})
        engine.write({"kv": {b"a-before": row(b"x"), b"z-after": row(b"y")}})

    damage(bench, change)
    done = verify(spark, bench, "kv")
    found = {(one.kind, one.key) for _, _, one in done.found}
    assert found == {
        ("missing", b"k000000"),
        ("different", b"k029999"),
        ("different", b"k012345"),
        ("extra", b"a-before"),
        ("extra", b"z-after"),
    }
    verdict = only(done)
    assert (verdict.verdict, verdict.matched, verdict.records) == ("different", 29_997, 30_000)


@pytest.mark.long
def test_extra_row_of_a_partition_without_records_is_found(spark: Any, bench: Bench) -> None:
    session = bench.active(partitions=(0, 1))
    session.task(0).store("kv").put("k", "v", START_MS)
    session.task(0).commit()
    session.close()
    damage(bench, lambda engine: engine.write({"kv": {b"ghost": row(b"boo")}}), "0_1")
    first, second = verify(spark, bench, "kv").verdicts
    assert (first.verdict, second.verdict, second.extra) == ("equal", "different", 1)


@pytest.mark.long
def test_delete_that_was_not_applied_is_stale(spark: Any, bench: Bench) -> None:
    session = bench.active(partitions=(0,))
    store = session.task(0).store("kv")
    for value in ("v", None):
        store.put("k", value, START_MS)
        session.task(0).commit()
    session.close()
    damage(bench, lambda engine: engine.write({"kv": {b"k": row(b"v")}}))
    assert only(verify(spark, bench, "kv")).stale == 1


@pytest.mark.long
def test_version_in_the_middle_of_a_history_is_found(spark: Any, bench: Bench) -> None:
    session = bench.active(partitions=(0,))
    for hour in range(5):
        session.task(0).store("ver").put("k", f"v{hour}", START_MS + hour * HOUR_MS)
    session.task(0).commit()
    session.close()

    def change(engine: RocksEngine) -> None:
        for key, value in list(engine.scan("ver")):
            if b"v2" in value:
                engine.write({"ver": {key: value.replace(b"v2", b"vX")}})

    damage(bench, change)
    done = verify(spark, bench, "ver", include_values=True)
    ((_, _, found),) = done.found
    assert found.log is not None and found.store is not None
    assert (found.kind, found.log[:2], found.store[:2]) == (
        "different",
        (START_MS + 2 * HOUR_MS, b"v2"),
        (START_MS + 2 * HOUR_MS, b"vX"),
    )


@pytest.mark.long
def test_window_row_at_the_border_of_retention_counts_and_the_one_before_does_not(spark: Any, bench: Bench) -> None:
    session = bench.active(partitions=(0,))
    store = session.task(0).store("win")
    newest = START_MS - START_MS % HOUR_MS + 2 * DAY_MS
    border = newest - DAY_MS + 1
    for start in (border - 1, border, newest):
        store.put("k", "v", start, start)
    session.task(0).commit()
    session.close()
    interval = segment_interval_ms(DAY_MS)

    def remove(start: int) -> None:
        family = family_name("win", start // interval * interval)
        damage(bench, lambda engine: engine.write({family: {window_key.pack(b"k", start): None}}))

    remove(border - 1)
    assert only(verify(spark, bench, "win")).verdict == "equal"
    remove(border)
    verdict = only(verify(spark, bench, "win"))
    assert (verdict.missing, verdict.matched) == (1, 1)


@pytest.mark.long
def test_rows_whose_records_were_compacted_away_are_indeterminate_and_no_error(spark: Any, bench: Bench) -> None:
    session = bench.active(partitions=(0,))
    store = session.task(0).store("kv")
    for key in ("a", "b"):
        store.put(key, "old", START_MS)
    session.task(0).commit()
    session.close()
    source = TopicPartition("app-kv-changelog", 0)
    bench.log.producer().append({source: [Outgoing(b"a", b"new", START_MS)]})
    bench.embedded.compact("app-kv-changelog", bench.clock.wall_ms())
    verdict = only(verify(spark, bench, "kv"))
    assert (verdict.verdict, verdict.matched, verdict.indeterminate) == ("equal", 1, 1)
    bench.log.producer().append({source: [Outgoing(b"b", b"new", START_MS)]})
    bench.embedded.compact("app-kv-changelog", bench.clock.wall_ms())
    assert only(verify(spark, bench, "kv")).reason == "compacted"


@pytest.mark.long
def test_truncated_and_recreated_logs_are_inconclusive(spark: Any, bench: Bench) -> None:
    filled(bench, 20)
    source = TopicPartition("app-kv-changelog", 0)
    bench.log.admin.delete_records({source: 5})
    verdict = only(verify(spark, bench, "kv"))
    assert (verdict.verdict, verdict.reason) == ("inconclusive", "log-truncated")
    bench.log.admin.delete_topic(source.topic)
    assert only(verify(spark, bench, "kv")).reason == "topic-missing"


@pytest.mark.long
def test_sample_and_digest_only(spark: Any, bench: Bench) -> None:
    filled(bench, 5_000)
    verdict = only(verify(spark, bench, "kv", sample=0.1))
    assert verdict.verdict == "equal"
    assert 300 < verdict.matched < 700
    assert only(verify(spark, bench, "kv", digest_only=True)).verdict == "equal"
    damage(bench, lambda engine: engine.write({"kv": {b"k000007": None}}))
    verdict = only(verify(spark, bench, "kv", digest_only=True))
    assert (verdict.verdict, verdict.differences) == ("different", ())


@pytest.mark.long
def test_folder_with_a_manifest_and_a_store_by_address(spark: Any, bench: Bench, tmp_path: Path) -> None:
    session = bench.active(partitions=(0, 1))
    operate(session.task(0), random.Random(6), 200)
    session.close()
    for spec in four_stores():
        folder = Folder(str(tmp_path / "out" / spec.name))
        rebuild(spark, bench.log, preflight(bench.log, "app", spec), folder, now_ms=bench.clock.wall_ms)
        done = verify(spark, bench, spec.name, manifest_places(folder.address))
        assert [one.verdict for one in done.verdicts] == ["equal", "equal"]
    remote = remote_places(f"file://{bench.root}/a", "app")
    assert [one.verdict for one in verify(spark, bench, "ver", remote).verdicts] == ["equal", "equal"]


def test_report_is_three_files_and_the_page_is_whole_by_itself(spark: Any, bench: Bench, tmp_path: Path) -> None:
    filled(bench, 50)
    damage(bench, lambda engine: engine.write({"kv": {b"<b>&": row(b"\xff\x00"), b"k000001": None}}))
    code, summary, page = reported(spark, bench, tmp_path, limit=1)
    assert code == 1
    assert summary["verdict"] == "different"
    (store,) = (one for one in summary["stores"] if one["verdict"] == "different")
    assert (len(store["differences"]), store["truncated"]) == (1, True)
    assert "0xff00" not in page and "2 B #" in page and "value_hex" not in json.dumps(summary)
    rows = parquet.read_table(tmp_path / "report" / DIFFERENCES).to_pylist()
    assert [(one["row"], one["key"]) for one in rows] == [("extra", b"<b>&"), ("missing", b"k000001")]
    assert rows[1]["log_hash"] is not None
    assert (rows[1]["log_value"], rows[1]["log_value_bytes"]) == (None, 2)
    assert "&lt;b&gt;&amp;" in page
    assert "<svg" in page
    assert "<b>" not in page
    assert "http" not in page
    code, summary, page = reported(spark, bench, tmp_path, include_values=True)
    assert "0xff00" in page
    rows = parquet.read_table(tmp_path / "report" / DIFFERENCES).to_pylist()
    assert rows[1]["log_value"] == b"v1"


def reported(spark: Any, bench: Bench, tmp_path: Path, **given: Any) -> tuple[int, dict[str, Any], str]:
    """The command with the tests' own session, as `--report` writes it."""

    @contextmanager
    def own(*_: Any) -> Iterator[Any]:
        yield spark

    args = Namespace(
        state_dir=bench.root / "a", app="app", store="kv", partition=None, log=bench.address, config=None, plan=False,
        snapshot=None, report=str(tmp_path / "report"), include_values=False, sample=1.0, digest_only=False,
        split_mb=None, stores_at_once=None,
        source="native", limit=20,
    )  # fmt: skip
    vars(args).update(given)
    code = run_verify_spark(args, Output(as_json=given.get("as_json", True)), own)
    folder = tmp_path / "report"
    return code, json.loads((folder / SUMMARY).read_text()), (folder / PAGE).read_text()


@pytest.mark.long
def test_sample_is_told_on_the_terminal(
    spark: Any, bench: Bench, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    filled(bench, 50)
    assert reported(spark, bench, tmp_path, sample=0.5, as_json=False)[0] == 0
    assert "app: equal, of a sample of 50.0000% of the keys (report:" in capsys.readouterr().out


def test_bad_input_is_refused_before_spark_starts(
    bench: Bench, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    filled(bench, 3)
    state, log = ["--state-dir", str(bench.root / "a")], ["--log", bench.address]
    cases: list[tuple[list[str], int, str]] = [
        (["--spark", *log], 2, "which state?"),
        (["--spark", *state, *log, "--store", "none"], 2, "no logged store 'none'"),
        (["--spark", *state, *log, "--partition", "9"], 2, "no task of partition 9"),
        (["--spark", *state, *log, "--sample", "0"], 2, "--sample is 0"),
        (["--spark", "--snapshot", str(tmp_path / "no"), *log], 2, "no manifest.json"),
        (["--spark", *state], 2, "which log?"),
    ]
    for arguments, code, text in cases:
        assert main(["verify", *arguments]) == code, arguments
        assert text in capsys.readouterr().err
    assert main(["verify", *state, *log, "--plan", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["tasks"]) == 4
    held = bench.active(partitions=(0,))
    assert main(["verify", "--spark", *state, *log]) == 2
    assert "is running" in capsys.readouterr().err
    held.close()


def test_report_of_nothing_is_a_page_too(tmp_path: Path) -> None:
    summary = {
        "app": "a",
        "verdict": "inconclusive",
        "stores": [],
        "elapsed_ms": 1,
        "log": "l",
        "source": "native",
        "sample": 1,
    }
    write_report(Folder(str(tmp_path)), summary, [])
    assert "None." in (tmp_path / PAGE).read_text()
