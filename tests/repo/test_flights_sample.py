"""The shipped flights: the statements of their README are true, and the maker makes them."""

from __future__ import annotations

import csv
import gzip
import hashlib
import importlib.util
import io
import zipfile
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="module")
def maker(repo_root: Path) -> ModuleType:
    path = repo_root / "proof/benchmarks/make_flights_sample.py"
    spec = importlib.util.spec_from_file_location("make_flights_sample", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def sample(repo_root: Path) -> bytes:
    return gzip.decompress((repo_root / "ops/demo/data/flights-2013-01.csv.gz").read_bytes())


def test_sample_is_the_one_its_readme_describes(repo_root: Path, sample: bytes, maker: ModuleType) -> None:
    readme = (repo_root / "ops/demo/data/README.md").read_text(encoding="utf-8")
    assert hashlib.sha256(sample).hexdigest() in readme
    rows = list(csv.DictReader(io.StringIO(sample.decode())))
    assert f"{len(rows):,} flights" in readme
    assert tuple(rows[0]) == maker.COLUMNS
    assert {(row["year"], row["month"]) for row in rows} == {("2013", "1")}
    assert all(f"`{column}`" in readme for column in maker.COLUMNS)


def test_every_flight_that_left_has_an_aircraft_and_a_delay(sample: bytes) -> None:
    for row in csv.DictReader(io.StringIO(sample.decode())):
        if row["dep_time"] != "NA":
            assert row["tailnum"] != "NA"
            int(row["dep_delay"])


def test_sample_stays_small(repo_root: Path) -> None:
    assert (repo_root / "ops/demo/data/flights-2013-01.csv.gz").stat().st_size < 700_000


def test_maker_keeps_the_month_in_order_and_repeats_itself(tmp_path: Path, maker: ModuleType) -> None:
    header = [*maker.COLUMNS, "hour", "minute"]
    rows = [[*("2013", month, day), *("x" * 11), "5", "15"] for month, day in (("1", "2"), ("2", "1"), ("1", "1"))]
    text = "\n".join(",".join(row) for row in [header, *rows]) + "\n"
    source = tmp_path / "flights.csv.zip"
    with zipfile.ZipFile(source, "w") as archive:
        archive.writestr("flights.csv", text)
    for target in ("first.gz", "second.gz"):
        assert maker.main([str(source), str(tmp_path / target)]) == 0
    first = (tmp_path / "first.gz").read_bytes()
    assert first == (tmp_path / "second.gz").read_bytes()
    kept = list(csv.DictReader(io.StringIO(gzip.decompress(first).decode())))
    assert [(row["month"], row["day"]) for row in kept] == [("1", "2"), ("1", "1")]
    assert tuple(kept[0]) == maker.COLUMNS
