"""A process to be killed or stopped while it makes, prunes or restores snapshots.

    write     random puts and deletes, commits, a snapshot and a prune after each, `rounds` times
    restore   opens the task in a new directory, which begins with a snapshot
    go on     with `every_ms`: random puts and deletes and commits until it is killed, with snapshots on a schedule

    stdout    made NAME      a snapshot is stored
              failed WHY     it was not, and another attempt may be made
              ready          the task runs

Rules of this file: started by path with its settings as JSON; it remembers nothing between lives.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from random import Random
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # started by path

from standfast.restore.snapshot.opening import open_storage
from standfast.restore.snapshot.planning import Retention
from standfast.restore.snapshot.policy import SnapshotPolicy
from standfast.restore.snapshot.prune import prune
from standfast.store import serde
from standfast.store.clock import SystemClock
from standfast.store.errors import Unavailable
from standfast.store.specs import KeyValueStore
from standfast.stream.session.session import Session
from support.crash.options import use

APP, STORE, KEYS = "crash", "kv", 200
STORES = [KeyValueStore(STORE, serde.string, serde.string)]


def session_of(
    root: Path,
    directory: str,
    *,
    grace_ms: int = 3_600_000,
    stores: list[KeyValueStore] = STORES,
    to: str | None = None,
    every_ms: int | None = None,
) -> Session:
    """A session that runs task 0; with `every_ms` it makes snapshots in the background."""
    session = Session(
        APP,
        log=f"sqlite:///{root}/log",
        state_dir=root / directory,
        stores=stores,
        partitions=1,
        background=every_ms is not None,
        take_over=False,
        snapshots=SnapshotPolicy(to=to or str(root / "snaps"), grace_ms=grace_ms, every_ms=every_ms),
    )
    session.assign(active=[0])
    session.wait_ready(60)
    return session


def main() -> None:
    settings: dict[str, Any] = json.loads(sys.argv[1])
    root, chance = Path(settings["root"]), Random(settings["seed"])
    to, every_ms = settings.get("to") or str(root / "snaps"), settings.get("every_ms")
    session = session_of(root, settings["directory"], grace_ms=settings["grace_ms"], to=to, every_ms=every_ms)
    say("ready")
    while every_ms is not None:
        write(session, chance)
        time.sleep(0.02)
    storage = open_storage(to, APP)
    for _ in range(settings["rounds"]):
        write(session, chance)
        try:
            say(f"made {session.snapshot(0)}")
        except Unavailable as error:
            say(f"failed {error}")
        prune(storage, Retention(2), clock=SystemClock(), grace_ms=settings["grace_ms"])
    session.close()


def write(session: Session, chance: Random) -> None:
    """Some puts and deletes, and their commit."""
    task = session.task(0)
    for _ in range(chance.randrange(1, 40)):
        key = f"k{chance.randrange(KEYS)}"
        task.store(STORE).put(key, None if chance.random() < 0.2 else f"{chance.random()}" * chance.randrange(1, 60))
    task.commit()


def say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    use()
    main()
