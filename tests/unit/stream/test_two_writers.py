"""A changelog with records of two owners: a former one stood still between its look at the owner and its append."""

from __future__ import annotations

import pytest

import standfast as sf
from standfast.replication.log import Outgoing
from standfast.replication.offsets import TopicPartition
from standfast.store.errors import CommitUnknown
from standfast.store.names import changelog_topic
from support.sessions import Bench

TEXT = sf.serde.string


@pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once"])
def test_a_store_never_counts_records_of_another_writer_as_its_own(bench: Bench, guarantee: str) -> None:
    session = bench.active(stores=[sf.KeyValueStore("kv", TEXT, TEXT)], guarantee=guarantee)
    session.task(0).store("kv").put("a", "1")
    session.task(0).commit()
    changelog = TopicPartition(changelog_topic(session.app, "kv"), 0)
    bench.log.producer().append({changelog: [Outgoing(b"b", b"of another owner", 1)]})
    session.task(0).store("kv").put("c", "3")
    with pytest.raises(CommitUnknown, match="1 records of another writer from offset 1 on"):
        session.task(0).commit()
    session.reopen(0)
    session.wait_ready(10)
    with session.task(0).store("kv").all() as rows:
        assert dict(rows) == {"a": "1", "b": "of another owner", "c": "3"}
    session.task(0).store("kv").put("d", "4")
    session.task(0).commit()
