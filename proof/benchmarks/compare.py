"""The comparison: how long standfast, Kafka Streams and Quix Streams take until they can process again.

    make bench-compare                                        everything
    python proof/benchmarks/compare.py --records 100000 --rounds 1 --scenarios cold-1,lost-rows --systems standfast,quix

Each system writes its own changelog from the same records, through its own runtime, to one broker, which this program
starts. Then, in rounds in which every system has its turn:

    cold-1, cold-4      an empty directory; one partition, four partitions
    cold-distinct       an empty directory, one partition; as many keys as records
    tail-clean          the directory of a clean stop, and a tenth of the log beyond it
    tail-kill           the directory of a process that was killed with SIGKILL behind its last commit, at least once
    tail-kill-eos       the same, exactly once
    window-expired      an empty directory and a window store; 95 % of its records are past retention
    standby             the active is killed with SIGKILL and a standby without lag takes over
    lost-rows           a window store is killed after its segment rolled: the number of its rows afterwards
    snapshot-folder     an empty directory, one partition, and a snapshot at 99 % of the log in a folder: ours alone,
                        beside the others' cold-1, which replay the same records
    snapshot-s3         the same in a bucket of an S3-compatible server on loopback
    snapshot-links      the same snapshot as local state, its table files as hard links: no copy, no sha256
    snapshot-bytes      no time: the bytes that later snapshots of the same owner and of new ones upload

Two clocks run from the start of the restore: until every partition has processed its first record, and until nothing is
left to flush or to compact either. With a snapshot they start before the download, so that they hold it, the sha256 of
every file and the opening of the database, which the others' clocks leave out. The broker compacts nothing meanwhile,
so that every run reads the same log. Every result is compared with the expected rows. The program writes
proof/benchmarks/results/compare.json and pictures.

Rules of this file: arguments and the order of the runs; compare_runs.py has the measures.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from compare_data import Shape
from compare_figures import document
from compare_runs import AFTER_DEATH_S, CLEAN, KILLED, Ground, Place, lost, prepare, restore, standby
from compare_sides import SYSTEMS, Sides, ensure_environment, family_of
from compare_snapshots import BYTES, SNAPSHOT, STATES, storages, upload_bytes

from standfast.ops.tools.broker import Broker
from standfast.replication.tail.open_log import open_log
from standfast.store.base.version import __version__

HERE = Path(__file__).resolve().parent
# Scenario: its ground, and the directory with which the restore begins; None: an empty one.
RESTORES: dict[str, tuple[str, str | None]] = {
    "cold-1": ("kv-1", None),
    "cold-4": ("kv-4", None),
    "cold-distinct": ("distinct-1", None),
    "tail-clean": ("kv-1", CLEAN),
    "tail-kill": ("kv-1", KILLED),
    "tail-kill-eos": ("kv-1-eos", KILLED),
    "window-expired": ("window-1", None),
    **{f"snapshot-{state}": ("snapshot-1", state) for state in STATES},
}
GROUNDS = RESTORES | {"standby": ("kv-1", CLEAN)}
SCENARIOS = (*GROUNDS, "lost-rows", BYTES)
# Quix Streams has neither standbys nor stores of windows with a retention. How reads and writes are tuned matters where
# a whole changelog is read.
NOT_THERE = {("quix", name) for name in ("window-expired", "standby", "lost-rows")} | {
    (system, name)
    for system in SYSTEMS
    for name in SCENARIOS
    if (system.endswith(("-reads", "-writes")) and not name.startswith(("cold-", "window-")))
    or (system != "standfast" and name.startswith("snapshot-"))  # none of the others has snapshots
}
BROKER = {"log.cleaner.enable": "false"}  # a cleaner would let later rounds read less than earlier ones
HOUR_MS = 3_600_000


def main() -> None:
    """Run the comparison, write its results and print the table."""
    args = arguments()
    out = Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    sides = Sides(args.systems, say)
    started = time.monotonic()
    runs: list[dict[str, Any]] = []
    grounds: list[Ground] = []
    failure = None
    with tempfile.TemporaryDirectory(prefix="standfast-compare-", dir=args.dir) as name:
        folder = Path(name)
        with (
            storages(folder, args.scenarios, say) as snapshots,
            Broker(folder / "broker", settings=BROKER, say=say) as broker,
        ):
            log = open_log(f"kafka://{broker.address}")
            try:
                place = Place(broker.address, log, folder, snapshots, sides, say)
                measure(place, args, grounds, runs)
            except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - keeps an hour's results; the error is reported
                failure = f"{type(error).__name__}: {error}"
            finally:
                log.close()
            versions = about() | {"kafka": broker.running.version} | sides.versions
    settings = {name: getattr(args, name) for name in ("records", "keys", "rounds", "seed", "systems", "scenarios")}
    settings["command"] = " ".join(["python", "proof/benchmarks/compare.py", *sys.argv[1:]])
    settings["elapsed_s"] = round(time.monotonic() - started)
    found = document(settings, versions, grounds, runs, failure)
    target = out / "compare.json"
    target.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    say(f"written: {target}")
    if failure is not None:
        raise SystemExit(f"ended early: {failure}")
    if not args.no_plots:  # another environment: matplotlib is no dependency of ours
        python = ensure_environment("plots", say)
        subprocess.run([str(python), str(HERE / "compare_plots.py"), str(target)], check=True)
    subprocess.run([sys.executable, "-P", str(HERE / "compare_report.py"), str(target)], check=True)


def measure(place: Place, args: argparse.Namespace, grounds: list[Ground], runs: list[dict[str, Any]]) -> None:
    """Do every run, in rounds, and add it to `runs`; every other round reverses the order of the systems."""
    shape = Shape("keyvalue", args.records, args.keys, 1, args.seed, time.time_ns() // 1_000_000)
    grounds += grounds_of(shape, args.systems, args.scenarios)
    for ground in grounds:
        prepare(place, ground)
    # A killed process counts as alive until its session ends, and its task would not be given away before.
    if any(KILLED in ground.keep for ground in grounds):
        time.sleep(AFTER_DEATH_S)
    by_name = {(one.family, one.name): one for one in grounds}
    for number in range(args.rounds):
        order = args.systems if number % 2 == 0 else args.systems[::-1]
        for scenario in args.scenarios:
            for system in order:
                if (system, scenario) in NOT_THERE:
                    continue
                if scenario == BYTES:
                    found = upload_bytes(place, shape, number)
                elif scenario == "lost-rows":
                    found = lost(place, system, shape, number)
                elif scenario == "standby":
                    found = standby(place, system, by_name[family_of(system), "kv-1"])
                else:
                    name, state = RESTORES[scenario]
                    found = restore(place, system, by_name[family_of(system), name], state)
                runs.append({"scenario": scenario, "system": system, "round": number} | found)
                say(line_of(runs[-1]))


def grounds_of(shape: Shape, systems: list[str], scenarios: list[str]) -> Iterator[Ground]:
    """The grounds that the scenarios need; the settings of a family share them."""
    keep: dict[str, dict[str, set[str]]] = {}
    for system in systems:
        for scenario in scenarios:
            if scenario in GROUNDS and (system, scenario) not in NOT_THERE:
                name, state = GROUNDS[scenario]
                kept = SNAPSHOT if state in STATES else state
                keep.setdefault(family_of(system), {}).setdefault(name, set()).update([kept] if kept else [])
    for family, names in keep.items():
        for name, states in sorted(names.items()):
            kind, partitions, *guarantee = name.split("-")
            made = Shape(
                "window" if kind == "window" else "keyvalue",
                shape.records,
                shape.records if kind == "distinct" else shape.keys,
                int(partitions),
                shape.seed,
                shape.now_ms,
                retention_ms=HOUR_MS,
            )
            yield Ground(family, name, made, "exactly_once" if guarantee else "at_least_once", frozenset(states))


def line_of(run: dict[str, Any]) -> str:
    """A run as a line for people."""
    if "steps" in run:
        shares = ", ".join(f"{one['step']} {one['uploaded_bytes'] / one['snapshot_bytes']:.1%}" for one in run["steps"])
        return f"round {run['round'] + 1} {run['scenario']:<14} uploaded of the snapshot's bytes: {shares}"
    lost = f", {run['lost']} rows lost" if "lost" in run else ""
    return (
        f"round {run['round'] + 1} {run['scenario']:<14} {run['system']:<30} {run['elapsed_ms']:>9,.0f} ms, "
        f"{run['processed_ms']:,.0f} to the first records, "
        f"{run['restored']:,} restored, {run['cpu_s']:.2f} s of processor time, {run['peak_bytes'] >> 20} MiB, "
        f"{run['written_bytes'] >> 20} MiB written{lost}{'' if run['correct'] else ', NOT THE RIGHT ROWS'}"
    )


def about() -> dict[str, str]:
    """Versions and machine of the figures."""
    models = [one for one in Path("/proc/cpuinfo").read_text().splitlines() if one.startswith("model name")]
    return {
        "standfast": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "processor": models[0].partition(": ")[2] if models else platform.machine(),
        "cores": str(len(os.sched_getaffinity(0))),
    }


def arguments() -> argparse.Namespace:
    """The command line's arguments."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--records", type=int, default=2_000_000, metavar="N", help="records of 112 bytes of each source (2,000,000)")
    add("--keys", type=int, metavar="N", help="different keys (a quarter of the records)")
    add("--rounds", type=int, default=5, metavar="N", help="(5)")
    add("--seed", type=int, default=1, metavar="N", help="of keys and values (1)")
    add("--systems", type=names_of(SYSTEMS), default=list(SYSTEMS), metavar="LIST", help=", ".join(SYSTEMS))
    add("--scenarios", type=names_of(SCENARIOS), default=list(SCENARIOS), metavar="LIST", help=", ".join(SCENARIOS))
    add("--dir", metavar="D", help="work below this folder (default: the system's temporary one)")
    add("--out", default=str(HERE / "results"), metavar="D", help="where results go (proof/benchmarks/results)")
    add("--no-plots", action="store_true", help="no pictures")
    args = parser.parse_args()
    if args.records < 100 or args.rounds < 1:
        parser.error("--records must be 100 or more, --rounds 1 or more")
    args.keys = args.keys or args.records // 4
    if not 1 <= args.keys <= args.records:
        parser.error(f"--keys must be 1 to {args.records}")
    return args


def names_of(known: tuple[str, ...]) -> Any:
    """A parser for a list of these names."""

    def read(text: str) -> list[str]:
        given = text.split(",")
        if strange := [one for one in given if one not in known]:
            raise argparse.ArgumentTypeError(f"{', '.join(strange)}: choose from {', '.join(known)}")
        return [one for one in known if one in given]

    return read


def say(text: str) -> None:
    """Print a line of progress."""
    print(f"==> {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
