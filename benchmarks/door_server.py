"""The server of benchmarks/door.py: a session on the embedded log and the data door, pinned to one core.

Rules of this file: run as a program by the benchmark; prints `ready` once it listens and ends when its input does.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import uvloop

import standfast as sf
from standfast.ops.engine import Engine
from standfast.ops.engine_source import SessionSource
from standfast.ops.resp_door import RespDoor
from standfast.store.clock import SystemClock

VALUE = bytes(range(100))
SWITCH_S = 0.0005  # how long a commit's thread may keep the interpreter from the loop


STORES = [sf.KeyValueStore("kv", sf.serde.bytes, sf.serde.bytes)]


def open_session(args: argparse.Namespace, state: str) -> sf.Session:
    """The application's session; one partition more than is served, for the restore."""
    return sf.Session(
        "door", log=f"sqlite:///{args.dir}/log", state_dir=args.dir / state, stores=STORES,
        partitions=args.partitions + 1,
    )  # fmt: skip


def fill(args: argparse.Namespace) -> None:
    """Write the changelog that is restored, in commits of 20,000."""
    with open_session(args, "fill") as session:
        session.assign(active=[args.partitions])
        session.wait_ready(60)
        task = session.task(args.partitions)
        put = task.store("kv").put
        for start in range(0, args.fill, 20_000):
            for number in range(start, min(start + 20_000, args.fill)):
                put(b"key:%012d" % (number % 500_000), VALUE, number)
            task.commit()


def restore(args: argparse.Namespace) -> None:
    """Restore it, in this process and those that it starts, at lower priority; print the seconds."""
    os.nice(10)
    clock = SystemClock()
    print("restoring", flush=True)
    started_ms = clock.monotonic_ms()
    with open_session(args, "restore") as session:
        session.assign(active=[args.partitions])
        session.wait_ready(600)
        print((clock.monotonic_ms() - started_ms) / 1_000, flush=True)
        sys.stdin.read()


def serve(args: argparse.Namespace) -> None:
    """The door until standard input closes."""
    sys.setswitchinterval(SWITCH_S)
    session = open_session(args, "state")
    session.assign(active=range(args.partitions))
    session.wait_ready(60)
    loop = uvloop.new_event_loop()
    door = RespDoor(Engine(SessionSource(session), SystemClock(), source_group="door"), loop)
    loop.run_until_complete(door.open(args.dir / "s"))

    def ended() -> None:
        if not os.read(0, 1 << 16):
            loop.remove_reader(0)
            loop.stop()

    loop.add_reader(0, ended)
    print("ready", flush=True)
    loop.run_forever()
    loop.run_until_complete(door.close())
    session.close()


def main() -> None:
    """One of the three."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--dir", type=Path, required=True)
    parser.add_argument("--core", type=int, required=True)
    parser.add_argument("--partitions", type=int, default=1)
    parser.add_argument("--fill", type=int, help="write so many records to the partition beyond the served ones")
    parser.add_argument("--restore", action="store_true", help="restore that partition")
    args = parser.parse_args()
    os.sched_setaffinity(0, {args.core})
    (fill if args.fill else restore if args.restore else serve)(args)


if __name__ == "__main__":
    main()
