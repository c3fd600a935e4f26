"""What is killed in a run of the crash harness, and when; and the run as a whole.

    writer      killed at a place between two steps, then at a random time
    restorer    killed in the middle of a restore of what a writer left
    loader      the same of a bulk restore; workers reach the place, too, where it is one of theirs
    standby     killed while it follows a live writer, and as it takes over from it, dead or alive

Rules of this file: a story drives one `Crash` and gives the directories that are left; which log it is on is the
`Crash`'s own affair. A run says its seed before it begins, and what it compared when it is over.
"""

from __future__ import annotations

import time

from crash_run import PATIENCE_S, Crash

GUARANTEES = ("exactly_once", "at_least_once")
# Role of the process to be killed, and where the first of its kills strikes. The others come at random times.
STRIKES = (
    ("writer", "commit.logged"),
    ("writer", "commit.local"),
    ("writer", "stores.families"),
    ("writer", "engine.written"),
    ("writer", "stores.dropped"),
    ("restorer", "restore.apply"),
    ("restorer", "engine.written"),
    ("restorer", "stores.dropped"),
    ("standby", "standby.apply"),
    ("standby", "stores.dropped"),
)

BULK_STRIKES = (
    ("loader", "ingest.marked"),
    ("loader", "ingest.family"),
    ("loader", "ingest.positioned"),
    ("loader", "engine.written"),
    ("loader", "worker.run"),
)


def kill_writer(crash: Crash, failpoint: str) -> list[str]:
    crash.kill_once("writer", "a", failpoint)
    crash.kill_once("writer", "a")
    return ["a"]


def kill_restorer(crash: Crash, failpoint: str) -> list[str]:
    with crash.life("writer", "a", stop_after=crash.random.randrange(60, 160)) as writer:
        assert writer.process.wait(PATIENCE_S) == 0, writer.err.read_text()
    crash.check_left("a")
    crash.kill_once("restorer", "b", failpoint)
    crash.kill_once("restorer", "b")
    return ["a", "b"]


def kill_standby(crash: Crash, failpoint: str) -> list[str]:
    """The standby is killed while it follows a live writer, and as it takes over from it, dead or alive."""
    with crash.life("writer", "a") as writer:
        writer.wait_until_ready()
        crash.kill_once("standby", "b", failpoint)
        if crash.random.random() < 0.5:
            writer.kill()
        crash.kill_once("standby", "b", promote_ms=crash.random.randrange(200))
        writer.kill(may_be_fenced=True)
    crash.kills += 1
    crash.check_left("a")
    return ["a", "b"]


def kill_loader(crash: Crash, failpoint: str) -> list[str]:
    with crash.life("writer", "a", stop_after=crash.random.randrange(60, 160)) as writer:
        assert writer.process.wait(PATIENCE_S) == 0, writer.err.read_text()
    crash.check_left("a")
    crash.kill_once("loader", "b", failpoint)
    crash.kill_once("loader", "b")
    crash.kill_once("loader", "b")
    return ["a", "b"]


KILL = {"writer": kill_writer, "restorer": kill_restorer, "loader": kill_loader, "standby": kill_standby}


def run(crash: Crash, number: int, places: tuple[tuple[str, str], ...] = STRIKES, most: int = 25) -> None:
    """One run with its number: kills, a look after each of them, and the comparison of all that can be restored.

    The first kill strikes at a place, at most the `most`-th time that it is reached.
    """
    role, place = places[number // len(GUARANTEES) % len(places)]
    times = crash.random.randint(1, 4 if place == "stores.dropped" else most)
    print(f"run {number}: seed {crash.seed}, {crash.guarantee}, {role} at {place} #{times}", end="", flush=True)
    started = time.monotonic()
    directories = [*KILL[role](crash, f"{place}=kill:{times}"), "cold"]
    crash.random.shuffle(directories)
    crash.check_restored(directories)
    total = crash.total
    print(
        f": {crash.kills} kills ({crash.met} there), {total.rows} rows compared, {total.behind} changelogs behind, "
        f"{total.expired} expired segments left, 0 differences, {time.monotonic() - started:.1f} s"
    )
