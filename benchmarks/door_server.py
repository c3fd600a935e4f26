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

SWITCH_S = 0.0005  # how long a commit's thread may keep the interpreter from the loop


def main() -> None:
    """Serve until standard input closes."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--dir", type=Path, required=True)
    parser.add_argument("--core", type=int, required=True)
    parser.add_argument("--partitions", type=int, default=1)
    parser.add_argument("--profile", action="store_true")
    args = parser.parse_args()
    os.sched_setaffinity(0, {args.core})
    sys.setswitchinterval(SWITCH_S)
    raw = sf.serde.bytes
    session = sf.Session(
        "door",
        log=f"sqlite:///{args.dir}/log",
        state_dir=args.dir / "state",
        stores=[sf.KeyValueStore("kv", raw, raw)],
        partitions=args.partitions + 1,
    )
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
    profile = None
    if args.profile:
        import cProfile

        profile = cProfile.Profile()
        profile.enable()
    loop.run_forever()
    if profile is not None:
        import pstats

        profile.disable()
        pstats.Stats(profile, stream=sys.stderr).sort_stats("tottime").print_stats(30)
    loop.run_until_complete(door.close())
    session.close()


if __name__ == "__main__":
    main()
