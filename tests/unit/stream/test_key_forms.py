"""The form of keys: new stores and repartition topics have equal bytes for equal dicts, older ones keep their bytes.

`earlier` makes stores and topics as versions without forms did.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import standfast as sf
from standfast.ops.observe.offline import open_tasks
from standfast.replication.log import Outgoing
from standfast.replication.offsets import TaskId, TopicPartition
from standfast.replication.topics.claims import claims_of
from standfast.restore.verify.at_rest import find_tasks
from standfast.restore.verify.preflight import preflight
from standfast.restore.verify.verify import verify_task
from standfast.store.errors import InvalidRequest
from standfast.store.types.kinds import open_store
from standfast.stream.task.key_forms import KeyForms
from standfast.stream.task.task import Task
from standfast.stream.topology.sinks import partition_of
from support.apps import Drive, Running, create, text_of, write, written
from support.sessions import HOUR_MS, Bench

JSON, INT = sf.serde.json, sf.serde.int64
ONE, OTHER = {"city": "Oslo", "at": 1.0}, {"at": 1, "city": "Oslo"}
PLAIN, SORTED = '{"city":"Oslo","at":1.0}', '{"at":1,"city":"Oslo"}'
ENGINES = ("rocksdb", "memory")


def stores(*more: Any) -> list[Any]:
    found: list[Any] = [sf.KeyValueStore(f"kv-{engine}", JSON, INT, engine=engine) for engine in ENGINES]
    found += [
        sf.WindowStore("win", JSON, INT, window_size_ms=HOUR_MS, retention_ms=24 * HOUR_MS),
        sf.KeyValueStore("alone", JSON, INT, logging=False),
    ]
    return [*found, *more]


@contextmanager
def earlier() -> Iterator[None]:
    """Everything that is made here has the form of earlier versions."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(KeyForms, "wanted", lambda self, spec: spec)
        patch.setattr("standfast.stream.topology.assembly._sorting", lambda group, names: frozenset())
        yield


def fill(task: Task, key: Any) -> None:
    for name in ("kv-rocksdb", "kv-memory", "alone"):
        task.store(name).put(key, 7, timestamp=HOUR_MS)
    task.store("win").put(key, 7, HOUR_MS, timestamp=HOUR_MS)
    task.commit()


def found(task: Task, key: Any) -> list[Any]:
    kv = [task.store(name).get(key) for name in ("kv-rocksdb", "kv-memory", "alone")]
    return [*kv, task.store("win").fetch(key, HOUR_MS)]


def keys_in(bench: Bench, store: str) -> list[str | None]:
    return [key for key, _, _ in text_of(written(bench, f"app-{store}-changelog"))]


def forms(bench: Bench) -> dict[str, str]:
    return {name: one.keys for name, one in claims_of(bench.log.group("app").notes()).items()}


def definitions(bench: Bench) -> dict[str, str]:
    text = json.loads((bench.root / "a/app/0_0/STORES").read_text())
    return {name: one["key"] for name, one in text["stores"].items()}


def verified(bench: Bench, directory: str) -> set[str]:
    """The verdicts of the closed task 0_0 on files and changelogs."""
    tasks = [task for task in find_tasks(bench.root / directory, "app") if task.task == TaskId(0, 0)]
    with open_tasks(tasks) as (opened,):
        parts = {name: opened.part(name) for name in ("kv-rocksdb", "win")}
        views = {name: open_store(part.spec, part.rows) for name, part in parts.items()}
        found = verify_task(TaskId(0, 0), views, opened.cut.positions, bench.log, "app", now_ms=bench.clock.wall_ms())
    return {one.verdict for one in found}


def in_replica(bench: Bench, key: Any) -> Any:
    replica = sf.Replica(
        "app", log=bench.address, state_dir=bench.root / "replica", stores=stores()[:3], background=False,
        clock=bench.clock,
    )  # fmt: skip
    bench.opened.append(replica)
    bench.settle(replica)
    found = replica.read("kv-rocksdb", 0).store.get(key)
    replica.close()
    return found


def test_equal_dicts_are_one_key_of_every_new_store(bench: Bench) -> None:
    session = bench.active(stores=stores())
    fill(session.task(0), ONE)
    assert found(session.task(0), OTHER) == [7, 7, 7, 7]
    assert list(session.task(0).store("kv-memory").all()) == [(OTHER, 7)]
    assert session.task(0).store(stores()[0]).get(OTHER) == 7  # asked by its declaration
    assert keys_in(bench, "kv-rocksdb") == keys_in(bench, "kv-memory") == [SORTED]
    assert forms(bench) == {
        "app-kv-rocksdb-changelog": "plain sorted",
        "app-kv-memory-changelog": "plain sorted",
        "app-win-changelog": "window sorted",
    }
    assert set(definitions(bench).values()) == {"json_sorted"}
    session.close()
    assert found(bench.active(stores=stores()).task(0), OTHER)[:3:2] == [7, 7]
    bench.opened[-1].close()
    lost = bench.active("lost", stores=stores())
    assert found(lost.task(0), OTHER) == [7, 7, None, 7]
    lost.close()
    assert verified(bench, "a") == verified(bench, "lost") == {"equal"}
    assert in_replica(bench, OTHER) == 7
    assert preflight(bench.log, "app", stores()[0]).spec.definition()["key"] == "json_sorted"  # of a rebuild on Spark
    bench.log.group("app").note({("claim", name): None for name in forms(bench)})  # a members topic that was lost
    assert found(bench.active(stores=stores()).task(0), OTHER) == [7, 7, 7, 7]
    assert forms(bench)["app-kv-rocksdb-changelog"] == "plain sorted"


@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize("claimed", [True, False])
def test_an_upgrade_keeps_the_bytes_of_keys(bench: Bench, kept: bool, claimed: bool) -> None:
    with earlier():
        old = bench.active(stores=stores())
        fill(old.task(0), ONE)
        old.close()
    if not claimed:  # as a version without claims has left it
        bench.log.group("app").note({("claim", name): None for name in forms(bench)})
    if not kept:
        shutil.rmtree(bench.root / "a")
    session = bench.active(stores=stores(sf.KeyValueStore("new", JSON, INT)))
    task = session.task(0)
    alone = 7 if kept else None
    assert found(task, ONE) == [7, 7, alone, 7]
    assert found(task, OTHER) == [None, None, None if kept else alone, None]
    fill(task, ONE)
    task.store("new").put(ONE, 8, timestamp=HOUR_MS)
    task.commit()
    assert in_replica(bench, ONE) == 7 and in_replica(bench, OTHER) is None
    assert preflight(bench.log, "app", stores()[0]).spec.definition()["key"] == "json"
    assert keys_in(bench, "kv-rocksdb") == [PLAIN, PLAIN] and keys_in(bench, "new") == [SORTED]
    assert forms(bench) == {
        "app-kv-rocksdb-changelog": "plain",
        "app-kv-memory-changelog": "plain",
        "app-win-changelog": "window",
        "app-new-changelog": "plain sorted",
    }
    alone_serde = "json" if kept else "json_sorted"
    assert definitions(bench) == {
        "kv-rocksdb": "json", "kv-memory": "json", "win": "json", "alone": alone_serde, "new": "json_sorted"
    }  # fmt: skip
    session.close()
    assert verified(bench, "a") == {"equal"}


def count_pairs(app: sf.App) -> None:
    pairs = app.stream("in", key=sf.serde.string, value=JSON).group_by(lambda _, value: value, key=JSON)
    pairs.count("counts").to_stream().to("out", key=JSON, value=INT)


def between(bench: Bench) -> list[tuple[int, str | None]]:
    topic = next(name for name in bench.log.admin.topic_names() if name.endswith("-repartition"))
    return [(at, key) for at in (0, 1) for key, _, _ in text_of(written(bench, topic, at))]


def test_a_new_repartition_topic_brings_equal_dicts_together_and_an_older_one_stays(bench: Bench) -> None:
    create(bench, 2, "in", "out")
    rows = [("x", json.dumps(one), 1) for one in (ONE, OTHER, ONE)]
    write(bench, "in", *rows)
    running = Running(bench, count_pairs, stores=[sf.KeyValueStore("counts", JSON, INT)])
    running.run()
    running.commit()
    assert {key for _, key in between(bench)} == {SORTED} and len({at for at, _ in between(bench)}) == 1
    assert set(forms(bench).values()) == {"plain sorted"}
    running.session.close()


def test_repartition_topics_of_an_earlier_version_keep_their_bytes(bench: Bench) -> None:
    create(bench, 2, "in", "out")
    with earlier():
        running = Running(bench, count_pairs, stores=[sf.KeyValueStore("counts", JSON, INT)])
        write(bench, "in", ("x", json.dumps(ONE), 1))
        running.run()
        running.commit()
        running.session.close()
    write(bench, "in", ("x", json.dumps(ONE), 2), ("x", json.dumps(OTHER), 3))
    running = Running(bench, count_pairs, stores=[sf.KeyValueStore("counts", JSON, INT)])
    running.run()
    running.commit()
    assert sorted(str(key) for _, key in between(bench)) == sorted([PLAIN, PLAIN, SORTED])
    assert set(forms(bench).values()) == {"plain"}


def join_table(app: sf.App) -> None:
    prices = app.table("prices")
    stream = app.stream("in", key=sf.serde.string, value=JSON).select_key(lambda _, value: value, key=JSON)
    stream.join(prices, lambda value, price: price).to("out", key=JSON, value=INT)


def test_a_join_with_a_topic_of_others_stays_as_it_was(bench: Bench) -> None:
    """The other program writes names in another order than the sorted one, and chooses the partition by these bytes."""
    create(bench, 2, "in", "out", "prices")
    raw = PLAIN.encode()
    at = partition_of(raw, 2)
    bench.log.producer().append({TopicPartition("prices", at): [Outgoing(raw, (5).to_bytes(8, "big"), 1)]})
    running = Running(bench, join_table, default_key_serde=JSON, default_value_serde=INT)
    running.run()
    running.commit()
    write(bench, "in", ("x", json.dumps(ONE), 2))
    running.run()
    running.commit()
    assert between(bench) == [(at, PLAIN)]
    assert [one.key for number in (0, 1) for one in written(bench, "out", number) if one.key] == [raw]
    assert set(forms(bench).values()) == {"plain"}


def test_a_number_without_an_end_is_refused_where_it_is_read(drive: Drive) -> None:
    for policy in ("fail", "skip"):
        app = sf.App("app")
        app.stream("in", key=sf.serde.string, value=JSON, on_error=policy).to("out")
        driver = drive(app)
        if policy == "fail":
            with pytest.raises(sf.StandfastError, match=r"(?s)\bin\b.*such as 1e999"):
                driver.pipe("in", "a", b"1e999", 1)
            continue
        driver.pipe("in", "a", b"1e999", 1)
        driver.pipe("in", "b", b"\xef\xbb\xbf1", 2)
        assert [(one.key, one.value) for one in driver.read("out")] == [("b", 1)]


def test_a_key_that_json_does_not_give_back_is_refused_with_the_way_out(bench: Bench) -> None:
    task = bench.active(stores=stores()).task(0)
    for key, way in (({404: 1}, r"str\(...\)"), ({"a": (1, 2)}, r"list\(...\)"), ((1, 2), r"list\(...\)")):
        with pytest.raises(InvalidRequest, match=way):
            task.store("kv-rocksdb").put(key, 1, timestamp=1)
