"""Timestamps that a log refuses are refused at their put or send, never at the commit.

Rules of this file: the least timestamp is that of the log. A session on the embedded log whose limits say 1 stands for
Kafka; test_kafka_bad_input.py has the real one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import standfast as sf
from standfast.replication.embedded.rows import prepare
from standfast.replication.kafka.records import checked
from standfast.replication.log import Outgoing
from standfast.replication.offsets import TopicPartition
from standfast.store.timestamps import TIMESTAMP_MAX_MS, timestamp_problem, writable
from standfast.stream.task.task import Task
from support.apps import Running, create, headers_of, text_of, write, written
from support.resp import Desk
from support.sessions import Bench, four_stores

TEXT, JSON, INT = sf.serde.string, sf.serde.json, sf.serde.int64
SRC = TopicPartition("src", 0)
TOO_LATE = 2**62

PUTS: dict[str, Callable[[Task, Any], object]] = {
    "put": lambda task, at: task.store("kv").put("k", "v", at),
    "put a delete": lambda task, at: task.store("kv").put("k", None, at),
    "put_if_absent": lambda task, at: task.store("kv").put_if_absent("new", "v", at),
    "put_all": lambda task, at: task.store("kv").put_all([("a", "1"), ("b", "2")], at),
    "put_raw": lambda task, at: task.store("kv").put_raw(b"k", b"v", at),
    "window put": lambda task, at: task.store("win").put("k", "v", 0, at),
    "session put": lambda task, at: task.store("ses").put("k", 0, 5, "v", at),
    "versioned put": lambda task, at: task.store("ver").put("k", "v", at),
    "versioned delete": lambda task, at: task.store("ver").delete("k", at),
    "send": lambda task, at: task.send("out", b"k", b"v", at),
}


def contents(session: sf.Session) -> list[list[object]]:
    views = {name: session.read(name, 0).store for name in ("kv", "win", "ses", "ver")}
    return [list(views["kv"].all()), list(views["win"].all()), list(views["ses"].all()),
            list(views["ver"].range("k", 0, 10**15))]  # fmt: skip


@pytest.mark.parametrize("at", [TOO_LATE, pytest.param(2**63 - 1, marks=pytest.mark.long)])
@pytest.mark.parametrize("put", PUTS)
@pytest.mark.parametrize("caching", [True, False], ids=["cached", "uncached"])
def test_timestamp_beyond_the_bound_is_refused_and_costs_no_commit(
    bench: Bench, put: str, at: int, caching: bool
) -> None:
    create(bench, 1, "out")
    stores = four_stores() if caching else four_stores(caching=False)
    session = bench.active(stores=stores)
    task = session.task(0)
    task.store("kv").put("k", "kept", 5)
    with pytest.raises(sf.InvalidRequest, match=rf"timestamp {at} cannot be written to the log"):
        PUTS[put](task, at)
    task.commit({SRC: 1})
    assert contents(session) == [[("k", "kept")], [], [], []]
    assert task.store("ver").rows.observed_ms == task.store("win").rows.observed_ms == -1
    PUTS[put](task, TIMESTAMP_MAX_MS)  # the last accepted one
    task.commit({SRC: 2})
    assert task.source_offsets() == {SRC: 2}


@pytest.mark.parametrize("put", PUTS)
@pytest.mark.parametrize("by_default", [False, True], ids=["given", "record in hand"])
def test_least_timestamp_of_the_log_is_known_to_every_put(bench: Bench, put: str, by_default: bool) -> None:
    session = bench.active()
    task = session.task(0)
    task.stores.limits.least_timestamp_ms = 1  # as on Kafka
    task.record_timestamp = 0
    if by_default and put == "put_raw":
        return  # has no default
    with pytest.raises(sf.InvalidRequest, match=r"timestamp 0 .* from 1 to .* Kafka client would write the present"):
        PUTS[put](task, None if by_default else 0)
    task.commit({SRC: 1})
    assert contents(session) == [[], [], [], []]


def test_store_without_a_changelog_keeps_any_timestamp(bench: Bench) -> None:
    task = bench.active(stores=[sf.KeyValueStore("kv", TEXT, TEXT, logging=False)]).task(0)
    task.store("kv").put("k", "v", TOO_LATE)
    task.commit({SRC: 1})
    assert task.store("kv").get_with_timestamp("k") == ("v", TOO_LATE)


SENDS: dict[str, tuple[dict[str, Any], str]] = {
    "key as text": ({"key": "k"}, "its key is of type str"),
    "value as a number": ({"value": 5}, "its value is of type int"),
    "timestamp as text": ({"timestamp": "5"}, "timestamp '5' cannot be written"),
    "timestamp as a fraction": ({"timestamp": 5.0}, "timestamp 5.0 cannot be written"),
    "negative timestamp": ({"timestamp": -1}, "timestamp -1 cannot be written"),
    "timestamp as a truth": ({"timestamp": True}, "timestamp True cannot be written"),
    "partition -1": ({"partition": -1}, "partition -1 is not valid"),
    "partition as text": ({"partition": "0"}, "partition '0' is not valid"),
    "huge partition": ({"partition": 2**31}, f"partition {2**31} is not valid"),
    "no partitions": ({"partitions": 0}, "cannot have 0 partitions"),
    "headers that are none": ({"headers": {"a": b"b"}}, "its headers are of type dict"),
    "header that is none": ({"headers": (("a",),)}, ".* is not a header"),
    "header with text": ({"headers": (("a", "b"),)}, "header 'a' is of type str with str"),
    "header without a name": ({"headers": ((None, b"b"),)}, "header None is of type NoneType"),
    "header that is no UTF-8": ({"headers": (("\ud800", b"b"),)}, "cannot be encoded as UTF-8"),
}


@pytest.mark.parametrize("send", SENDS)
def test_output_that_no_log_takes_is_refused_where_it_is_sent(bench: Bench, send: str) -> None:
    changed, problem = SENDS[send]
    create(bench, 1, "out")
    task = bench.active().task(0)
    arguments: dict[str, Any] = {"key": b"k", "value": b"v", "timestamp": 5} | changed
    with pytest.raises(sf.InvalidRequest, match=problem):
        task.send("out", **arguments)
    task.send("out", b"k", b"v", 5, headers=(("h", None),))
    task.commit({SRC: 1})
    assert [(record.key, record.value) for record in written(bench, "out")] == [(b"k", b"v")]


@pytest.mark.parametrize("at", [2**63, 2**70, "5", 5.5, None])
def test_stream_time_that_none_can_be_is_refused(bench: Bench, at: Any) -> None:
    task = bench.active().task(0)
    with pytest.raises(sf.InvalidRequest, match="of src-0 is not a time"):
        task.observe("src", 0, at)
    task.commit({SRC: 1})
    assert task.stream_times == {}


def test_record_in_an_application_with_such_a_timestamp_is_left_to_on_error(bench: Bench) -> None:
    create(bench, 1, "in", "out", "bad")

    def make(app: sf.App) -> None:
        stream = app.stream("in", key=TEXT, value=JSON, timestamp=lambda record: record.value, on_error="dead_letter",
                            dead_letter="bad")  # fmt: skip
        stream.group_by_key().count("seen")
        stream.to("out")

    running = Running(bench, make, stores=[sf.KeyValueStore("seen", TEXT, INT)])
    write(bench, "in", ("a", "5", 1), ("a", f"{TOO_LATE}", 2), ("a", "6", 3))
    running.run()
    running.commit()
    assert running.rows("seen") == {"a": 2}
    assert [at for _, _, at in text_of(written(bench, "out"))] == [5, 6]
    (dead,) = written(bench, "bad")
    assert f"timestamp {TOO_LATE}" in headers_of(dead)["__streams.errors.message"]
    running.close()


def test_command_of_the_sidecar_with_such_a_timestamp_is_refused_alone(desk: Desk) -> None:
    talk = desk.talk()
    talk("SF.OFFSETS")
    assert talk("SET", "a", "1") == b"OK"
    talk("SF.TIME", TOO_LATE)
    assert "cannot be written to the log" in talk.refused("SET", "b", "2")
    talk("SF.COMMIT", "OFFSETS", "src", 0, 1)
    assert (talk("GET", "a"), talk("GET", "b")) == (b"1", None)


# --- the rule, and the logs ---


@given(st.integers(-5, 5) | st.integers(TIMESTAMP_MAX_MS - 5, TIMESTAMP_MAX_MS + 5), st.sampled_from([0, 1]))
def test_both_logs_take_exactly_what_the_rule_lets_through(timestamp: int, least_ms: int) -> None:
    check: Callable[[TopicPartition, Any], object] = prepare if least_ms == 0 else checked
    batch = [Outgoing(b"k", b"v", timestamp)]
    nearest = writable(timestamp, least_ms)
    assert timestamp_problem(nearest, least_ms) is None
    if timestamp_problem(timestamp, least_ms) is None:
        assert check(SRC, batch)
        assert nearest == timestamp
    else:
        with pytest.raises(sf.InvalidRequest, match=f"timestamp {timestamp} cannot"):
            check(SRC, batch)
