"""Writers of one embedded log that take turns: throughput, and the longest wait of one of them.

    python proof/benchmarks/log_lock.py [--writers 8] [--seconds 10] [--records 1] [--synchronous full] [--folder DIR]

A turn is the mean time of one append over all writers. With a fair lock an append waits for each other writer once:
`most_overtaken`, the appends of others that ended during one append, is about `writers`. `longest_turns`, in time, is
more where a single turn is long (a sync of the disk, a checkpoint, a busy machine).

Rules of this file: each writer is a process; they begin together, and every append is measured.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from bisect import bisect_left, bisect_right

from standfast.replication.embedded.log import EmbeddedLog
from standfast.replication.log import Outgoing, TopicPolicy
from standfast.replication.offsets import TopicPartition

AT = TopicPartition("turns", 0)
VALUE = b"v" * 100


def write(path: str, synchronous: str, seconds: float, records: int) -> None:
    """Be a writer: print begin and end of each append, in monotonic seconds."""
    producer = EmbeddedLog(path, synchronous=synchronous).producer()
    batch = {AT: [Outgoing(b"k", VALUE, 1)] * records}
    print("ready", flush=True)
    sys.stdin.readline()
    times = []
    end_s = time.monotonic() + seconds
    while (began_s := time.monotonic()) < end_s:
        producer.append(batch)
        times.append((began_s, time.monotonic()))
    print(json.dumps(times), flush=True)


def measure(folder: str, given: argparse.Namespace) -> dict[str, float]:
    """Run the writers; returns the figures."""
    path = f"{folder}/log"
    log = EmbeddedLog(path)
    log.admin.create_topic(AT.topic, 1, TopicPolicy())
    log.close()
    words = [path, given.synchronous, str(given.seconds), str(given.records)]
    command = [sys.executable, __file__, "--writer", *words]
    writers = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(given.writers)
    ]
    each = []
    for one in writers:
        assert one.stdout is not None
        one.stdout.readline()
    for one in writers:
        assert one.stdin is not None
        one.stdin.write("begin\n")
        one.stdin.flush()
    for one in writers:
        assert one.stdout is not None
        each.append(json.loads(one.stdout.readline()))
        one.wait()
    took_ms = sorted((ended_s - began_s) * 1_000 for times in each for began_s, ended_s in times)
    ends = sorted(ended_s for times in each for _, ended_s in times)
    overtaken = [bisect_left(ends, end) - bisect_right(ends, begin) for times in each for begin, end in times]
    turn_ms = given.seconds * 1_000 / len(took_ms)
    return {
        "appends_per_s": len(took_ms) / given.seconds,
        "turn_ms": turn_ms,
        "most_overtaken": max(overtaken),
        "longest_turns": took_ms[-1] / turn_ms,
        "p999_turns": took_ms[int(len(took_ms) * 0.999)] / turn_ms,
        "p99_turns": took_ms[int(len(took_ms) * 0.99)] / turn_ms,
        "fewest": min(map(len, each)),
        "most": max(map(len, each)),
    }


def main() -> None:
    """Parse the command line, measure, print."""
    if sys.argv[1:2] == ["--writer"]:
        path, synchronous, seconds, records = sys.argv[2:]
        write(path, synchronous, float(seconds), int(records))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--writers", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--records", type=int, default=1, help="of each append")
    parser.add_argument("--synchronous", choices=["full", "normal"], default="full")
    parser.add_argument("--folder", help="a folder on the disk to measure")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        figures = measure(folder, given)
    if given.json:
        print(json.dumps(figures))
        return
    for name, value in figures.items():
        print(f"{name:16}{value:12.2f}")


if __name__ == "__main__":
    main()
