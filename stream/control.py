"""Control records: the watermark signals of an upstream task, in a repartition topic between ordinary records.

    no key, no value    standfast.watermark = 1357020000000 | idle | active    standfast.task = 0_3

Other consumers of such a topic recognise them by their headers.

Rules of this file: pure; bytes in and out.
"""

from __future__ import annotations

from standfast.replication.log import Headers
from standfast.replication.log import Record as LogRecord
from standfast.store.errors import Corruption
from standfast.stream.watermarks import Active, Idle, Signal, Watermark

SIGNAL_HEADER = "standfast.watermark"
TASK_HEADER = "standfast.task"
_IDLE, _ACTIVE = b"idle", b"active"


def is_control(raw: LogRecord) -> bool:
    """Whether a record of an internal topic is a signal, not data."""
    # Data may have neither key nor value, too, so the header decides.
    return raw.key is None and raw.value is None and bool(raw.headers) and raw.headers[0][0] == SIGNAL_HEADER


def control_headers(task: str, signal: Signal) -> Headers:
    """The headers that carry a signal of an upstream task."""
    if isinstance(signal, Watermark):
        carried = str(signal.watermark_ms).encode()
    else:
        carried = _IDLE if isinstance(signal, Idle) else _ACTIVE
    return ((SIGNAL_HEADER, carried), (TASK_HEADER, task.encode()))


def parse_control(raw: LogRecord, where: str) -> tuple[str, Signal]:
    """(upstream task, signal) of a control record. Raises Corruption for an unreadable one."""
    try:
        carried, task = (value or b"" for _, value in raw.headers[:2])
        if carried in (_IDLE, _ACTIVE):
            return task.decode(), Idle() if carried == _IDLE else Active()
        return task.decode(), Watermark(int(carried))
    except ValueError as error:
        raise Corruption(f"{where}: a watermark signal that cannot be read ({error}): {raw.headers!r}") from error
