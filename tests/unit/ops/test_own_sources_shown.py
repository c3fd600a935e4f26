"""Sources of one's own in status, metrics and on the command line, and their positions in a reset."""

from __future__ import annotations

import json
from contextlib import closing

import pytest

import standfast as sf
from standfast.ops.cli import main
from standfast.ops.cli.state.tasks import show_status
from standfast.ops.doctor.reset import look
from standfast.ops.observe.metrics_values import session_samples
from standfast.ops.observe.status import status_document
from standfast.ops.observe.status_merge import statistics_of
from standfast.ops.shared.output import Output
from standfast.replication.log import Committed, TopicPolicy
from standfast.replication.offsets import TopicPartition
from support.apps import Running, create
from support.own_sources import Numbers, until
from support.sessions import Bench

TEXT, INT = sf.serde.string, sf.serde.int64
OFFSETS = "app-eu-numbers-source-offsets"


def counting(app: sf.App) -> None:
    app.stream(Numbers(10), name="eu-numbers", key=TEXT, value=INT).group_by_key().count("counts").to("out")


STORES = [sf.KeyValueStore("counts", TEXT, INT)]


@pytest.fixture
def running(bench: Bench) -> Running:
    create(bench, 1, "out")
    made = Running(bench, counting, stores=STORES)
    until(lambda: made.loop.records_total == 10, made.loop.poll_once)
    until(lambda: [one.state for one in made.session.statistics().own_sources] == ["finished"])
    made.commit()
    return made


def test_status_and_metrics_have_the_source(running: Running, capsys: pytest.CaptureFixture[str]) -> None:
    statistics = running.session.statistics()
    document = status_document(statistics)
    assert document["own_sources"] == [
        {
            "source": "eu-numbers", "partition": 0, "task": "0_0", "state": "finished",
            "collected": 10, "processed": 10, "waiting": 0,
        }
    ]  # fmt: skip
    again = statistics_of(json.loads(json.dumps(document)))
    assert again.own_sources == statistics.own_sources
    assert again.counters.source_records == statistics.counters.source_records
    samples = {(name, labels): value for name, labels, value in session_samples(statistics) if "source_" in name}
    assert samples == {
        ("source_running", ("eu-numbers", "0")): 0.0,
        ("source_waiting_records", ("eu-numbers", "0")): 0,
        ("source_records_total", ("eu-numbers", "0")): 10,
    }
    show_status(document, Output())
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("eu-numbers "))
    assert line.split() == ["eu-numbers", "0", "0_0", "finished", "10", "10", "0"]
    running.loop.close()


def test_reset_takes_the_position_away_with_the_rows(bench: Bench, running: Running) -> None:
    running.close()
    flags = ["--log", bench.address, "--app", "app", "--state-dir", str(bench.root / "a")]
    assert main(["reset", *flags, "--yes"]) == 0
    assert bench.log.admin.describe_topic(OFFSETS) is None
    assert TopicPartition(OFFSETS, 0) not in bench.log.group("app").committed()
    again = Running(bench, counting, "b", stores=STORES)
    until(lambda: again.loop.records_total == 10, again.loop.poll_once)
    again.commit()
    assert sum(again.rows("counts").values()) == 10
    again.close()


def test_reset_takes_a_position_that_its_group_committed_whatever_the_name_may_mean(
    bench: Bench, running: Running
) -> None:
    running.close()
    create(bench, 1, "in")
    # By its name alone the topic may be of a source `numbers` of application `app-eu`.
    with closing(bench.log.group("app-eu")) as other:
        other.commit({TopicPartition("in", 0): Committed(0, "")})
    bench.log.admin.create_topic("app-eu-other-source-offsets", 1, TopicPolicy())
    found = look(bench.log, "app", known=(), sources=(), targets=(), local=None)
    deleted = {step.topic: step.kind for step in found.deletes}
    assert deleted[OFFSETS] == "source offsets"
    assert "app-eu-other-source-offsets" not in deleted
