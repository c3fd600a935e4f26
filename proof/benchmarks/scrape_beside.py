"""What a scrape every five seconds costs an application with two worker processes: runs with and without, in turns.

    python proof/benchmarks/scrape_beside.py [--records 1000000] [--pairs 5] [--tasks 4] [--log kafka|embedded]
        [--json FILE]

    plain      workers=2, no http_port
    scraped    workers=2, http_port=0, and /metrics is read every EVERY_S from the first record to the last

Both count the same records by key, from the first processed record to the last one. Runs of a pair follow each other,
and every second pair begins with the other kind, so that a machine that slows down costs both the same. The processor
time of the application's processes stands beside the speed: two workers and their supervisor keep two cores busy, and
other programs on the machine change it less.

Rules of this file: times are of one machine's monotonic clock. Each run has a state directory and a name of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from compare_process import usage

import standfast as sf
from standfast.ops.shared.run_file import read_run_file
from standfast.ops.tools.broker import Broker
from standfast.replication.log import Outgoing, TopicPolicy
from standfast.replication.offsets import TopicPartition
from standfast.replication.tail.open_log import open_log
from standfast.store.errors import StandfastError

TOPIC = "scrape-beside-in"
FIRST, LAST = b"first", b"last"
KEYS = 50_000
EVERY_S = 5.0
BATCH = 20_000
RUN_S_MAX = 3_600
GOAL = 0.97


def run(log: str, name: str, folder: str, port: int | None) -> None:
    """The application: counts records by key, and notes when each partition begins and ends."""
    times = os.open(Path(folder) / "times", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def noted(key: str | None, value: bytes) -> bool:
        if value in (FIRST, LAST):
            os.write(times, b"%s %d\n" % (value, time.monotonic_ns()))
        return True

    counts: sf.KeyValueStore[Any, Any] = sf.KeyValueStore("counts", sf.serde.string, sf.serde.int64)
    app = sf.App(
        name,
        log=log,
        state_dir=f"{folder}/state",
        stores=[counts],
        workers=2,
        http_port=port,
        standby_replicas=0,
    )
    app.stream(TOPIC, key=sf.serde.string, value=sf.serde.bytes).filter(noted).group_by_key().count("counts")
    app.run()


def fill(log: str, records: int, tasks: int) -> None:
    """Write the records; the first and the last one of each partition say so."""
    with closing(open_log(log)) as opened, closing(opened.producer()) as producer:
        opened.admin.create_topic(TOPIC, tasks, TopicPolicy())
        each = records // tasks
        for partition in range(tasks):
            for begin in range(0, each, BATCH):
                numbers = range(begin, min(begin + BATCH, each))
                batch = [
                    Outgoing(
                        f"k{(number * 7_919 + partition) % KEYS}".encode(),
                        FIRST if number == 0 else LAST if number == each - 1 else b"x" * 100,
                        1_356_998_400_000 + number,
                    )
                    for number in numbers
                ]
                producer.append({TopicPartition(TOPIC, partition): batch})


def seconds_of(log: str, name: str, folder: Path, tasks: int, *, scraped: bool) -> tuple[float, float, int]:
    """One run: seconds from the first record to the last, seconds of processor time, and the number of scrapes."""
    command = [sys.executable, __file__, "--child", json.dumps([log, name, str(folder), 0 if scraped else None])]
    with (folder / "said").open("w") as said, subprocess.Popen(command, stderr=said) as process:
        try:
            scrapes, next_s, deadline, before_s = 0, 0.0, time.monotonic() + RUN_S_MAX, None
            while len(times := noted_times(folder)[LAST.decode()]) < tasks:
                if process.poll() is not None or time.monotonic() > deadline:
                    raise SystemExit(f"the application did not end its work:\n{(folder / 'said').read_text()[-3_000:]}")
                if noted_times(folder)[FIRST.decode()]:
                    before_s = usage(process.pid).cpu_s if before_s is None else before_s
                    if scraped and time.monotonic() >= next_s:
                        scrapes += scrape(folder / "state" / name)
                        next_s = time.monotonic() + EVERY_S
                time.sleep(0.1)
            used_s = usage(process.pid).cpu_s - (before_s or 0.0)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(120)
    return (max(times) - min(noted_times(folder)[FIRST.decode()])) / 1e9, used_s, scrapes


def noted_times(folder: Path) -> dict[str, list[int]]:
    """The times of first and last records so far."""
    found: dict[str, list[int]] = {FIRST.decode(): [], LAST.decode(): []}
    path = folder / "times"
    for line in path.read_text().splitlines() if path.exists() else ():
        word, at = line.split()
        found[word].append(int(at))
    return found


def scrape(state_path: Path) -> int:
    """Read the metrics; 1, or 0 while there is no server."""
    try:
        with urllib.request.urlopen(f"{read_run_file(state_path).address}/metrics", timeout=10) as answer:
            text = answer.read().decode()
    except (StandfastError, OSError):
        return 0
    assert "standfast_processed_records_total" in text
    return 1


@contextmanager
def log_of(kind: str, folder: Path) -> Iterator[str]:
    """The address of a log for all runs."""
    if kind == "embedded":
        yield f"sqlite:///{folder}/log?synchronous=normal"
        return
    with Broker(folder / "kafka") as broker:
        yield f"kafka://{broker.address}"


def main() -> int:
    """Run the pairs; 1 if the goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=1_000_000, metavar="N", help="(1000000)")
    parser.add_argument("--pairs", type=int, default=5, metavar="N", help="(5)")
    parser.add_argument("--tasks", type=int, default=4, metavar="N", help="(4)")
    parser.add_argument("--log", choices=("embedded", "kafka"), default="kafka", help="(kafka)")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        run(*json.loads(args.child))
        return 0
    pairs: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="scrape-beside-") as root, log_of(args.log, Path(root)) as log:
        fill(log, args.records, args.tasks)
        # Not counted: a broker's first minute is its slowest.
        (first := Path(root) / "first").mkdir()
        seconds_of(log, "beside-first", first, args.tasks, scraped=False)
        for number in range(args.pairs):
            pair: dict[str, Any] = {}
            for scraped in (False, True) if number % 2 == 0 else (True, False):
                folder = Path(root) / f"{number}-{'scraped' if scraped else 'plain'}"
                folder.mkdir()
                took_s, used_s, scrapes = seconds_of(log, f"beside-{folder.name}", folder, args.tasks, scraped=scraped)
                kind = "scraped" if scraped else "plain"
                pair |= {kind: round(args.records / took_s), f"{kind}_us": round(used_s * 1e6 / args.records, 2)}
                pair |= {"scrapes": scrapes} if scraped else {}
            pair["ratio"] = round(pair["scraped"] / pair["plain"], 4)
            pair["processor"] = round(pair["scraped_us"] / pair["plain_us"], 4)
            pairs.append(pair)
            print(json.dumps(pair), flush=True)
    ratio = median(one["ratio"] for one in pairs)
    processor = median(one["processor"] for one in pairs)
    found = {"records": args.records, "log": args.log, "pairs": pairs, "ratio": ratio, "goal": GOAL}
    print(f"processing beside a scrape every {EVERY_S:.0f} s: {ratio:.1%} of that without, the goal is {GOAL:.0%}")
    print(f"processor time of a record: {processor:.1%} of that without")
    if args.json:
        Path(args.json).write_text(json.dumps(found, indent=1) + "\n")
    return 0 if ratio >= GOAL else 1


if __name__ == "__main__":
    raise SystemExit(main())
