"""Helpers of the fuzzers: duration and seed, bytes that are wrong in likely places, and a bound of memory.

`make fuzz` runs each for FUZZ_S=60 seconds with a new seed; `FUZZ_SEED=n` repeats one. As ordinary tests they run for
some seconds, with one seed. Sockets are real, and so is the process under test.
"""

from __future__ import annotations

import os
import random
import re
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from support.serve import Sidecar

FUZZ_S = float(os.environ.get("STANDFAST_FUZZ_S", "2.5"))
SEED = int(os.environ.get("STANDFAST_FUZZ_SEED") or "1")
TIMEOUT = FUZZ_S * 4 + 180
NUMBERS = (0, 1, -1, 7, 16, 17, 99, 100, 999, 1_000, 65_535, 99_999, 100_000, 2**31, 2**63 - 1, 2**63, 10**30)

fuzzes = pytest.mark.timeout(TIMEOUT)


def rounds(rng: random.Random, name: str, least: int = 1) -> Iterator[random.Random]:
    """A generator per round, until the time is over, so that a round can be repeated."""
    number, ends = 0, time.monotonic() + FUZZ_S
    while number < least or time.monotonic() < ends:
        yield random.Random(rng.getrandbits(64))
        number += 1
    print(f"fuzz {name}: {number} rounds in {FUZZ_S:.0f} s, STANDFAST_FUZZ_SEED={SEED}")


def seeded(name: str) -> random.Random:
    """The generator of one fuzzer."""
    print(f"fuzz {name}: STANDFAST_FUZZ_SEED={SEED} STANDFAST_FUZZ_S={FUZZ_S}")
    return random.Random(f"{SEED} {name}")


def peak_mib(pid: int) -> float:
    """The peak memory of a process."""
    status = Path(f"/proc/{pid}/status").read_text()
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    assert found is not None
    return int(found[1]) / 1024


class Watched:
    """A sidecar that is being fuzzed: its peak of memory from now on, and its log."""

    def __init__(self, sidecar: Sidecar, name: str, growth_mib: int) -> None:
        self.sidecar, self.name, self.growth_mib = sidecar, name, growth_mib
        self.before_mib = self.peak_mib = peak_mib(sidecar.pid)

    def end(self) -> None:
        """Check for the last time, and print the figures."""
        self.check()
        print(f"fuzz {self.name}: {self.before_mib:.0f} MiB before, {self.peak_mib:.0f} MiB at most")

    def check(self) -> None:
        """The sidecar lives, logged no error of its own, and took no more memory than allowed."""
        sidecar = self.sidecar
        assert sidecar.process is not None
        assert sidecar.process.poll() is None, sidecar.told()
        log = sidecar.log_path.read_text(errors="replace")
        for sign in ("Traceback", ".py:", "never awaited", "never retrieved"):
            at = log.find(sign)
            assert at < 0, log[max(at - 2_000, 0) : at + 2_000]
        peak = peak_mib(sidecar.pid)
        self.peak_mib = peak
        assert peak - self.before_mib < self.growth_mib, f"{self.before_mib} {peak}"


def mutated(rng: random.Random, data: bytes) -> bytes:
    """The same bytes with a few places changed."""
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 5))):
        at = rng.randrange(len(changed) + 1)
        what = rng.randrange(6)
        if what == 0:
            changed[at : at + rng.randrange(1, 9)] = b""
        elif what == 1:
            changed[at:at] = rng.randbytes(rng.randrange(1, 9))
        elif what == 2:
            changed[at : at + 1] = bytes([rng.randrange(256)])
        elif what == 3:
            changed[at:at] = b"%d" % rng.choice(NUMBERS)
        elif what == 4:
            changed[at:at] = rng.choice((b"\r\n", b"\n", b"\r", b"\0", b" ", b":", b"*", b"$", b"\xff"))
        elif changed:
            start = rng.randrange(len(changed))
            changed[at:at] = changed[start : start + rng.randrange(1, 200)]
    return bytes(changed)


def pieces(rng: random.Random, data: bytes) -> list[bytes]:
    """The bytes, as a whole or cut in a few places."""
    if rng.random() < 0.6 or len(data) < 2:
        return [data]
    places = sorted({0, len(data), *(rng.randrange(len(data)) for _ in range(rng.randrange(1, 6)))})
    return [data[start:end] for start, end in pairwise(places)]


def quietly(work: Callable[[], object]) -> bool:
    """Whether the exchange ended well with a peer that may hang up, or stop reading."""
    try:
        work()
    except (OSError, EOFError):
        return False
    return True
