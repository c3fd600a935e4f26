"""The clocks of tasks in a status document, as command line and page show them.

Rules of this file: pure. Documents of earlier versions have none of these fields.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Json = Mapping[str, Any]
FIELDS = ("stream_time_ms", "stream_time_waits_for", "watermark_ms", "watermark_waits_for")


def clocked(status: Json) -> list[dict[str, Any]]:
    """The tasks with a clock, or with an input that keeps one from beginning; with every field of clocks."""
    tasks = ({**dict.fromkeys(FIELDS), **task} for task in status["tasks"])
    return [task for task in tasks if any(task[name] is not None for name in FIELDS)]


def waits_for(task: Json) -> str:
    """The input that holds the task's clocks back; both with their clocks where they differ, empty for none."""
    stream_time, watermark = task["stream_time_waits_for"], task["watermark_waits_for"]
    if stream_time is None or watermark is None or stream_time == watermark:
        return str(stream_time or watermark or "")
    return f"{watermark} (watermark), {stream_time} (stream time)"
