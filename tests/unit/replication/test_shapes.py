"""Typed values at the boundaries: their first use by several threads at once."""

from __future__ import annotations

import subprocess
import sys

# A process of its own, because the failure is a segmentation fault: four threads decode classes that were never
# decoded before. Without the lock of `shapes` it ends with -11 within the first few classes.
PROGRAM = """
import dataclasses, sys, threading
from standfast.replication import shapes

sys.setswitchinterval(1e-6)
NAMES = [f"field_{number}" for number in range(20)]
VALUE = {name: number for number, name in enumerate(NAMES)}
TEXT = __import__("json").dumps({"one": VALUE, "more": [VALUE]})
seen = []
for number in range(40):
    inner = dataclasses.make_dataclass(f"Inner{number}", [(name, "int") for name in NAMES])
    outer = dataclasses.make_dataclass(f"Outer{number}", [("one", inner), ("more", list[inner])])
    start = threading.Barrier(4)

    def decode(at):
        start.wait()
        seen.append(shapes.read(TEXT, outer) if at % 2 else shapes.fit({"one": VALUE, "more": [VALUE]}, outer))

    threads = [threading.Thread(target=decode, args=(at,)) for at in range(4)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert seen[-4:] == [outer(inner(**VALUE), [inner(**VALUE)])] * 4, seen[-4:]
print(len(seen))
"""


def test_threads_decode_a_class_for_the_first_time_at_once() -> None:
    ended = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout) == (0, "160\n"), ended.stderr
