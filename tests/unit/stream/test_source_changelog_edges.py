"""A source topic as changelog: records a store cannot have, offline tools, and refusals."""

from __future__ import annotations

import logging
from typing import Any

import pytest

import standfast as sf
from standfast.ops.command.command_line import main
from standfast.replication.log import Outgoing, Record, TopicPolicy
from standfast.replication.offsets import TaskId
from standfast.replication.source_records import as_logged
from standfast.stream.task.groups import TaskGroup
from support.sessions import Bench
from support.tables import (
    COMPACT,
    COUNTS,
    SOURCE,
    TABLE,
    produce,
    pump,
    pump_table,
    read,
    rows,
    statistics,
    table,
    verify_live,
)


@pytest.fixture(autouse=True)
def _topic(bench: Bench) -> None:
    bench.log.admin.create_topic("prices", 2, COMPACT)


# -- records that the store cannot have --------------------------------------------------------------------------------

BAD = [
    Outgoing(b"good", b"1", 1),
    Outgoing(None, b"1", 2),
    Outgoing(b"\xff\xfe", b"1", 3),
    Outgoing(b"bad value", b"{", 4),
    Outgoing(b"good", b"{", 5),
    Outgoing(b"null", b"null", 6),
    Outgoing(b"gone", b"1", 7),
    Outgoing(b"gone", None, 8),
    Outgoing(None, None, 9),
    Outgoing(b"last", b"[1, 2]", 10),
]


def produce_bad(bench: Bench) -> None:
    """The embedded log takes records without a key only in uncompacted topics."""
    bench.log.admin.delete_topic("prices")
    bench.log.admin.create_topic("prices", 2, TopicPolicy())
    bench.log.producer().append({SOURCE: BAD})


@pytest.mark.parametrize("how", ["restore", "standby"])
def test_records_that_no_put_could_have_made_are_left_out_counted_and_logged_once(
    bench: Bench, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    produce_bad(bench)
    first = table(bench)
    pump(bench, first.task(0), len(BAD))
    before = rows(first)
    assert before == [(b"good", 1, b"1"), (b"last", 10, b"[1,2]")]
    first.close()
    with caplog.at_level(logging.WARNING, "standfast"):
        if how == "restore":
            other = table(bench, "other")
        else:
            other = bench.session("other", stores=[TABLE, COUNTS], take_over=False)
            other.assign(standby=[0])
            bench.settle(other)
    assert rows(other) == before
    lines = [record.getMessage() for record in caplog.records if "are skipped" in record.getMessage()]
    assert len(lines) == 1
    assert "5 records of prices-0 below offset 10 are skipped: they have no key, or bytes that the serdes" in lines[0]
    assert statistics(other).skipped == 5


def test_as_logged_keeps_offsets_timestamps_headers_and_records_that_need_no_change() -> None:
    kept = Record(3, 7, b"k", b"[1]", (("h", b"x"),))
    other = kept._replace(offset=4, value=b"[1 ]")
    found = as_logged(TABLE, [kept, other, kept._replace(offset=5, key=None)])
    assert found == [kept, kept._replace(offset=4)]
    assert found[0] is kept


# -- offline -----------------------------------------------------------------------------------------------------------


def test_verify_and_changelog_commands_find_the_topic_in_the_kept_definition(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    produce_bad(bench)
    produce(bench, 0, 60)
    session = table(bench)
    pump(bench, session.task(0), 40)
    (live, _) = verify_live(bench, session)[::-1]
    assert (live.store, live.verdict, live.changelog, live.position) == ("table", "equal", SOURCE, 40)
    session.close()
    flags = ["--state-dir", str(bench.root / "a"), "--app", "app", "--log", bench.address]
    assert main(["verify", *flags]) == 0
    assert "app: equal" in capsys.readouterr().out
    assert main(["changelog", "head", "--store", "table", "--limit", "1", "--json", *flags]) == 0
    assert '"topic": "prices"' in capsys.readouterr().out.replace('":"', '": "')
    assert main(["changelog", "stats", "--store", "counts", *flags]) == 0
    assert "app-counts-changelog" in capsys.readouterr().out
    assert main(["get", "table", "last", "--offline", str(bench.root / "a")]) == 0
    assert "[1,2]" in capsys.readouterr().out.replace(" ", "")


def test_verify_finds_a_row_that_the_topic_does_not_have(bench: Bench) -> None:
    produce(bench, 0, 20)
    session = table(bench, stores=[TABLE])
    pump_table(bench, session.task(0), 20)
    session.task(0).store("table").put("planted", 1, 1)
    session.task(0).commit()
    (found,) = verify_live(bench, session)
    assert (found.verdict, found.extra) == ("different", 1)


def test_verify_of_serdes_that_are_not_known_is_inconclusive_where_rows_differ(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    own = sf.serde.pair("own", lambda text: text.encode().upper(), lambda raw: raw.decode())
    spec = sf.KeyValueStore("table", sf.serde.string, own, source_topic="prices")
    bench.log.producer().append({SOURCE: [Outgoing(b"k", b"SAME", 1), Outgoing(b"l", b"differs", 2)]})
    session = table(bench, stores=[spec])
    for stop in (1, 2):
        for record in read(bench, stop - 1, stop):
            assert record.key is not None
            assert record.value is not None
            session.task(0).store("table").put(record.key.decode(), record.value.decode(), record.timestamp)
        session.task(0).commit({SOURCE: stop})
    session.close()
    flags = ["verify", "--state-dir", str(bench.root / "a"), "--log", bench.address]
    assert main(flags) == 3
    assert "serdes" in capsys.readouterr().out
    assert rows(table(bench, "cold", stores=[spec])) == [(b"k", 1, b"SAME"), (b"l", 2, b"DIFFERS")]


def test_commands_find_the_store_of_another_group(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    groups = {
        0: TaskGroup(2, (COUNTS,), frozenset({"in"})),
        1: TaskGroup(2, (TABLE,), frozenset({"prices"})),
    }
    produce(bench, 0, 20)
    session = bench.session(stores=(), partitions=None, groups=groups)
    session.assign(active=[0, TaskId(1, 0)])
    session.wait_ready(30)
    session.task(0).store("counts").put("c", 1)
    session.task(0).commit()
    pump_table(bench, session.task(TaskId(1, 0)), 20)
    session.close()
    state = str(bench.root / "a")
    assert main(["verify", "--state-dir", state, "--log", bench.address]) == 0
    for store in ("table", "counts"):
        assert main(["verify", "--state-dir", state, "--log", bench.address, "--store", store]) == 0
        assert main(["scan", store, "--offline", state]) == 0
    assert main(["scan", "absent", "--offline", state]) != 0
    capsys.readouterr()


# -- refusals ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "problem"),
    [
        (None, "source topic other of store 'table' does not exist: create it with 2 partitions"),
        (TopicPolicy(frozenset({"delete"}), retention_ms=1_000), r"set cleanup\.policy=compact on the topic"),
        (TopicPolicy(frozenset({"compact", "delete"}), retention_ms=1_000), r"has cleanup\.policy=compact,delete"),
        (TopicPolicy(frozenset({"delete"})), None),
        (TopicPolicy(frozenset({"compact"}), retention_ms=1_000), None),
    ],
)
def test_a_topic_that_loses_rows_by_age_cannot_be_a_changelog(
    bench: Bench, policy: TopicPolicy | None, problem: str | None
) -> None:
    spec = sf.KeyValueStore("table", sf.serde.string, sf.serde.json, source_topic="other")
    if policy is not None:
        bench.log.admin.create_topic("other", 2, policy)
    if problem is None:
        bench.active(stores=[spec])
        found = bench.log.admin.describe_topic("other")
        assert found is not None
        assert found.policy == policy  # never altered
    else:
        with pytest.raises(sf.BadConfig, match=problem):
            bench.session(stores=[spec])


def test_partitions_that_differ_from_the_tasks_are_refused(bench: Bench) -> None:
    with pytest.raises(sf.BadConfig, match=r"source topic prices.* has 2 partitions but its tasks are 3"):
        bench.session(stores=[TABLE], partitions=3)


def test_partitions_are_learnt_from_the_topic_where_none_are_given(bench: Bench) -> None:
    session = bench.session(stores=[TABLE], partitions=None)
    session.assign(active=[0])
    session.wait_ready(30)
    assert session.task(0).store("table").get("k") is None


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"source_topic": "a/b"}, "source_topic: topic name 'a/b' is not usable"),
        ({"logging": False}, "logging=False cannot go with source_topic"),
        ({"changelog": {"retention.ms": "5"}}, "changelog settings cannot go with source_topic"),
    ],
)
def test_an_unusable_definition_is_refused(settings: dict[str, Any], problem: str) -> None:
    arguments: dict[str, Any] = {"source_topic": "prices", **settings}
    with pytest.raises(sf.BadConfig, match=problem):
        sf.KeyValueStore("table", sf.serde.string, sf.serde.json, **arguments)


def test_one_topic_is_the_changelog_of_one_store(bench: Bench) -> None:
    twin = sf.KeyValueStore("twin", sf.serde.string, sf.serde.json, source_topic="prices")
    with pytest.raises(sf.BadConfig, match="topic 'prices' is the changelog of stores 'table' and 'twin'"):
        bench.session(stores=[TABLE, twin])


def test_the_definition_is_as_before_without_a_source_topic_and_changes_with_one(bench: Bench) -> None:
    plain = sf.KeyValueStore("table", sf.serde.string, sf.serde.json)
    assert "source_topic" not in plain.definition()
    assert TABLE.definition() == {**plain.definition(), "source_topic": "prices"}
    table(bench, stores=[plain]).close()
    session = bench.session(stores=[TABLE])
    with pytest.raises(sf.InvalidRequest, match="source_topic: None -> 'prices'"):
        session.assign(active=[0])
