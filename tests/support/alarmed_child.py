"""A process of `test_interruptions.py`: a soft time limit, whose handler raises at any moment of a put and a commit.

    python support/alarmed_child.py '{"log": ..., "folder": ..., "seed": 7, "attempts": 2000}'

    stdout   the number of attempts that the limit broke off
    stderr   the threads' stacks, if an attempt hangs or takes too long: the process ends then

Rules of this file: signals come from the kernel (setitimer); an application's way back is `reopen` and `wait_ready`.
"""

from __future__ import annotations

import faulthandler
import json
import random
import signal
import sys
import time
from types import FrameType

import standfast as sf

HANG_S = 20
AGAIN_S = 5.0
USUAL = 50  # commits whose time says when the alarms of the others are to come


class Limit(Exception):
    """The exception of the handler."""


class Limited:
    """Blocks that the handler may break off."""

    def __init__(self) -> None:
        self.armed = False
        signal.signal(signal.SIGALRM, self._ring)

    def _ring(self, number: int, frame: FrameType | None) -> None:
        if self.armed:
            self.armed = False
            raise Limit


def main() -> None:
    given = json.loads(sys.argv[1])
    rng, limited, broken = random.Random(given["seed"]), Limited(), 0
    source = sf.TopicPartition("in", 0)
    store = sf.KeyValueStore("rows", sf.serde.string, sf.serde.string)
    session = sf.Session("app", log=given["log"], state_dir=given["folder"], partitions=1, stores=[store])
    session.assign(active=[0])
    session.wait_ready(HANG_S)
    times_s = []
    for offset in range(USUAL):
        began = time.monotonic()
        session.task(0).store("rows").put(f"k{offset}", "v" * 5_000, timestamp=offset)
        session.commit({source: offset + 1})
        times_s.append(time.monotonic() - began)
    usual_s = sorted(times_s)[USUAL // 2]
    for _ in range(given["attempts"]):
        faulthandler.dump_traceback_later(HANG_S, exit=True)
        offset = session.task(0).source_offsets().get(source, 0)
        try:
            limited.armed = True
            signal.setitimer(signal.ITIMER_REAL, rng.uniform(0.02, 1.5) * usual_s)
            session.task(0).store("rows").put(f"k{offset}", "v" * 5_000, timestamp=offset)
            session.commit({source: offset + 1})
            limited.armed = False
        except Limit:
            broken += 1
        except sf.StandfastError:
            limited.armed = False
        began = time.monotonic()
        while session.tasks()[0].state.value != "running":
            session.reopen(0)
            session.wait_ready(AGAIN_S)
        assert time.monotonic() - began < AGAIN_S, "the way back took too long"
    offset = session.task(0).source_offsets()[source]
    session.task(0).discard()
    rows = {key for key, _ in session.task(0).store("rows").all()}
    assert rows == {f"k{number}" for number in range(offset)}, "rows differ"
    session.close()
    print(broken)


if __name__ == "__main__":
    main()
