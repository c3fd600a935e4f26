"""A process to be killed or stopped while it makes, prunes or restores snapshots.

    write     random puts and deletes, commits, a snapshot and a prune after each, `rounds` times
    restore   opens the task in a new directory, which begins with a snapshot

    stdout    made NAME      a snapshot is stored
              failed WHY     it was not, and another attempt may be made
              ready          the task runs

Rules of this file: started by path with its settings as JSON; it remembers nothing between lives.
"""

from __future__ import annotations

import json
import sys
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

APP, STORE, KEYS = "crash", "kv", 200
STORES = [KeyValueStore(STORE, serde.string, serde.string)]


def session_of(
    root: Path, directory: str, *, grace_ms: int = 3_600_000, stores: list[KeyValueStore] = STORES
) -> Session:
    """A session that runs task 0."""
    session = Session(
        APP,
        log=f"sqlite:///{root}/log",
        state_dir=root / directory,
        stores=stores,
        partitions=1,
        background=False,
        take_over=False,
        snapshots=SnapshotPolicy(to=str(root / "snaps"), grace_ms=grace_ms),
    )
    session.assign(active=[0])
    session.wait_ready(60)
    return session


def main() -> None:
    settings: dict[str, Any] = json.loads(sys.argv[1])
    root, chance = Path(settings["root"]), Random(settings["seed"])
    session = session_of(root, settings["directory"], grace_ms=settings["grace_ms"])
    say("ready")
    storage = open_storage(str(root / "snaps"), APP)
    for _ in range(settings["rounds"]):
        task = session.task(0)
        for _ in range(chance.randrange(1, 40)):
            key = f"k{chance.randrange(KEYS)}"
            task.store(STORE).put(
                key, None if chance.random() < 0.2 else f"{chance.random()}" * chance.randrange(1, 60)
            )
        task.commit()
        try:
            say(f"made {session.snapshot(0)}")
        except Unavailable as error:
            say(f"failed {error}")
        prune(storage, Retention(2), clock=SystemClock(), grace_ms=settings["grace_ms"])
    session.close()


def say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    main()
