"""Runs worlds: `python -m simulator --seed 7`, or `--seeds 500 --jobs 2`; each failure is shrunk and told.

Run it from the checkout with `PYTHONPATH=proof`; `make simulate SEEDS=n` does that.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path

from simulator.coverage import Coverage
from simulator.lives import kinds_table, unseen
from simulator.plan import Plan, draw_plan
from simulator.run import Outcome, run, run_seed
from simulator.shrink import shrink, story

STORIES_MAX = 5  # a broken product fails everywhere: the first stories are enough


def main() -> int:
    """Returns 1 if a promise was broken."""
    parser = argparse.ArgumentParser(prog="simulator", description=__doc__)
    parser.add_argument("--seed", type=int, help="one seed, with its story")
    parser.add_argument("--seeds", type=int, default=100, metavar="N", help="so many, from --from on (100)")
    parser.add_argument("--from", type=int, default=0, dest="first", metavar="SEED", help="(0)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, metavar="N", help="processes (one per core)")
    parser.add_argument("--machines", type=int)
    parser.add_argument("--records", type=int)
    parser.add_argument("--standbys", type=int)
    parser.add_argument("--faults", metavar="0,2", help="only these faults of the seed; none: no fault")
    parser.add_argument("--trace", action="store_true", help="of one seed: print every call")
    parser.add_argument("--scripts", type=Path, metavar="FILE", help="write the lives of tasks, each once")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was found")
    args = parser.parse_args()
    return _one(_changed(draw_plan(args.seed), args), args) if args.seed is not None else _many(args)


def _one(plan: Plan, args: argparse.Namespace) -> int:
    outcome = run(plan)
    print("\n".join(outcome.trace if args.trace else [*outcome.events, *map(str, outcome.alarms)]))
    print(f"seed {plan.seed}: {len(outcome.alarms)} alarms in {outcome.simulated_ms} ms, trace {outcome.digest[:16]}")
    return 1 if outcome.alarms else 0


def _many(args: argparse.Namespace) -> int:
    began, coverage, checkers, failed = time.monotonic(), Coverage(), Counter[str](), []
    scripts: dict[str, int] = {}  # of lives: the first seed that shows each
    for outcome in _outcomes(range(args.first, args.first + args.seeds), args.jobs):
        coverage.add(outcome)
        scripts = dict.fromkeys(outcome.scripts, outcome.plan.seed) | scripts
        if outcome.alarms:
            failed.append(outcome.plan.seed)
            checkers.update({alarm.checker for alarm in outcome.alarms})
            print(f"seed {outcome.plan.seed}: {len(outcome.alarms)} alarms", flush=True)
            if len(failed) <= STORIES_MAX:
                print(story(shrink(outcome, run)), flush=True)
    took_s = time.monotonic() - began
    print(coverage.table())
    print(f"{len(scripts)} scripts of lives; scripts that show each kind of step:\n{kinds_table(scripts)}")
    print(f"{args.seeds} seeds in {took_s:.0f} s, {len(failed)} failed: {failed[:20]} {dict(checkers)}")
    if args.scripts:
        args.scripts.write_text("".join(f"{script} | {seed}\n" for script, seed in sorted(scripts.items())))
    if args.json:
        found = {
            "seeds": args.seeds,
            "failed": failed,
            "checkers": checkers,
            "missing": coverage.missing() + unseen(scripts),
        }
        args.json.write_text(json.dumps(found | {"took_s": took_s}, indent=1) + "\n")
    return 1 if failed else 0


def _outcomes(seeds: range, jobs: int) -> Iterator[Outcome]:
    """The outcomes of all seeds, in their order."""
    # Not forked: a process begins without the threads and files of this one.
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
        yield from pool.map(run_seed, seeds, chunksize=4)


def _changed(plan: Plan, args: argparse.Namespace) -> Plan:
    names = ("machines", "records", "standbys")
    plan = replace(plan, **{name: getattr(args, name) for name in names if getattr(args, name) is not None})
    faults = plan.faults
    if args.faults is not None:
        kept = set() if args.faults == "none" else set(map(int, args.faults.split(",")))
        faults = tuple(fault for number, fault in enumerate(faults) if number in kept)
    return replace(plan, faults=tuple(one for one in faults if one.machine < plan.machines))


if __name__ == "__main__":
    sys.exit(main())
