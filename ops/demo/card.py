"""The card that closes the demo: a label and a text a line.

Rules of this file: words only; every number comes from the document.
"""

from __future__ import annotations

from collections.abc import Iterator

from standfast.ops.demo.board import DAY_MS, TASKS
from standfast.ops.demo.result import Json, differences
from standfast.ops.shared.output import Output
from standfast.store.timestamps import duration_text

TEXT_AT = 16


def print_card(result: Json, out: Output) -> None:
    """Print the card, wrapped on a terminal."""
    equal = "every row is equal" if result["fed"]["guarantee"] == "exactly_once" else "nothing is lost"
    took = seconds(result["takeover"]["to_running_ms"])
    verdict = f"{equal}; standbys took over in {took}" if result["ok"] else "NOT equal: see the problems"
    out.text(f"standfast demo: {verdict}")
    for label, text in lines(result):
        out.text(f"  {label:<{TEXT_AT - 3}} {text}", TEXT_AT)


def lines(result: Json) -> Iterator[tuple[str, str]]:
    """The lines below the verdict: label and text."""
    fed, takeover, board, log = (result[name] for name in ("fed", "takeover", "board", "log"))
    yield from (("problem", problem) for problem in result["problems"])
    yield "log", f"{log['kind']}, {log['address']}" + f", Kafka {log['kafka']} started for it" * bool(log["kafka"])
    yield (
        "flights",
        f"{fed['records']:,} fed in order of departure ({fed['out_of_order']:,} out of order by schedule); left out: "
        f"{fed['cancelled']:,} cancelled, {fed['without_aircraft']:,} without aircraft",
    )
    yield "B joins", _joined(result["joined"])
    yield (
        "kill -9 A",
        f"with {takeover['tasks']} tasks, at {takeover['committed']:,} flights committed, {takeover['waiting']:,} "
        "waiting",
    )
    yield (
        "take-over",
        f"{seconds(takeover['to_running_ms'])} from the kill until B ran them all: its lease had run out after "
        f"{seconds(takeover['to_decided_ms'])}; the standbys lacked {takeover['lacked']:,} changes",
    )
    yield "A comes back", _joined(result["returned"])
    yield (
        "windows",
        f"an hour closes {fed['grace_ms'] / DAY_MS:.1f} days after its end (grace), rows are kept "
        f"{fed['retention_ms'] / DAY_MS:.1f} days",
    )
    yield "punctuation", f"{board['retired']:,} aircraft retired, a day after they were last seen"
    yield from _checks(result)
    if result["spark"]:
        yield from _spark(result["spark"], kept=result["kept_in"] is not None)
    yield from (("left out", text) for text in result["left_out"])
    if result["kept_in"]:
        yield "kept in", result["kept_in"]
    yield "took", f"{result['duration_ms'] / 1_000:.1f} s"


def seconds(ms: int) -> str:
    """A duration in seconds."""
    return f"{ms / 1_000:.2f} s"


def _joined(joined: Json) -> str:
    return (
        f"{joined['tasks']} of {TASKS} tasks by warm hand-overs; a task was processed nowhere for "
        f"{duration_text(joined['longest_pause_ms'])} at most"
    )


def _checks(result: Json) -> Iterator[tuple[str, str]]:
    fed, stores, finals, verify = (result[name] for name in ("fed", "stores", "finals", "verify"))
    cold, before = result["cold_restore"], result["takeover"]["finals_before"]
    rows = " + ".join(f"{one['expected']:,} {name}" for name, one in stores.items())
    yield "file", f"{rows} rows compared, {sum(map(differences, stores.values()))} differences"
    guarantee = fed["guarantee"].replace("_", " ")
    yield guarantee, f"{result['board']['flights']:,} flights counted of {fed['records']:,} fed"
    once = f"{finals['repeated']} again" if finals["repeated"] else "each once"
    yield (
        "final results",
        f"{finals['expected']:,} hours closed, {once}: {before:,} given before the kill, "
        f"{finals['records'] - before:,} after it; {differences(finals)} differences",
    )
    yield "offsets", f"{sum(result['offsets']['committed'].values()):,} committed of {fed['records']:,} records"
    yield "changelogs", f"{verify['rows']:,} rows verified by digest, {verify['unequal']} stores unequal"
    same = "same" if cold["equal"] else "OTHER"
    yield "cold restore", f"{cold['records']:,} changes in {seconds(cold['duration_ms'])}, {same} digests"
    yield from (("digest", f"{name} {one['digest']}") for name, one in stores.items())


def _spark(spark: Json, *, kept: bool) -> Iterator[tuple[str, str]]:
    yield (
        "Spark",
        f"{spark['stores']} stores of {spark['records']:,} changes inspected, rebuilt and verified in "
        f"{seconds(spark['elapsed_ms'])} by {spark['version']}: {spark['rows']:,} rows equal, "
        f"{spark['differences']} differences; {spark['same_digest']} of {spark['rebuilt']} rebuilt partitions have the digest of the live ones",
    )
    if kept:
        yield "report", spark["report"]
