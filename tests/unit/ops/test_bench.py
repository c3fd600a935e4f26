"""The bench of restores at a tiny size: it runs, it reports every field, its data set is as declared.

Rules of this file: no test of speed; the numbers of so few records mean nothing.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from standfast.ops.bench.child import key_numbers
from standfast.ops.bench.log import BenchLog
from standfast.ops.bench.measures import Bench
from standfast.ops.bench.step import Step, key_of, values_of
from standfast.ops.command.command_line import main
from standfast.ops.shared.output import Output
from standfast.store.errors import InternalError
from standfast.stream.task.settings import RESTORE_MEMORY_DEFAULT_BYTES
from support.bench import topics_of

slow = pytest.mark.slow
MEASURES = [f"restore_{name}" for name in ("distinct", "distinct_log", "versions_near", "versions_near_log")] + [
    "restore_versions_far",
    "restore_versions_far_log",
]


def tiny(folder: Path, *options: str) -> list[str]:
    return ["bench", "restore", "--records", "404", "--runs", "2", "--dir", str(folder), *options]


@slow
@pytest.mark.long
def test_bench_reports_every_field(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(tiny(tmp_path, "--json", "--memory", "16MiB")) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["schema"], document["bench"]) == ("standfast.bench/1", "restore")
    assert document["settings"] == {
        "records": 404,
        "key_bytes": 16,
        "value_bytes": 100,
        "versions": 4,
        "runs": 2,
        "memory_bytes": 16 << 20,
        "restore_memory_bytes": 512 << 20,
        "workers": [],
    }
    assert set(document["versions"]) == {"standfast", "python", "rocksdict", "sqlite", "platform", "cores"}
    assert [one["name"] for one in document["measures"]] == MEASURES
    for one in document["measures"]:
        assert one["unit"] == "records/s" and one["what"]
        assert 0 < one["min"] <= one["median"] <= one["max"]
        assert one["records"] == 404 and one["cpu_us"] is not None
        assert not [name for name in one if "goal" in name], "figures only"
        assert len(one["runs"]) == 2
        for run in one["runs"]:
            assert {"records", "elapsed_ms", "rate", "cpu_ms", "waited_for_cpu_ms"} <= set(run)
    assert document["log"] == {"kind": "sqlite", "address": None, "broker": None}
    check_restores(document)
    assert list(tmp_path.iterdir()) == [], "the folder is left as it was"


def check_restores(document: dict[str, Any]) -> None:
    restored = [one for one in document["measures"] if not one["name"].endswith("_log")]
    assert len(restored) == len(document["ratios"])
    for one in restored:
        assert one["peak_rss_bound_bytes"] == (16 + 200) << 20
        assert one["peak_rss_within_bound"] is True
        assert 0 < one["runs"][0]["rss_before_bytes"] <= one["peak_rss_bytes"]
    for ratio in document["ratios"]:
        assert 0 < ratio["min"] <= ratio["max"] and ratio["value"] > 0 and ratio["what"]
        assert len(ratio["rounds"]) == document["settings"]["runs"]
        assert not [name for name in ratio if "goal" in name], "figures only"


@pytest.mark.long
@slow
def test_bench_restore_stands_bulk_beside_batches(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--json", "--versions", "1", "--workers", "0,1", "--restore-memory", "64MiB", "--records", "301000")
    assert main([*tiny(tmp_path, "--runs", "1"), *options]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["settings"]["workers"] == [0, 1]
    batches, bulk, log = document["measures"]
    assert [one["name"] for one in (batches, bulk, log)] == [
        "restore_distinct_workers_0",
        "restore_distinct_workers_1",
        "restore_distinct_log",
    ]
    assert batches["runs"][0]["runs_ingested"] == 0 and bulk["runs"][0]["runs_ingested"] > 0
    assert batches["peak_rss_bound_bytes"] == (256 + 200) << 20
    assert bulk["peak_rss_bound_bytes"] == (256 + 64 + 200) << 20
    assert bulk["peak_rss_within_bound"] is True
    assert [ratio["name"] for ratio in document["ratios"]][-1] == (
        "restore_distinct_workers_1 / restore_distinct_workers_0"
    )


def test_bench_refuses_workers_that_are_no_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--workers", "two", "--restore-memory", "1MiB")
    assert main([*tiny(tmp_path), *options]) == 2
    shown = capsys.readouterr().err
    assert "--workers is 'two'" in shown and "--restore-memory is '1MiB': give 16MiB or more" in shown


@slow
@pytest.mark.kafka
@pytest.mark.long
def test_bench_restore_on_a_cluster_stands_beside_the_bare_consume_loop_and_leaves_no_topic(
    kafka_address: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    address = f"kafka://{kafka_address}"
    assert main(tiny(tmp_path, "--json", "--versions", "1", "--log", address)) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["log"] == {"kind": "kafka", "address": address, "broker": None}
    assert {"kafka", "confluent-kafka"} <= set(document["versions"])
    assert [one["name"] for one in document["measures"]] == ["restore_distinct", "restore_distinct_bare"]
    for one in document["measures"]:
        assert one["records"] == 404 and len(one["runs"]) == 2
    (ratio,) = document["ratios"]
    assert ratio["name"] == "restore_distinct / restore_distinct_bare" and len(ratio["rounds"]) == 2
    assert topics_of(address) == []
    assert list(tmp_path.iterdir()) == [], "the folder is left as it was"


def test_ratio_is_the_median_of_the_rounds(tmp_path: Path) -> None:
    step = Step(step="", folder=str(tmp_path), records=4, key_bytes=16, value_bytes=100, memory_bytes=1)
    run = {"records": 4, "elapsed_ms": 1, "waited_for_cpu_ms": None}
    bench = Bench({"runs": 2}, BenchLog("kafka"), step, Output())
    ours = bench._measure("restore_distinct", "", [run | {"rate": 30.0}, run | {"rate": 50.0}])
    bare = bench._measure("restore_distinct_bare", "", [run | {"rate": 100.0}, run | {"rate": 100.0}])
    ratio = bench._ratio(ours, bare, "")
    assert (ratio["name"], ratio["value"]) == ("restore_distinct / restore_distinct_bare", 0.4)
    assert ratio["rounds"] == [0.3, 0.5]


@slow
def test_run_that_fails_is_an_error_with_its_last_words(tmp_path: Path) -> None:
    step = Step("absent", str(tmp_path), records=4, key_bytes=16, value_bytes=100, memory_bytes=1)
    with pytest.raises(InternalError, match=r"(?s)the run 'first' ended with exit code 1:.*KeyError: 'absent'$"):
        Bench({"runs": 2}, BenchLog("sqlite"), step, Output())._run(step, "first")


@slow
def test_bench_shows_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(tiny(tmp_path, "--versions", "1", "--runs", "1")) == 0
    shown = capsys.readouterr().out
    assert "404 records of 16 + 100 bytes, 1 run, memory 256 MiB" in shown
    assert "restore_distinct" in shown and "versions_near" not in shown
    assert "largest resident size" in shown and "share of the speed" in shown


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--records", "0"), "--records is 0"),
        (("--runs", "0"), "--runs is 0"),
        (("--key-bytes", "7"), "--key-bytes is 7"),
        (("--value-bytes", "1000001"), "--value-bytes is 1000001"),
        (("--versions", "405"), "--versions is 405"),
        (("--memory", "much"), "--memory is 'much'"),
        (("--memory", "1KiB"), "--memory is '1KiB'"),
        (("--log", "sqlite:///x"), "--log is 'sqlite:///x'"),
    ],
)
def test_bench_refuses_settings_it_cannot_use(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: tuple[str, ...], says: str
) -> None:
    assert main(tiny(tmp_path, *options)) == 2
    assert says in capsys.readouterr().err


@pytest.mark.parametrize("order", ["near", "far"])
@pytest.mark.parametrize("versions", [1, 4])
def test_every_key_has_as_many_records_as_asked_for(order: str, versions: int) -> None:
    numbers = list(key_numbers(40_000, versions, order))
    assert len(numbers) == 40_000
    assert Counter(Counter(numbers).values()) == {versions: 40_000 // versions}
    if order == "near":
        first = {}
        spread = max(at - first.setdefault(number, at) for at, number in enumerate(numbers))
        assert spread < 10_000
    assert numbers == list(key_numbers(40_000, versions, order)), "the data set is always the same"


def test_keys_and_values_have_the_sizes_asked_for() -> None:
    assert {len(key_of(number, 16)) for number in range(100)} == {16}
    assert len({key_of(number, 8) for number in range(1_000)}) == 1_000
    assert {len(value) for value in values_of(100)} == {100}


def test_bench_takes_the_memory_of_a_restore_that_a_session_takes_by_default() -> None:
    assert Step("restore", "", 1, 1, 1, 1).restore_memory_bytes == RESTORE_MEMORY_DEFAULT_BYTES


def test_bench_alone_says_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench"]) == 2
    assert "usage: standfast bench [-h] restore" in capsys.readouterr().err
