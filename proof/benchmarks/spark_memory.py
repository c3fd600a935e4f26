"""Memory of a rebuild and a verify on Spark with large values: the driver, Java, and Spark's workers.

    python proof/benchmarks/spark_memory.py --rows 5000 --value-bytes 100000

The program writes a store of that many rows on the embedded log, in one partition; then it does one rebuild and one
verify in one session of `local[1]`. It prints the largest resident sizes: the kernel's figures of this process and of
Java, and of each worker by itself the largest of a look every 50 ms.

Rules of this file: an incomplete result ends the run. It removes all files that it writes.
"""

from __future__ import annotations

import argparse
import os
import random
import tempfile
import threading
import time
from contextlib import closing
from pathlib import Path

from compare_process import tree

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

APP, STORE = "large", "kv"
COMMIT_BYTES, COMMIT_ROWS = 5_000_000, 5_000  # limits of one commit
LOOK_S = 0.05
CLOCK = SystemClock()


def main() -> None:
    """Write the store, run both jobs and print their sizes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=5_000, metavar="N", help="(5000)")
    parser.add_argument("--value-bytes", type=int, default=100_000, metavar="N", help="(100000)")
    parser.add_argument("--dir", metavar="D", help="work below this folder (default: the system's temporary one)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="standfast-spark-memory-", dir=args.dir) as name:
        folder = Path(name)
        address = f"sqlite:///{folder}/log"
        spec = sf.KeyValueStore(STORE, sf.serde.bytes, sf.serde.bytes)
        write(folder, address, spec, args.rows, args.value_bytes)
        java = spark_java(print)
        place = SparkPlace("local[1]", java.home, java.major)
        with closing(open_log(address)) as log, session("standfast memory", place) as spark, Peaks() as peaks:
            began = time.monotonic()
            made = rebuild(spark, log, preflight(log, APP, spec), Folder(str(folder / "out")), now_ms=CLOCK.wall_ms)
            check(made.digest.count == args.rows, f"rebuilt {made.digest.count} rows")
            peaks.told("rebuild", time.monotonic() - began)
            began = time.monotonic()
            places = [TaskPlace(APP, one.task, str(one.path)) for one in find_tasks(folder / "state", APP)]
            plan = plan_verify(log, APP, STORE, stored_stores(places, STORE)[STORE])
            (verdict,) = verify_store(spark, log, plan, now_ms=CLOCK.wall_ms()).verdicts
            check(verdict.verdict == "equal" and verdict.matched == args.rows, f"verify found {verdict}")
            peaks.told("verify", time.monotonic() - began)


def write(folder: Path, address: str, spec: sf.KeyValueStore, rows: int, value_bytes: int) -> None:
    """Write a store and its changelog, with values that do not compress."""
    rng = random.Random(1)
    commit_rows = max(1, min(COMMIT_ROWS, COMMIT_BYTES // value_bytes))
    with sf.Session(app=APP, log=address, state_dir=folder / "state", stores=[spec], partitions=1) as held:
        held.assign(active=[0])
        held.wait_ready(timeout_s=60)
        task = held.task(0)
        for number in range(rows):
            task.store(STORE).put(b"k%08d" % number, rng.randbytes(value_bytes))
            if number % commit_rows == commit_rows - 1:
                task.commit()
        task.commit()


class Peaks:
    """Largest resident sizes since the last report."""

    def __enter__(self) -> Peaks:
        self._worker = 0
        self._ended = threading.Event()
        self._looker = threading.Thread(target=self._look)
        self._looker.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._looker.join()

    def told(self, what: str, seconds: float) -> None:
        """Print the sizes so far; those of Java and of this process cover the whole run."""
        java = max((status(pid, "VmHWM") for pid in tree(os.getpid()) if command(pid) == "java"), default=0)
        driver = status(os.getpid(), "VmHWM")
        print(
            f"{what:<8} {seconds:5.1f} s   driver {driver >> 20} MiB   Java {java >> 20} MiB   "
            f"a worker {self._worker >> 20} MiB",
            flush=True,
        )
        self._worker = 0

    def _look(self) -> None:
        # The kernel's own peak of a worker is gone with the worker, so workers are sampled.
        while not self._ended.wait(LOOK_S):
            sizes = [status(pid, "VmRSS") for pid in tree(os.getpid()) if command(pid).startswith("python")]
            self._worker = max([self._worker, *sizes])


def command(pid: int) -> str:
    """Name of a process; empty once it is gone."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def status(pid: int, field: str) -> int:
    """A size of a process in bytes; 0 once it is gone."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith(f"{field}:")), 0)


def check(holds: bool, text: str) -> None:
    """End the run unless `holds`: an incomplete result has no figures."""
    if not holds:
        raise SystemExit(f"the result is not right: {text}")


if __name__ == "__main__":
    main()
