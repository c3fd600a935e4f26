"""Metrics: the content of a scrape, over real sessions on a real embedded log."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

import pytest
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.parser import text_string_to_metric_families

import standfast as sf
from standfast.ops.observe.metrics import SessionMetrics
from standfast.ops.observe.metrics_list import METRICS, TABLE, Metric
from standfast.replication.offsets import TaskId
from standfast.stream.task.groups import TaskGroup

if TYPE_CHECKING:
    from support.sessions import Bench


def scrape(session: sf.Session) -> dict[str, Family]:
    text = SessionMetrics(session).exposition().decode()
    return {full_name(family): family for family in text_string_to_metric_families(text)}


def full_name(family: Family) -> str:
    return f"{family.name}_total" if family.type == "counter" else family.name


def values(family: Family) -> dict[tuple[tuple[str, str], ...], float]:
    return {tuple(sorted(sample.labels.items())): sample.value for sample in family.samples}


def label_names(samples: Iterable[dict[str, str]]) -> set[frozenset[str]]:
    return {frozenset(set(labels) - {"le"}) for labels in samples}


def test_scrape_holds_every_listed_metric_and_no_other(bench: Bench) -> None:
    assert set(scrape(bench.active())) == {metric.name for metric in METRICS}


def test_kinds_labels_and_help_are_those_of_the_list(bench: Bench) -> None:
    first = bench.active("a", partitions=(0, 1))
    first.task(0).store("kv").put("k", "v")
    first.task(0).commit({("in", 0): 1})
    second = bench.session("b")
    second.assign(standby=[0])
    bench.settle(first, second)
    for session in (first, second):
        families = scrape(session)
        for metric in METRICS:
            family = families[metric.name]
            assert (family.type, family.documentation) == (metric.kind, metric.help)
            assert label_names(sample.labels for sample in family.samples) <= {frozenset(metric.labels)}


def test_values_tell_what_happened(bench: Bench) -> None:
    session = bench.active("a", partitions=(0,))
    task = session.task(0)
    task.store("kv").put("key", "value")
    task.store("win").put("key", "value", 0)
    task.store("kv").get("key")
    task.commit({("in", 0): 1})
    families = scrape(session)
    kv = {"partition": "0", "store": "kv"}
    assert values(families["standfast_ready"]) == {(): 1.0}
    assert values(families["standfast_tasks"]) == {(("role", "active"), ("state", "running")): 1.0}
    assert values(families["standfast_commits_total"])[(("outcome", "committed"),)] == 1.0
    assert values(families["standfast_changelog_records_total"])[tuple(sorted(kv.items()))] == 1.0
    assert values(families["standfast_changelog_bytes_total"])[tuple(sorted(kv.items()))] == len("keyvalue")
    assert values(families["standfast_checkpoint_offset"])[tuple(sorted(kv.items()))] == 1.0
    ops = values(families["standfast_store_ops_total"])
    assert ops[tuple(sorted({**kv, "op": "put"}.items()))] == 1.0
    assert ops[tuple(sorted({**kv, "op": "get"}.items()))] == 1.0


def test_restored_and_standby_records_are_counted_by_store_and_reason(bench: Bench) -> None:
    first = bench.active("a", partitions=(0,))
    for number in range(5):
        first.task(0).store("kv").put(f"k{number}", "v")
    first.task(0).commit()
    standby = bench.session("b")
    standby.assign(standby=[0])
    bench.settle(first, standby)
    counted = values(scrape(standby)["standfast_standby_records_total"])
    assert counted[(("partition", "0"), ("store", "kv"))] == 5.0
    assert values(scrape(standby)["standfast_standby_lag_records"])[(("partition", "0"), ("store", "kv"))] == 0.0
    first.close()
    restoring = bench.active("c", partitions=(0,))
    samples = scrape(restoring)["standfast_restore_records_total"].samples
    restored = {sample.labels["store"]: sample for sample in samples if sample.value}
    assert restored["kv"].value == 5.0
    assert restored["kv"].labels["reason"]
    found = scrape(restoring)["standfast_restore_bytes_total"].samples
    (size,) = [sample for sample in found if sample.labels["store"] == "kv" and sample.value]
    assert size.value == 5 * len("k0v")


def test_series_of_a_revoked_task_vanish(bench: Bench) -> None:
    session = bench.active("a", partitions=(0, 1))
    for partition in (0, 1):
        session.task(partition).store("kv").put("k", "v")
        session.task(partition).commit()
    session.assign(active=[1])
    samples = [sample for family in scrape(session).values() for sample in family.samples]
    assert {sample.labels["partition"] for sample in samples if "partition" in sample.labels} == {"1"}


def test_tasks_of_two_groups_with_one_partition_number_have_series_of_their_own(bench: Bench) -> None:
    kv, other = (sf.KeyValueStore(name, sf.serde.string, sf.serde.string) for name in ("kv", "other"))
    groups = {0: TaskGroup(1, (kv,), frozenset({"in"})), 1: TaskGroup(1, (other,), frozenset({"mid"}))}
    session = bench.session(stores=(), partitions=None, groups=groups)
    session.assign(active=[TaskId(0, 0), TaskId(1, 0)])
    session.wait_ready(30)
    session.task(TaskId(1, 0)).store("other").put("k", "v")
    families = scrape(session)
    buffered = values(families["standfast_write_buffer_bytes"])
    assert buffered[(("task", "0_0"),)] == 0 < buffered[(("task", "1_0"),)]
    series = [
        (sample.name, tuple(sorted(sample.labels.items()))) for one in families.values() for sample in one.samples
    ]
    assert len(set(series)) == len(series)


def test_series_stay_within_thirty_for_each_store_and_partition(bench: Bench) -> None:
    session = bench.active("a", partitions=(0, 1))
    samples = [sample for family in scrape(session).values() for sample in family.samples]
    of_store = [sample for sample in samples if sample.labels.get("store") == "kv"]
    of_partitions = [sample for sample in of_store if "partition" in sample.labels]
    assert len(of_partitions) <= 2 * 30
    assert len(of_store) - len(of_partitions) <= 60  # histograms, however many partitions there are


def test_scrapes_within_a_second_share_one_reading(bench: Bench) -> None:
    session = bench.active()
    metrics = SessionMetrics(session)
    first = metrics.exposition()
    session.task(0).store("kv").put("k", "v")
    session.task(0).commit()
    bench.clock.advance(999)
    assert metrics.exposition() == first
    bench.clock.advance(1)
    assert metrics.exposition() != first


def test_counters_are_there_at_zero_from_the_assignment_on(bench: Bench) -> None:
    session = bench.active("a", partitions=(0,))
    families = scrape(session)
    for name in (
        "commits_total",
        "store_wipes_total",
        "punctuations_total",
        "dropped_records_total",
        "store_ops_total",
    ):
        assert families[f"standfast_{name}"].samples, name
    restored = values(families["standfast_restore_records_total"])
    assert restored[(("partition", "0"), ("reason", "resume"), ("store", "kv"))] == 0.0


def test_where_the_time_of_a_restore_went_is_told(bench: Bench) -> None:
    first = bench.active("a", partitions=(0,))
    for number in range(200):
        first.task(0).store("kv").put(f"k{number}", "v")
    first.task(0).commit()
    first.close()
    families = scrape(bench.active("b", partitions=(0,)))
    phases = values(families["standfast_restore_phase_seconds_total"])
    assert {labels[0][1] for labels in phases} >= {"fetch", "decode", "write", "ingest", "compact", "idle"}
    assert all(phases[(("phase", phase),)] > 0 for phase in ("fetch", "decode", "write"))
    durations = {
        (one.labels["store"], one.labels["reason"]): one.value
        for one in families["standfast_restore_duration_seconds"].samples
        if one.name.endswith("_count")
    }
    assert durations["kv", "assign"] == durations["win", "assign"] == 1
    assert durations["kv", "promote"] == 0


def test_acknowledgements_of_the_log_are_timed_and_its_refusals_counted(bench: Bench) -> None:
    session = bench.active("a", partitions=(0,))
    task = session.task(0)
    task.store("kv").put("k", "v")
    task.commit({("in", 0): 1})
    families = scrape(session)
    assert counts(families["standfast_changelog_ack_duration_seconds"]) == {(): 1}
    assert values(families["standfast_changelog_inflight_records"]) == {(): 0}
    assert values(families["standfast_changelog_queue_bytes"]) == {(): 0}
    bench.session("b").assign(active=[0])  # fences the first
    task.store("kv").put("k", "w")
    with pytest.raises(sf.Fenced):
        task.commit({("in", 0): 2})
    errors = values(scrape(session)["standfast_changelog_errors_total"])
    assert errors[(("reason", "fenced"),)] == 1 and sum(errors.values()) == 1


def counts(family: Family) -> dict[tuple[tuple[str, str], ...], float]:
    """The number of durations in each histogram."""
    found = (one for one in family.samples if one.name.endswith("_count"))
    return {tuple(sorted(sample.labels.items())): sample.value for sample in found}


def test_reads_that_reach_the_database_are_timed_one_in_sixty_four(bench: Bench) -> None:
    session = bench.active("a", partitions=(0,))
    store = session.task(0).store("kv")
    store.put("k", "v")
    for _ in range(256):
        store.get("k")  # of the write buffer
    session.task(0).commit()
    for _ in range(256):
        store.get("k")
    for _ in range(128):
        list(store.all())
    found = counts(scrape(session)["standfast_store_op_duration_seconds"])
    assert found[(("op", "get"), ("store", "kv"))] == 4
    assert found[(("op", "scan"), ("store", "kv"))] == 2
    assert found[(("op", "get"), ("store", "win"))] == 0


def test_oldest_open_range_read_has_its_time(bench: Bench) -> None:
    session = bench.active("a", partitions=(0,))
    name = "standfast_store_oldest_iterator_timestamp_seconds"
    store = session.task(0).store("kv")
    assert not scrape(session)[name].samples
    with store.all():
        first = values(scrape(session)[name])
        bench.clock.advance(5_000)
        with store.all():
            assert values(scrape(session)[name]) == first
        assert set(first) == {(("store", "kv"),)}
    assert not scrape(session)[name].samples


def test_store_that_was_set_aside_is_counted_with_its_reason(bench: Bench) -> None:
    first = bench.active("a", partitions=(0,))
    first.task(0).store("kv").put("k", "v")
    first.task(0).commit()
    first.close()
    bench.log.admin.delete_topic("app-kv-changelog")
    families = scrape(bench.active("a", partitions=(0,), accept_empty_log=True))
    wipes = values(families["standfast_store_wipes_total"])
    assert wipes[(("reason", "topic-recreated"), ("store", "kv"))] == 1
    assert wipes[(("reason", "corrupt"), ("store", "kv"))] == 0
    restores = counts(families["standfast_restore_duration_seconds"])
    assert restores[(("reason", "topic-recreated"), ("store", "kv"))] == 1


def test_snapshot_does_not_move_under_its_reader(bench: Bench) -> None:
    session = bench.active()
    before = session.statistics()
    session.task(0).store("kv").put("k", "v")
    session.task(0).commit()
    assert before.counters.commits["committed"] == 0
    assert sum(before.counters.commit_seconds.counts) == 0


def test_closed_session_scrapes_as_not_ready_with_an_error(bench: Bench) -> None:
    session = bench.active()
    metrics = SessionMetrics(session)
    session.close()
    families = {full_name(one): one for one in text_string_to_metric_families(metrics.exposition().decode())}
    assert values(families["standfast_ready"]) == {(): 0.0}
    assert values(families["standfast_collect_errors_total"]) == {(): 1.0}


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_name_follows_the_rules_of_promtool(metric: Metric) -> None:
    assert re.fullmatch(r"standfast_[a-z][a-z0-9_]*[a-z0-9]", metric.name)
    assert metric.help.strip() and not metric.help.endswith(".")
    assert metric.name.endswith("_total") == (metric.kind == "counter")
    assert not metric.name.endswith(("_count", "_sum", "_bucket", "_gauge", "_counter", "_histogram"))
    assert not re.search(r"_(ms|milliseconds|kb|mb|minutes|hours|percent)(_|$)", metric.name)
    assert all(
        re.fullmatch(r"[a-z_]+", label) and label not in ("le", "key", "host", "offset") for label in metric.labels
    )
    if metric.kind == "histogram":
        assert metric.name.endswith(("_seconds", "_ops"))


def test_names_are_unique_and_the_table_has_a_row_for_each() -> None:
    names = [metric.name for metric in METRICS]
    assert len(set(names)) == len(names)
    rows = [line for line in TABLE.splitlines() if line.startswith("|")]
    assert [row.split("`")[1] for row in rows[2:]] == names
    assert {metric.kind for metric in METRICS} == {"counter", "gauge", "histogram"}
    assert all((metric.kind == "counter") == metric.name.endswith("_total") for metric in METRICS)
