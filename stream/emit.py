"""When a windowed aggregation emits its results.

Rules of this file: plain values.
"""

from __future__ import annotations

from enum import Enum


class EmitStrategy(Enum):
    """Emit on every update (with a cache: the last one per key and flush), or once, when the window closes."""

    ON_WINDOW_UPDATE = "on_window_update"
    ON_WINDOW_CLOSE = "on_window_close"


ON_WINDOW_UPDATE = EmitStrategy.ON_WINDOW_UPDATE
ON_WINDOW_CLOSE = EmitStrategy.ON_WINDOW_CLOSE
