"""Restores of large changelogs on Kafka: what a record costs as the changelog grows, and how much memory that takes.

    python proof/benchmarks/large_restores.py [--records 2000000,16000000,64000000] [--rounds 3] [--dir D]

    first clock     from the assignment of the task until its gate is open
    second clock    until RocksDB has nothing left to flush or to compact either

Four versions of each key, near each other, 16 + 100 bytes. The disk that a size needs (its log, and one restored copy
at a time) is printed before anything is written, and the program ends there if there is less. Each size has a broker
and rounds of its own, since two logs of the larger sizes would share the page cache of a small machine.

Rules of this file: every restore runs in a process of its own and by the public path (Session). Exit code 1 for a
missed goal: cost per record within 20 % of the smallest size's on the first clock, 60 % on the second; memory within
the setting and 200 MiB.
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median
from typing import Any

from side_standfast import busy

from standfast.ops.bench.bench import KEY_BYTES, VALUE_BYTES
from standfast.ops.bench.step import STORE, BenchStep, fill, key_of, peak_rss_bytes, session_of
from standfast.ops.tools.broker import Broker
from standfast.replication.log import TopicPolicy
from standfast.replication.tail.open_log import open_log
from standfast.stream.task.settings import RESTORE_MEMORY_DEFAULT_BYTES

VERSIONS = 4
LOG_BYTES = KEY_BYTES + VALUE_BYTES + 20  # of a record in the broker's files, with its share of a batch
COPY_SHARE = 2.2  # of the rows' bytes: rows that left memory and the files that they are merged to exist side by side
MEMORY_BYTES = 256 << 20
MEMORY_ALLOWANCE_BYTES = 200 << 20  # a restore may take this much beside the memory setting
READY_S = 3_600.0
FIRST_GROWTH, SECOND_GROWTH = 1.2, 1.6
WAIT_S = 0.02


def needed_bytes(records: int) -> int:
    """Disk that a size takes."""
    return round(records * LOG_BYTES + COPY_SHARE * records / VERSIONS * (KEY_BYTES + VALUE_BYTES))


def cpu_s() -> float:
    """Processor time of all threads of this process so far."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def restore(step: BenchStep) -> dict[str, Any]:
    """One restore of an empty directory, on both clocks."""
    with closing(open_log(step.log)) as log:
        log.admin.create_topic(step.source, 1, TopicPolicy())
        records = log.reader().bounds([step.changelog])[step.changelog].end
    session = session_of(step, f"restore-{step.run}", take_over=False)
    with closing(session):
        began_s, used_s = time.monotonic(), cpu_s()
        session.assign(active=[0])
        session.wait_ready(READY_S)
        ready_s, ready_cpu_s = time.monotonic() - began_s, cpu_s() - used_s
        task = session.task(0)
        while busy(task):
            time.sleep(WAIT_S)
        drained_s, drained_cpu_s = time.monotonic() - began_s, cpu_s() - used_s
        last = key_of(max(records // step.versions, 1) - 1, step.key_bytes)
        if task.store(STORE).get(last) is None:
            raise SystemExit("a restored key is missing")
    return {
        "records": records,
        "ready_us": ready_s / records * 1e6,
        "drained_us": drained_s / records * 1e6,
        "ready_cpu_us": ready_cpu_s / records * 1e6,
        "drained_cpu_us": drained_cpu_s / records * 1e6,
        "peak_bytes": peak_rss_bytes(),
    }


def measured(records: int, rounds: int, folder: Path) -> dict[str, Any]:
    """Medians of the rounds of one size, with the least and the most."""
    step = BenchStep(
        step="fill",
        folder=str(folder),
        records=records,
        key_bytes=KEY_BYTES,
        value_bytes=VALUE_BYTES,
        memory_bytes=MEMORY_BYTES,
        versions=VERSIONS,
    )
    with Broker(folder / "broker", say=print) as broker:
        step = replace(step, log=f"kafka://{broker.address}")
        print(f"==> {records:,} records: fill the log", flush=True)
        child(step)
        found = []
        for number in range(rounds):
            found.append(child(replace(step, step="restore", run=number)))
            print(f"    round {number + 1}: {found[-1]}", flush=True)
            shutil.rmtree(folder / f"restore-{number}")
    figures = {name: [one[name] for one in found] for name in found[0]}
    return {"records": records} | {
        name: {"median": median(values), "min": min(values), "max": max(values)}
        for name, values in figures.items()
        if name != "records"
    }


def child(step: BenchStep) -> dict[str, Any]:
    """Do the step in a process of its own; returns its figures."""
    command = [sys.executable, __file__, "--child", json.dumps(asdict(step))]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return figures


def judged(sizes: list[dict[str, Any]]) -> bool:
    """Print the figures of each size beside those of the smallest; returns whether every goal is met."""
    print(f"{'records':>12}  {'first clock':>24}  {'second clock':>24}  {'processor':>10}  {'memory':>8}")
    bound = MEMORY_BYTES + MEMORY_ALLOWANCE_BYTES + RESTORE_MEMORY_DEFAULT_BYTES
    met = True
    for size in sizes:
        first, second = size["ready_us"]["median"], size["drained_us"]["median"]
        growth, growth_drained = first / sizes[0]["ready_us"]["median"], second / sizes[0]["drained_us"]["median"]
        peak = size["peak_bytes"]["max"]
        met &= growth <= FIRST_GROWTH and growth_drained <= SECOND_GROWTH and peak <= bound
        print(
            f"{size['records']:>12,}  {first:>12.2f} us ({growth:.2f})  {second:>12.2f} us ({growth_drained:.2f})  "
            f"{size['drained_cpu_us']['median']:>7.2f} us  {peak >> 20:>4} MiB"
        )
    print(f"goals: growth {FIRST_GROWTH} and {SECOND_GROWTH}, memory {bound >> 20} MiB: {'met' if met else 'not met'}")
    return met


def main() -> int:
    """All sizes, smallest first."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--records", default="2000000,16000000,64000000", metavar="LIST", help="sizes, smallest first")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="restores of each size (3)")
    parser.add_argument("--dir", type=Path, metavar="D", help="work below this folder (the system's temporary one)")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        step = BenchStep(**json.loads(arguments.child))
        print(json.dumps(fill(step) if step.step == "fill" else restore(step)))
        return 0
    sizes = sorted(int(one) for one in arguments.records.split(","))
    results = []
    for records in sizes:
        with tempfile.TemporaryDirectory(prefix="large-restores-", dir=arguments.dir) as name:
            needed, free = needed_bytes(records), shutil.disk_usage(name).free
            print(f"==> {records:,} records need {needed / (1 << 30):.1f} GiB, {free / (1 << 30):.1f} GiB are free")
            if needed > free:
                print("give a folder with more space (--dir), or smaller sizes (--records)", file=sys.stderr)
                return 2
            results.append(measured(records, arguments.rounds, Path(name)))
    return 0 if judged(results) else 1


if __name__ == "__main__":
    raise SystemExit(main())
