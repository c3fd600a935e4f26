"""An upgrade keeps the bytes of dicts as keys on a real Kafka log, whether the state directory is there or lost."""

from __future__ import annotations

import json
import shutil
import uuid
from pathlib import Path

import pytest

import standfast as sf
from standfast.replication.kafka.log import KafkaLog
from standfast.replication.topics.claims import claims_of
from standfast.stream.task.key_forms import KeyForms

pytestmark = [pytest.mark.kafka(2), pytest.mark.slow]

ONE, OTHER = {"city": "Oslo", "at": 1.0}, {"at": 1, "city": "Oslo"}
JSON, INT = sf.serde.json, sf.serde.int64
OLD = [sf.KeyValueStore(engine, JSON, INT, engine=engine) for engine in ("rocksdb", "memory")]


def test_an_upgrade_on_kafka_keeps_the_bytes_of_keys_with_a_kept_and_with_a_lost_directory(
    tmp_path: Path, kafka_address: str
) -> None:
    name, address = f"app-{uuid.uuid4().hex[:8]}", f"kafka://{kafka_address}"

    def opened(stores: list[sf.KeyValueStore[object, int]]) -> sf.Session:
        session = sf.Session(
            name, log=address, state_dir=tmp_path / "state", stores=stores, partitions=1, background=False
        )
        session.assign(active=[0])
        session.wait_ready(40)
        return session

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(KeyForms, "wanted", lambda self, spec: spec)  # the form of versions without forms
        with opened(OLD) as session:
            for store in ("rocksdb", "memory"):
                session.task(0).store(store).put(ONE, 7, timestamp=1_000)
            session.task(0).commit()
    for lost in (False, True):
        if lost:
            shutil.rmtree(tmp_path / "state")
        with opened([*OLD, sf.KeyValueStore("new", JSON, INT)]) as session:
            task = session.task(0)
            assert [task.store(store).get(ONE) for store in ("rocksdb", "memory")] == [7, 7]
            assert [task.store(store).get(OTHER) for store in ("rocksdb", "memory")] == [None, None]
            assert task.store("new").get(OTHER) == (8 if lost else None)
            task.store("new").put(ONE, 8, timestamp=1_000)
            task.commit()
            (path,) = (tmp_path / "state").glob("*/0_0/STORES")
            kinds = {store: one["key"] for store, one in json.loads(path.read_text())["stores"].items()}
            assert kinds == {"rocksdb": "json", "memory": "json", "new": "json_sorted"}
    log = KafkaLog(address)
    try:
        forms = {topic: one.keys for topic, one in claims_of(log.group(name).notes()).items()}
    finally:
        log.close()
    assert forms == {
        f"{name}-rocksdb-changelog": "plain",
        f"{name}-memory-changelog": "plain",
        f"{name}-new-changelog": "plain sorted",
    }
