"""Runs worlds: `python -m simulator --seed 7`, or `--seeds 500 --from 1`; the first failure is shrunk and told.

Run it from the checkout with `PYTHONPATH=proof`; `make simulate SEEDS=n` does that.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from dataclasses import replace

from simulator.plan import Plan, draw_plan
from simulator.run import run
from simulator.shrink import shrink, story


def main() -> int:
    """Returns 1 if a promise was broken."""
    parser = argparse.ArgumentParser(prog="simulator", description=__doc__)
    parser.add_argument("--seed", type=int, help="one seed")
    parser.add_argument("--seeds", type=int, default=100, metavar="N", help="so many, from --from on (100)")
    parser.add_argument("--from", type=int, default=0, dest="first", metavar="SEED", help="(0)")
    parser.add_argument("--machines", type=int)
    parser.add_argument("--records", type=int)
    parser.add_argument("--standbys", type=int)
    parser.add_argument("--faults", metavar="0,2", help="only these faults of the seed; none: no fault")
    parser.add_argument("--trace", action="store_true", help="print every call")
    parser.add_argument("--no-shrink", action="store_true")
    args = parser.parse_args()
    seeds = range(args.first, args.first + args.seeds) if args.seed is None else [args.seed]
    began, failed = time.monotonic(), 0
    met: Counter[tuple[str, str]] = Counter()
    states: Counter[tuple[str, str]] = Counter()
    for seed in seeds:
        outcome = run(_changed(draw_plan(seed), args))
        met += outcome.met
        states += outcome.states
        if args.trace:
            print("\n".join(outcome.trace))
        if outcome.alarms:
            failed += 1
            print(f"seed {seed}: {len(outcome.alarms)} alarms")
            print(story(outcome if args.no_shrink or args.seed is not None else shrink(outcome, run)), flush=True)
        elif args.seed is not None:
            print("\n".join(outcome.events))
    print(f"{len(seeds)} seeds, {failed} failed, {(time.monotonic() - began) / len(seeds):.2f} s a seed")
    for title, counts in (("fault x call", met), ("fault x task", states)):
        print(f"{title}: " + ", ".join(f"{one[0]} {one[1]} {count}" for one, count in sorted(counts.items())))
    return 1 if failed else 0


def _changed(plan: Plan, args: argparse.Namespace) -> Plan:
    given = {
        name: getattr(args, name) for name in ("machines", "records", "standbys") if getattr(args, name) is not None
    }
    plan = replace(plan, **given)
    faults = plan.faults
    if args.faults is not None:
        kept = set() if args.faults == "none" else set(map(int, args.faults.split(",")))
        faults = tuple(fault for number, fault in enumerate(faults) if number in kept)
    return replace(plan, faults=tuple(one for one in faults if one.machine < plan.machines))


if __name__ == "__main__":
    sys.exit(main())
