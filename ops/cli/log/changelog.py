"""Commands about the log: changelog head, tail and stats of a topic; topics.

Rules of this file: it reads the log and changes nothing. Keys and values are shown as the log has them, as text if they
are printable UTF-8, else in hex: a topic does not record which serdes wrote it.
"""

from __future__ import annotations

import argparse
from contextlib import closing
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from standfast.ops.cli.arguments import log_of, prints, settings_of
from standfast.store.names import few

if TYPE_CHECKING:
    from standfast.ops.shared.output import Output
    from standfast.replication.log import Log, LogReader, Record
    from standfast.replication.offsets import Bounds, TopicPartition

Json: TypeAlias = dict[str, Any]
LIMIT_DEFAULT = 10
FETCH_RECORDS = 2_000
KEYS_MAX = 1_000_000  # distinct keys are counted up to here, so that a large topic does not fill the memory
RECORDS_SCHEMA = "standfast.records/1"
STATS_SCHEMA = "standfast.changelog-stats/1"
TOPICS_SCHEMA = "standfast.topics/1"


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the commands."""
    parser = subparsers.add_parser(
        "changelog", help="inspect a changelog, or any topic", description="Inspect a changelog, or any topic."
    )
    commands = parser.add_subparsers(dest="changelog_command", required=True, metavar="COMMAND")
    for name, text, handler in (
        ("head", "the first records of each partition", run_head),
        ("tail", "the last records of each partition", run_tail),
        ("stats", "offsets, records, tombstones, keys, bytes and times of each partition", run_stats),
    ):
        command = commands.add_parser(name, help=text, description=f"Show {text}.")
        command.add_argument("topic", nargs="?", metavar="TOPIC", help="the topic; or name --app and --store")
        command.add_argument("--store", metavar="NAME", help="store whose changelog to read, with --app")
        command.add_argument("--app", metavar="NAME", help="application")
        command.add_argument("--log", metavar="ADDRESS", help="the log, as sqlite:///./log or kafka://host:9092")
        command.add_argument(
            "--state-dir",
            type=Path,
            metavar="DIR",
            help="state directory with the store's definition, which may name a source topic as its changelog",
        )
        command.add_argument("--partition", type=int, metavar="P", help="only this partition")
        if name != "stats":
            command.add_argument(
                "--limit", type=int, default=LIMIT_DEFAULT, metavar="N", help="records of each partition (10)"
            )
            command.add_argument(
                "--key-format", choices=("utf8", "hex"), default="utf8", help="bytes as text where printable, or hex"
            )
        wide = ("wide",) if name == "stats" else ()
        prints(command, handler, "json", "times", *wide, "config", found_topic=None)
    topics = subparsers.add_parser("topics", help="the topics of a log", description="List the topics of a log.")
    topics.add_argument("--log", metavar="ADDRESS", help="the log, as sqlite:///./log or kafka://host:9092")
    prints(topics, run_topics, "json", "config")


def run_head(args: argparse.Namespace, out: Output) -> int:
    """changelog head."""
    from standfast.ops.cli.topic_records import read_records

    with closing(log_of(args)) as log:
        records: list[tuple[TopicPartition, Record]] = []
        reader = log.reader()
        for partition, bounds in _partitions(args, log, reader).items():
            records += [(partition, record) for record in read_records(reader, partition, bounds, _limit(args))]
    _show_records(args, out, records)
    return 0


def run_tail(args: argparse.Namespace, out: Output) -> int:
    """changelog tail."""
    from standfast.ops.cli.topic_records import newest_records

    with closing(log_of(args)) as log:
        records: list[tuple[TopicPartition, Record]] = []
        reader = log.reader()
        for partition, bounds in _partitions(args, log, reader).items():
            records += [(partition, record) for record in newest_records(reader, partition, bounds, _limit(args))]
    _show_records(args, out, records)
    return 0


def run_stats(args: argparse.Namespace, out: Output) -> int:
    """changelog stats."""
    with closing(log_of(args)) as log:
        reader = log.reader()
        partitions = _partitions(args, log, reader)
        total = sum(bounds.end - bounds.begin for bounds in partitions.values())
        with out.progress("reading", total) as bar:
            found = []
            for partition, bounds in partitions.items():
                found.append(_count(reader, partition, bounds, bar))
        topic = _topic(args)
        info = log.admin.describe_topic(topic)
    assert info is not None, topic
    out.document({"schema": STATS_SCHEMA, **_topic_document(info), "counted": found})
    out.line(f"{topic}: {_policy(info)}")
    names = ["partition", "begin", "end", "records", "tombstones", "distinct_keys", "key_bytes", "value_bytes"]
    columns = [*names[:5], "keys", "key bytes", "value bytes", "first", "last"]
    counted = [
        [one[name] for name in names] + [out.time(one[name]) for name in ("timestamp_min_ms", "timestamp_max_ms")]
        for one in found
    ]
    out.table(columns, counted, right=columns, wide=columns[6:])
    # An unknown number is said so, since a number that stopped at the bound would look like a count.
    if any(one["distinct_keys"] is None for one in found):
        out.note(f"keys are counted up to {KEYS_MAX:,} a partition")
    return 0


def run_topics(args: argparse.Namespace, out: Output) -> int:
    """topics."""
    from standfast.replication.offsets import TopicPartition

    with closing(log_of(args)) as log:
        infos = log.admin.topics()
        wanted = {info.name: [TopicPartition(info.name, part) for part in range(info.partitions)] for info in infos}
        bounds = log.reader().bounds(chain.from_iterable(wanted.values()))  # one request for all topics
        topics = []
        # Offsets and no records: compaction and markers of transactions leave gaps, and a count would read every topic.
        for info in infos:
            span = sum(bounds[partition].end - bounds[partition].begin for partition in wanted[info.name])
            topics.append({**_topic_document(info), "span": span})
        policies = [_policy(info) for info in infos]
    out.document({"schema": TOPICS_SCHEMA, "topics": topics})
    rows = [
        (topic["topic"], topic["partitions"], topic["span"], policy)
        for topic, policy in zip(topics, policies, strict=True)
    ]
    columns = ("topic", "partitions", "offsets held", "policy")
    out.table(columns, rows, right=columns[1:3], fold=("policy",))
    return 0


def _topic(args: argparse.Namespace) -> str:
    # Kept, because finding it may open the databases of a state directory.
    if args.found_topic is None:
        args.found_topic = _find_topic(args)
    return str(args.found_topic)


def _find_topic(args: argparse.Namespace) -> str:
    from standfast.ops.observe.offline import kept_source_topic
    from standfast.store.errors import InvalidRequest
    from standfast.store.names import changelog_topic, check_topic

    if args.topic is not None and args.store is not None:
        raise InvalidRequest("name a TOPIC or a --store, not both")
    if args.topic is not None:
        return check_topic(args.topic)
    settings = settings_of(args)
    if args.store is None or settings.app is None:
        raise InvalidRequest("which topic? name it, or name --app and --store")
    topic = changelog_topic(settings.app, args.store)
    # A table's changelog is its source topic, which only the kept definition names.
    kept = kept_source_topic(Path(settings.state_dir), settings.app, args.store) if settings.state_dir else None
    return kept or topic


def _partitions(args: argparse.Namespace, log: Log, reader: LogReader) -> dict[TopicPartition, Bounds]:
    import difflib

    from standfast.replication.offsets import TopicPartition
    from standfast.store.errors import InvalidRequest, UnknownStore

    topic = _topic(args)
    info = log.admin.describe_topic(topic)
    if info is None:
        names = [one.name for one in log.admin.topics()]
        near = difflib.get_close_matches(topic, names, 1, 0.6)
        hint = f"did you mean {near[0]!r}?" if near else f"there are {few(names) or 'none'}"
        raise UnknownStore(f"log {log.address} has no topic {topic!r}: {hint}")
    if args.partition is not None and not 0 <= args.partition < info.partitions:
        raise InvalidRequest(f"topic {topic!r} has the partitions 0 to {info.partitions - 1}, not {args.partition}")
    numbers = range(info.partitions) if args.partition is None else [args.partition]
    return reader.bounds([TopicPartition(topic, number) for number in numbers])


def _limit(args: argparse.Namespace) -> int:
    from standfast.store.errors import InvalidRequest

    if args.limit < 1:
        raise InvalidRequest(f"--limit is {args.limit}: give at least 1")
    return int(args.limit)


def _count(reader: LogReader, partition: TopicPartition, bounds: Bounds, bar: Any) -> Json:
    records = tombstones = key_bytes = value_bytes = 0
    keys: set[int] | None = set()
    first_ms: int | None = None
    last_ms: int | None = None
    reader.assign({partition: bounds.begin})
    position = bounds.begin
    # By position and not by the last record: the last offset may be a marker of a transaction.
    while position < bounds.end:
        for batch in reader.fetch(FETCH_RECORDS):
            for record in batch.records:
                records += 1
                tombstones += record.value is None
                key_bytes += len(record.key or b"")
                value_bytes += len(record.value or b"")
                first_ms = record.timestamp if first_ms is None else min(first_ms, record.timestamp)
                # Timestamps are the producers', and need not rise with the offsets.
                last_ms = record.timestamp if last_ms is None else max(last_ms, record.timestamp)
            if keys is not None:
                # Hashes take the same room for keys of any length.
                keys.update(hash(record.key) for record in batch.records)
                keys = keys if len(keys) <= KEYS_MAX else None
            bar.advance(batch.next_offset - position)  # the bar counts offsets, since gaps hold no record to count
            position = batch.next_offset
    return {
        "partition": partition.partition,
        "begin": bounds.begin,
        "end": bounds.end,
        "records": records,
        "tombstones": tombstones,
        "distinct_keys": None if keys is None else len(keys),
        "key_bytes": key_bytes,
        "value_bytes": value_bytes,
        "timestamp_min_ms": first_ms,
        "timestamp_max_ms": last_ms,
    }


def _show_records(args: argparse.Namespace, out: Output, records: list[tuple[TopicPartition, Record]]) -> None:
    from standfast.ops.shared.text import bytes_text, parse_key_format

    key_format = parse_key_format(args.key_format)

    # An absent value is null, which a value of "" is not: it is a tombstone.
    def text(raw: bytes | None) -> str | None:
        return None if raw is None else bytes_text(raw, key_format)

    found: list[Json] = [
        {
            "partition": partition.partition,
            "offset": record.offset,
            "timestamp": record.timestamp,
            "key": text(record.key),
            "value": text(record.value),
            "headers": [[name, text(value)] for name, value in record.headers],
        }
        for partition, record in records
    ]
    out.document({"schema": RECORDS_SCHEMA, "topic": _topic(args), "records": found})
    columns = ("partition", "offset", "timestamp", "key", "value")
    rows = [
        (
            one["partition"],
            one["offset"],
            out.time(one["timestamp"]),
            one["key"],
            "(tombstone)" if one["value"] is None else one["value"],
        )
        for one in found
    ]
    out.table(columns, rows, right=("partition", "offset", "timestamp"), fold=("key", "value"))


def _topic_document(info: Any) -> Json:
    return {
        "topic": info.name,
        "topic_id": info.topic_id,
        "partitions": info.partitions,
        "cleanup": sorted(info.policy.cleanup),
        "retention_ms": info.policy.retention_ms,
        "delete_retention_ms": info.policy.delete_retention_ms,
        "min_compaction_lag_ms": info.policy.min_compaction_lag_ms,
    }


def _policy(info: Any) -> str:
    from standfast.ops.observe.verdict import duration

    text = ",".join(sorted(info.policy.cleanup))
    # A topic that is only compacted has a retention setting too, without any effect.
    aged = "delete" in info.policy.cleanup and info.policy.retention_ms >= 0
    return f"{text}, kept {duration(info.policy.retention_ms / 1_000)}" if aged else text
