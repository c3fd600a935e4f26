"""A writer of sorted files for rows that do not fit in memory: see `standfast.store.rocks.sst`.

Rules of this file: one of the four that import rocksdict. Rows come in strictly ascending key order; layout and
options are those of `sst.py`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

import rocksdict

from standfast.store.errors import Closed, InvalidRequest
from standfast.store.rocks.errors import translate
from standfast.store.rocks.sst import file_options


class SstWriter:
    """One file. `entries`, `first_key` and `last_key` describe its content so far."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.entries = 0
        self.first_key = b""
        self.last_key = b""
        self._finished = False
        try:
            self._writer = rocksdict.SstFileWriter(file_options())
            self._writer.open(str(path))
        except Exception as error:
            raise translate(error, f"opening {path}") from error

    @property
    def size_bytes(self) -> int:
        """Approximate bytes written so far."""
        return self._writer.file_size()

    def add(self, keys: Sequence[bytes], rows: Sequence[bytes]) -> None:
        """Add rows whose keys lie above all earlier ones. Raises InvalidRequest if they are out of order."""
        if self._finished:
            raise Closed(f"{self.path} is finished: write another file")
        if not keys:
            return
        try:
            deque(map(self._writer.__setitem__, keys, rows), maxlen=0)  # the loop in C
        except Exception as error:
            if "strict ascending order" in str(error):
                raise InvalidRequest(f"{self.path}: rows are not in strictly ascending key order: sort them") from error
            raise translate(error, f"writing {self.path}") from error
        if not self.entries:
            self.first_key = keys[0]
        self.last_key = keys[-1]
        self.entries += len(keys)

    def finish(self) -> None:
        """Complete the file, which must have at least one row."""
        self._finished = True
        try:
            self._writer.finish()
        except Exception as error:
            raise translate(error, f"finishing {self.path}") from error


def rocksdict_version() -> str:
    """Version of the binding, for the manifest beside the files."""
    return version("rocksdict")
