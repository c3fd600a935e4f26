"""The driver's work in a rebuild and a verify on Spark of 1 TB in 1,000 partitions, without the terabyte.

    python proof/benchmarks/spark_planning.py --partitions 1000 --gigabytes 1000 --cores 200

An embedded log gets a real topic with so many partitions; only its offsets are made up. Answers in the form of tasks'
answers give a manifest with as many files as so many bytes need; then its verify is planned as of a snapshot. Half of
the bytes are in one partition, which is split. The output has seconds (processor and wall), bytes written or sent, and
the resident size of the process.

Rules of this file: it runs the driver's own code and no Spark: Spark's own needs for a task come on top.
"""

from __future__ import annotations

import argparse
import json
import resource
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import standfast as sf
from standfast.replication.log import TopicPolicy
from standfast.replication.offsets import Bounds
from standfast.replication.tail.open_log import open_log
from standfast.restore.digest import Digest
from standfast.restore.files.manifest import FILE_NAME
from standfast.restore.spark.folder import Folder
from standfast.restore.spark.places import manifest_places
from standfast.restore.spark.rebuild import FILE_BYTES, complete
from standfast.restore.spark.split_plan import OffsetSample, numbered, parts_of, split_at
from standfast.restore.spark.verify import plan_verify, stored_stores
from standfast.restore.verify.preflight import preflight
from standfast.store.clock import SystemClock

APP, STORE = "large", "kv"
RECORD_BYTES = 112
PLACES = 64
CLOCK = SystemClock()


class Row(NamedTuple):
    """An answer of a task, in the form of Spark's row."""

    partition: int
    answer: str


def main() -> None:
    """Run the driver's steps, each with its time."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--partitions", type=int, default=1_000, metavar="N", help="(1000)")
    parser.add_argument("--gigabytes", type=int, default=1_000, metavar="N", help="of keys and values (1000)")
    parser.add_argument("--cores", type=int, default=200, metavar="N", help="of the cluster (200)")
    args = parser.parse_args()
    spec = sf.KeyValueStore(STORE, sf.serde.bytes, sf.serde.bytes)
    # Half of all bytes in the first partition, so that the plan has one to split.
    sizes = {0: args.gigabytes * 5e8}
    sizes |= dict.fromkeys(range(1, args.partitions), args.gigabytes * 5e8 / max(args.partitions - 1, 1))
    with tempfile.TemporaryDirectory(prefix="standfast-spark-planning-") as name:
        folder = Path(name)
        with closing(open_log(f"sqlite:///{folder}/log")) as log:
            log.admin.create_topic(spec.changelog_of(APP), args.partitions, TopicPolicy(frozenset({"compact"})))
            with timed("preflight: topic, offsets, sizes"):
                what = preflight(log, APP, spec)
            spans = {number: Bounds(0, int(size / RECORD_BYTES)) for number, size in sizes.items()}
            with timed("splits: bounds by what places hold"):
                parts = parts_of(sizes, args.cores)
                found = {one: split_at(places(spans[one]), spans[one].end, count) for one, count in parts.items()}
                splits = numbered(found)
            tasks = args.partitions - len(splits) + sum(one.buckets for one in splits.values())
            sent = json.dumps([*map(list, spans.values()), *(one.dump() for one in splits.values())])
            print(
                f"  {tasks} tasks fold, {len(splits)} partitions are split; a job tells its tasks {len(sent):,} bytes"
            )
            rows = [
                Row(number, answer(number, bucket, int(size / buckets), spans[number]))
                for number, size in sizes.items()
                for buckets in [splits[number].buckets if number in splits else 1]
                for bucket in range(buckets)
            ]
            print(f"  answers of tasks: {sum(len(one.answer) for one in rows):,} bytes")
            out = folder / "out"
            out.mkdir()
            with timed("answers added up, manifest written"):
                made = complete(log, what, Folder(str(out)), rows, 0, CLOCK.wall_ms)
            files = sum(len(one.files) for one in made.manifest.partitions)
            print(f"  {files:,} files, manifest of {(out / FILE_NAME).stat().st_size:,} bytes")
            with timed("verify of that snapshot planned"):
                stored = stored_stores(manifest_places(str(out)))
                plan = plan_verify(log, APP, STORE, stored[STORE])
            assert plan.what is not None and len(plan.what.ranges) == args.partitions
            assert replace(plan.what, average_bytes=0.0).records_max == 0


@contextmanager
def timed(what: str) -> Iterator[None]:
    """Print the time of the block, and the largest size of this process so far."""
    wall, processor = time.perf_counter(), time.process_time()
    yield
    wall, processor = time.perf_counter() - wall, time.process_time() - processor
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(f"{what:<36} {processor:6.2f} s of processor, {wall:6.2f} s   peak {peak >> 10} MiB", flush=True)


def places(span: Bounds) -> list[OffsetSample]:
    """The places that a survey of a partition would find."""
    found = []
    for number in range(PLACES):
        offset = span.end * number // PLACES
        keys = tuple(b"key-%012d" % (offset + one * 7_919 % span.end) for one in range(50))
        found.append(OffsetSample(offset, 1.0, float(RECORD_BYTES), keys))
    return found


def answer(partition: int, bucket: int, size: int, span: Bounds) -> str:
    """The answer of a task about its partition or bucket."""
    count = max(size // FILE_BYTES, 1)
    facts = {
        "partition": partition,
        "records": span.end,
        "above": 0,
        "max_offset": span.end - 1,
        "observed_ms": -1,
        "sequence": 0,
        "refused": 0,
        "skipped": 0,
        "first": 0,
        "bucket": bucket,
        "whole": None,
    }
    files = [
        {
            "name": f"{partition}-0123456789ab-{partition + bucket}-{number}.sst",
            "family": STORE,
            "bytes": FILE_BYTES,
            "entries": FILE_BYTES // RECORD_BYTES,
            "first_key": (b"key-%04d-%07d-%012d" % (bucket, number, 0)).hex(),
            "last_key": (b"key-%04d-%07d-%012d" % (bucket, number, 9)).hex(),
            "sha256": "0" * 64,
            "deletes": 0,
        }
        for number in range(count)
    ]
    seen = dict.fromkeys(("records", "tombstones", "keys", "bytes", "value_max_bytes", "first_ms", "last_ms"), 1)
    counted = {"superseded": 0, "tombstones": 0, "expired": 0, "digest": Digest().hex(), "read_back": None}
    return json.dumps({"facts": facts, **counted, "seen": seen, "files": files})


if __name__ == "__main__":
    main()
