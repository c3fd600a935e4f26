"""A commit over the RESP server whose consumer has left its group, on a real broker.

`contract/test_consumer_contract.py` has the calls that the broker accepts and refuses without a sidecar between.
"""

from __future__ import annotations

import pytest
from confluent_kafka import Consumer

import standfast as sf
from standfast.replication.tail.open_log import open_log
from standfast.store.errors import Fenced
from support.consumers import Joined
from support.serve import Sidecars

pytestmark = [pytest.mark.kafka, pytest.mark.slow]


@pytest.mark.parametrize("guarantee", [pytest.param("at_least_once", marks=pytest.mark.long), "exactly_once"])
def test_commit_over_the_resp_server_is_fenced_once_its_consumer_is_replaced(
    sidecars: Sidecars, kafka_address: str, guarantee: str
) -> None:
    """The application's consumer loses its partition to another one while its sidecar still holds the task."""
    settings = {"bootstrap.servers": kafka_address, "group.protocol": "classic"}
    joined = Joined(open_log(f"kafka://{kafka_address}"), Consumer, settings)
    stores = [sf.KeyValueStore("kv", sf.serde.string, sf.serde.string)]
    sidecar = sidecars.start("m", f"kafka://{kafka_address}", joined.group, app__guarantee=guarantee)
    with sf.connect(sidecar.run_dir, stores=stores, partitions=1) as client:
        client.assign(active=[0])
        client.wait_ready(60)
        task = client.task(0)
        task.store("kv").put("a", "1")
        task.commit({(joined.source.topic, 0): 1}, member=(joined.generation, joined.member))
        assert joined.found() == 1
        joined.replace_consumer()
        task.store("kv").put("a", "2")
        with pytest.raises(Fenced):
            task.commit({(joined.source.topic, 0): 2}, member=(joined.generation, joined.member))
        assert joined.found() == 1, "the one that has the partition now begins where the last good commit ended"
    joined.close()
