"""Figures of the comparison, from its runs: medians and spread, ratios round by round, goals.

A restore from a snapshot is compared with the others' restore of the same records from the log.

Rules of this file: pure. A goal counts only for the numbers of records and keys for which it is set.
"""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Sequence

    from compare_runs import Ground

Json: TypeAlias = dict[str, Any]
SCHEMA = "standfast.compare/1"
MEASURES = (
    *("elapsed_ms", "processed_ms", "from_start_ms", "cpu_s", "cpu_from_start_s", "peak_bytes", "written_bytes"),
    *("restored", "lost", "noticed_ms"),
)
OURS = "standfast"
GOAL_RECORDS, GOAL_KEYS = 2_000_000, 500_000
KEYS_SHARE = GOAL_RECORDS // GOAL_KEYS  # records a key of every size with a goal
CLOCKS = ("processed_ms", "elapsed_ms")
# Scenario and other system: the least ratio of its time to ours, on both clocks, and of its processor time. "-tuned"
# stands for the best of its tuned settings.
GOALS: dict[tuple[str, str], tuple[float, float | None]] = {
    ("cold-1", "quix"): (25.0, None),
    **{
        (scenario, streams + "-tuned"): goals
        for streams in ("kafka-streams", "kafka-streams-4.4")
        for scenario, goals in (
            ("cold-1", (4.0, 4.0)),
            ("cold-4", (3.0, None)),
            ("cold-distinct", (2.0, 2.0)),
            ("window-expired", (10.0, None)),
        )
    },
}

# Records, and the least ratio of Kafka Streams' time, at its best setting, to that of a restore from a snapshot.
SNAPSHOT_GOALS = {2_000_000: 8.0, 10_000_000: 20.0}
SNAPSHOT_COPIES = ("snapshot-folder", "snapshot-s3")
# Scenario of ours: the others' scenario beside it.
BESIDE: dict[str, str] = dict.fromkeys((*SNAPSHOT_COPIES, "snapshot-links"), "cold-1")
BYTES = "snapshot-bytes"
UPLOAD_GOALS = {"next": 0.15}  # the largest share of a snapshot's bytes that the step may upload


def document(
    settings: Json, versions: Json, grounds: Sequence[Ground], runs: list[Json], failure: str | None = None
) -> Json:
    """The whole result; after a failure, the part up to it."""
    comparable = settings["records"] == settings["keys"] * KEYS_SHARE
    return {
        "schema": SCHEMA,
        "failure": failure,
        "settings": settings,
        "versions": versions,
        "changelogs": [
            {"system": one.family, "ground": one.name, "partitions": one.shape.partitions, "guarantee": one.guarantee}
            | one.changelog
            for one in grounds
            if one.changelog
        ],
        "results": [
            result(scenario, system, runs)
            for scenario in settings["scenarios"]
            for system in settings["systems"]
            if scenario != BYTES and chosen(scenario, system, runs)
        ],
        "uploads": uploads(
            [run for run in runs if run["scenario"] == BYTES],
            comparable=comparable and settings["records"] in SNAPSHOT_GOALS,
        ),
        "ratios": ratios(settings, runs, comparable=comparable),
        # The result of lost-rows is the number of missing rows, so it does not make the comparison incorrect.
        "correct": all(run["correct"] for run in runs if run["scenario"] != "lost-rows"),
        "runs": runs,
    }


def chosen(scenario: str, system: str, runs: list[Json]) -> list[Json]:
    """Runs of one system in one scenario, in the order of the rounds."""
    return [run for run in runs if (run["scenario"], run["system"]) == (scenario, system)]


def result(scenario: str, system: str, runs: list[Json]) -> Json:
    """Median, minimum and maximum of each measure."""
    own = chosen(scenario, system, runs)
    measures = {
        name: {"median": median(values), "min": min(values), "max": max(values)}
        for name in MEASURES
        if (values := [run[name] for run in own if name in run])
    }
    return (
        {"scenario": scenario, "system": system, "rounds": len(own)}
        | measures
        | {"correct": all(run["correct"] for run in own)}
    )


def ratios(settings: Json, runs: list[Json], *, comparable: bool) -> list[Json]:
    """Figures of the other systems divided by ours: the median of the rounds.

    The best of a version's tuned settings stands for all of them, for each scenario and measure by itself.
    """
    records = settings.get("records", GOAL_RECORDS)
    found = []
    scenarios: list[str] = settings["scenarios"]
    for scenario in scenarios:
        ours = chosen(scenario, OURS, runs)
        if not ours:
            continue
        theirs_in = BESIDE.get(scenario, scenario)
        for system, all_settings in others(settings["systems"]).items():
            for measure in (*CLOCKS, "cpu_s"):
                theirs = best(theirs_in, all_settings, measure, runs)
                if not theirs:
                    continue
                # Round by round: both runs of a pair met the machine in about the same state.
                rounds = [two[measure] / max(one[measure], 1e-9) for one, two in zip(ours, theirs, strict=False)]
                goal = goal_of(scenario, system, measure, records) if comparable else None
                found.append(
                    {
                        "scenario": scenario,
                        "beside": theirs[0]["scenario"],
                        "system": system,
                        "setting": theirs[0]["system"],
                        "measure": measure,
                        "median": median(rounds),
                        "min": min(rounds),
                        "max": max(rounds),
                        "goal": goal,
                        "goal_met": None if goal is None else median(rounds) >= goal,
                    }
                )
    return found


def others(systems: list[str]) -> dict[str, list[str]]:
    """The other systems, a version's tuned settings as one."""
    found: dict[str, list[str]] = {}
    for system in systems:
        if system != OURS:
            base, tuned, _ = system.partition("-tuned")
            found.setdefault(base + tuned, []).append(system)
    return found


def best(scenario: str, settings: list[str], measure: str, runs: list[Json]) -> list[Json]:
    """Runs of the setting whose median is the least."""
    found = [own for system in settings if (own := chosen(scenario, system, runs))]
    return min(found, key=lambda own: median(run[measure] for run in own), default=[])


def goal_of(scenario: str, system: str, measure: str, records: int) -> float | None:
    """The least ratio that we want; None without a goal."""
    if scenario in SNAPSHOT_COPIES:
        # Of every setting of Kafka Streams: the goal is about the best of them.
        return SNAPSHOT_GOALS.get(records) if system != "quix" and measure in CLOCKS else None
    if records != GOAL_RECORDS:
        return None
    of_time, of_processor = GOALS.get((scenario, system), (None, None))
    return of_processor if measure == "cpu_s" else of_time


def uploads(runs: list[Json], *, comparable: bool) -> list[Json]:
    """Bytes that each kind of snapshot uploaded, and their share of the snapshot's bytes: medians of the rounds."""
    steps: dict[str, list[Json]] = {}
    for step in (step for run in runs for step in run["steps"]):
        steps.setdefault(step["step"], []).append(step)
    found = []
    for name, own in steps.items():
        share = median(one["uploaded_bytes"] / one["snapshot_bytes"] for one in own)
        goal = UPLOAD_GOALS.get(name) if comparable else None  # few rows weigh less than the database's own files
        sizes = ("uploaded_bytes", "uploaded_files", "snapshot_bytes", "snapshot_files", "elapsed_ms")
        found.append(
            {"step": name, "rounds": len(own), "share": share}
            | {size: median(one[size] for one in own) for size in sizes}
            | {"goal": goal, "goal_met": None if goal is None else share < goal}
        )
    return found
