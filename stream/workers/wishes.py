"""The calls of stop(), pause() and resume() in a worker process, by name: its supervisor carries them out.

Rules of this file: names alone.
"""

from __future__ import annotations

STOP, PAUSE, RESUME = "stop", "pause", "resume"
WISHES = frozenset((STOP, PAUSE, RESUME))
