"""Rates at which Spark rebuilds and verifies a store, and the cost of a record by the size of the log.

    make bench-spark
    python proof/benchmarks/spark_rates.py --records 1000000,4000000,16000000 --rounds 5

For each size the program writes a changelog (112 bytes a record, four versions of each key, two partitions) and
restores a live store from it once. Then, in rounds of all sizes, every other round in reverse order: a rebuild into an
empty folder, and a verify of the live store against the log. One Spark session, warmed up by a run that does not count.
The clock runs over the call, which includes a job's fixed cost; the slope between two sizes does not.

Rules of this file: an incomplete result (rows, digest, verdict) ends the run; figures are medians, minima and maxima.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from contextlib import ExitStack, closing
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from compare import about, say
from compare_data import Shape, feed

import standfast as sf
from standfast.ops.tools.broker import Broker
from standfast.ops.tools.spark_java import spark_java
from standfast.replication.log import Log
from standfast.replication.tail.open_log import open_log
from standfast.restore.spark.folder import Folder
from standfast.restore.spark.places import TaskPlace
from standfast.restore.spark.rebuild import rebuild
from standfast.restore.spark.session import SparkPlace, session
from standfast.restore.spark.verify import plan_verify, stored_stores, verify_store
from standfast.restore.verify.at_rest import find_tasks
from standfast.restore.verify.preflight import preflight
from standfast.store.clock import SystemClock
from standfast.store.names import changelog_topic

HERE = Path(__file__).resolve().parent
VERSIONS = 4
RECORDS_MIN = 80_000
SEED = 1
STORE = "totals"
CLOCK = SystemClock()
MEASURES = ("rebuild", "verify")


def main() -> None:
    """Write the logs, run the rounds and write the results."""
    args = arguments()
    with tempfile.TemporaryDirectory(prefix="standfast-spark-rates-", dir=args.dir) as name, ExitStack() as stack:
        folder = Path(name)
        if args.log == "kafka":
            broker = stack.enter_context(Broker(folder / "broker", settings={"log.cleaner.enable": "false"}, say=say))
            address = f"kafka://{broker.address}"
        else:
            address = f"sqlite:///{folder}/log"
        log = stack.enter_context(closing(open_log(address)))
        for records in args.records:
            began = time.monotonic()
            prepare(log, address, folder, records, args.partitions)
            say(f"{records:,} records written and restored in {time.monotonic() - began:.0f} s")
        java = spark_java(say)
        place = SparkPlace(f"local[{args.cores}]", java.home, java.major, (), (), (), {})
        with session("standfast benchmark", place) as spark:
            run(spark, log, folder, args.records[0])  # not counted: it warms up the session
            runs = []
            for number in range(args.rounds):
                # Alternating order: a machine that gets busier then favours no size.
                for records in args.records if number % 2 == 0 else args.records[::-1]:
                    found = run(spark, log, folder, records)
                    runs.append({"round": number, "records": records} | found)
                    say(f"round {number + 1}, {records:>10,}: " + ", ".join(
                        f"{one} {found[one] / 1_000:.2f} s, {records * 1_000 / found[one]:,.0f} records/s"
                        for one in MEASURES
                    ))  # fmt: skip
    settings = {name: getattr(args, name) for name in ("records", "rounds", "partitions", "cores", "log")}
    settings["command"] = " ".join(["python", "proof/benchmarks/spark_rates.py", *sys.argv[1:]])
    document: dict[str, Any] = {"schema": "standfast.spark-rates/1", "settings": settings, "about": about()}
    document |= {"measures": {one: figures(one, runs, args.records) for one in MEASURES}, "runs": runs}
    target = Path(args.out) / "spark-rates.json"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    for one in MEASURES:
        show(one, document["measures"][one])
    say(f"written: {target}")


def prepare(log: Log, address: str, folder: Path, records: int, partitions: int) -> None:
    """Write a changelog, and restore a store from it."""
    app = app_of(records)
    spec = store()

    def opened() -> sf.Session:
        return sf.Session(app=app, log=address, state_dir=folder / "state", stores=[spec], partitions=partitions)

    opened().close()
    shape = Shape("keyvalue", records, records // VERSIONS, partitions, SEED, CLOCK.wall_ms())
    feed(log, changelog_topic(app, STORE), shape.rows(0, records))
    with opened() as held:
        held.assign(active=range(partitions))
        held.wait_ready(timeout_s=3_600)


def run(spark: Any, log: Log, folder: Path, records: int) -> dict[str, float]:
    """One rebuild and one verify; returns their milliseconds. An incomplete result ends the run."""
    app, spec, target = app_of(records), store(), folder / "rebuilt"
    began = time.perf_counter()
    done = rebuild(spark, log, preflight(log, app, spec), Folder(str(target)), now_ms=CLOCK.wall_ms)
    rebuilt_ms = (time.perf_counter() - began) * 1_000
    rows = sum(one.entries for one in done.manifest.partitions)
    check(done.records == records and rows == records // VERSIONS, f"rebuilt {rows} rows of {done.records} records")
    shutil.rmtree(target)

    began = time.perf_counter()
    places = [TaskPlace(app, one.task, str(one.path)) for one in find_tasks(folder / "state", app)]
    plan = plan_verify(log, app, STORE, stored_stores(places, STORE)[STORE])
    verified = verify_store(spark, log, plan, now_ms=CLOCK.wall_ms())
    verified_ms = (time.perf_counter() - began) * 1_000
    for one in verified.verdicts:
        check(one.verdict == "equal", f"verify found {one}")
    check(sum(one.records for one in verified.verdicts) == records, "verify did not read every record")
    digest = sum((one.store_digest for one in verified.verdicts), type(done.digest)())
    check(digest == done.digest, f"digest of the live store {digest} is not that of the rebuilt one {done.digest}")
    return {"rebuild": rebuilt_ms, "verify": verified_ms}


def figures(measure: str, runs: list[dict[str, Any]], sizes: list[int]) -> dict[str, Any]:
    """Rates by size, and the cost of a record between sizes, each as median, minimum, maximum."""
    by_size = {size: [one[measure] for one in runs if one["records"] == size] for size in sizes}
    rates = {str(size): spread([size * 1_000 / ms for ms in found]) for size, found in by_size.items()}
    slopes = {}  # without the fixed cost of a job, which both sizes have
    for small, large in pairwise(sorted(sizes)):
        pairs = zip(by_size[small], by_size[large], strict=True)
        slopes[f"{small}-{large}"] = spread([(more - less) * 1_000 / (large - small) for less, more in pairs])
    return {"records_per_s": rates, "slope_us_per_record": slopes}


def spread(values: list[float]) -> dict[str, float]:
    """Median, minimum and maximum."""
    return {"median": round(median(values), 3), "min": round(min(values), 3), "max": round(max(values), 3)}


def show(measure: str, found: dict[str, Any]) -> None:
    """Print the figures of a measure."""
    for size, one in found["records_per_s"].items():
        print(
            f"{measure:<8} {int(size):>12,} records  {one['median']:>9,.0f}/s  ({one['min']:,.0f} to {one['max']:,.0f})"
        )
    for pair, one in found["slope_us_per_record"].items():
        print(f"{measure:<8} from {pair}: {one['median']:.2f} us a record ({one['min']:.2f} to {one['max']:.2f})")


def store() -> sf.KeyValueStore:
    """The store to rebuild."""
    return sf.KeyValueStore(STORE, key=sf.serde.bytes, value=sf.serde.bytes)


def app_of(records: int) -> str:
    """Name of the application of a size; each size has its own."""
    return f"rates-{records}"


def check(holds: bool, text: str) -> None:
    """End the run unless `holds`: an incomplete result has no speed."""
    if not holds:
        raise SystemExit(f"the result is not right: {text}")


def arguments() -> argparse.Namespace:
    """The command line's arguments."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--records", type=sizes, default=[1_000_000, 4_000_000, 16_000_000], metavar="LIST", help="1, 4 and 16 million")
    add("--rounds", type=int, default=5, metavar="N", help="(5)")
    add("--partitions", type=int, default=2, metavar="N", help="of each changelog (2)")
    add("--cores", type=int, default=2, metavar="N", help="of Spark: local[N] (2)")
    add("--log", choices=("kafka", "sqlite"), default="kafka", help="(kafka)")
    add("--dir", metavar="D", help="work below this folder (default: the system's temporary one)")
    add("--out", default=str(HERE / "results"), metavar="D", help="where results go (proof/benchmarks/results)")
    args = parser.parse_args()
    if args.rounds < 1 or args.partitions < 1 or min(args.records) < RECORDS_MIN:
        parser.error(f"--rounds and --partitions from 1, --records from {RECORDS_MIN}")
    return args


def sizes(text: str) -> list[int]:
    """Numbers of records, ascending, each a multiple of `VERSIONS`."""
    return sorted({int(one) // VERSIONS * VERSIONS for one in text.split(",")})


if __name__ == "__main__":
    main()
