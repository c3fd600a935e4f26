"""What a scrape every five seconds costs an application with two worker processes, within one run of it.

    python proof/benchmarks/scrape_beside.py [--records 8000000] [--tasks 4] [--log kafka|embedded] [--json FILE]

    count by key, workers=2 ──> windows of WINDOW_S: scraped, quiet, quiet, scraped, ... until the records are short

In a scraped window /metrics is read every EVERY_S; the workers push their status in both. Two runs of the same work
differ by a fifth on two cores that a broker shares. Windows of one run differ less, and this order favours neither kind
where a run becomes faster or slower.

Rules of this file: times are of one machine's monotonic clock. Each worker notes its number of records in a file.
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
from statistics import median, quantiles
from typing import Any

import standfast as sf
from standfast.ops.shared.run_file import read_run_file
from standfast.ops.tools.broker import Broker
from standfast.replication.log import Outgoing, TopicPolicy
from standfast.replication.offsets import TopicPartition
from standfast.replication.tail.open_log import open_log
from standfast.store.errors import StandfastError

NAME, TOPIC = "beside", "scrape-beside-in"
KEYS = 50_000
EVERY_S, WINDOW_S = 5.0, 5.0
SETTLE_S = 20.0  # a broker's first seconds, and a compiler's, are slower than the rest
ORDER = (True, False, False, True)  # scraped or not
KINDS = (("scraped", True), ("quiet", False))
NOTED_EVERY = 256  # records
BATCH = 20_000
START_S_MAX = 120
GOAL = 0.97


def run(log: str, folder: str) -> None:
    """The application: counts records by key, and notes how many each worker has processed."""
    seen, file = 0, -1

    def noted(key: str | None, value: bytes) -> bool:
        nonlocal seen, file
        if file < 0:  # in the worker
            file = os.open(Path(folder) / f"count-{os.getpid()}", os.O_WRONLY | os.O_CREAT)
        seen += 1
        if seen % NOTED_EVERY == 0:
            os.pwrite(file, b"%12d" % seen, 0)
        return True

    counts: sf.KeyValueStore[Any, Any] = sf.KeyValueStore("counts", sf.serde.string, sf.serde.int64)
    app = sf.App(
        NAME,
        log=log,
        state_dir=f"{folder}/state",
        stores=[counts],
        workers=2,
        http_port=0,
        standby_replicas=0,
    )
    app.stream(TOPIC, key=sf.serde.string, value=sf.serde.bytes).filter(noted).group_by_key().count("counts")
    app.run()


def fill(log: str, records: int, tasks: int) -> None:
    """Write the records."""
    with closing(open_log(log)) as opened, closing(opened.producer()) as producer:
        opened.admin.create_topic(TOPIC, tasks, TopicPolicy())
        each = records // tasks
        for begin in range(0, each, BATCH):
            for partition in range(tasks):
                batch = [
                    Outgoing(f"k{(number * 7_919 + partition) % KEYS}".encode(), b"x" * 100, 1_356_998_400_000 + number)
                    for number in range(begin, min(begin + BATCH, each))
                ]
                producer.append({TopicPartition(TOPIC, partition): batch})


def processed(folder: Path) -> int:
    """Records that the workers have processed so far."""
    return sum(int(path.read_bytes() or b"0") for path in folder.glob("count-*"))


def windows(folder: Path, process: subprocess.Popen[bytes], records: int) -> list[tuple[bool, float]]:
    """The windows of a run, scraped or not, with their speed in records a second; whole rounds of ORDER alone."""
    deadline = time.monotonic() + START_S_MAX
    while not processed(folder):
        if process.poll() is not None or time.monotonic() > deadline:
            raise SystemExit(f"the application did not begin:\n{(folder / 'said').read_text()[-3_000:]}")
        time.sleep(0.1)
    time.sleep(SETTLE_S)
    found: list[tuple[bool, float]] = []
    while True:
        for scraped in ORDER:
            began, before = time.monotonic(), processed(folder)
            next_s = began
            while (now := time.monotonic()) < began + WINDOW_S:
                if scraped and now >= next_s:
                    scrape(folder / "state" / NAME)
                    next_s += EVERY_S
                time.sleep(0.05)
            found.append((scraped, (processed(folder) - before) / (time.monotonic() - began)))
        round_s = WINDOW_S * len(ORDER)
        # Partitions end one after the other: the last tenth does not count.
        if records * 0.9 - processed(folder) < round_s * max(speed for _, speed in found):
            return found


def scrape(state_path: Path) -> None:
    """Read the metrics, as Prometheus does."""
    try:
        with urllib.request.urlopen(f"{read_run_file(state_path).address}/metrics", timeout=10) as answer:
            text = answer.read().decode()
    except (StandfastError, OSError) as error:
        raise SystemExit(f"no metrics: {error}") from error
    if "standfast_processed_records_total" not in text:
        raise SystemExit(f"no records in the metrics:\n{text[:2_000]}")


@contextmanager
def log_of(kind: str, folder: Path) -> Iterator[str]:
    """The address of a log."""
    if kind == "embedded":
        yield f"sqlite:///{folder}/log?synchronous=normal"
        return
    with Broker(folder / "kafka") as broker:
        yield f"kafka://{broker.address}"


def measured(args: argparse.Namespace) -> list[tuple[bool, float]]:
    """Fill a log, run the application over it, and return the windows."""
    with tempfile.TemporaryDirectory(prefix="scrape-beside-") as root, log_of(args.log, Path(root)) as log:
        fill(log, args.records, args.tasks)
        (folder := Path(root) / "app").mkdir()
        command = [sys.executable, __file__, "--child", json.dumps([log, str(folder)])]
        with (folder / "said").open("w") as said, subprocess.Popen(command, stderr=said) as process:
            try:
                return windows(folder, process, args.records)
            finally:
                process.send_signal(signal.SIGTERM)
                process.wait(120)


def main() -> int:
    """Run it; 1 if the goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=8_000_000, metavar="N", help="(8000000)")
    parser.add_argument("--tasks", type=int, default=4, metavar="N", help="(4)")
    parser.add_argument("--log", choices=("embedded", "kafka"), default="kafka", help="(kafka)")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        run(*json.loads(args.child))
        return 0
    found = measured(args)
    rounds = [found[at : at + len(ORDER)] for at in range(0, len(found), len(ORDER))]
    ratios = [sum(speed for on, speed in one if on) / sum(speed for on, speed in one if not on) for one in rounds]
    ratio = median(ratios)
    spread = [round(one, 4) for one in (quantiles(ratios, n=4)[::2] if len(ratios) > 1 else ratios * 2)]
    speeds = {name: round(median(speed for on, speed in found if on is kind)) for name, kind in KINDS}
    told = {"log": args.log, **speeds, "rounds": len(rounds), "ratio": round(ratio, 4), "quartiles": spread}
    print(json.dumps(told))
    print(f"processing beside a scrape every {EVERY_S:.0f} s: {ratio:.1%} of that without, the goal is {GOAL:.0%}")
    if args.json:
        Path(args.json).write_text(json.dumps(told | {"goal": GOAL, "windows": found}, indent=1) + "\n")
    return 0 if ratio >= GOAL else 1


if __name__ == "__main__":
    raise SystemExit(main())
