"""The programs in examples/: on the test driver, and as real processes on an embedded log.

Rules of this file: the programs run unchanged. A process is stopped once its output topic holds the expected records;
no test waits for a fixed time.
"""

from __future__ import annotations

import ast
import json
import re
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import util
from pathlib import Path
from typing import Any, ClassVar, cast

import pytest

import standfast as sf
from standfast.replication.log import Record as LogRecord
from standfast.store.clock import SystemClock
from support.places import EXAMPLES

NAMES = (
    "delay_board",
    "device_telemetry",
    "enrichment",
    "fraud_velocity",
    "http_events",
    "session_clicks",
    "tail_file",
    "word_count",
)
LIBRARIES = {"enrichment": {"httpx"}}  # that an example needs beside standfast
ON_KAFKA = ("external_consumer", "external_consumer_asyncio")  # tested in test_external_consumer_examples.py
LINES = (25, 60)
USUAL = (" INFO standfast: ", "was absent and is created", "blocks the event loop", "127.0.0.1 - - ")
WAIT_S = 60
DROPS = re.compile(r": dropped \((late_|process\): record of payments-)")  # what these programs feed on purpose
# The HTTP service of an example notes a client that gave up its request, as one does on a busy machine.
GAVE_UP = re.compile(r"-{40}\nException occurred during processing of request from .*?\n-{40}\n", re.DOTALL)
MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS


def program(name: str) -> Any:
    """An example as a module."""
    spec = util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def code_lines(text: str) -> int:
    return sum(bool(line.strip()) for line in text.splitlines())


def imported(text: str) -> set[str]:
    """The modules that a program imports."""
    nodes = list(ast.walk(ast.parse(text)))
    found = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    return found | {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}


def is_allowed(module: str) -> bool:
    """Whether a module is the front door or of the standard library; nothing behind the front door is."""
    return module in ("standfast", "__future__") or module.partition(".")[0] in sys.stdlib_module_names


# --- as they are written


def test_the_examples_are_those_tested_here() -> None:
    assert sorted(path.stem for path in EXAMPLES.glob("*.py")) == sorted(NAMES + ON_KAFKA)


@pytest.mark.parametrize("name", NAMES)
def test_example_is_short_says_how_to_run_it_and_uses_the_front_door_only(name: str) -> None:
    text = (EXAMPLES / f"{name}.py").read_text(encoding="utf-8")
    docstring = ast.get_docstring(ast.parse(text))
    assert docstring is not None
    assert f"python examples/{name}.py" in docstring
    assert f"./{name.replace('_', '-')}" in docstring
    assert LINES[0] <= code_lines(text) <= LINES[1]
    assert {module for module in imported(text) if not is_allowed(module)} == LIBRARIES.get(name, set())


def test_page_of_examples_names_each_of_them(repo_root: Path) -> None:
    page = (repo_root / "docs/guide/examples.md").read_text(encoding="utf-8")
    assert [name for name in NAMES if f"$ .venv/bin/python examples/{name}.py" not in page] == []


def test_import_behind_the_front_door_is_found() -> None:
    text = "import standfast as sf\nfrom standfast.stream.app.app import App\nimport rocksdict\n"
    assert {module for module in imported(text) if not is_allowed(module)} == {"standfast.stream.app.app", "rocksdict"}


# --- on the test driver


def test_words_are_counted() -> None:
    with sf.testing.Driver(program("word_count").build()) as driver:
        for line in ("the quick fox", "The dog"):
            driver.pipe("lines", None, line)
        driver.commit()
        assert {one.key: one.value for one in driver.read("word-counts")} == {"the": 2, "quick": 1, "fox": 1, "dog": 1}
        driver.restart()
        driver.pipe("lines", None, "the end")
        driver.commit()
        assert {one.key: one.value for one in driver.read("word-counts")} == {"the": 3, "end": 1}


def test_visits_are_told_once_when_they_are_over(capsys: pytest.CaptureFixture[str]) -> None:
    with sf.testing.Driver(program("session_clicks").build()) as driver:

        def click(who: str, minute: int, page: str) -> list[tuple[str, int, int, list[str]]]:
            driver.pipe("clicks", who, page, minute * MINUTE_MS)
            found = [(one.key, one.value) for one in driver.read("visits")]
            return [(key.key, key.start // MINUTE_MS, key.end // MINUTE_MS, pages) for key, pages in found]

        assert click("ann", 0, "home") == []
        assert click("ann", 30, "help") == []  # exactly half an hour later: the same visit
        assert click("ann", 10, "cart") == []  # late, but within the visit
        assert click("bob", 65, "home") == []  # ann's visit may still go on for a click that is five minutes late
        driver.restart()
        assert click("bob", 66, "help") == [("ann", 0, 30, ["home", "help", "cart"])]
        driver.restart()
        assert click("bob", 240, "home") == [("bob", 65, 66, ["home", "help"])]
        assert click("ann", 1, "home") == []
        assert driver.dropped == 1
    assert capsys.readouterr().out.splitlines()[0] == "ann: ['home', 'help', 'cart'] in 30 minutes"


def test_board_shows_delays_by_city_and_hour() -> None:
    with sf.testing.Driver(program("delay_board").build()) as driver:

        def board(duration_ms: int) -> dict[tuple[str, int], list[int]]:
            driver.advance_wall_clock(duration_ms)
            rows = driver.read("board")
            return {(one.key, one.value["hour"] // HOUR_MS): one.value["minutes late"] for one in rows}

        def flight(code: str, minute: int, late: int) -> None:
            driver.pipe("flights", code, late, minute * MINUTE_MS)

        for code, city in (("JFK", "New York"), ("LGA", "New York"), ("EWR", "Newark")):
            driver.pipe("airports", code, city, 0)
        flight("JFK", 5, 12)
        flight("LGA", 69, 3)
        flight("JFK", 59, 40)  # nine minutes after the hour: in time
        flight("ZZZ", 69, 1)  # no such airport
        assert board(1_999) == {}
        assert board(1) == {("New York", 0): [12, 40], ("New York", 1): [3]}
        flight("EWR", 70, 9)  # the first hour is closed now
        flight("JFK", 4, 8)
        assert driver.dropped == 1
        driver.restart()
        assert board(2_000) == {("New York", 0): [12, 40], ("New York", 1): [3], ("Newark", 1): [9]}


def test_card_is_blocked_by_a_burst_of_payments_and_freed_by_its_timer() -> None:
    with sf.testing.Driver(program("fraud_velocity").build()) as driver:

        def pay(card: str, second: int, payment: object = None) -> list[tuple[str, str]]:
            driver.pipe("payments", card, payment or {"cents": 500}, second * 1_000)
            return [(one.key, one.value) for one in driver.read("cards")]

        assert [pay("ann", second) for second in (0, 20, 85)] == [[], [], []]  # at 85 the first burst is over
        assert pay("ann", 60) == [("ann", "blocked after 4 payments")]  # late, and joins the two
        assert pay("ann", 61) == []  # blocked already
        for second in range(4):
            assert pay("bob", second * 61) == []  # never within a minute
        assert pay("bob", 99, {"card": 5}) == []
        assert pay("bob", 99, b"{") == []
        unusable = driver.read("unusable")
        assert [dict(one.headers)["__streams.errors.exception"] for one in unusable] == [
            b"KeyError",
            b"JSONDecodeError",
        ]
        driver.advance_wall_clock(9_999)
        driver.restart()
        assert driver.read("cards") == []
        driver.advance_wall_clock(1)
        assert [(one.key, one.value) for one in driver.read("cards")] == [("ann", "free")]
        assert pay("ann", 90) == [("ann", "blocked after 6 payments")]


def test_lines_of_a_growing_file_are_counted_by_level(tmp_path: Path) -> None:
    path = tmp_path / "app.log"
    path.write_text("INFO started\nERROR disk full\nINFO rea")
    with sf.testing.Driver(program("tail_file").build(str(path))) as driver:
        assert driver.run_source("lines") == 2  # the last line is not complete
        driver.commit()
        assert {one.key: one.value for one in driver.read("levels")} == {"INFO": 1, "ERROR": 1}
        driver.restart()
        with path.open("a") as file:
            file.write("dy\n\n")
        assert driver.run_source("lines") == 2
        driver.commit()
        assert {one.key: one.value for one in driver.read("levels")} == {"INFO": 2}


@contextmanager
def event_stream() -> Iterator[tuple[str, list[int]]]:
    """A local server of the example's stream: its address, and the position that each request named."""
    asked: list[int] = []

    readings: Any = program("http_events").Readings

    class Noting(readings):  # type: ignore[misc]  # a class of a program loaded by its path
        def do_GET(self) -> None:
            # Before the answer, which breaks off once the reader has enough.
            asked.append(int(self.path.partition("=")[2]))
            with suppress(ConnectionError):
                super().do_GET()

    with ThreadingHTTPServer(("127.0.0.1", 0), cast("Any", Noting)) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_port}", asked
        finally:
            server.shutdown()
            thread.join()


def highest() -> dict[str, int]:
    found: dict[str, int] = {}
    for number in range(1, 101):
        found[f"s{number % 3}"] = max(number * 7 % 50, found.get(f"s{number % 3}", 0))
    return found


def test_events_are_read_behind_the_last_committed_one() -> None:
    with event_stream() as (server, asked), sf.testing.Driver(program("http_events").build(server)) as driver:
        assert driver.run_source("events", records_max=30) == 30
        driver.restart()
        assert driver.run_source("events") == 70
        assert asked == [0, 30]
        assert dict(driver.store("highest").all()) == highest()


def test_minutes_of_a_silent_device_are_closed_by_the_watermark_of_the_others() -> None:
    with sf.testing.Driver(program("device_telemetry").build(), partitions=2) as driver:

        def means() -> list[tuple[str, float]]:
            return [(one.key, one.value) for one in driver.read("means")]

        def read(device: str, second: int, degrees: int) -> list[tuple[str, float]]:
            driver.pipe("readings", device, degrees, second * 1_000)
            return means()

        for device, second, degrees in (("hall", 5, 20), ("yard", 10, 30), ("hall", 40, 22), ("yard", 55, 34)):
            assert read(device, second, degrees) == []
        assert read("hall", 130, 21) == [("hall", 21.0)]  # by its own readings; the yard's partition is at 50 s
        driver.advance_wall_clock(1_999)
        assert read("hall", 185, 21) == [("hall", 21.0)]
        driver.restart()
        driver.advance_wall_clock(2_001)  # the yard's partition is idle
        assert means() == [("yard", 32.0)]
        assert [(one.key, one.value, one.timestamp) for one in driver.read("silent")] == [("yard", "silent", 175_000)]
        assert read("yard", 170, 31) == []  # late nowhere: its own partition is at 50 s
        # Both were idle, so that the yard's new reading is the only time there is: 395 s.
        assert sorted(read("yard", 400, 31)) == [("hall", 21.0), ("yard", 31.0)]
        assert [one.key for one in driver.read("silent")] == ["hall"]
        assert read("yard", 300, 31) == []
        assert driver.dropped == 1


class Customers(BaseHTTPRequestHandler):
    """A real HTTP service: it answers late, is out of order twice for each customer, and always for customer 6."""

    asked: ClassVar[Counter[str]] = Counter()

    def do_GET(self) -> None:
        customer = self.path.strip("/")
        self.asked[customer] += 1
        name = {"7": "Ann", "8": "Bob"}.get(customer)
        down = customer == "6" or self.asked[customer] < 3
        self.send_response(503 if down else 404 if name is None else 200)
        self.end_headers()
        self.wfile.write(json.dumps({"name": name}).encode())

    def log_message(self, format: str, *given: Any) -> None:
        """Nothing on stderr."""


@pytest.fixture
def customers(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Customers]]:
    Customers.asked.clear()
    with ThreadingHTTPServer(("127.0.0.1", 0), Customers) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        monkeypatch.setenv("CUSTOMERS_URL", f"http://127.0.0.1:{server.server_port}")
        yield Customers
        server.shutdown()
        thread.join()


def test_orders_get_the_names_of_their_customers_from_an_http_service(customers: type[Customers]) -> None:
    with sf.testing.Driver(program("enrichment").build()) as driver:
        for number, customer in enumerate("78697"):
            driver.pipe("orders", f"order {number}", {"customer": customer}, number)
        named = [(one.key, one.value["name"]) for one in driver.read("orders-named")]
        assert named == [("order 0", "Ann"), ("order 1", "Bob"), ("order 3", None), ("order 4", "Ann")]
        assert [one.key for one in driver.read("orders-failed")] == [b"order 2"]
        assert driver.dropped == 1
    assert customers.asked == {"7": 4, "8": 3, "6": 5, "9": 3}


# --- as processes


@contextmanager
def running(name: str, folder: Path) -> Iterator[Callable[[], str]]:
    """The program as a process; the function ends it with SIGTERM and returns its output."""
    command = [sys.executable, EXAMPLES / f"{name}.py", folder]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def end() -> str:
        process.send_signal(signal.SIGTERM)
        printed, error = process.communicate(timeout=WAIT_S)
        assert process.returncode == 0, error
        lines = GAVE_UP.sub("", error).splitlines()
        wrong = [line for line in lines if not any(one in line for one in USUAL) and not DROPS.search(line)]
        assert wrong == []  # its life, and no sign of a failure
        assert lines[-1].endswith(" ended")
        return printed

    try:
        yield end
    finally:
        process.kill()
        process.communicate()


def until(folder: Path, topic: str, done: Callable[[list[LogRecord]], bool]) -> list[LogRecord]:
    """Every record of a topic, once they equal the expected ones."""
    clock = SystemClock()
    deadline_ms = clock.monotonic_ms() + WAIT_S * 1_000
    log = sf.open_log(f"sqlite:///{folder}/log")
    reader = log.reader()
    found: list[LogRecord] = []
    try:
        while (info := log.admin.describe_topic(topic)) is None:
            assert clock.monotonic_ms() < deadline_ms, f"no topic {topic!r}"
            clock.sleep_ms(10)
        reader.assign({sf.TopicPartition(topic, at): 0 for at in range(info.partitions)})
        while not done(found):
            assert clock.monotonic_ms() < deadline_ms, f"{topic!r} holds only {found}"
            for batch in reader.fetch(1_000, 100):
                found += batch.records
    finally:
        reader.close()
        log.close()
    return found


def end_of(folder: Path, topic: str) -> int:
    """Next offset of a topic."""
    log = sf.open_log(f"sqlite:///{folder}/log")
    reader = log.reader()
    at = sf.TopicPartition(topic, 0)
    try:
        return reader.bounds([at])[at].end
    finally:
        reader.close()
        log.close()


@pytest.mark.slow
def test_enrichment_names_each_order_once_over_two_runs(tmp_path: Path) -> None:
    names = {"7": "Ann", "8": "Bob", "9": None}
    for run in (1, 2):
        with running("enrichment", tmp_path) as end:
            found = until(tmp_path, "orders-named", lambda records, run=run: len(records) >= 6 * run)
            end()
    values = sorted((one.key, json.loads(one.value or b"")) for one in found)
    expected = [(f"order {number}".encode(), customer) for number, customer in enumerate("787897") for _ in range(2)]
    assert [(key, value["customer"]) for key, value in values] == expected
    assert all(value["name"] == names[value["customer"]] for _, value in values)


@pytest.mark.slow
def test_word_count_goes_on_where_it_stood(tmp_path: Path) -> None:
    words = {word: 1 for line in program("word_count").LINES for word in line.lower().split()} | {"the": 3}
    for run in (1, 2):
        wanted = {word: run * count for word, count in words.items()}

        def counted(records: list[LogRecord], wanted: dict[str, int] = wanted) -> bool:
            latest = {one.key: one.value for one in records}
            return latest == {word.encode(): sf.serde.int64.serialize(count) for word, count in wanted.items()}

        with running("word_count", tmp_path) as end:
            until(tmp_path, "word-counts", counted)
            assert f"the {wanted['the']}" in end().splitlines()


@pytest.mark.slow
def test_session_clicks_tells_no_visit_twice(tmp_path: Path) -> None:
    first = ["bob: ['home'] in 0 minutes", "ann: ['home', 'help', 'cart'] in 29 minutes", "bob: ['home'] in 0 minutes"]
    with running("session_clicks", tmp_path) as end:
        visits = until(tmp_path, "visits", lambda records: len(records) == 3)
        assert [json.loads(one.value or b"") for one in visits] == [["home"], ["home", "help", "cart"], ["home"]]
        assert end().splitlines() == first
    eve = until(tmp_path, "clicks", lambda records: len(records) == 6)[-1]
    log = sf.open_log(f"sqlite:///{tmp_path}/log")
    click = sf.Outgoing(b"zoe", b'"home"', eve.timestamp + 240 * MINUTE_MS)
    log.producer().append({sf.TopicPartition("clicks", 0): [click]})
    log.close()
    with running("session_clicks", tmp_path) as end:
        until(tmp_path, "visits", lambda records: len(records) > 3)
        assert end().splitlines() == ["eve: ['home'] in 0 minutes"]


@pytest.mark.slow
def test_device_telemetry_writes_no_minute_twice(tmp_path: Path) -> None:
    with running("device_telemetry", tmp_path) as end:
        until(tmp_path, "silent", lambda records: len(records) == 1)
        until(tmp_path, "means", lambda records: len(records) == 3)
        lines = end().splitlines()
        assert sorted(lines) == ["hall: 21.0 degrees", "hall: 22.0 degrees", "yard is silent", "yard: 32.0 degrees"]
        assert lines[:2] == ["hall: 22.0 degrees", "hall: 21.0 degrees"]
    log = sf.open_log(f"sqlite:///{tmp_path}/log")
    last = max(one.timestamp for one in until(tmp_path, "readings", lambda records: len(records) == 7))
    later = sf.Outgoing(b"hall", b"25", last + MINUTE_MS)
    log.producer().append({sf.TopicPartition("readings", 1): [later]})
    log.close()
    with running("device_telemetry", tmp_path) as end:
        until(tmp_path, "means", lambda records: len(records) == 4)
        assert end().splitlines() == ["hall: 21.0 degrees"]


@pytest.mark.slow
def test_fraud_velocity_frees_after_a_restart_what_it_has_blocked(tmp_path: Path) -> None:
    printed = ""
    for records in (1, 2):
        with running("fraud_velocity", tmp_path) as end:
            until(tmp_path, "cards", lambda found, records=records: len(found) >= records)
            printed += end()
    assert printed.splitlines() == ["ann: blocked after 4 payments", "ann: free"]
    (letter,) = until(tmp_path, "unusable", lambda found: len(found) == 1)
    assert (letter.key, letter.value) == (b"bob", b'{"cents":"-"}')
    assert dict(letter.headers)["__streams.errors.exception"] == b"ValueError"


@pytest.mark.slow
def test_delay_board_shows_the_board_again_from_its_state(tmp_path: Path) -> None:
    shown = 0  # rows of the first run, as an offset

    def complete(records: list[LogRecord]) -> bool:
        rows = [(one.key, json.loads(one.value or b"")) for one in records if one.offset >= shown]
        hours = sorted({row["hour"] for _, row in rows})
        board = {(key, (row["hour"] - hours[0]) // HOUR_MS): row["minutes late"] for key, row in rows}
        return board == {
            (b"New York", 0): [12, 40],
            (b"New York", 1): [3],
            (b"Newark", 0): [0],
            (b"Newark", 1): [9],
        }

    for _ in range(2):
        with running("delay_board", tmp_path) as end:
            until(tmp_path, "board", complete)
            assert "New York {" in end()
        shown = end_of(tmp_path, "board")


@pytest.mark.slow
def test_file_that_grows_is_counted_on_where_it_stood(tmp_path: Path) -> None:
    shown = sf.serde.int64.serialize

    def counted(**levels: int) -> Callable[[list[LogRecord]], bool]:
        wanted = {name.encode(): shown(count) for name, count in levels.items()}
        return lambda records: {one.key: one.value for one in records} == wanted

    with running("tail_file", tmp_path) as end:
        until(tmp_path, "levels", counted(INFO=2, WARNING=1))
        with (tmp_path / "app.log").open("a") as file:
            file.write("ERROR disk full\n")
        until(tmp_path, "levels", counted(INFO=2, WARNING=1, ERROR=1))
        end()
    with (tmp_path / "app.log").open("a") as file:
        file.write("INFO ended\n")
    with running("tail_file", tmp_path) as end:
        until(tmp_path, "levels", counted(INFO=3, WARNING=1, ERROR=1))
        assert end().splitlines() == ["INFO 3"]


@pytest.mark.slow
def test_http_events_serves_and_reads_its_own_stream(tmp_path: Path) -> None:
    wanted = {key.encode(): sf.serde.int64.serialize(value) for key, value in highest().items()}
    with running("http_events", tmp_path) as end:
        until(tmp_path, "highest-readings", lambda records: {one.key: one.value for one in records} == wanted)
        end()
