"""The kills in a run of the crash harness, and the run as a whole.

    writer      killed at a place between two steps, then at a random time
    restorer    killed in the middle of a restore of a writer's state
    loader      the same in a bulk restore; workers reach the place, too, if it is one of theirs
    standby     killed while it follows a live writer, and as it takes over from it, dead or alive
    racer       two writers take the tasks from each other until they are killed

After any story a run may go on with a race, and with a byte flipped in the remaining state: the task concerned is
mended, or refused until an operator accepts, killed during that, and written to again.

Rules of this file: a story drives one `Crash` and returns the remaining directories; the `Crash` alone knows its log. A
run prints its seed before it begins, and its comparisons when it is over.
"""

from __future__ import annotations

import time

from support.crash.damage import wrong_consequences
from support.crash.run import PATIENCE_S, Crash
from support.crash.stores import unlogged_of

ACCEPT = {
    "accept_unreadable_rows": True,
    "accept_empty_log": True,
}  # an operator's consent to the loss of rows that cannot be restored
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
    ("racer", "commit.logged"),
    ("racer", "commit.local"),
    ("racer", "restore.apply"),
)
MENDING = ("", "", "restore.apply=kill:1", "engine.written=kill:1", "engine.written=kill:2", "stores.dropped=kill:1")
DAWDLE_MS = 60
DAMAGED, RACED = 0.6, 0.25  # shares of all runs

BULK_STRIKES = (
    ("loader", "ingest.marked"),
    ("loader", "ingest.family"),
    ("loader", "ingest.positioned"),
    ("loader", "engine.written"),
    ("loader", "worker.run"),
    ("loader", "worker.spilled"),
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
    """Kill a standby while it follows a live writer, and as it takes over from it, dead or alive."""
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


def kill_racers(crash: Crash, failpoint: str, role: str = "racer", *, dawdle: float = 0.5) -> list[str]:
    """Two processes take the same tasks from each other; the loser stands by and goes on.

    In a share `dawdle` of the runs their commits pause between two steps, so that a take-over meets them there.
    """
    pause_ms = DAWDLE_MS if crash.random.random() < dawdle else 0
    with (
        crash.life(role, "a", failpoint, dawdle_ms=pause_ms) as one,
        crash.life("racer", "b", dawdle_ms=pause_ms) as other,
    ):
        racers = [one, other]
        other.wait_until_ready(racing=True)
        time.sleep(crash.random.uniform(0.3, 1.2))
        crash.met += bool(failpoint) and one.process.poll() is not None
        for racer in racers:
            # The first may have met its failpoint; no other cause ends one of them.
            racer.kill()
    crash.kills += len(racers)
    for directory in ("a", "b"):
        crash.check_left(directory)
    return ["a", "b"]


def damage_and_mend(crash: Crash, directory: str) -> None:
    """Flip a byte of one task, have it mended (perhaps killed in the middle of that), and write on."""
    if crash.random.random() < 0.7 or not crash.tasks_in(directory):
        crash.mend(directory)  # opened once: rows of the write-ahead log are in files now
        crash.check_left(directory)
    known = dict(crash.looks[directory].positions)
    damage = crash.damage(directory)
    if crash.random.random() < 0.5:
        with crash.life("healer", directory, crash.random.choice(MENDING)) as life:
            deadline = time.monotonic() + crash.random.uniform(0.2, 1)
            while life.process.poll() is None and time.monotonic() < deadline:
                time.sleep(0.005)
            if life.process.poll() != 0:  # else it was through already
                life.kill()
        crash.kills += 1
    if not damage.store:
        crash.unlogged(directory).clockless.add(damage.partition)
    said = crash.mend(directory)
    problems = wrong_consequences(damage, known, said, unlogged_of(crash.stores))
    if any(line.startswith("refused ") for line in said) and not problems:
        crash.refused += 1
        crash.unlogged(directory).give_up(damage.store, damage.partition)
        again = crash.mend(directory, accept=ACCEPT)
        problems += [f"{damage}: accepted, and still {line}" for line in again if line.startswith("refused ")]
    assert not problems, f"seed {crash.seed}, {crash.guarantee}: " + "; ".join(problems)
    crash.harmless += damage.turn_back()
    crash.check_left(directory)
    crash.kill_once("writer", directory)


def kill_loader(crash: Crash, failpoint: str) -> list[str]:
    with crash.life("writer", "a", stop_after=crash.random.randrange(60, 160)) as writer:
        assert writer.process.wait(PATIENCE_S) == 0, writer.err.read_text()
    crash.check_left("a")
    crash.kill_once("loader", "b", failpoint)
    crash.kill_once("loader", "b")
    crash.kill_once("loader", "b")
    return ["a", "b"]


KILL = {
    "writer": kill_writer,
    "restorer": kill_restorer,
    "loader": kill_loader,
    "standby": kill_standby,
    "racer": kill_racers,
}


def run(crash: Crash, number: int, places: tuple[tuple[str, str], ...] = STRIKES, most: int = 25) -> None:
    """One run with its number: kills, a look after each of them, and the comparison of all that can be restored.

    The first kill strikes at a place, at most the `most`-th time that it is reached.
    """
    role, place = places[number // len(GUARANTEES) % len(places)]
    times = crash.random.randint(1, 4 if place == "stores.dropped" or role == "racer" else most)
    head = f"run {number}: seed {crash.seed}, {crash.guarantee}, {role} at {place} #{times}, {len(crash.stores)} stores"
    print(f"{head}, {len(unlogged_of(crash.stores))} unlogged", end="", flush=True)
    started = time.monotonic()
    directories = KILL[role](crash, f"{place}=kill:{times}")
    if crash.random.random() < DAMAGED:
        damage_and_mend(crash, crash.random.choice(directories))
    if crash.random.random() < RACED:
        directories = kill_racers(crash, "")
    directories = [*directories, "cold"]
    crash.random.shuffle(directories)
    crash.check_restored(directories)
    total = crash.total
    print(
        f": {crash.kills} kills ({crash.met} there), {total.rows} rows compared, {total.behind} changelogs behind, "
        f"{total.expired} expired segments left, {crash.races} races lost, {len(crash.damages)} damages "
        f"({crash.harmless} harmless, {crash.refused} refused), 0 differences, {time.monotonic() - started:.1f} s"
    )
