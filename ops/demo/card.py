"""The card that closes the demo: a label and a text a line, wrapped on a terminal.

Rules of this file: words and layout only; every number comes from the document.
"""

from __future__ import annotations

from string import Formatter
from typing import Any, TextIO

from rich.console import Console
from rich.text import Text

from standfast.ops.demo.board import DAY_MS, TASKS
from standfast.ops.demo.result import Json, removal_line
from standfast.ops.shared.extras import install
from standfast.ops.shared.output import WIDE
from standfast.ops.shared.table import wrap
from standfast.store.timestamps import duration_text

WIDTH_MAX, TEXT_AT = 96, 16
COURSE = f"""
flights: {{fed[records]:,}} fed in order of departure ({{fed[out_of_order]:,}} out of order by schedule); \
left out: {{fed[cancelled]:,}} cancelled, {{fed[without_aircraft]:,}} without aircraft
C joins: {{scale_out[tasks]}} of {TASKS} tasks by warm hand-overs within {{scale_out[took_ms]:s}}; \
a task was processed nowhere for {{scale_out[longest_pause_ms]:duration}} at most
kill -9 A: with {{takeover[tasks]}} tasks, at {{takeover[processed]:,}} processed, \
{{takeover[committed]:,}} committed, {{takeover[waiting]:,}} waiting
take-over: {{takeover[to_running_ms]:s}} from the kill: {{takeover[to_restoring_ms]:s}} until the lease had run out, \
{{after_ms:s}} for {{takeover[tasks]}} tasks at B and C; their first record after {{takeover[to_first_record_ms]:s}}
standbys: {{takeover[standby_replayed]:,}} changes replayed before, {{takeover[tail_replayed]:,}} behind the gate
processed: {{by_process}}
gate: {{takeover[gate_waits]}} wait{{plural}}, {{takeover[gate_wait_ms]:duration}} in all
windows: an hour closes {{fed[grace_ms]:days}} after its end (grace), {{board[late_windows]}} late; \
kept {{fed[retention_ms]:days}}: {{board[segments_expired]}} segments expired
punctuation: {{comparison[aircraft_retired]:,}} aircraft retired, a day after they were last seen; \
live board published {{board[live_records]}} times
file: {{rows}} rows compared, {{comparison[differences]}} differences
{{guarantee}}: {{comparison[flights_counted]:,}} flights counted of {{fed[records]:,}} fed{{again}}
final results: {{finals[expected]:,}} hours closed, {{once}}: {{board[finals_before]:,}} given before the kill, \
{{finals_after:,}} after it; {{finals[differences]}} differences
offsets: {{committed:,}} committed of {{fed[records]:,}} records
changelogs: {{verify[rows]:,}} rows verified by digest, {{verify[mismatches]}} differences
A came back: and got {{returned[tasks]}} tasks, {{returned[standby_replayed]:,}} missed changes, \
{{returned[equal]:same}}
cold restore: {{cold_restore[records]:,}} changes in {{cold_restore[duration_ms]:s}} \
({{cold_restore[records_per_s]:,}}/s, opening included), {{cold_restore[equal]:same}}
"""
SPARK = """
Spark: {spark[stores]} stores of {spark[records]:,} changes inspected, rebuilt and verified in \
{spark[elapsed_ms]:tenths} (and {spark[started_ms]:tenths} to start {spark[version]}): {spark[rows]:,} rows equal, \
{spark[differences]} differences; {spark[same_digest]} of {spark[rebuilt]} rebuilt partitions have the digest of the \
live rows
"""


def print_card(result: Json, out: TextIO) -> None:
    """Print the card for `out`'s kind: a terminal, in its width, or not."""
    console = Console(file=out, highlight=False)
    width = min(console.width, WIDTH_MAX) if console.is_terminal and not console.is_dumb_terminal else WIDE
    took = _Card().format("standbys took over in {takeover[to_running_ms]:s}", **result)
    equal = "every row is equal" if result["comparison"]["exact"] else "nothing is lost"
    verdict = f"{equal}; {took}" if result["ok"] else "NOT equal: see the problems"
    style = f"bold {'green' if result['ok'] else 'red'}"
    console.print(Text(f"standfast demo: {verdict}", style=style), soft_wrap=True)
    for line in card(result, width):
        console.print(Text(line, style="red" if line.startswith("  problem") else ""), soft_wrap=True)


def card(result: Json, width: int) -> list[str]:
    """The lines below the verdict, for any width."""
    found = []
    for label, text in lines(result):
        first, *more = wrap(text, width - TEXT_AT)
        found += [f"  {label:<{TEXT_AT - 3}} {first}", *(" " * TEXT_AT + line for line in more)]
    return found


def lines(result: Json) -> list[tuple[str, str]]:
    """The card's lines: label and text."""
    log, spark, kept_in = result["log"], result["spark"], result["kept_in"]
    found = [*(("problem", problem) for problem in result["problems"]), ("log", _log(log))]
    told = _Card().format(COURSE + SPARK.lstrip() * bool(spark), **result, **_words(result))
    for line in told.strip().split("\n"):
        label, _, text = line.partition(": ")
        found.append((label, text))
    if spark and kept_in:
        found.append(("report", spark["report"]))
    found += [("digest", f"{store} {digest}") for store, digest in result["digests"].items()]
    address, samples = result["metrics"]["address"], result["metrics"]["samples"]
    served = f"{address}/metrics served {samples} samples" if address else f"not served without: {install('serve')}"
    found += [("metrics", served), *(("left out", text) for text in result["left_out"])]
    if log["topics"]:
        kept = f"{len(log['topics'])} are kept; remove them with: {removal_line(log['address'], log['prefix'])}"
        found.append(("topics", f"the demo removed its {len(log['topics'])}" if log["removed"] else kept))
    if kept_in:
        found.append(("kept in", kept_in))
    return [*found, ("took", f"{result['duration_ms'] / 1_000:.1f} s")]


class _Card(Formatter):
    """Figures as the card has them."""

    def format_field(self, value: Any, format_spec: str) -> str:
        match format_spec:
            case "s" | "tenths":
                return f"{value / 1_000:.{2 if format_spec == 's' else 1}f} s"
            case "duration":
                return duration_text(value)
            case "days":
                return f"{value / DAY_MS:.{int(bool(value % DAY_MS))}f} days"
            case "same":
                return "same digests" if value else "OTHER digests"
        return str(super().format_field(value, format_spec))


def _words(result: Json) -> Json:
    """Parts of the lines that are no field of the document."""
    takeover, compared, finals = result["takeover"], result["comparison"], result["finals"]
    exact, repeated = compared["exact"], finals["repeated"]
    again = max(compared["windowed_flights_counted"] - compared["windowed_flights_expected"], 0)
    return {
        "after_ms": takeover["to_running_ms"] - takeover["to_restoring_ms"],
        "by_process": ", ".join(f"{count:,} by {name.upper()}" for name, count in result["processed"].items()),
        "plural": "s" * (takeover["gate_waits"] != 1),
        "rows": " + ".join(f"{one['expected']:,} {name}" for name, one in compared["stores"].items()),
        "guarantee": "exactly once" if exact else "at least once",
        "again": "" if exact else f"; after the kill {again:,} were counted again by airport, none lost",
        "once": "each once" if not repeated else f"{repeated} {'AGAIN' if finals['exact'] else 'again'}",
        "finals_after": finals["records"] - result["board"]["finals_before"],
        "committed": sum(result["offsets"]["committed"].values()),
    }


def _log(log: Json) -> str:
    if log["pid"] is not None:
        started = f"started for this run in {(log['started_ms'] or 0) / 1_000:.1f} s, pid {log['pid']}, stopped"
        return f"Kafka {log['kafka']} at {log['address']}: {started}"
    return f"{log['address']}, every name begins with {log['prefix']}-" if log["topics"] else "embedded, one file"
