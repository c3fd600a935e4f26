"""A changelog with records of two owners: a former one stood still between its look at the owner and its append."""

from __future__ import annotations

from pathlib import Path

import pytest

import standfast as sf
from simulator.calls import DirectCalls
from simulator.log import SimLog, SimLogClient
from standfast.replication.log import Outgoing
from standfast.replication.offsets import TopicPartition
from standfast.replication.tail import open_log
from standfast.store.clock import ManualClock
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


def test_a_marker_of_exactly_once_is_no_record_of_another_writer(tmp_path: Path, clock: ManualClock) -> None:
    log = SimLog("one", clock, DirectCalls(clock), style="kafka")
    scheme = open_log.Scheme(lambda address: address, lambda address, its_clock: SimLogClient(log, its_clock))
    with open_log.OTHERS.added("sim", scheme):
        for number, guarantee in enumerate(("exactly_once", "at_least_once", "exactly_once", "at_least_once")):
            with sf.Session("app", log=SimLogClient(log, clock).address, state_dir=tmp_path, clock=clock, partitions=1,
                            stores=[sf.KeyValueStore("kv", TEXT, TEXT)], guarantee=guarantee,
                            background=False) as session:  # fmt: skip
                session.assign(active=[0])
                session.wait_ready(10)
                for change in range(2):
                    session.task(0).store("kv").put(f"{number} {change}", guarantee)
                    session.task(0).commit()
                assert session.task(0).store("kv").approximate_num_entries() == 2 * number + 2
