"""A read-only log passes on every read of the port, and no write."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from standfast.replication import log as port
from standfast.replication.embedded.log import EmbeddedLog
from standfast.replication.log import Committed, GroupView, Log, LogAdmin, LogReader, LogWriter, Outgoing, TopicPolicy
from standfast.replication.offsets import TopicPartition
from standfast.replication.read_only import ReadOnlyLog
from standfast.store.errors import InvalidRequest

AT = TopicPartition("t", 0)
READS = {
    Log: {
        "address",
        "least_timestamp_ms",
        "remote",
        "admin",
        "reader",
        "group",
        "notes_of",
        "lock_holder",
        "trouble",
        "close",
        "care",
        "hasten",
    },
    LogAdmin: {"describe_topic", "topics", "topic_names", "survey", "groups", "consumers", "first_offsets", "lacking"},
    port.Group: {"notes", "committed", "watch", "close"},
}
ANSWERED_HERE = {"join", "heartbeat", "view", "leave", "owners"}


@pytest.fixture
def logs(tmp_path: Path) -> Iterator[tuple[EmbeddedLog, ReadOnlyLog]]:
    """A log with a topic, a record and a committed offset; and the same, read-only."""
    log = EmbeddedLog(str(tmp_path / "log"))
    log.admin.create_topic("t", 1, TopicPolicy())
    log.producer().append({AT: [Outgoing(b"k", b"v", 1)]})
    log.group("g").commit({AT: Committed(1, "text")})
    read_only = ReadOnlyLog(EmbeddedLog(str(tmp_path / "log")))
    yield log, read_only
    read_only.close()
    log.close()


def methods(protocol: type) -> set[str]:
    return {name for name in vars(protocol) if not name.startswith("_")}


@pytest.mark.parametrize("protocol", [Log, LogAdmin, port.Group])
def test_every_method_of_the_port_reads_or_is_refused(logs: tuple[EmbeddedLog, ReadOnlyLog], protocol: type) -> None:
    _, log = logs
    part: Any = {Log: log, LogAdmin: log.admin, port.Group: log.group("g")}[protocol]
    writes = methods(protocol) - READS[protocol] - ANSWERED_HERE
    assert writes >= {Log: {"writer", "producer"}, LogAdmin: {"create_topic"}, port.Group: {"commit"}}[protocol]
    for name in writes:
        wanted = inspect.signature(getattr(protocol, name)).parameters.values()
        positional = [one for one in wanted if one.name != "self" and one.kind is not one.KEYWORD_ONLY]
        named = {one.name: "x" for one in wanted if one.kind is one.KEYWORD_ONLY and one.default is one.empty}
        with pytest.raises(InvalidRequest, match="to read only"):
            getattr(part, name)(*("x" for _ in positional), **named)


def test_everything_is_read(logs: tuple[EmbeddedLog, ReadOnlyLog]) -> None:
    whole, log = logs
    reader: LogReader = log.reader()
    reader.assign({AT: 0})
    assert [record.value for batch in reader.fetch(10) for record in batch.records] == [b"v"]
    assert log.group("g").committed() == {AT: Committed(1, "text")}
    assert log.admin.topics() == whole.admin.topics()
    assert (log.address, log.least_timestamp_ms) == (whole.address, whole.least_timestamp_ms)
    assert log.trouble() is None


def test_who_joins_is_alone_and_nobody_knows(logs: tuple[EmbeddedLog, ReadOnlyLog]) -> None:
    whole, log = logs
    writer: LogWriter = whole.writer("id", group="g", owner="somebody")
    whole.group("g").join("somebody")
    group = log.group("g")
    view = group.join("me", "text")
    assert (view.leader, [member.member_id for member in view.members]) == ("me", ["me"])
    assert group.heartbeat("me") == group.view() == view
    assert group.owners() == {}
    assert [member.member_id for member in whole.group("g").view().members] == ["somebody"]
    group.leave("me")
    assert group.view() == GroupView(1, None, ())
    writer.append({AT: [Outgoing(b"k", b"w", 2)]})
    log.care(0)
