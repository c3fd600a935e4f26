"""Rebuild and verify on Spark by two checkouts in turns, on one log: ratios that hold on a busy machine, too.

    python proof/benchmarks/spark_beside.py /path/to/other/checkout --records 400000 --rounds 3

Each checkout runs in a process of its own, with its own `.venv`, and does a rebuild and a verify on each request; the
first round warms up and does not count. The output has seconds, and seconds of processor (this process, Java, Spark's
workers).

Rules of this file: the other checkout runs this very file, so that both measure the same way.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from statistics import median
from typing import Any

APP, STORE, PARTITIONS, VERSIONS = "beside", "kv", 2, 4
HERE = Path(__file__).resolve().parents[2]


def main() -> None:
    """Run the rounds, or serve them with --serve."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", nargs="?", help="a checkout with its .venv")
    parser.add_argument("--records", type=int, default=400_000, metavar="N", help="(400000)")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="(3)")
    parser.add_argument("--serve", metavar="FOLDER", help="for the processes that are started")
    args = parser.parse_args()
    if args.serve:
        serve(Path(args.serve))
        return
    with tempfile.TemporaryDirectory(prefix="standfast-spark-beside-") as name:
        write(Path(name), args.records)
        sides = {"here": started(HERE, name), "other": started(Path(args.other), name)}
        found: dict[str, list[dict[str, float]]] = {side: [] for side in sides}
        for number in range(args.rounds + 1):
            # The order alternates: a machine that gets busier then favours neither checkout.
            for side in sorted(sides, reverse=number % 2 == 1):
                answer = asked(sides[side])
                print(f"round {number}, {side:<5}: {json.dumps(answer)}", flush=True)
                if number:
                    found[side].append(answer)
        for process in sides.values():
            process.communicate()
    for measure in found["here"][0]:
        ratios = [one[measure] / other[measure] for one, other in zip(found["here"], found["other"], strict=True)]
        print(f"{measure:<18} here to other: {median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")


def started(checkout: Path, folder: str) -> subprocess.Popen[str]:
    """Start the process of a checkout; its stderr is this one's."""
    command = [str(checkout / ".venv/bin/python"), str(Path(__file__).resolve()), "--serve", folder]
    environment = {**os.environ, "PYTHONSAFEPATH": "1"}
    return subprocess.Popen(
        command, cwd=checkout, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def asked(process: subprocess.Popen[str]) -> dict[str, float]:
    """Ask a process for one round; returns its figures."""
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write("go\n")
    process.stdin.flush()
    for line in process.stdout:
        if line.startswith("{"):
            answer: dict[str, float] = json.loads(line)
            return answer
    raise SystemExit("a process ended without an answer")


def write(folder: Path, records: int) -> None:
    """Write a changelog of 112 bytes a record and four versions of a key, and restore a store from it."""
    import standfast as sf
    from standfast.replication.log import Outgoing
    from standfast.replication.offsets import TopicPartition
    from standfast.replication.tail.open_log import open_log
    from standfast.store.names import changelog_topic

    def opened() -> sf.Session:
        specs = [sf.KeyValueStore(STORE, sf.serde.bytes, sf.serde.bytes)]
        address = f"sqlite:///{folder}/log"
        return sf.Session(app=APP, log=address, state_dir=folder / "state", stores=specs, partitions=PARTITIONS)

    opened().close()
    with closing(open_log(f"sqlite:///{folder}/log")) as log:
        writer, keys = log.producer(), records // VERSIONS
        for begin in range(0, records, 10_000):
            for number in range(PARTITIONS):
                rows = [
                    Outgoing(b"key-%08d" % (at * 7_919 % keys), b"%0100d" % at, 1_700_000_000_000 + at)
                    for at in range(begin + number, min(begin + 10_000, records), PARTITIONS)
                ]
                writer.append({TopicPartition(changelog_topic(APP, STORE), number): rows})
    with opened() as held:
        held.assign(active=range(PARTITIONS))
        held.wait_ready(timeout_s=3_600)


def serve(folder: Path) -> None:
    """Run one round for each line of stdin."""
    import standfast as sf
    from standfast.ops.tools.spark_java import spark_java
    from standfast.replication.tail.open_log import open_log
    from standfast.restore.spark.folder import Folder
    from standfast.restore.spark.places import TaskPlace
    from standfast.restore.spark.rebuild import rebuild
    from standfast.restore.spark.session import SparkPlace, session
    from standfast.restore.spark.verify import plan_verify, stored_stores, verify_store
    from standfast.restore.verify.at_rest import find_tasks
    from standfast.restore.verify.preflight import preflight
    from standfast.store.clock import SystemClock

    clock, out = SystemClock(), folder / f"out-{os.getpid()}"
    java = spark_java(lambda _text: None)
    spec = sf.KeyValueStore(STORE, sf.serde.bytes, sf.serde.bytes)
    place = SparkPlace("local[2]", java.home, java.major)
    with closing(open_log(f"sqlite:///{folder}/log")) as log, session("beside", place) as spark:

        def rebuilt() -> None:
            rebuild(spark, log, preflight(log, APP, spec), Folder(str(out)), now_ms=clock.wall_ms)

        def verified() -> None:
            places = [TaskPlace(APP, one.task, str(one.path)) for one in find_tasks(folder / "state", APP)]
            plan = plan_verify(log, APP, STORE, stored_stores(places, STORE)[STORE])
            verdicts = verify_store(spark, log, plan, now_ms=clock.wall_ms()).verdicts
            if {one.verdict for one in verdicts} != {"equal"}:
                raise SystemExit(f"verify found {verdicts}")

        for _ in sys.stdin:
            answer = measured("rebuild", rebuilt) | measured("verify", verified)
            shutil.rmtree(out)
            print(json.dumps(answer), flush=True)


def measured(what: str, do: Callable[[], Any]) -> dict[str, float]:
    """Seconds of one call, wall clock and processor."""
    wall, processor = time.monotonic(), processor_s()
    do()
    return {what: round(time.monotonic() - wall, 2), f"{what} processor": round(processor_s() - processor, 2)}


def processor_s() -> float:
    """Processor seconds of this process and its descendants."""
    ticks = 0
    for pid in (os.getpid(), *below(os.getpid())):
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        ticks += sum(map(int, fields[11:15]))  # user and system, its own and those of children that ended
    return ticks / os.sysconf("SC_CLK_TCK")


def below(pid: int) -> Iterator[int]:
    """Ids of all descendants of a process."""
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = path.read_text().split()
        except OSError:
            continue
        for child in map(int, children):
            yield child
            yield from below(child)


if __name__ == "__main__":
    main()
