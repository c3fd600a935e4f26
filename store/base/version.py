"""The version, alone in a file so that builds read it without any import.

Rules of this file: one literal, no imports of ours.
"""

from __future__ import annotations

__version__ = "0.1.0"
