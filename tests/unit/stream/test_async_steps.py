"""Asynchronous steps on the test driver: order, failures, retries, contexts, and wrong use."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import pytest

import standfast as sf
from standfast.stream.topology.calls import RETRIES_MAX
from support.apps import Drive, headers_of
from support.calls import Service

TEXT, JSON, INT = sf.serde.string, sf.serde.json, sf.serde.int64


@pytest.fixture
def service() -> Service:
    return Service()


def came(driver: sf.testing.Driver, topic: str = "out") -> list[tuple[Any, Any, int]]:
    return [(record.key, record.value, record.timestamp) for record in driver.read(topic)]


class Fan(sf.Processor):
    """Forwards as many records as the value says."""

    stores = ()

    def init(self, context: sf.Context) -> None:
        self.context = context

    def process(self, record: sf.Record) -> None:
        for number in range(record.value):
            self.context.forward(record._replace(value=number))


# --- results ---


def test_result_has_the_key_the_time_and_the_headers_of_its_record(drive: Drive, service: Service) -> None:
    app = sf.App("app")
    app.stream("in").map_values_async(service.ask).to("out")
    app.stream("in").map_async(service.pair).to("pairs")
    driver = drive(app)
    driver.pipe("in", "a", 4, 7, headers=(("trace", b"1"),))
    assert driver.read("out") == [sf.Record("a", 40, 7, (("trace", b"1"),))]
    assert driver.read("pairs") == [sf.Record("a!", 40, 7, (("trace", b"1"),))]


def test_results_go_on_in_the_order_of_the_records_however_long_each_takes(drive: Drive) -> None:
    arrived: list[int] = []
    turn = asyncio.Event()

    async def last_first(value: int) -> int:
        # Each waits until all have begun; the first to begin is the last to end.
        arrived.append(value)
        if len(arrived) == 5:
            turn.set()
        await turn.wait()
        for _ in range(5 - value):
            await asyncio.sleep(0)
        return value

    app = sf.App("app")
    app.stream("in").process(Fan).map_values_async(last_first, parallel=5).to("out")
    driver = drive(app)
    driver.pipe("in", "k", 5, 1)
    assert [value for _, value, _ in came(driver)] == [0, 1, 2, 3, 4]
    assert arrived == [0, 1, 2, 3, 4]


def test_no_more_calls_run_at_once_than_parallel_though_one_record_makes_many(drive: Drive, service: Service) -> None:
    app = sf.App("app")
    app.stream("in").process(Fan).map_values_async(service.ask, parallel=3).to("out")
    driver = drive(app)
    driver.pipe("in", "k", 50, 1)
    assert [value for _, value, _ in came(driver)] == [10 * number for number in range(50)]
    assert service.most == 3


def test_two_asynchronous_steps_follow_each_other(drive: Drive, service: Service) -> None:
    app = sf.App("app", stores=[sf.KeyValueStore("sum", TEXT, INT)])
    stream = app.stream("in", value=INT).map_values_async(service.ask).map_values_async(service.ask, value=INT)
    stream.group_by_key().reduce(lambda old, new: old + new, "sum").to_stream().to("out", value=INT)
    driver = drive(app)
    for value in (1, 2, 3):
        driver.pipe("in", "k", value, value)
    driver.commit()
    assert came(driver) == [("k", 600, 3)]
    assert driver.store("sum").get("k") == 600


def test_suppressed_results_go_through_an_asynchronous_step_before_the_commit(drive: Drive, service: Service) -> None:
    app = sf.App("app", stores=[sf.KeyValueStore("first", TEXT, INT), sf.KeyValueStore("second", TEXT, INT)])
    counts = app.stream("in").group_by_key().count("first").to_stream()
    again = counts.map_values_async(service.ask, value=INT, name="ask").group_by_key().reduce(max, "second")
    again.to_stream().map_values_async(service.ask, value=INT, name="again").to("out", value=INT)
    driver = drive(app)
    for stamp in range(3):
        driver.pipe("in", "k", 1, stamp)
    assert came(driver) == []
    driver.commit()
    assert came(driver) == [("k", 300, 2)]
    assert driver.store("second").get("k") == 30
    driver.restart()
    assert driver.store("second").get("k") == 30


# --- failures ---


def test_failing_call_is_tried_again_as_often_as_retries_says(drive: Drive, service: Service) -> None:
    service.fails.update({1: 2, 2: 3})
    app = sf.App("app")
    app.stream("in").map_values_async(service.ask, retries=2, backoff_ms=0, name="ask").to("out")
    driver = drive(app)
    driver.pipe("in", "k", 1, 1)
    assert came(driver) == [("k", 10, 1)]
    with pytest.raises(ConnectionError, match="no answer for 2") as failed:
        driver.pipe("in", "k", 2, 2)
    notes = " ".join(failed.value.__notes__)
    assert "attempt 3 of 3" in notes and "step 'ask' of task 0_0, for key 'k' (in-0 at 1)" in notes
    assert service.asked == [1, 1, 1, 2, 2, 2]


def test_error_that_retry_on_does_not_name_is_final(drive: Drive, service: Service) -> None:
    service.fails[1] = 1
    app = sf.App("app")
    app.stream("in").map_values_async(service.ask, retries=5, retry_on=(KeyError, ValueError)).to("out")
    with pytest.raises(ConnectionError):
        drive(app).pipe("in", "k", 1, 1)
    assert service.asked == [1]


def test_attempt_that_takes_too_long_is_cancelled_and_tried_again(drive: Drive, service: Service) -> None:
    service.held.add(1)
    app = sf.App("app")
    app.stream("in").map_values_async(service.ask, timeout_ms=5, retries=1, backoff_ms=0, retry_on=KeyError).to("out")
    with pytest.raises(TimeoutError, match=r"no answer within timeout_ms=5"):
        drive(app).pipe("in", "k", 1, 1)
    assert service.cancelled == [1, 1]


@pytest.mark.parametrize("own", [True, False])
def test_failed_call_is_skipped_and_counted_and_its_record_is_a_dead_letter(
    drive: Drive, service: Service, own: bool
) -> None:
    service.fails[2] = 9
    policy: Any = {"on_error": "dead_letter", "dead_letter": "dead"}
    app = sf.App("app")
    of_source: Any = {} if own else policy
    of_step: Any = policy if own else {}
    app.stream("in", **of_source).map_values_async(service.ask, name="ask", **of_step).to("out")
    driver = drive(app)
    for value in (1, 2, 3):
        driver.pipe("in", "k", value, value)
    assert came(driver) == [("k", 10, 1), ("k", 30, 3)]
    assert dict(app.drops.counts) == {"ask" if own else "call": 1}
    (dead,) = driver.read("dead")
    assert (dead.key, dead.value, dead.timestamp) == (b"k", b"2", 2)
    headers = {name.removeprefix("__streams.errors."): value for name, value in headers_of(dead).items()}
    assert headers["exception"] == "ConnectionError" and headers["step"] == "ask" and headers["offset"] == "1"


def test_result_that_fails_further_downstream_is_skipped_by_itself(drive: Drive, service: Service) -> None:
    def refuse(key: Any, value: Any) -> None:
        if value == 20:
            raise ValueError("no 20")

    app = sf.App("app")
    app.stream("in", on_error="skip").map_values_async(service.ask).peek(refuse).to("out")
    driver = drive(app)
    for value in (1, 2, 3):
        driver.pipe("in", "k", value, value)
    assert came(driver) == [("k", 10, 1), ("k", 30, 3)]
    assert dict(app.drops.counts) == {"result": 1}


def test_record_that_is_rolled_back_makes_no_call(drive: Drive, service: Service) -> None:
    def refuse(key: Any, value: Any) -> None:
        if value == 2:
            raise ValueError("no 2")

    app = sf.App("app")
    stream = app.stream("in", on_error="skip")
    stream.map_values_async(service.ask).to("out")  # first, so that the call is there when the record fails
    stream.peek(refuse).to("plain")
    driver = drive(app)
    for value in (1, 2, 3):
        driver.pipe("in", "k", value, value)
    assert [value for _, value, _ in came(driver, "plain")] == [1, 3]
    assert came(driver) == [("k", 10, 1), ("k", 30, 3)]
    assert service.asked == [1, 3]


def test_interruption_within_a_call_is_raised_where_the_application_runs(drive: Drive) -> None:
    async def leave(value: Any) -> Any:
        raise KeyboardInterrupt

    app = sf.App("app")
    app.stream("in", on_error="skip").map_values_async(leave, retries=3).to("out")
    with pytest.raises(KeyboardInterrupt):
        drive(app).pipe("in", "k", 1, 1)


@pytest.mark.parametrize("on_error", ["fail", "skip"])
def test_exit_within_a_call_is_a_failure_of_its_record(on_error: Any, drive: Drive) -> None:
    async def leave(value: Any) -> Any:
        return sys.exit(3) if value == 1 else value

    app = sf.App("app")
    app.stream("in", on_error=on_error).map_values_async(leave, retries=3).to("out")
    driver = drive(app)
    if on_error == "fail":
        with pytest.raises(sf.InvalidRequest, match=r"called sys\.exit\(3\)"):
            driver.pipe("in", "k", 1, 1)
        return
    for value in (1, 2):
        driver.pipe("in", "k", value, 1)
    assert came(driver) == [("k", 2, 1)]


def test_call_that_cancels_itself_is_an_error_and_no_lost_record(drive: Drive) -> None:
    async def cancel(value: Any) -> Any:
        raise asyncio.CancelledError

    app = sf.App("app")
    app.stream("in").map_values_async(cancel).to("out")
    with pytest.raises(sf.InvalidRequest, match="cancelled itself"):
        drive(app).pipe("in", "k", 1, 1)


def test_function_that_cannot_be_awaited_is_named(drive: Drive) -> None:
    app = sf.App("app")
    app.stream("in").map_values_async(lambda value: value, name="ask").to("out")  # type: ignore[arg-type,return-value]
    with pytest.raises(sf.InvalidRequest, match="step 'ask': the function returned 1, which cannot be awaited"):
        drive(app).pipe("in", "k", 1, 1)


# --- a processor of one's own ---


class Ask(sf.Processor):
    """Notes what its context says before and after an await."""

    calls = sf.Calls(parallel=2, retries=1, backoff_ms=0)
    service: Service
    seen: list[Any]

    async def init(self, context: sf.Context) -> None:
        self.context = context
        self.loop = asyncio.get_running_loop()

    async def process(self, record: sf.Record) -> None:
        context = self.context
        assert asyncio.get_running_loop() is self.loop
        self.context.forward(record._replace(value="before"))
        answer = await self.service.ask(record.value)
        self.seen.append((context.topic, context.partition, context.offset, context.headers, context.timestamp))
        self.context.forward(record._replace(value=answer))

    async def close(self) -> None:
        self.seen.append("closed")


@pytest.fixture
def ask(service: Service) -> type[Ask]:
    return type("Ask", (Ask,), {"service": service, "seen": []})


def test_asynchronous_process_forwards_in_order_and_its_context_has_its_own_record(
    drive: Drive, ask: type[Ask], service: Service
) -> None:
    app = sf.App("app")
    app.sink("out")(app.source("in", key=TEXT, value=JSON)(ask))
    driver = drive(app)
    driver.pipe("in", "a", 1, 5, headers=(("h", b"1"),))
    driver.pipe("in", "b", 2, 6)
    assert [value for _, value, _ in came(driver)] == ["before", 10, "before", 20]
    assert ask.seen == [("in", 0, 0, (("h", b"1"),), 5), ("in", 0, 1, (), 6)]
    driver.close()
    assert ask.seen[-1] == "closed"


def test_failed_attempt_forwards_nothing(drive: Drive, ask: type[Ask], service: Service) -> None:
    service.fails[1] = 1
    app = sf.App("app")
    app.stream("in").process(ask).to("out")
    driver = drive(app)
    driver.pipe("in", "a", 1, 5)
    assert [value for _, value, _ in came(driver)] == ["before", 10]


USES = {
    "store": lambda context: context.store("s"),
    "send": lambda context: context.send("out", b"k", b"v", partition=0),
    "commit": lambda context: context.commit(),
    "drop": lambda context: context.drop("null_key", "x"),
    "timer": lambda context: context.timer("k", 1),
    "schedule": lambda context: context.schedule(1, sf.WALL_CLOCK_TIME, print),
    "progress": lambda context: context.progress,
    "wrong record": lambda context: context.forward("text"),
    "unknown child": lambda context: context.forward(sf.Record("k", 1, 1), to="nobody"),
}


@pytest.mark.parametrize("use", USES)
def test_use_of_the_task_within_a_call_is_refused(drive: Drive, use: str) -> None:
    class Wrong(sf.Processor):
        def init(self, context: sf.Context) -> None:
            self.context = context

        async def process(self, record: sf.Record) -> None:
            USES[use](self.context)

    app = sf.App("app", stores=[sf.KeyValueStore("s", TEXT, INT)])
    app.stream("in").process(Wrong).to("out")
    driver = drive(app)
    with pytest.raises(sf.InvalidRequest, match="Wrong"):
        driver.pipe("in", "k", 1, 1)
    assert driver.read("out") == []


def test_record_forwarded_after_its_process_has_ended_is_refused(drive: Drive) -> None:
    late: list[Exception] = []
    asked = asyncio.Event()

    class Leaves(sf.Processor):
        def init(self, context: sf.Context) -> None:
            self.context = context

        async def later(self, record: sf.Record) -> None:
            await asked.wait()
            try:
                self.context.forward(record)
            except sf.InvalidRequest as error:
                late.append(error)

        async def process(self, record: sf.Record) -> None:
            if record.value == 1:
                self.left = asyncio.ensure_future(self.later(record))
                return
            asked.set()
            await self.left

    app = sf.App("app")
    app.stream("in").process(Leaves).to("out")
    driver = drive(app)
    driver.pipe("in", "k", 1, 1)
    driver.pipe("in", "k", 2, 2)
    assert driver.read("out") == []
    assert "after its process had ended" in str(late[0])


def test_punctuation_of_an_asynchronous_processor_runs_on_the_tasks_thread(drive: Drive, service: Service) -> None:
    class Ticks(sf.Processor):
        def init(self, context: sf.Context) -> None:
            self.context = context
            context.schedule(10, sf.WALL_CLOCK_TIME, lambda now_ms: context.forward(sf.Record("t", now_ms, now_ms)))

        async def process(self, record: sf.Record) -> None:
            self.context.forward(record)

    app = sf.App("app")
    app.stream("in").process(Ticks).map_values_async(service.ask).to("out")
    driver = drive(app)
    driver.advance_wall_clock(10)
    assert came(driver) == [("t", 100, 10)]


# --- wrong declarations ---


async def wait(*given: Any) -> Any: ...


def sub(**members: Any) -> type[sf.Processor]:
    return type("Mine", (sf.Processor,), {"process": wait, **members})


@pytest.mark.parametrize(
    ("members", "text"),
    [
        ({"stores": ("s",)}, "has no stores"),
        ({"on_timer": lambda self, timer: None}, "has no timers"),
        ({"on_timer": wait}, "on_timer is async def"),
        ({"calls": 5}, "Mine.calls must be settings"),
        ({"process": lambda self, record: None, "init": wait}, "init is async def"),
        ({"process": lambda self, record: None, "close": wait}, "close is async def"),
    ],
)
def test_processor_that_cannot_be_asynchronous_is_refused_where_it_is_declared(members: Any, text: str) -> None:
    app = sf.App("app", stores=[sf.KeyValueStore("s", TEXT, INT)])
    with pytest.raises(sf.BadConfig, match=text):
        app.source("in")(sub(**members))
    with pytest.raises(sf.BadConfig, match=text):
        app.stream("in").process(sub(**members))
    assert all(not name.startswith("Mine") for name in app.builder.nodes)


def test_store_named_for_an_asynchronous_processor_is_refused() -> None:
    app = sf.App("app", stores=[sf.KeyValueStore("s", TEXT, INT)])
    with pytest.raises(sf.BadConfig, match=r"has no stores \(s\)"):
        app.stream("in").process(sub(), "s")


@pytest.mark.parametrize(
    "options",
    [
        {"parallel": 0},
        {"parallel": True},
        {"timeout_ms": 0},
        {"timeout_ms": 1.5},
        {"retries": -1},
        {"retries": RETRIES_MAX + 1},
        {"backoff_ms": -1},
        {"backoff_max_ms": "5"},
        {"retry_on": "OSError"},
        {"retry_on": (OSError, BaseException)},
    ],
)
def test_wrong_setting_is_refused_with_its_name(options: Any) -> None:
    (name,) = options
    stream = sf.App("app").stream("in")
    before = len(stream.builder.nodes)
    with pytest.raises(sf.BadConfig, match=f"{name} must be"):
        stream.map_async(wait, **options)
    with pytest.raises(sf.BadConfig, match=f"{name} must be"):
        sf.Calls(**options)
    assert len(stream.builder.nodes) == before


def test_all_wrong_settings_are_in_one_error_and_an_unknown_one_is_refused() -> None:
    with pytest.raises(sf.BadConfig) as refused:
        sf.Calls(parallel=0, timeout_ms=0)
    assert len(refused.value.problems) == 2
    with pytest.raises(sf.BadConfig, match="no setting 'paralel': did you mean 'parallel'"):
        sf.App("app").stream("in").map_async(wait, paralel=4)  # type: ignore[call-arg]


@pytest.mark.parametrize("step", ["map", "map_values", "filter", "peek", "flat_map", "select_key"])
def test_async_function_in_a_plain_step_is_refused_and_the_right_step_named(step: str) -> None:
    with pytest.raises(sf.BadConfig, match=r"is async def, and would never be awaited.*map_async"):
        getattr(sf.App("app").stream("in"), step)(wait)


def test_async_callback_of_a_schedule_is_refused(drive: Drive) -> None:
    class Schedules(sf.Processor):
        def init(self, context: sf.Context) -> None:
            context.schedule(10, sf.WALL_CLOCK_TIME, wait)

        def process(self, record: sf.Record) -> None: ...

    app = sf.App("app")
    app.source("in")(Schedules)
    with pytest.raises(sf.InvalidRequest, match=r"callback .* is async def"):
        drive(app)


@pytest.mark.parametrize("step", ["map_async", "map_values_async"])
def test_table_goes_through_no_asynchronous_step(step: str) -> None:
    with pytest.raises(sf.BadConfig, match=r"another answer.*to_stream\(\)\."):
        getattr(sf.App("app").table("in"), step)(wait)


def test_waits_between_attempts_double_up_to_their_bound() -> None:
    calls = sf.Calls(backoff_ms=100, backoff_max_ms=500)
    assert [calls.pause_ms(attempts, 1.0) for attempts in (1, 2, 3, 4, 1_000)] == [100, 200, 400, 500, 500]
    assert [calls.pause_ms(attempts, 0.0) for attempts in (1, 4)] == [50, 250]
