"""Kill -9 of a session that threads share: after each kill rows, times, offsets and outputs are those of one cut.

At least once, records whose offsets were not committed may have their rows and outputs; nothing committed is missing.

    log of inputs ──> child (support/crash/threads_child.py): four sources and plain puts on one task ──SIGKILL──> look

Rules of this file: it prints the seed of each run. `STANDFAST_CRASH_SEED=<seed> make crash THREADS_RUNS=2
ARGS="-k threads_share[1]"` repeats every choice of run 1, but not the moment of a kill after a delay.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from standfast.replication.log import TopicPolicy
from standfast.replication.offsets import TopicPartition
from standfast.replication.tail.open_log import open_log
from standfast.store.failpoint import VARIABLE
from support.crash.seeds import seed_of_run
from support.crash.threads_child import RECORDS, RETENTION_MS, SOURCES, WINDOW_MS, open_session, time_of

RUNS = int(os.environ.get("STANDFAST_CRASH_THREADS_RUNS", "1"))
CHILD = Path(__file__).resolve().parents[2] / "support/crash/threads_child.py"
LIVES_MAX = 40
UNHARMED = "none"
PATIENCE_S = 100.0
FAILPOINTS = ("", "commit.logged", "commit.local", "", "stores.families")


class ThreadsCrash:
    """One application with its log, its processes and the numbers that they said to have committed."""

    def __init__(self, root: Path, seed: int, guarantee: str) -> None:
        self.root = root
        self.random = random.Random(seed)
        self.exact = guarantee == "exactly_once"
        self.settings = {"log": f"sqlite:///{root}/log?synchronous=normal", "guarantee": guarantee}
        self.plain: dict[int, int] = {}  # life -> numbers below it were committed
        self.lives = self.kills = 0
        with closing(open_log(self.settings["log"])) as log:
            for topic in ("out", *(topic for topic, _ in SOURCES)):
                log.admin.create_topic(topic, 1, TopicPolicy())

    def live(self, failpoint: str) -> bool:
        """One process until it is killed at a failpoint or after a delay; whether it came to its end before."""
        self.lives += 1
        settings = {
            **self.settings, "state_dir": str(self.root / "state"), "life": self.lives,
            "seed": self.random.randrange(1_000_000),
        }  # fmt: skip
        strike = f"{failpoint}=kill:{self.random.randrange(1, 60)}" if failpoint not in ("", UNHARMED) else ""
        with (self.root / "err").open("a") as err:
            child = subprocess.Popen(
                [sys.executable, str(CHILD), json.dumps(settings)], stdout=subprocess.PIPE, stderr=err, text=True,
                env={**os.environ, VARIABLE: strike, "PYTHONPATH": str(CHILD.parents[2])},
            )  # fmt: skip
        assert child.stdout is not None
        with child:
            begun = child.stdout.readline()
            if not failpoint and begun:
                time.sleep(self.random.uniform(0, 0.5))
                child.kill()
            said = [begun, *child.stdout]
            assert child.wait(PATIENCE_S) in (0, -9), (self.root / "err").read_text()[-4_000:]
        self.kills += child.returncode != 0
        for line in said:
            # A kill may cut the last line short.
            if line.startswith("plain ") and line.endswith("\n"):
                _, life, number = line.split()
                self.plain[int(life)] = int(number)
        return child.returncode == 0

    def look(self, directory: str) -> dict[TopicPartition, int]:
        """Compare the state with its own offsets; returns these."""
        session = open_session(self.settings, str(self.root / directory))
        try:
            task = session.task(0)
            offsets = task.source_offsets()
            read = [offsets.get(TopicPartition(*at), 0) for at in SOURCES]
            records = [(source, number) for source, offset in enumerate(read) for number in range(offset)]
            total, least = task.store("sums").get("all") or 0, sum(number for _, number in records)
            assert total == least if self.exact else total >= least
            rows = dict(task.store("rows").all())
            for life, number in self.plain.items():
                absent = [row for row in range(number) if f"plain-{life}-{row}" not in rows]
                assert not absent, f"rows of life {life} were committed and are not there: {absent[:5]}"
            wanted = {f"{source}-{number}": number for source, number in records}
            found = {key: value for key, value in rows.items() if not key.startswith("plain-")}
            assert found == wanted if self.exact else wanted.items() <= found.items()
            if self.exact:
                self.look_at_windows(task, records)
            self.look_at_outputs(records)
        finally:
            session.close()
        return offsets

    def look_at_windows(self, task: Any, records: list[tuple[int, int]]) -> None:
        """Windows and duplicates within retention, and the clocks of the cut."""
        starts = {number: time_of(number) // WINDOW_MS * WINDOW_MS for _, number in records}
        observed = max(starts.values(), default=-1)
        assert {name: task.stores.stores[name].rows.observed_ms for name in ("windows", "duplicates")} == {
            "windows": observed, "duplicates": observed,
        }  # fmt: skip
        live = [(source, number) for source, number in records if starts[number] > observed - RETENTION_MS]
        windows = {(f"{source}", starts[number]): number for source, number in live}  # the last one of a window
        assert {(window.key, window.start): value for window, value in task.store("windows").all()} == windows
        duplicates = Counter((f"{source}", starts[number], number) for source, number in live)
        found = Counter((window.key, window.start, value) for window, value in task.store("duplicates").all())
        assert found == duplicates
        times = {f"{topic}/0": time_of(read - 1) for (topic, _), read in _counts(records).items()}
        assert {key: task.stream_times.get(key) for key in times} == times

    def look_at_outputs(self, records: list[tuple[int, int]]) -> None:
        """Each record's output is in the log, exactly once under exactly once."""
        found: Counter[tuple[int, int]] = Counter()
        with closing(open_log(self.settings["log"])) as log, closing(log.reader()) as reader:
            reader.assign({TopicPartition("out", 0): 0})
            while batches := reader.fetch(10_000, 0):
                found.update((int(one.key or b""), int(one.value or b"")) for batch in batches for one in batch.records)
        wanted = Counter(records)
        assert found == wanted if self.exact else not wanted - found


def _counts(records: list[tuple[int, int]]) -> dict[tuple[str, int], int]:
    return {SOURCES[source]: count for source, count in Counter(source for source, _ in records).items()}


@pytest.mark.long
@pytest.mark.crash
@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("number", range(RUNS))
def test_state_is_one_cut_after_kills_of_a_session_that_threads_share(tmp_path: Path, number: int) -> None:
    seed = seed_of_run()
    crash = ThreadsCrash(tmp_path, seed, "at_least_once" if number % 2 else "exactly_once")
    print(f"run {number}: seed {seed}", end="", flush=True)
    ended, offsets = False, dict[TopicPartition, int]()
    while not ended:
        assert crash.lives < LIVES_MAX
        ended = crash.live(FAILPOINTS[(number + crash.lives) % len(FAILPOINTS)] if crash.lives < 6 else UNHARMED)
        offsets = crash.look("state")
    assert offsets == dict.fromkeys(SOURCES, RECORDS)
    assert crash.look("restored") == offsets
    print(f": {crash.kills} kills, {sum(crash.plain.values())} rows beside them, 0 differences")
