"""The processes of `test_child_process.py`: a child that follows orders, and a parent that starts a child.

    python -m support.child_program child [BEAT_MS]     orders {"do": NAME, ...}, see `obey`
    python -m support.child_program parent LOCK         a child with the lent lock of a file; prints its process id
    python -m support.child_program stranger            ends at once, without a word to its parent

The environment's PYTHONPATH must have the folder `tests`.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import sys
import time
from typing import Any

from standfast.store.clock import SystemClock
from standfast.store.process.child import LINE_BYTES_MAX, ChildProcess, json_line, json_object
from standfast.store.process.parent import Parent

MODULE = "support.child_program"
LIFE_MAX_S = 120  # of a process that hangs, should a test leave it behind
FLOOD_LINES = 60_000


def obey(parent: Parent, order: dict[str, Any]) -> None:
    """Do one order."""
    match order["do"]:
        case "echo":
            parent.tell(json_line(order))
        case "work":
            parent.tell(json_line({"began": True}))
            time.sleep(order["seconds"])
            parent.tell(json_line({"worked": True}))
        case "stop":
            for number in range(order["answers"]):
                parent.tell(json_line({"last": number, "pad": "x" * 1_000}))
            sys.exit(order["code"])
        case "rubbish":
            parent.tell(json_line({"good": True}))
            parent.tell(b"\x00\xffrubbish\n")
        case "long":
            parent.tell(b"x" * (LINE_BYTES_MAX + 1))
        case "flood":
            for number in range(FLOOD_LINES):
                print(f"line {number} of a flood", file=sys.stderr)
            parent.tell(json_line({"flooded": True}))
        case "print":
            print("a library prints", flush=True)
            os.write(1, b"and a C extension, too\n")
            parent.tell(json_line({"printed": True}))
        case "fail":
            raise RuntimeError("the child cannot go on")
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)


def child(beat_ms: int | None) -> None:
    parent = Parent(beat_ms)
    while True:
        for line in parent.orders(None):
            obey(parent, json.loads(line))


def parent(path: str) -> None:
    lock = os.open(path, os.O_CREAT | os.O_RDWR)
    fcntl.flock(lock, fcntl.LOCK_EX)
    started = ChildProcess(MODULE, ["child"], parse=json_object, clock=SystemClock(), lend=(lock,))
    started.order(json_line({"do": "work", "seconds": LIFE_MAX_S}))
    while not started.poll(1_000):
        pass
    # A process forked without exec has both ends of the child's pipes, and keeps them.
    forked = os.fork()
    if forked == 0:
        os.close(lock)
        time.sleep(LIFE_MAX_S)
        os._exit(0)
    print(json.dumps({"child": started.pid, "forked": forked}), flush=True)
    time.sleep(LIFE_MAX_S)


if __name__ == "__main__":
    if sys.argv[1] == "parent":
        parent(sys.argv[2])
    elif sys.argv[1] == "child":
        child(int(sys.argv[2]) if len(sys.argv) > 2 else None)
