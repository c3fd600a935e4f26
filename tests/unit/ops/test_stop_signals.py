"""A signal that ends `standfast replica` comes anywhere within the wait for it."""

from __future__ import annotations

import subprocess
import sys

# A signal before the n-th line of the wait, for each n.
CHILD = """
import signal, sys
from standfast.store.process.interrupts import Flag, stopped_by_signals

at, passed = 0, 1
while passed > at:
    at, passed = at + 1, 0

    def trace(frame, event, given):
        global passed
        if event == "line":
            passed += 1
            if passed == at:
                signal.raise_signal(signal.SIGTERM)
        return trace

    stop = Flag()
    with stopped_by_signals(stop.set):
        sys.settrace(trace)
        stop.wait(0.001)
        sys.settrace(None)
        assert stop.is_set() or passed < at
print(at)
"""


def test_signal_within_the_wait_for_it_never_stops_the_process_dead() -> None:
    done = subprocess.run([sys.executable, "-c", CHILD], capture_output=True, text=True, timeout=20, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 5
