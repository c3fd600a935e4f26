"""Figures of the comparison, from its runs: medians and spread, ratios round by round, goals.

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
# (scenario, other system, measure): the least ratio of the other system's figure to ours.
GOALS = {
    ("cold-1", "kafka-streams-tuned", "elapsed_ms"): 2.0,
    ("cold-1", "quix", "elapsed_ms"): 10.0,
    ("cold-4", "kafka-streams-tuned", "elapsed_ms"): 2.0,
    ("cold-1", "kafka-streams-tuned", "cpu_s"): 2.0,
    ("cold-4", "kafka-streams-tuned", "cpu_s"): 2.0,
    ("window-expired", "kafka-streams-tuned", "elapsed_ms"): 10.0,
}


def document(
    settings: Json, versions: Json, grounds: Sequence[Ground], runs: list[Json], failure: str | None = None
) -> Json:
    """The whole result; after a failure, the part up to it."""
    comparable = (settings["records"], settings["keys"]) == (GOAL_RECORDS, GOAL_KEYS)
    return {
        "schema": SCHEMA,
        "failure": failure,
        "settings": settings,
        "versions": versions,
        "changelogs": [
            {"system": one.system, "ground": one.name, "partitions": one.shape.partitions, "guarantee": one.guarantee}
            | one.changelog
            for one in grounds
            if one.changelog
        ],
        "results": [
            result(scenario, system, runs)
            for scenario in settings["scenarios"]
            for system in settings["systems"]
            if chosen(scenario, system, runs)
        ],
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
    """Figures of the other systems divided by ours: the median of the rounds."""
    found = []
    for scenario in settings["scenarios"]:
        ours = chosen(scenario, OURS, runs)
        for system in settings["systems"]:
            theirs = chosen(scenario, system, runs)
            if system == OURS or not ours or not theirs:
                continue
            for name in ("elapsed_ms", "cpu_s"):
                # Round by round: both runs of a pair met the machine in about the same state.
                rounds = [two[name] / max(one[name], 1e-9) for one, two in zip(ours, theirs, strict=False)]
                goal = GOALS.get((scenario, system, name)) if comparable else None
                found.append(
                    {
                        "scenario": scenario,
                        "system": system,
                        "measure": name,
                        "median": median(rounds),
                        "min": min(rounds),
                        "max": max(rounds),
                        "goal": goal,
                        "goal_met": None if goal is None else median(rounds) >= goal,
                    }
                )
    return found
