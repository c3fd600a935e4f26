"""Damage of a state directory whose log is Kafka: noted and restored; a lost instance id is named from the group."""

from __future__ import annotations

import uuid
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from system.crash.test_damaged_store import TEXT, files_of, middle

import standfast as sf

pytestmark = [pytest.mark.kafka, pytest.mark.slow]
ROWS = 2_000


@pytest.mark.long
@pytest.mark.parametrize("guarantee", ["exactly_once", pytest.param("at_least_once", marks=pytest.mark.long)])
def test_reopened_right_after_damage_and_refused_with_the_former_id(
    kafka_address: str, tmp_path: Path, guarantee: Any
) -> None:
    app = f"app-{uuid.uuid4().hex[:8]}"

    def session() -> sf.Session:
        return sf.Session(
            app,
            log=f"kafka://{kafka_address}",
            state_dir=tmp_path,
            stores=[sf.KeyValueStore("kv", TEXT, TEXT)],
            partitions=1,
            guarantee=guarantee,
        )

    with closing(session()) as first:
        first.assign(active=[0])
        first.wait_ready(60)
        for number in range(ROWS):
            first.task(0).store("kv").put(f"{number:06}", f"{number:06}" * 8)
        first.commit({})
        first.task(0).stores.flush()
        first.task(0).stores.engine.compact("kv")
        (file,) = files_of(first, "kv")
    middle(file)
    with closing(session()) as again:
        again.assign(active=[0])
        again.wait_ready(60)
        with pytest.raises(sf.Corruption):
            list(again.task(0).store("kv").all())
        again.reopen(0)
        again.wait_ready(60)
        assert len(list(again.task(0).store("kv").all())) == ROWS
        assert again.counters.store_wipes == {("kv", "corrupt"): 1}
        path, former = again.state_path, again.instance_id
    (path / "INSTANCE").write_bytes(b"\xff")
    with pytest.raises(sf.InvalidRequest, match=rf"last owner by the log: '{former}' of task 0_0"):
        session()
