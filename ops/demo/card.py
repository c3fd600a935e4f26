"""The card that closes the demo: a label and a text a line, wrapped on a terminal.

Rules of this file: words and layout only; every number comes from the result.
"""

from __future__ import annotations

from typing import TextIO

from rich.console import Console
from rich.text import Text

from standfast.ops.demo.board import DAY_MS, TASKS
from standfast.ops.demo.result import DemoResult, left_out, removal_line
from standfast.ops.shared.extras import install
from standfast.ops.shared.output import WIDE
from standfast.ops.shared.table import wrap
from standfast.store.timestamps import duration_text

WIDTH_MAX, TEXT_AT = 96, 16


def print_card(result: DemoResult, out: TextIO) -> None:
    """Print the card for `out`'s kind: a terminal, in its width, or not."""
    console = Console(file=out, highlight=False)
    width = min(console.width, WIDTH_MAX) if console.is_terminal and not console.is_dumb_terminal else WIDE
    good = "red" if result.problems else "green"
    console.print(Text(f"standfast demo: {verdict(result)}", style=f"bold {good}"), soft_wrap=True)
    for line in card(result, width):
        console.print(Text(line, style="red" if line.startswith("  problem") else ""), soft_wrap=True)


def card(result: DemoResult, width: int) -> list[str]:
    """The lines below the verdict, for any width."""
    found = []
    for label, text in lines(result):
        first, *more = wrap(text, width - TEXT_AT)
        found += [f"  {label:<{TEXT_AT - 3}} {first}", *(" " * TEXT_AT + line for line in more)]
    return found


def verdict(result: DemoResult) -> str:
    """One line with the outcome of the demo."""
    took_s = result.takeover.to_running_ms / 1_000
    if result.problems:
        return "NOT equal: see the problems"
    rows = "every row is equal" if result.comparison.exact else "nothing is lost"
    return f"{rows}; standbys took over in {took_s:.2f} s"


def lines(result: DemoResult) -> list[tuple[str, str]]:
    """The card's lines: label and text."""
    found = [("problem", problem) for problem in result.problems]
    return [*found, ("log", _log(result)), *_course(result), *_checks(result), *_spark(result), *_rest(result)]


def _log(result: DemoResult) -> str:
    log = result.log
    if log.pid is not None:
        started_s = (log.started_ms or 0) / 1_000
        return f"Kafka {log.kafka} at {log.address}: started for this run in {started_s:.1f} s, pid {log.pid}, stopped"
    if log.shared:
        return f"{log.address}, every name begins with {log.prefix}-"
    return "embedded, one file"


def _course(result: DemoResult) -> list[tuple[str, str]]:
    fed, takeover, board, joined = result.fed, result.takeover, result.board, result.scale_out
    after_ms = takeover.to_running_ms - takeover.to_restoring_ms
    return [
        (
            "flights",
            f"{fed.records:,} fed in order of departure ({fed.out_of_order:,} out of order by schedule); "
            f"left out: {fed.cancelled:,} cancelled, {fed.without_aircraft:,} without aircraft",
        ),
        (
            "C joins",
            f"{joined.tasks} of {TASKS} tasks by warm hand-overs within {joined.took_ms / 1_000:.2f} s; "
            f"a task was processed nowhere for {duration_text(joined.longest_pause_ms)} at most",
        ),
        (
            "kill -9 A",
            f"with {takeover.tasks} tasks, at {takeover.processed:,} processed, {takeover.committed:,} committed, "
            f"{takeover.waiting:,} waiting",
        ),
        (
            "take-over",
            f"{takeover.to_running_ms / 1_000:.2f} s from the kill: {takeover.to_restoring_ms / 1_000:.2f} s until the "
            f"lease had run out, {after_ms / 1_000:.2f} s for {takeover.tasks} tasks at B and C; their first record "
            f"after {takeover.to_first_record_ms / 1_000:.2f} s",
        ),
        (
            "standbys",
            f"{takeover.standby_replayed:,} changes replayed before, {takeover.tail_replayed:,} behind the gate",
        ),
        ("processed", ", ".join(f"{count:,} by {name.upper()}" for name, count in result.processed.items())),
        (
            "gate",
            f"{takeover.gate_waits} wait{'s' * (takeover.gate_waits != 1)}, "
            f"{duration_text(takeover.gate_wait_ms)} in all",
        ),
        (
            "windows",
            f"an hour closes {_days(fed.grace_ms)} after its end (grace), {board.late_windows} late; "
            f"kept {_days(fed.retention_ms)}: {board.segments_expired} segments expired",
        ),
        (
            "punctuation",
            f"{result.comparison.aircraft_retired:,} aircraft retired, a day after they were last seen; "
            f"live board published {board.live_records} times",
        ),
    ]


def _checks(result: DemoResult) -> list[tuple[str, str]]:
    comparison, finals, cold = result.comparison, result.finals, result.cold
    before = result.board.finals_before
    rows = " + ".join(f"{one.expected:,} {one.store}" for one in comparison.stores)
    once = "each once" if not finals.repeated else f"{finals.repeated} {'AGAIN' if finals.exact else 'again'}"
    return [
        ("file", f"{rows} rows compared, {comparison.differences} differences"),
        _counted(result),
        (
            "final results",
            f"{finals.expected:,} hours closed, {once}: {before:,} given before the kill, "
            f"{finals.records - before:,} after it; {finals.differences} differences",
        ),
        ("offsets", f"{sum(result.offsets.committed.values()):,} committed of {result.fed.records:,} records"),
        (
            "changelogs",
            f"{result.verified.rows:,} rows verified by digest, {result.verified.mismatches} differences",
        ),
        (
            "A came back",
            f"and got {result.returned.tasks} tasks, {result.returned.standby_replayed:,} missed changes, "
            f"{_same(result.returned.equal)}",
        ),
        (
            "cold restore",
            f"{cold.records:,} changes in {cold.duration_ms / 1_000:.2f} s "
            f"({cold.records_per_s:,}/s, opening included), {_same(cold.equal)}",
        ),
    ]


def _spark(result: DemoResult) -> list[tuple[str, str]]:
    run = result.spark
    if run is None:
        return []
    told = (
        f"{run.stores} stores of {run.records:,} changes inspected, rebuilt and verified in "
        f"{run.elapsed_ms / 1_000:.1f} s (and {run.started_ms / 1_000:.1f} s to start {run.version}): "
        f"{run.rows:,} rows equal, {run.differences} differences; "
    )
    told += f"{run.same_digest} of {run.rebuilt} rebuilt partitions have the digest of the live rows"
    report = [] if result.kept_in is None else [("report", run.report)]
    return [("Spark", told), *report]


def _counted(result: DemoResult) -> tuple[str, str]:
    comparison = result.comparison
    counted = f"{comparison.flights_counted:,} flights counted of {result.fed.records:,} fed"
    if comparison.exact:
        return "exactly once", counted
    return "at least once", f"{counted}; after the kill {comparison.again:,} were counted again by airport, none lost"


def _rest(result: DemoResult) -> list[tuple[str, str]]:
    found = [("digest", f"{store} {digest}") for store, digest in result.digests.items()]
    served = f"{result.metrics.address}/metrics served {result.metrics.samples} samples"
    found.append(("metrics", served if result.metrics.address else f"not served without: {install('serve')}"))
    found += [("left out", text) for text in left_out(result)]
    if result.log.shared:
        found.append(("topics", _topics(result)))
    if result.kept_in is not None:
        found.append(("kept in", result.kept_in))
    found.append(("took", f"{result.duration_ms / 1_000:.1f} s"))
    return found


def _topics(result: DemoResult) -> str:
    log = result.log
    if log.removed:
        return f"the demo removed its {len(log.topics)}"
    return f"{len(log.topics)} are kept; remove them with: {removal_line(log.address, log.prefix)}"


def _days(duration_ms: int) -> str:
    days = duration_ms / DAY_MS
    return f"{days:.0f} days" if days.is_integer() else f"{days:.1f} days"


def _same(equal: bool) -> str:
    return "same digests" if equal else "OTHER digests"
