"""Figures of `make bench`, as JSON, beside our goals, for our own reports; users see figures only.

    PYTHONPATH=proof python -m bench restore --json | python proof/benchmarks/bench_goals.py

Rules of this file: standard library only. A goal counts only for the sizes for which it is set. The exit code is 1 if a
goal is missed.
"""

from __future__ import annotations

import json
import sys
from typing import Any, TypeAlias

Json: TypeAlias = dict[str, Any]
SIZES = {"key_bytes": 16, "value_bytes": 100, "batch": 1_000, "versions": 4}
# Records a second, at least; on Kafka for at least one of the two guarantees.
GOALS = {"put_commit": 150_000, "restore_distinct": 350_000, "restore_versions_near": 500_000, "process_count": 60_000}
GOALS_KAFKA = {"put_commit_exactly_once": 100_000, "put_commit_at_least_once": 100_000}
SHARES_KAFKA = {"restore_distinct": 0.35, "restore_versions_near": 0.60}  # of the bare consume loop
SHARE_PRODUCE = 0.5  # of the bare produce loop
# Microseconds of processor time a record, of all threads, at most; set for a machine whose empty loop turn
# of Python takes about 60 ns.
CPU_US = {"put_commit_at_least_once": 4, "put_commit_exactly_once": 5, "process_count": 10, "process_idle": 4}
FAILOVER_MS = 2_000  # from the kill to the first record, below
EITHER = frozenset(GOALS_KAFKA)


def judged(document: Json) -> list[tuple[str, float, float, bool]]:
    """(name, figure, goal, whether it is met) of every figure that has a goal."""
    kafka = document["log"]["kind"] != "embedded"
    found = []
    if document["bench"] == "failover":
        whole = next(one for one in document["measures"] if one["name"] == "failover")
        found.append(("failover", whole["median"], FAILOVER_MS, whole["median"] < FAILOVER_MS))
    if any(document["settings"].get(name, size) != size for name, size in SIZES.items()):
        return found
    goals = GOALS_KAFKA if kafka else GOALS
    found += [_at_least(one["name"], one["median"], goals) for one in document["measures"] if one["name"] in goals]
    if kafka:
        for ratio in document["ratios"]:
            name, _, other = ratio["name"].partition(" / ")
            if name in SHARES_KAFKA and other == f"{name}_bare":
                found.append(_at_least(name, ratio["value"], SHARES_KAFKA))
            if name in GOALS_KAFKA and other == "produce_bare":
                found.append((ratio["name"], ratio["value"], SHARE_PRODUCE, ratio["value"] >= SHARE_PRODUCE))
    for one in document["measures"]:
        if one["name"] in CPU_US and one.get("cpu_us") is not None:
            goal = CPU_US[one["name"]]
            found.append((f"{one['name']}, us of processor time", one["cpu_us"], goal, one["cpu_us"] <= goal))
    return found


def missed(found: list[tuple[str, float, float, bool]]) -> bool:
    """Whether a goal is missed; one of the two guarantees is enough."""
    either = [met for name, _, _, met in found if name in EITHER]
    return not all(met for name, _, _, met in found if name not in EITHER) or (bool(either) and not any(either))


def _at_least(name: str, figure: float, goals: dict[str, Any]) -> tuple[str, float, float, bool]:
    return name, figure, goals[name], figure >= goals[name]


def main() -> int:
    """Compare one document on stdin with the goals."""
    found = judged(json.load(sys.stdin))
    for name, figure, goal, met in found:
        print(f"{name}: {figure:,.10g}, goal {goal:,.10g}: {'met' if met else 'not met'}")
    if not found:
        print("no goal is set for these sizes")
    return int(missed(found))


if __name__ == "__main__":
    raise SystemExit(main())
