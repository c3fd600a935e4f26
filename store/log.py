"""The library's logger: `standfast`, silent unless the application configures logging.

Rules of this file: messages carry names and offsets, never keys, values or secrets.
"""

from __future__ import annotations

import logging

logger = logging.getLogger("standfast")
logger.addHandler(logging.NullHandler())
