"""Headers of records through an application on the embedded log, and through aggregations and tables."""

from __future__ import annotations

from pathlib import Path

import pytest

import standfast as sf
from standfast.replication.log import Headers
from support.apps import Drive
from support.headers import HEADERS, check_headers

LATER: Headers = (("trace", b"2"), ("trace", b"3"))


@pytest.mark.slow
def test_headers_pass_through_an_application_and_its_dead_letters_on_the_embedded_log(tmp_path: Path) -> None:
    check_headers(f"sqlite:///{tmp_path}/log", tmp_path / "state")


@pytest.mark.parametrize("caching", [True, False])
def test_update_of_a_table_has_the_headers_of_its_record(drive: Drive, caching: bool) -> None:
    prices = sf.KeyValueStore("prices", sf.serde.string, sf.serde.json, caching=caching)
    app = sf.App("app", stores=[prices])
    app.table("in", "prices").map_values(lambda value: value + 1).to("out")
    driver = drive(app)
    driver.pipe("in", "k", 1, 1, headers=HEADERS)
    driver.pipe("in", "k", None, 2, headers=LATER)
    driver.commit()
    assert [(one.value, one.headers) for one in driver.read("out")] == [(2, HEADERS), (None, LATER)]


@pytest.mark.parametrize("windows", [sf.TumblingWindows(10), sf.SessionWindows(10), sf.SlidingWindows(10)])
def test_final_result_has_the_headers_of_the_record_that_closed_its_window(drive: Drive, windows: object) -> None:
    store = (
        sf.SessionStore("w", sf.serde.string, sf.serde.int64, retention_ms=1_000)
        if isinstance(windows, sf.SessionWindows)
        else sf.WindowStore("w", sf.serde.string, sf.serde.int64, window_size_ms=10, retention_ms=1_000)
    )
    app = sf.App("app", stores=[store])
    counted = app.stream("in").group_by_key().window(windows).count("w", emit=sf.ON_WINDOW_CLOSE)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    counted.to_stream().to("out")
    driver = drive(app)
    driver.pipe("in", "k", 1, 1, headers=HEADERS)
    driver.pipe("in", "other", 1, 100, headers=LATER)
    assert [one.headers for one in driver.read("out")] == [LATER]


def test_result_that_a_cache_held_back_has_the_headers_of_its_last_record(drive: Drive) -> None:
    windows = sf.WindowStore("w", sf.serde.string, sf.serde.int64, window_size_ms=10, retention_ms=1_000)
    app = sf.App("app", stores=[windows])
    app.stream("in").group_by_key().window(sf.TumblingWindows(10)).count("w").to_stream().to("out")
    driver = drive(app)
    driver.pipe("in", "k", 1, 1, headers=HEADERS)
    driver.pipe("in", "k", 1, 2, headers=LATER)
    driver.pipe("in", "other", 1, 3)
    driver.commit()
    assert [one.headers for one in driver.read("out")] == [LATER, ()]


def test_punctuation_has_no_headers_but_those_that_it_gives(drive: Drive) -> None:
    app = sf.App("app")

    @app.sink("out")
    @app.source("in")
    class Tick(sf.Processor):
        def init(self, context: sf.Context) -> None:
            self.context = context
            context.schedule(10, sf.STREAM_TIME, self.tick)

        def process(self, record: sf.Record) -> None:
            pass

        def tick(self, now_ms: int) -> None:
            assert self.context.headers == ()
            self.context.forward(sf.Record("k", 1, now_ms))
            self.context.forward(sf.Record("k", 1, now_ms, LATER))

    driver = drive(app)
    driver.pipe("in", "k", 1, 10, headers=HEADERS)
    assert [one.headers for one in driver.read("out")] == [(), LATER]
