"""Reader of changelogs through Spark's own Kafka connector: its jars, its settings, and its rows in our shape.

    standfast address     kafka://host:9092?security.protocol=SASL_SSL&sasl.username=app&sasl.password.file=/run/pw
    connector             kafka.bootstrap.servers, kafka.security.protocol, kafka.sasl.jaas.config, ...

Rules of this file: every partition has an explicit first and last offset; `failOnDataLoss` stays true, since false
would silently begin at the log's start; only committed records are read. Spark ignores unknown options of the
connector, so settings without a Java equivalent are refused here.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

import pyarrow as pa
import pyspark
from pyspark.sql import functions as F

from standfast.replication.kafka.address import CONSUMER, PRODUCER, KafkaAddress
from standfast.restore.spark.batches import LOG, StoreShape, ddl, prepare
from standfast.restore.spark.source import LogRanges
from standfast.restore.spark.split_plan import pieces_of
from standfast.store.errors import BadConfig

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

COORDINATE = "org.apache.spark:spark-sql-kafka-0-10_2.13"
# The connector of 4.0 drags in 50 MB that pyspark holds already.
EXCLUDES = ("org.apache.hadoop:hadoop-client-api", "org.apache.hadoop:hadoop-client-runtime")
POLL_TIMEOUT_MS = 120_000

_LOGIN = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}
_SAME = frozenset({"security.protocol", "client.id", "client.rack", "ssl.endpoint.identification.algorithm"})
# Tuning and diagnostics of librdkafka, meaningless to another client.
_TUNING = frozenset({"debug", "log_level", "statistics.interval.ms", "broker.address.family", "broker.address.ttl"})


def default_package() -> str:
    """Maven coordinate of the connector for the installed Spark."""
    return f"{COORDINATE}:{pyspark.__version__}"


def java_settings(address: KafkaAddress) -> dict[str, str]:
    """Options of the connector for this address. Raises BadConfig with every setting that has no Java equivalent."""
    options = dict(address.options)
    found = {"kafka.bootstrap.servers": address.servers}
    mechanism = options.pop("sasl.mechanisms", options.pop("sasl.mechanism", None))
    user = options.pop("sasl.username", None)
    secrets = address.read_secrets()
    password = secrets.pop("sasl.password", None)
    problems = [f"{name}.file" for name in secrets]
    if mechanism is not None:
        found["kafka.sasl.mechanism"] = mechanism
        if mechanism not in _LOGIN:
            problems.append(f"sasl.mechanism={mechanism}")
        elif user is not None and password is not None:
            found["kafka.sasl.jaas.config"] = (
                f"{_LOGIN[mechanism]} required username={json.dumps(user)} password={json.dumps(password)};"
            )
    authority = options.pop("ssl.ca.location", None)
    # librdkafka takes a PEM file, which Java reads only as a truststore of this type.
    if authority is not None:
        found |= {"kafka.ssl.truststore.type": "PEM", "kafka.ssl.truststore.location": authority}
    for name, value in options.items():
        if name in _SAME:
            found[f"kafka.{name}"] = value
        elif name not in CONSUMER | PRODUCER | _TUNING and not name.startswith(("socket.", "topic.", "reconnect.")):
            problems.append(name)
    if problems:
        raise BadConfig(
            [f"--source connector cannot take {name} of the log's address: use --source native" for name in problems]
        )
    return found


def connector_frame(spark: SparkSession, what: LogRanges, shape: StoreShape, options: Mapping[str, str]) -> DataFrame:
    """Prepared records. A partition without records has no task, and so no facts (`empty_frame` has them).

    Partitions that the shape splits have a task for about as many offsets as the longest piece; tasks without records
    yield no facts, and none are missing without them.
    """
    filled = {number: span for number, span in what.ranges.items() if span.begin < span.end}
    reader = spark.read.format("kafka").options(**options)
    for name, place in (("startingOffsets", 0), ("endingOffsets", 1)):
        reader = reader.option(name, json.dumps({what.topic: {str(no): span[place] for no, span in filled.items()}}))
    if shape.splits:
        longest = max(
            (upto - begin for number in filled for begin, upto in pieces_of(shape.splits[number], filled[number].end)),
            default=1,
        )
        # Honoured only because both ends are explicit numbers; with "latest" Spark silently ignores it.
        reader = reader.option("maxRecordsPerPartition", str(longest))
    raw = (
        # assign, not subscribe, which demands offsets for every partition of the topic.
        reader.option("assign", json.dumps({what.topic: sorted(filled)}))
        .option("failOnDataLoss", "true")
        # The connector's default returns records of aborted transactions.
        .option("kafka.isolation.level", "read_committed")
        .option("kafkaConsumer.pollTimeoutMs", str(POLL_TIMEOUT_MS))
        .load()
    )
    log = raw.select("partition", "offset", F.unix_millis("timestamp").alias("timestamp"), "key", "value")

    def preparing(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from prepare((_shaped(batch) for batch in batches), shape)

    return log.mapInArrow(preparing, ddl(shape.schema))


def _shaped(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The same columns under our schema: Spark may mark a column as not null, or use large binaries."""
    return batch.cast(LOG) if batch.schema != LOG else batch
