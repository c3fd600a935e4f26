"""The bench of restores at a tiny size: it runs, it reports every field, its data set is as declared.

Rules of this file: no test of speed; the numbers of so few records mean nothing.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from standfast.ops.bench.measures import Bench
from standfast.ops.bench.step import BenchStep, key_numbers, key_of, values_of
from standfast.ops.command.command_line import main
from standfast.ops.demo.place import DemoPlace
from standfast.ops.shared.output import Output
from standfast.store.errors import InternalError
from standfast.stream.task.settings import RESTORE_MEMORY_DEFAULT_BYTES
from support.bench import topics_of

slow = pytest.mark.slow


def tiny(folder: Path, *options: str) -> list[str]:
    return ["bench", "restore", "--records", "404", "--runs", "2", "--dir", str(folder), *options]


@slow
def test_bench_reports_every_field(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(tiny(tmp_path, "--json", "--memory", "16MiB")) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["schema"], document["bench"]) == ("standfast.bench/2", "restore")
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
    assert set(document["versions"]) == {"standfast", "python", "cores"}
    assert [one["name"] for one in document["measures"]] == ["restore_distinct", "restore_versions_near"]
    for one in document["measures"]:
        assert one["unit"] == "records/s" and one["what"]
        assert 0 < one["min"] <= one["median"] <= one["max"]
        assert one["records"] == 404 and one["cpu_us"] is not None and one["peak_rss_bytes"] > 16 << 20
        assert len(one["runs"]) == 2
        for run in one["runs"]:
            assert {"records", "elapsed_ms", "rate", "cpu_ms"} <= set(run)
    assert document["log"] == {"kind": "embedded", "kafka": None}
    assert list(tmp_path.iterdir()) == [], "the folder is left as it was"


@pytest.mark.long
@slow
def test_bench_restore_stands_bulk_beside_batches(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--json", "--versions", "1", "--workers", "0,1", "--restore-memory", "64MiB", "--records", "301000")
    assert main([*tiny(tmp_path, "--runs", "1"), *options]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["settings"]["workers"] == [0, 1]
    batches, bulk = document["measures"]
    assert [one["name"] for one in (batches, bulk)] == ["restore_distinct_workers_0", "restore_distinct_workers_1"]
    assert not batches["runs"][0]["in_bulk"] and bulk["runs"][0]["in_bulk"]
    assert bulk["peak_rss_bytes"] <= (256 + 64 + 200) << 20


@slow
@pytest.mark.kafka
@pytest.mark.long
def test_bench_restore_on_a_cluster_leaves_no_topic(
    kafka_address: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    address = f"kafka://{kafka_address}"
    assert main(tiny(tmp_path, "--json", "--versions", "1", "--log", address)) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["log"] == {"kind": "kafka", "kafka": None}
    (one,) = document["measures"]
    assert (one["name"], one["records"], len(one["runs"])) == ("restore_distinct", 404, 2)
    assert topics_of(address) == []
    assert list(tmp_path.iterdir()) == [], "the folder is left as it was"


@slow
def test_run_that_fails_is_an_error_with_its_last_words(tmp_path: Path) -> None:
    step = BenchStep("absent", str(tmp_path), records=4, key_bytes=16, value_bytes=100, memory_bytes=1)
    with pytest.raises(InternalError, match=r"(?s)the run 'first' ended with exit code 1:.*KeyError: 'absent'$"):
        Bench({"runs": 2}, DemoPlace("embedded", ""), step, Output())._run(step, "first")


@slow
def test_bench_shows_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(tiny(tmp_path, "--versions", "1", "--runs", "1")) == 0
    shown = capsys.readouterr().out
    assert "404 records of 16 + 100 bytes, 1 run, memory 256 MiB" in shown
    assert "restore_distinct" in shown and "versions_near" not in shown
    assert "peak MiB" in shown


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--records", "0"), "--records: '0' is not possible: give 1 or more"),
        (("--runs", "0"), "--runs: '0' is not possible"),
        (("--key-bytes", "7"), "--key-bytes: '7' is not possible: give 8 to 64"),
        (("--value-bytes", "1000001"), "--value-bytes: '1000001' is not possible"),
        (("--versions", "0"), "--versions: '0' is not possible"),
        (("--memory", "much"), "--memory: "),
        (("--memory", "1KiB"), "--memory: '1KiB' is below 16MiB"),
        (("--workers", "two"), "--workers: 'two' is not possible: give 0 to 99"),
        (("--log", "sqlite:///x"), "--log is 'sqlite:///x': give embedded"),
    ],
)
def test_bench_refuses_settings_it_cannot_use(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: tuple[str, ...], says: str
) -> None:
    assert main(tiny(tmp_path, *options)) == 2
    assert says in capsys.readouterr().err


@pytest.mark.parametrize("versions", [1, 4])
def test_every_key_has_as_many_records_as_asked_for(versions: int) -> None:
    numbers = list(key_numbers(40_000, versions))
    assert len(numbers) == 40_000
    assert Counter(Counter(numbers).values()) == {versions: 40_000 // versions}
    first: dict[int, int] = {}
    spread = max(at - first.setdefault(number, at) for at, number in enumerate(numbers))
    assert spread < 10_000
    assert numbers == list(key_numbers(40_000, versions)), "the data set is always the same"


def test_keys_and_values_have_the_sizes_asked_for() -> None:
    assert {len(key_of(number, 16)) for number in range(100)} == {16}
    assert len({key_of(number, 8) for number in range(1_000)}) == 1_000
    assert {len(value) for value in values_of(100)} == {100}


def test_bench_takes_the_memory_of_a_restore_that_a_session_takes_by_default() -> None:
    assert BenchStep("restore", "", 1, 1, 1, 1).restore_memory_bytes == RESTORE_MEMORY_DEFAULT_BYTES


def test_bench_alone_says_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench"]) == 2
    assert "usage: standfast bench [-h] restore" in capsys.readouterr().err
