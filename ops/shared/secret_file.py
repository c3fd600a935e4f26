"""A file with a secret, which other users can neither read nor change.

Rules of this file: an error repeats no byte of the file.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from standfast.store.errors import BadConfig
from standfast.store.names import printable


def secret_bytes(path: Path, bytes_max: int) -> bytes:
    """The bytes of the file, of a larger one `bytes_max` and one more. Raises BadConfig."""
    try:
        with path.open("rb") as file:
            # Of the open file, not of the path, which may name another file by now.
            mode = os.fstat(file.fileno()).st_mode
            raw = file.read(bytes_max + 1)
    except OSError as error:
        raise BadConfig([f"{printable(path)}: cannot be read: {error.strerror or error}"]) from error
    shown = printable(path)
    if mode & (stat.S_IRWXO | stat.S_IWGRP):
        raise BadConfig([f"{shown}: other users can read or change it (mode {mode & 0o777:04o}): chmod 0600 {shown}"])
    return raw
