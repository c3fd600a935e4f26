"""Rebuild and verify of changelogs on a real Kafka broker: both sources, transactions, and a Kafka Streams application.

Rules of this file: the broker is the one that all tests share; each test has topics of its own.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

import standfast as sf
from standfast.ops.cli.spark.pipeline import run_pipeline_command
from standfast.ops.cli.spark_arguments import connector_options
from standfast.ops.command.command_line import build_parser
from standfast.ops.shared.output import Output
from standfast.replication.kafka.log import KafkaLog
from standfast.replication.log import Outgoing, TopicPolicy
from standfast.replication.offsets import TopicPartition
from standfast.restore.digest import Digest, digest_rows
from standfast.restore.spark.folder import Folder
from standfast.restore.spark.places import manifest_places
from standfast.restore.spark.rebuild import Rebuilt, rebuild
from standfast.restore.spark.source import SourceName
from standfast.restore.spark.verify import plan_verify, stored_stores, verify_store
from standfast.restore.verify.import_tasks import import_tasks
from standfast.restore.verify.preflight import preflight
from standfast.store.clock import SystemClock
from standfast.store.errors import BadConfig, StateLost
from standfast.store.specs import KeyValueStore, StoreSpec
from support.java import WAIT_S, JavaApp
from support.streams import PARTITIONS, STORE_ARGUMENTS, changes, stores

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]

SPEC = KeyValueStore("kv", sf.serde.string, sf.serde.string)
SOURCES: list[SourceName] = ["native", "connector"]


@pytest.fixture
def log(kafka_log: KafkaLog) -> KafkaLog:
    return kafka_log


@pytest.fixture
def app() -> str:
    return f"spark-{uuid.uuid4().hex[:8]}"


def changelog(log: KafkaLog, app: str, partitions: int = 3) -> str:
    topic = SPEC.changelog_of(app)
    log.admin.create_topic(topic, partitions, TopicPolicy(frozenset({"compact"})))
    return topic


def rebuilt(
    spark: Any,
    log: KafkaLog,
    app: str,
    spec: StoreSpec,
    folder: Path,
    source: SourceName,
    split_bytes: int | None = None,
) -> Rebuilt:
    return rebuild(
        spark,
        log,
        preflight(log, app, spec),
        Folder(str(folder)),
        now_ms=SystemClock().wall_ms,
        source=source,
        connector_options=connector_options(log.address),
        split_bytes=split_bytes,
    )


@pytest.mark.long
@pytest.mark.parametrize("split_bytes", [None, 40])
@pytest.mark.parametrize("source", SOURCES)
def test_both_sources_leave_aborted_records_out_and_see_empty_partitions(
    spark: Any, log: KafkaLog, app: str, tmp_path: Path, source: SourceName, split_bytes: int | None
) -> None:
    topic = changelog(log, app)
    rows: dict[bytes, tuple[int, bytes]] = {}
    writer = log.writer(f"{app}-0", group=app, owner="test")
    for number in range(20):
        key, value = b"k%d" % (number % 7), b"v%d" % number
        writer.transact({TopicPartition(topic, number % 2): [Outgoing(key, value, 1_000 + number)]})
        rows[b"%d" % (number % 2) + key] = (1_000 + number, value)
    writer.close()
    aborted = Producer({"bootstrap.servers": log.address.removeprefix("kafka://"), "transactional.id": f"{app}-x"})
    aborted.init_transactions(WAIT_S)
    aborted.begin_transaction()
    for number in range(50):
        aborted.produce(topic, b"wrong", b"k%d" % number, partition=number % 2)
    aborted.flush()
    aborted.abort_transaction(WAIT_S)
    done = rebuilt(spark, log, app, SPEC, tmp_path / "out", source, split_bytes)
    expected = digest_rows((key[1:], at, value) for key, (at, value) in rows.items())
    assert done.digest == expected
    files = [len(one.files) for one in done.manifest.partitions]
    assert files == [1, 1, 0] if split_bytes is None else min(files[:2]) > 1
    assert [one.records for one in done.manifest.partitions] == [10, 10, 0]
    places = manifest_places(str(tmp_path / "out"))
    plan = plan_verify(log, app, "kv", stored_stores(places)["kv"])
    options = connector_options(log.address)
    seen = verify_store(spark, log, plan, now_ms=0, source=source, connector_options=options, split_bytes=split_bytes)
    assert [one.verdict for one in seen.verdicts] == ["equal"] * 3


@pytest.mark.parametrize("source", [SOURCES[0], pytest.param(SOURCES[1], marks=pytest.mark.long)])
def test_what_was_deleted_under_the_job_is_an_error_and_not_skipped(
    spark: Any, log: KafkaLog, app: str, tmp_path: Path, source: SourceName
) -> None:
    topic = changelog(log, app, 1)
    log.admin.change_topic(topic, {"cleanup.policy": "delete"})
    at = TopicPartition(topic, 0)
    log.producer().append({at: [Outgoing(b"k%d" % number, b"v", 1_000) for number in range(100)]})
    what = preflight(log, app, SPEC)
    log.admin.delete_records({at: 50})
    with pytest.raises(StateLost):
        rebuild(
            spark,
            log,
            what,
            Folder(str(tmp_path / "out")),
            now_ms=SystemClock().wall_ms,
            source=source,
            connector_options=connector_options(log.address),
        )
    assert not list((tmp_path / "out").glob("manifest.json"))


@pytest.mark.long
@pytest.mark.timeout(900)
def test_changelogs_that_kafka_streams_wrote(
    spark: Any,
    log: KafkaLog,
    app: str,
    streams_classes: Path,
    kafka_address: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    source = f"{app}-input"
    log.admin.create_topic(source, PARTITIONS, TopicPolicy())
    arguments = (app, kafka_address, tmp_path / "java", source, PARTITIONS, "exactly_once_v2")
    java = JavaApp(streams_classes, *arguments, errors=tmp_path / "java.err")
    try:
        batches: dict[TopicPartition, list[Any]] = {}
        for one in changes(0, 30):
            batches.setdefault(TopicPartition(source, one.partition), []).append(one.outgoing)
        log.producer().append(batches)
        java.wait_processed(sum(map(len, batches.values())))
        java.stop()
    finally:
        java.end()
    # Declared as users do it: no definition of ours exists anywhere.
    declared = [word for store in STORE_ARGUMENTS for word in ("--store", store)]
    out = tmp_path / "out"
    words = ["pipeline", "--log", log.address, "--app", app, *declared, "--out", str(out), "--json"]

    @contextmanager
    def own(*_: Any) -> Iterator[Any]:
        yield spark

    assert run_pipeline_command(build_parser().parse_args(words), Output(as_json=True), own) == 0
    summary = json.loads((out / "summary.json").read_text())
    assert summary == json.loads(capsys.readouterr().out)
    for one in summary["stores"]:
        assert one["verdict"] == "equal", one
        assert one["rebuilt"]["records"] == sum(part["records"] for part in one["inspected"]) > 0
        assert sum(part["gaps"] for part in one["inspected"]) > 0  # markers of its transactions
    folders = [out / "rebuilt" / spec.name for spec in stores()]
    taken = {(one.task.partition, one.store): one.digest for one in import_tasks(tmp_path / "taken", folders, log=log)}
    assert taken == restored(log, app, tmp_path / "restored")


def restored(log: KafkaLog, app: str, state_dir: Path) -> dict[tuple[int, str], Digest]:
    """The rows of a restore from the log."""
    with sf.Session(
        app, log=log.address, state_dir=state_dir, stores=stores(), partitions=PARTITIONS, background=False
    ) as session:
        session.assign(active=range(PARTITIONS))
        session.wait_ready(WAIT_S)
        return {
            (number, spec.name): digest_rows(session.task(number).stores.committed_view(spec.name).logical_rows())
            for number in range(PARTITIONS)
            for spec in stores()
        }


def test_settings_that_the_connector_cannot_say_are_refused() -> None:
    known = connector_options("kafka://h:9092?security.protocol=SSL&ssl.ca.location=/ca.pem&fetch.max.bytes=1000")
    assert known == {
        "kafka.bootstrap.servers": "h:9092",
        "kafka.security.protocol": "SSL",
        "kafka.ssl.truststore.type": "PEM",
        "kafka.ssl.truststore.location": "/ca.pem",
    }
    with pytest.raises(BadConfig, match=r"cannot take ssl\.key\.location"):
        connector_options("kafka://h:9092?ssl.key.location=/key.pem")
