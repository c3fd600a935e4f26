"""The seed of a crash run: the one that the caller asks for, or a new one. The run's options follow from it.

Rules of this file: a test prints its seed, so that a failed run can be repeated.
"""

from __future__ import annotations

import os
import secrets

from support.crash.options import choose


def seed_of_run() -> int:
    """`STANDFAST_CRASH_SEED`, or a random number of 32 bits. Children started from now on use its options."""
    seed = int(os.environ.get("STANDFAST_CRASH_SEED", "0")) or secrets.randbits(32)
    choose(seed)
    return seed
