"""OpenTelemetry spans of an application: one trace from the producer through two applications, and nothing when off.

Rules of this file: the SDK's own provider and its exporter into memory; applications run on the test driver or on an
embedded log.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import baggage, context, trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

import standfast as sf
from standfast.replication.log import Headers
from standfast.replication.log import Record as LogRecord
from standfast.store.errors import BadConfig
from standfast.stream.tracing.otel import GETTER, injected
from support.apps import Drive, Running, create, written
from support.sessions import Bench

EXPORTER = InMemorySpanExporter()
TRACE = "0af7651916cd43dd8448eb211c80319c"
SPAN = "b7ad6b7169203331"
PARENT = ("traceparent", f"00-{TRACE}-{SPAN}-01".encode())
STATE = ("tracestate", b"vendor=1")

Spans = Callable[[], list[ReadableSpan]]


@pytest.fixture(scope="module", autouse=True)
def provider() -> None:
    given = TracerProvider()
    given.add_span_processor(SimpleSpanProcessor(EXPORTER))
    trace.set_tracer_provider(given)  # once in a process


@pytest.fixture
def spans() -> Iterator[Spans]:
    """The spans that ended since the last call."""
    EXPORTER.clear()

    def ended() -> list[ReadableSpan]:
        found = list(EXPORTER.get_finished_spans())
        EXPORTER.clear()
        return found

    yield ended
    assert trace.get_current_span() is trace.INVALID_SPAN  # no span was left behind as the current one


def trace_of(headers: Headers) -> tuple[str, str]:
    """Trace and span id of the only traceparent."""
    (value,) = [value for name, value in headers if name == "traceparent"]
    assert value is not None
    _, found, span, _ = value.decode().split("-")
    return found, span


def ids(span: ReadableSpan) -> tuple[str, str]:
    assert span.context is not None
    return f"{span.context.trace_id:032x}", f"{span.context.span_id:016x}"


def parent(span: ReadableSpan) -> str | None:
    return None if span.parent is None else f"{span.parent.span_id:016x}"


def traced(name: str = "app", **given: Any) -> sf.App:
    return sf.App(name, tracing=True, **given)


def test_record_has_a_span_below_the_one_of_its_headers(drive: Drive, spans: Spans) -> None:
    app = traced()
    app.stream("in").to("out")
    driver = drive(app, partitions=3)
    driver.pipe("in", "secret-key", "secret-value", 5, headers=(("a", b"1"), PARENT, STATE, ("a", None)), partition=2)
    (span,) = spans()
    assert (span.name, span.kind, span.status.status_code) == ("process in", SpanKind.CONSUMER, StatusCode.UNSET)
    assert (ids(span)[0], parent(span)) == (TRACE, SPAN)
    assert dict(span.attributes or {}) == {
        "messaging.system": "standfast",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": "in",
        "messaging.destination.partition.id": "2",
        "messaging.kafka.offset": 0,
        "messaging.consumer.group.name": "app",
        "standfast.task": "0_2",
    }
    assert "secret" not in span.to_json()
    (record,) = driver.read("out")
    assert trace_of(record.headers) == ids(span)
    # The trace's headers are replaced, and the others stay, in their order.
    assert record.headers[:2] == (("a", b"1"), ("a", None))
    assert [name for name, _ in record.headers[2:]] == ["traceparent", "tracestate"]
    assert dict(record.headers)["tracestate"] == b"vendor=1"


def test_trace_goes_through_a_producer_and_two_applications(bench: Bench, spans: Spans) -> None:
    create(bench, 1, "in", "between", "out")

    def first(app: sf.App) -> None:
        app.stream("in").map(lambda key, value: (value, key)).repartition("turned").to("between")

    def second(app: sf.App) -> None:
        app.stream("between").to("out")

    one = Running(bench, first, "a", name="one", tracing=True)
    two = Running(bench, second, "b", name="two", tracing=True)
    tracer = trace.get_tracer("test")
    with tracer.start_as_current_span("request") as request, one.app.producer() as producer:
        producer.send("in", "k", "v", 5, (PARENT, ("own", b"1")))
    wanted = f"{request.get_span_context().trace_id:032x}"
    for app in (one, two):
        app.run()
        app.commit()
        app.run()
        app.commit()
    found = {span.name: span for span in spans() if span.name.startswith(("request", "process"))}
    assert list(found) == ["request", "process in", "process one-turned-repartition", "process between"]
    assert {ids(span)[0] for span in found.values()} == {wanted}
    chain = list(found.values())
    assert [parent(span) for span in chain[1:]] == [ids(span)[1] for span in chain[:-1]]
    (record,) = written(bench, "out")
    assert trace_of(record.headers) == ids(chain[-1]) and record.headers[0] == ("own", b"1")
    group = [(span.attributes or {})["messaging.consumer.group.name"] for span in chain[1:]]
    assert group == ["one", "one", "two"]


@pytest.mark.parametrize("caching", [True, False])
def test_result_of_an_aggregation_is_in_the_trace_of_its_last_record(drive: Drive, spans: Spans, caching: bool) -> None:
    counts = sf.KeyValueStore("counts", sf.serde.string, sf.serde.int64, caching=caching)
    app = traced(stores=[counts])
    app.stream("in").group_by_key().count("counts").to_stream().to("out")
    driver = drive(app)
    with trace.get_tracer("test").start_as_current_span("around the run"):
        driver.pipe("in", "k", "a", 1, headers=(PARENT,))
        driver.pipe("in", "k", "b", 2)
        driver.commit()
    *_, last = [span for span in spans() if span.name == "process in"]
    assert trace_of(driver.read("out")[-1].headers) == ids(last)
    assert ids(last)[0] != TRACE and parent(last) is None  # the span around the run is no parent of a record


def test_span_that_a_processor_starts_is_the_one_that_goes_on(drive: Drive, spans: Spans) -> None:
    app = traced()

    @app.sink("out", value=sf.serde.string)
    @app.source("in", value=sf.serde.string)
    class Calls(sf.Processor):
        def init(self, context: Any) -> None:
            self.context = context

        def process(self, record: sf.Record) -> None:
            with trace.get_tracer("test").start_as_current_span("call"):
                self.context.forward(sf.Record(record.key, record.value, record.timestamp))
                self.context.send("raw", b"k", b"v", 1, partition=0, headers=(PARENT,))
            assert trace_of(record.headers) == ids(trace.get_current_span())  # type: ignore[arg-type]
            assert self.context.headers == (PARENT, PARENT)

    driver = drive(app)
    driver.pipe("in", "k", "v", 5, headers=(PARENT, PARENT))
    call, process = spans()
    assert (call.name, process.name, parent(call)) == ("call", "process in", ids(process)[1])
    (record,) = driver.read("out")
    assert trace_of(record.headers) == ids(call)
    (sent,) = driver.read("raw")
    assert trace_of(sent.headers) == ids(call)


@pytest.mark.parametrize("on_error", ["fail", "dead_letter"])
def test_error_of_a_record_is_on_its_span(drive: Drive, spans: Spans, on_error: Any) -> None:
    app = traced()
    letters: dict[str, Any] = {} if on_error == "fail" else {"on_error": on_error, "dead_letter": "bad"}

    def refuse(value: str) -> str:
        raise KeyError("no such airport")

    app.stream("in", value=sf.serde.string, **letters).map_values(refuse).to("out")
    driver = drive(app)
    if on_error == "fail":
        with pytest.raises(KeyError):
            driver.pipe("in", "k", "v", 5, headers=(PARENT,))
    else:
        driver.pipe("in", "k", "v", 5, headers=(PARENT, ("own", b"1")))
        (letter,) = driver.read("bad")
        assert letter.headers[:2] == (PARENT, ("own", b"1"))  # as they were read
    (span,) = spans()
    assert (span.status.status_code, span.status.description) == (StatusCode.ERROR, "KeyError")
    assert (span.attributes or {})["error.type"] == "KeyError"
    (event,) = span.events
    assert event.name == "exception" and "no such airport" in str((event.attributes or {})["exception.message"])


def test_record_that_cannot_be_read_has_a_span_with_the_error(drive: Drive, spans: Spans) -> None:
    app = traced()
    app.stream("in", value=sf.serde.json, on_error="skip").to("out")
    driver = drive(app)
    driver.pipe("in", "k", b"{", 5, headers=(PARENT,))
    (span,) = spans()
    assert (span.name, ids(span)[0], span.status.status_code) == ("process in", TRACE, StatusCode.ERROR)
    assert (span.attributes or {})["messaging.kafka.offset"] == 0


def test_commit_has_a_span_if_it_commits_something(bench: Bench, spans: Spans) -> None:
    create(bench, 1, "in", "out")
    running = Running(bench, lambda app: app.stream("in").to("out"), tracing=True)
    running.loop.poll_once()
    running.loop.commit_all()
    assert [span.name for span in spans()] == ["commit"]  # of where the task begins
    running.loop.commit_all()
    assert spans() == []
    with running.app.producer() as producer:
        producer.send("in", "k", "v", 5)
    running.run()
    running.loop.commit_all()
    process, commit = spans()
    assert (process.name, commit.name, commit.kind) == ("process in", "commit", SpanKind.CLIENT)
    assert (commit.attributes or {})["standfast.task"] == "0_0"
    assert ids(commit)[0] != ids(process)[0] and parent(commit) is None


def test_failed_commit_has_a_span_with_the_error(bench: Bench, spans: Spans) -> None:
    create(bench, 1, "in", "out")
    running = Running(bench, lambda app: app.stream("in").to("out"), tracing=True)
    with running.app.producer() as producer:
        producer.send("in", "k", "v", 5)
    running.run()
    running.runner().task.fail(sf.Fenced("another instance has it"))
    running.loop.commit_all()
    commit = spans()[-1]
    assert commit.name == "commit" and commit.status.description == "Fenced"


def test_restore_of_a_store_has_a_span(bench: Bench, spans: Spans) -> None:
    create(bench, 1, "in")
    counts = sf.KeyValueStore("counts", sf.serde.string, sf.serde.int64)

    def make(app: sf.App) -> None:
        app.stream("in").group_by_key().count("counts")

    first = Running(bench, make, "a", stores=[counts])
    with first.app.producer() as producer:
        producer.send("in", "k", "v", 5)
    first.run()
    first.commit()
    first.close()
    assert spans() == []  # tracing is off there
    second = Running(bench, make, "b", stores=[counts], tracing=True)
    assert second.rows("counts") == {"k": 1}
    (restore,) = [span for span in spans() if span.name == "restore counts"]
    attributes = restore.attributes or {}
    assert (attributes["standfast.task"], attributes["standfast.restore.records"]) == ("0_0", 1)
    assert attributes["messaging.destination.name"] == "app-counts-changelog"


@pytest.mark.slow
def test_span_around_the_run_goes_into_no_record(tmp_path: Path, spans: Spans) -> None:
    address = f"sqlite:///{tmp_path}/log"
    app = traced(log=address, state_dir=tmp_path / "s", create_topics=True)

    @app.sink("out")
    @app.source("in")
    class Tick(sf.Processor):
        def init(self, context: sf.Context) -> None:
            self.context = context
            context.schedule(1, sf.WALL_CLOCK_TIME, self.tick)

        def tick(self, now_ms: int) -> None:
            self.context.forward(sf.Record("k", 1, now_ms))
            app.stop()

    with trace.get_tracer("test").start_as_current_span("main"):
        app.run()
    assert {span.name for span in spans()} == {"main", "commit"}
    log = sf.open_log(address)
    reader = log.reader()
    reader.assign({sf.TopicPartition("out", at): 0 for at in range(4)})
    found = [record for batch in reader.fetch(100) for record in batch.records]
    log.close()
    assert found and {record.headers for record in found} == {()}


# --- headers ---


@pytest.mark.parametrize(
    "headers",
    [
        (),
        (("traceparent", None),),
        (("traceparent", b"\xff"),),
        (("traceparent", b"rubbish"), ("tracestate", b"rubbish,,,=")),
        (("traceparent", f"00-{'0' * 32}-{SPAN}-01".encode()),),
    ],
)
def test_record_without_a_readable_trace_begins_one(drive: Drive, spans: Spans, headers: Headers) -> None:
    app = traced()
    app.stream("in").to("out")
    driver = drive(app)
    driver.pipe("in", "k", "v", 5, headers=headers)
    (span,) = spans()
    (record,) = driver.read("out")
    assert parent(span) is None and trace_of(record.headers) == ids(span)


def test_last_header_of_a_name_counts() -> None:
    headers: Headers = (("traceparent", b"first"), PARENT, ("traceparent", None))
    assert GETTER.get(headers, "traceparent") == [PARENT[1].decode()]
    assert GETTER.get(headers, "tracestate") is None
    assert GETTER.keys(headers) == ["traceparent"] * 3


def test_header_of_the_program_that_is_called_baggage_stays() -> None:
    own: Headers = (("baggage", b"two suitcases"), PARENT)
    assert injected(own, None) == own  # there is no current span
    with trace.get_tracer("test").start_as_current_span("a"):
        assert injected(own, None)[0] == ("baggage", b"two suitcases")
        token = context.attach(baggage.set_baggage("user", "7"))
        assert [value for name, value in injected(own, None) if name == "baggage"] == [b"user=7"]
        context.detach(token)
        assert injected({"a": b"1"}, None) == {"a": b"1"}  # type: ignore[arg-type, comparison-overlap]  # pyright: ignore[reportArgumentType]


def test_producer_without_a_current_span_changes_no_header(bench: Bench, spans: Spans) -> None:
    create(bench, 1, "in")
    app = traced(log=bench.address, clock=bench.clock)
    app.stream("in")
    with app.producer() as producer:
        producer.send("in", "k", "v", 5, (PARENT, ("own", None)))
    (record,) = written(bench, "in")
    assert isinstance(record, LogRecord) and record.headers == (PARENT, ("own", None))


# --- off ---


def test_application_without_tracing_makes_no_span_and_changes_no_header(drive: Drive, spans: Spans) -> None:
    app = sf.App("app")
    app.stream("in").to("out")
    driver = drive(app)
    with trace.get_tracer("test").start_as_current_span("mine"):
        driver.pipe("in", "k", "v", 5, headers=(PARENT, STATE))
    assert [span.name for span in spans()] == ["mine"]
    assert driver.read("out")[0].headers == (PARENT, STATE)


def test_wrong_tracing_is_refused() -> None:
    with pytest.raises(BadConfig, match="tracing must be True or False, not 'yes'"):
        sf.App("app", tracing="yes")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


WITHOUT = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "opentelemetry":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Absent())
import standfast as sf
app = sf.App("app")
app.stream("in").to("out")
with sf.testing.Driver(app) as driver:
    driver.pipe("in", "k", "v", 5)
    assert len(driver.read("out")) == 1
assert not any(name.startswith("opentelemetry") for name in sys.modules)
try:
    sf.App("app", tracing=True)
except sf.BadConfig as error:
    print(error)
"""


@pytest.mark.slow
def test_application_runs_without_the_library_and_tracing_names_the_extra(tmp_path: Path) -> None:
    ended = subprocess.run([sys.executable, "-P", "-c", WITHOUT], capture_output=True, text=True, cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert "not installed: pip install 'standfast[otel]'" in ended.stdout
