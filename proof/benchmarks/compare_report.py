"""The table of the newest comparison, as Markdown, from its JSON.

    cd proof/benchmarks
    python compare_report.py results/compare.json                prints it
    python compare_report.py results/compare.json --into PAGE    puts it between the marks of that page

Rules of this file: it reports every result of the file, wins and losses alike.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeAlias

Json: TypeAlias = dict[str, Any]
BEGIN, END = "<!-- proof/benchmarks/compare_report.py: begin -->", "<!-- proof/benchmarks/compare_report.py: end -->"
NAMES = {
    "standfast": "standfast",
    **{
        f"kafka-streams{version}{suffix}": f"Kafka Streams{version.replace('-', ' ')}{named}"
        for version in ("", "-4.4")
        for suffix, named in (
            ("", ""),
            ("-tuned-reads", ", reads tuned"),
            ("-tuned-writes", ", writes tuned"),
            ("-tuned", ", tuned"),
        )
    },
    "quix": "Quix Streams",
}
WHAT = {
    "cold-1": "cold, 1 partition",
    "cold-4": "cold, 4 partitions",
    "cold-distinct": "cold, distinct keys",
    "tail-clean": "tail after a clean stop",
    "tail-kill": "after SIGKILL, at least once",
    "tail-kill-eos": "after SIGKILL, exactly once",
    "window-expired": "window store, 95 % expired",
    "standby": "standby takes over",
    "lost-rows": "window store, killed after its segment rolled",
    "snapshot-folder": "snapshot and tail, from a folder",
    "snapshot-s3": "snapshot and tail, from S3 on loopback",
    "snapshot-links": "snapshot and tail, by hard links",
}
STEPS = {
    "first": "all rows, their first owner",
    "next": "1 % of the rows changed, the same owner",
    "compacted": "1 % changed, and every file compacted",
    "taken over": "1 % changed, by a standby that took over",
    "begun with one": "1 % changed, by an owner that began with a snapshot",
}


def table(found: Json) -> Iterator[str]:
    """Lines of Markdown."""
    yield head(found)
    if found.get("failure"):
        yield f"It ended early: {found['failure']}"
    yield ""
    yield (
        "| | system | s to the first records | times ours | s until idle | times ours | since start | processor s "
        "| peak MiB | written MiB | restored | rows |"
    )
    yield "|---|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|---|"
    ratios = {(one["scenario"], one["setting"], one["measure"]): one for one in found["ratios"]}
    before = ""
    for one in found["results"]:
        scenario, system = one["scenario"], one["system"]
        cells = [
            WHAT[scenario] if scenario != before else "",
            NAMES[system],
            *(
                cell
                for clock in ("processed_ms", "elapsed_ms")
                for cell in (spread(one[clock], 1_000), times(ratios.get((scenario, system, clock))))
            ),
            "" if scenario == "standby" else f"{one['from_start_ms']['median'] / 1_000:.2f}",
            spread(one["cpu_s"]),
            f"{one['peak_bytes']['median'] / 2**20:,.0f}",
            f"{one['written_bytes']['median'] / 2**20:,.0f}",
            f"{one['restored']['median']:,.0f}",
            rows(one),
        ]
        yield f"| {' | '.join(cells)} |"
        before = scenario
    if lines := [
        one for one in found["ratios"] if one["goal"] is not None or (beside(one) and one["measure"] != "cpu_s")
    ]:
        yield ""
        yield from map(goal_line, lines)
    if found.get("uploads"):  # older results have none
        yield ""
        yield from uploads(found["uploads"])


def head(found: Json) -> str:
    """Command, sizes, machine and versions of the comparison."""
    settings, versions = found["settings"], found["versions"]
    others = "".join(f", {label} {versions[key]}" for key, label in LABELS if key in versions)
    many = settings["rounds"] > 1
    return (
        f"`{settings['command']}` took {settings['elapsed_s'] / 60:.0f} minutes: {settings['records']:,} records of "
        f"112 bytes, {settings['keys']:,} keys, {settings['rounds']} round{'s' * many}; {versions['processor']}, "
        f"{versions['cores']} cores, Python {versions['python']}, Kafka {versions['kafka']}{others}. "
        f"{'Medians, with the least and the most of the rounds' if many else 'One run of each'}."
    )


def times(ratio: Json | None) -> str:
    """Cell of a ratio; empty for ours, and for a setting that is not its version's best."""
    return "" if ratio is None else f"{ratio['median']:.1f}"


def goal_line(one: Json) -> str:
    """A ratio beside its goal, if it has one."""
    what, theirs = MEASURES[one["measure"]], f"{NAMES[one['setting']]}{beside(one)}"
    goal = "" if one["goal"] is None else f"; goal {one['goal']:g}: {met(one)}"
    return (
        f"- {WHAT[one['scenario']]}, {what} of {theirs} beside ours: {one['median']:.2f} times "
        f"({one['min']:.2f}-{one['max']:.2f}){goal}."
    )


def beside(one: Json) -> str:
    """The others' scenario, if it is another than ours."""
    theirs = one.get("beside", one["scenario"])
    return "" if theirs == one["scenario"] else f" ({WHAT[theirs]})"


def met(one: Json) -> str:
    """Whether a goal is met."""
    return "met" if one["goal_met"] else "**not met**"


def uploads(found: list[Json]) -> Iterator[str]:
    """Table of the bytes that snapshots upload."""
    yield "| a snapshot of | uploaded MiB | of MiB | share | files | s | goal |"
    yield "|---|--:|--:|--:|--:|--:|---|"
    for one in found:
        cells = [
            STEPS[one["step"]],
            *(f"{one[name] / 2**20:,.1f}" for name in ("uploaded_bytes", "snapshot_bytes")),
            f"{one['share']:.1%}",
            f"{one['uploaded_files']:g} of {one['snapshot_files']:g}",
            f"{one['elapsed_ms'] / 1_000:.2f}",
            "" if one["goal"] is None else f"under {one['goal']:.0%}: {met(one)}",
        ]
        yield f"| {' | '.join(cells)} |"


MEASURES = {"processed_ms": "time to the first records", "elapsed_ms": "time until idle", "cpu_s": "processor time"}
LABELS = (
    *(("kafka-streams", "Kafka Streams"), ("kafka-streams-4.4", "Kafka Streams")),
    *(("java", "Java"), ("quixstreams", "Quix Streams")),
)


def spread(measure: Json, divisor: float = 1) -> str:
    """Median (minimum-maximum); the median alone if both are equal."""
    middle, least, most = (measure[name] / divisor for name in ("median", "min", "max"))
    if least == most:
        return f"{middle:.2f}"
    return f"{middle:.2f} ({least:.2f}-{most:.2f})"


def rows(one: Json) -> str:
    """Cell of the column `rows`: right, wrong, or the number of lost rows."""
    if "lost" in one and one["lost"]["max"]:
        return f"**{one['lost']['median']:,.0f} lost**"
    return "right" if one["correct"] else "**wrong**"


def main() -> None:
    """Print the table, or put it into a file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("json", type=Path)
    parser.add_argument("--into", type=Path, metavar="FILE", help="replace what stands between the marks there")
    args = parser.parse_args()
    text = "\n".join(table(json.loads(args.json.read_text(encoding="utf-8"))))
    if args.into is None:
        print(text)
        return
    before, mark, rest = args.into.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not mark or not end:
        raise SystemExit(f"{args.into} has no {BEGIN} ... {END}")
    args.into.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
