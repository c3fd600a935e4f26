"""How long RocksDB held writes back, which it tells only in a text.

Rules of this file: pure; from the text of the property `rocksdb.dbstats` to a number. It counts without the database's
statistics being switched on, which cost a get a tenth of its time and more.
"""

from __future__ import annotations

import re

STALLS_PROPERTY = "rocksdb.dbstats"
_TOTAL = re.compile(r"^Cumulative stall: (\d+):(\d+):(\d+)\.(\d{3}) H:M:S", re.MULTILINE)


def stalled_ms(text: str) -> int:
    """Milliseconds since the database was opened; 0 if the text does not tell."""
    found = _TOTAL.search(text)
    if found is None:
        return 0
    hours, minutes, seconds, thousandths = map(int, found.groups())
    return ((hours * 60 + minutes) * 60 + seconds) * 1_000 + thousandths
