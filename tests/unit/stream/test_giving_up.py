"""A program whose task cannot go on ends with the reason, after the others have committed, and reports until then."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import standfast as sf
from standfast.replication.offsets import TopicPartition
from support.apps import Running, create, write
from support.loops import Seen, fail, reads
from support.sessions import Bench

TEXT, JSON, INT = sf.serde.string, sf.serde.json, sf.serde.int64
COUNT = sf.KeyValueStore("count", TEXT, INT)
RUN_S = 60


def retry(bench: Bench, one: Running, rounds: int, error: type[Exception]) -> Exception:
    """Run until the loop raises, with its clock moved past each delay; returns the error."""
    for _ in range(rounds):
        try:
            one.run()
            bench.clock.advance(60_000)
            one.loop.poll_once()
            bench.settle(one.session)
        except error as raised:
            return raised
    raise AssertionError(f"no {error.__name__} in {rounds} rounds")


# --- the loop gives up ---


def test_task_that_fails_five_times_in_a_row_at_one_offset_is_given_up(bench: Bench) -> None:
    create(bench, 1, "in")
    write(bench, "in", ("ok", "1", 1), ("bad", "1", 2))
    seen = Seen()
    seen.on["bad"] = fail
    one = Running(bench, reads(seen, "in"))
    error = retry(bench, one, 50, ValueError)
    assert seen.keys == ["ok", "bad"] * 5
    notes = "; ".join(error.__notes__)
    assert "task 0_0 is given up: it failed 5 times in a row at the same source offset: in-0 at offset 1" in notes
    assert 'on_error="skip"' in notes


def test_records_that_cannot_be_read_are_at_one_offset_too(bench: Bench) -> None:
    create(bench, 1, "in")
    write(bench, "in", ("ok", "1", 1), ("bad", "{", 2))
    seen = Seen()
    error = retry(bench, Running(bench, reads(seen, "in")), 50, sf.InvalidRequest)
    assert seen.keys == ["ok"] * 5
    assert "5 times in a row" in "; ".join(error.__notes__)


@pytest.mark.parametrize("caching", [True, False])
def test_row_that_its_serde_cannot_read_is_given_up_and_nothing_is_set_aside(bench: Bench, caching: bool) -> None:
    def read(raw: bytes) -> object:
        if raw == b'"bad"':
            raise ValueError("no bad here")
        return JSON.deserialize(raw)

    def make(app: sf.App) -> None:
        app.stream("in", key=TEXT, value=JSON).group_by_key().reduce(lambda old, new: new, "last")

    create(bench, 1, "in")
    write(bench, "in", ("a", "1", 1))
    picky = sf.serde.Serde("picky", JSON.serialize, read)
    notes = sf.KeyValueStore("notes", TEXT, TEXT, logging=False)
    stores = [sf.KeyValueStore("last", TEXT, picky, caching=caching), notes]
    one = Running(bench, make, stores=stores)
    one.run()
    one.session.task(0).store("notes").put("here", "alone")
    one.commit()
    write(bench, "in", ("x", '"bad"', 2), ("x", "2", 3))
    error = retry(bench, one, 50, sf.Corruption)
    assert "5 times in a row at the same source offset: in-0 at offset 2" in "; ".join(error.__notes__)
    assert one.session.statistics().counters.wipes == {}
    assert one.session.counters.task_failures == 5
    one.close()
    other = Running(bench, make, stores=stores)
    assert other.rows("notes") == {"here": "alone"}


def test_held_result_that_fails_at_the_commit_is_given_up_with_the_hint(bench: Bench) -> None:
    create(bench, 1, "in")
    write(bench, "in", ("bad", "1", 1))

    def make(app: sf.App) -> None:
        app.stream("in", key=TEXT, value=JSON).group_by_key().count("count").peek(lambda key, value: fail(None))  # type: ignore[arg-type]

    error = retry(bench, Running(bench, make, stores=[COUNT]), 50, ValueError)
    notes = "; ".join(error.__notes__)
    assert "5 times in a row at the same source offset: none was committed yet" in notes
    assert 'on_error="skip"' in notes


def test_processor_that_never_begins_is_given_up(bench: Bench) -> None:
    create(bench, 1, "in")
    seen = Seen()
    seen.on_init = lambda *_: fail(None)  # type: ignore[arg-type]
    error = retry(bench, Running(bench, reads(seen, "in")), 50, ValueError)
    notes = "; ".join(error.__notes__)
    assert "5 times in a row" in notes
    assert "on_error" not in notes  # which would not help


def test_healthy_tasks_commit_before_the_loop_ends(bench: Bench) -> None:
    create(bench, 2, "in")
    write(bench, "in", ("bad", "1", 1))
    seen = Seen()
    seen.on["bad"] = fail
    one = Running(bench, reads(seen, "in"), commit_interval_ms=10_000_000)
    for _ in range(4):
        one.run()
        bench.clock.advance(60_000)
        one.loop.poll_once()
        bench.settle(one.session)
    write(bench, "in", ("good", "1", 5), partition=1)
    with pytest.raises(ValueError, match="the processor fails"):
        one.run()
        one.loop.poll_once()
    committed = bench.log.group("app").committed()
    assert {at: found.offset for at, found in committed.items()} == {TopicPartition("in", 1): 1}


def test_failures_at_offsets_that_differ_are_given_up_after_ten_minutes_without_a_commit(bench: Bench) -> None:
    create(bench, 1, "in")
    write(bench, "in", *((f"k{number}", "1", number) for number in range(40)))
    seen, tries = Seen(), [0]

    def at_another_record() -> None:
        tries[0] += 1
        turn = tries[0] % 2

        def fail_here(context: sf.Context) -> None:
            if context.offset == 10 + turn:
                raise ValueError("somewhere else each time")

        for number in range(40):
            seen.on[f"k{number}"] = fail_here

    seen.on_init = lambda *_: at_another_record()
    started_ms = bench.clock.monotonic_ms()
    error = retry(bench, Running(bench, reads(seen, "in"), commit_interval_ms=10_000_000), 50, ValueError)
    assert bench.clock.monotonic_ms() - started_ms >= 600_000
    assert "without a commit" in "; ".join(error.__notes__)


def test_outage_of_the_log_is_never_counted(bench: Bench) -> None:
    create(bench, 1, "in")
    write(bench, "in", ("k", "1", 1))
    seen = Seen()

    def away(context: sf.Context) -> None:
        raise sf.Unavailable("the log does not answer")

    seen.on["k"] = away
    one = Running(bench, reads(seen, "in"))
    for _ in range(30):
        one.run()
        bench.clock.advance(60_000)
        one.loop.poll_once()
        bench.settle(one.session)
    seen.on.clear()
    one.run()
    bench.clock.advance(60_000)
    one.loop.poll_once()
    bench.settle(one.session)
    one.run()
    one.commit()
    assert one.session.task(0).source_offsets() == {TopicPartition("in", 0): 1}


def test_error_of_closing_does_not_take_the_place_of_the_reason(tmp_path: Path) -> None:
    address = f"sqlite:///{tmp_path}/log"
    log = sf.open_log(address)
    log.admin.create_topic("in", 1, sf.TopicPolicy())
    log.producer().append({TopicPartition("in", 0): [sf.Outgoing(b"bad", b"1", 1)]})
    log.close()
    app = sf.App("app", log=address, state_dir=tmp_path / "s", restart=sf.NoRestart())
    seen = Seen()
    seen.on["bad"] = fail
    seen.on_close = lambda: fail(None)  # type: ignore[arg-type]
    reads(seen, "in")(app)
    with pytest.raises(ValueError, match="the processor fails") as error:
        app.run()
    assert any("task 0_0 is given up" in note for note in error.value.__notes__)


# --- a changed definition ---


def test_changed_definition_is_raised_as_what_it_is(tmp_path: Path) -> None:
    """The next call and app.run() raise it, not as Unavailable, which is retried for ever."""
    address = f"sqlite:///{tmp_path}/log"
    log = sf.open_log(address)
    log.admin.create_topic("in", 1, sf.TopicPolicy())
    log.close()
    made = sf.Session("app", log=address, state_dir=tmp_path / "s", stores=[COUNT], partitions=1)
    made.assign(active=[0])
    made.wait_ready(RUN_S)
    made.close()
    changed = sf.KeyValueStore("count", TEXT, TEXT)
    app = sf.App("app", log=address, state_dir=tmp_path / "s", stores=[changed])

    @app.source("in", key=TEXT, value=JSON)
    class Counting(sf.Processor):
        stores = ("count",)

    with pytest.raises(sf.InvalidRequest, match=r"store 'count' in .* was made with another definition \(value"):
        app.run()


def test_error_of_background_work_keeps_its_kind_at_every_call(bench: Bench) -> None:
    session = bench.session(background=False)
    session._background.fatal = ValueError("a listener fails")
    depths = set()
    for _ in range(5):
        with pytest.raises(ValueError, match="a listener fails") as error:
            session.open_tasks()
        depths.add(len(error.traceback))
    session._background.fatal = None
    assert len(depths) == 1  # it does not grow with each call


# --- the output of a program ---

PROGRAM = """
    import logging, sys
    import standfast as sf
    {setup}
    log = sf.open_log("sqlite:///{folder}/log")
    if log.admin.describe_topic("in") is None:
        log.admin.create_topic("in", 2, sf.TopicPolicy())
        for partition, keys in enumerate((["ok", "bad"], ["fine"])):
            batch = [sf.Outgoing(key.encode(), b"1", 1 + number) for number, key in enumerate(keys)]
            log.producer().append({{sf.TopicPartition("in", partition): batch}})
    log.close()
    app = sf.App("app", log="sqlite:///{folder}/log", state_dir="{folder}/state", commit_interval_ms=600_000,
                 restart=sf.ExponentialDelay(initial_ms=1, max_ms=20))

    @app.source("in", key=sf.serde.string, value=sf.serde.json)
    class Picky(sf.Processor):
        def process(self, record):
            if record.key == "bad":
                raise ValueError("this value is not to my taste")

    {run}
"""

CAUGHT = """
    try:
        app.run()
    except ValueError:
        pass
"""


def program(folder: Path, *, setup: str = "", run: str = "app.run()") -> subprocess.CompletedProcess[str]:
    """A user's program, as a process of its own."""
    text = textwrap.dedent(PROGRAM).format(folder=folder, setup=setup, run=textwrap.dedent(run))
    return subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=RUN_S, check=False)


@pytest.mark.slow
def test_program_without_logging_prints_lifecycle_failures_and_the_hint(tmp_path: Path) -> None:
    done = program(tmp_path)
    assert done.returncode == 1
    assert done.stdout == ""
    assert "INFO standfast: application app runs as instance" in done.stderr
    assert "INFO standfast: task 0_0 runs here" in done.stderr
    assert "ERROR standfast: task 0_0 failed (1 so far) at in-0 at offset 1, opened again in 1 ms" in done.stderr
    assert 'give the source, or the step, on_error="skip" or "dead_letter"' in done.stderr
    assert done.stderr.count("ValueError: this value is not to my taste") >= 5
    assert "Traceback (most recent call last)" in done.stderr
    assert "task 0_0 is given up: it failed 5 times in a row at the same source offset: in-0 at offset 1" in done.stderr
    log = sf.open_log(f"sqlite:///{tmp_path}/log")
    committed = {at: found.offset for at, found in log.group("app").committed().items()}
    log.close()
    assert committed[TopicPartition("in", 1)] == 1  # the healthy task committed, in spite of its long interval
    assert committed.get(TopicPartition("in", 0), 0) == 0


@pytest.mark.slow
def test_program_with_handlers_of_its_own_prints_nothing_beside_them(tmp_path: Path) -> None:
    setup = f"logging.basicConfig(filename='{tmp_path}/app.log', level=logging.INFO)"
    done = program(tmp_path, setup=setup, run=CAUGHT)
    assert (done.returncode, done.stderr) == (0, "")
    lines = (tmp_path / "app.log").read_text()
    assert "application app runs as instance" in lines
    assert "task 0_0 is given up" in lines


@pytest.mark.slow
def test_program_under_our_command_line_ends_with_its_exit_code_and_the_reason(tmp_path: Path) -> None:
    run = """
        from standfast.ops.shared.guard import guard
        sys.exit(guard(lambda: app.run() or 0))
    """
    done = program(tmp_path, run=run)
    assert done.returncode == 70
    assert "error: ValueError: this value is not to my taste (while task 0_0 processed" in done.stderr
    assert "a bug in standfast" not in done.stderr


@pytest.mark.slow
def test_what_was_printed_meanwhile_ends_with_the_run(tmp_path: Path) -> None:
    done = program(tmp_path, run=f"{textwrap.dedent(CAUGHT)}\nlogging.getLogger('standfast').error('after it')")
    assert "task 0_0 is given up" in done.stderr
    assert "after it" not in done.stderr
