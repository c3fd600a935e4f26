"""Programs and commands of docs/guide/kafka-streams.md and docs/migrate/faust.md, run on a real broker.

Rules of this file: the page's text is run as it is, but for the broker's address and the application's name.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

import standfast as sf
from standfast.replication.log import Committed
from support.pages import blocks, commands

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(180)]

PAGE = "docs/guide/kafka-streams.md"
FAUST_PAGE = "docs/migrate/faust.md"


@pytest.fixture
def address(kafka_address: str) -> str:
    return f"kafka://{kafka_address}"


@pytest.fixture
def app(address: str, tmp_path: Path) -> str:
    """An application whose stores the page reads: totals, hourly and visits, on the broker.

    The retentions of its topics are those that Kafka Streams gives them.
    """
    name = f"orders-{uuid.uuid4().hex[:8]}"
    stores = [
        sf.KeyValueStore("totals", sf.serde.string, sf.serde.int64),
        sf.WindowStore(
            "hourly",
            sf.serde.string,
            sf.serde.int64,
            window_size_ms=3_600_000,
            retention_ms=2 * 86_400_000,
            changelog={"retention.ms": str(3 * 86_400_000)},
        ),
        sf.SessionStore(
            "visits",
            sf.serde.string,
            sf.serde.bytes,
            retention_ms=86_400_000,
            changelog={"retention.ms": str(2 * 86_400_000)},
        ),
    ]
    with sf.Session(name, log=address, state_dir=tmp_path / "app", stores=stores, partitions=1) as session:
        session.assign(active=[0])
        session.wait_ready(60)
        session.task(0).store("totals").put("N123", 7)
        session.task(0).commit()
    return name


@pytest.mark.long
def test_page_reads_the_stores_of_an_application(app: str, address: str, repo_root: Path, tmp_path: Path) -> None:
    found = [one for one in blocks(repo_root) if one.page == PAGE]
    assert [one.kind for one in found] == ["console", "python"]
    text = {one.kind: one.text.replace("kafka://localhost:9092", address) for one in found}
    program = tmp_path / "replica.py"
    program.write_text(text["python"].replace('"orders"', f'"{app}"'), encoding="utf-8")
    env = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "XDG_STATE_HOME": "",
    }
    ran = subprocess.run([sys.executable, program], cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout.split()) == (0, ["7", "0"]), ran.stderr
    follow, scan = (command.replace("--app orders", f"--app {app}") for command, _ in commands(text["console"]))
    following = subprocess.Popen(
        ["bash", "-c", f"exec {follow}"], cwd=tmp_path, env=env, stdout=subprocess.PIPE, text=True
    )
    try:
        assert following.stdout is not None
        assert any("read it with: standfast scan totals" in line for line in following.stdout)  # it has caught up
        ran = subprocess.run(["bash", "-c", scan], cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
        assert ran.returncode == 0, ran.stderr
        assert ran.stdout.splitlines()[-1].split()[:2] == ["0", "N123"]
    finally:
        following.send_signal(signal.SIGTERM)
        following.communicate(timeout=60)
    assert following.returncode in (0, 143)


def test_page_moves_a_table_of_faust_with_its_offsets(address: str, repo_root: Path, tmp_path: Path) -> None:
    """Rows as Faust writes them: keys and values in JSON, one deleted, one written twice; offsets of its group."""
    (found,) = [one for one in blocks(repo_root) if one.page == FAUST_PAGE]
    run = uuid.uuid4().hex[:8]
    old, source, new = f"faust-{run}", f"orders-{run}", f"totals-app-{run}"
    changelog = f"{old}-totals-changelog"
    log = sf.open_log(address)
    for topic in (source, changelog):
        log.admin.create_topic(topic, 4, sf.TopicPolicy())
    rows = [("a", 1), ("b", 2), ("a", 3), ("gone", 4), ("gone", None)]
    records = [
        sf.Outgoing(json.dumps(key).encode(), None if value is None else json.dumps(value).encode(), 5 + number)
        for number, (key, value) in enumerate(rows)
    ]
    producer = log.producer()
    producer.append({sf.TopicPartition(changelog, 2): records})
    producer.append({sf.TopicPartition(source, 2): [sf.Outgoing(b"x", b"y", 1)] * 9})
    group = log.group(old)
    group.commit({sf.TopicPartition(source, 2): Committed(7)})
    for one in (group, producer, log):
        one.close()
    names = '"host:9092", "orders-app", "totals", "orders", "totals-app", 4'
    assert names in found.text
    broker = address.removeprefix("kafka://")
    program = tmp_path / "move.py"
    program.write_text(found.text.replace(names, f'"{broker}", "{old}", "totals", "{source}", "{new}", 4'))
    ran = subprocess.run([sys.executable, program], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    stores = [sf.KeyValueStore("totals", sf.serde.string, sf.serde.json)]
    with sf.Session(new, log=address, state_dir=tmp_path / "cold", stores=stores, partitions=4) as session:
        session.assign(active=range(4))
        session.wait_ready(60)
        task = session.task(2)
        with task.store("totals").all() as kept:
            assert list(kept) == [("a", 3), ("b", 2)]
        assert task.store("totals").get_with_timestamp("a").timestamp == 7
        assert task.source_offsets() == {sf.TopicPartition(source, 2): 7}
