"""A blocking call from an event loop, in a daemon thread of its own.

Rules of this file: an event loop and the interpreter wait at their end for the threads of `asyncio.to_thread`, so a
thread that hangs in the log would hold both up; daemon threads end with the process. The caller bounds their number.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


async def in_thread(job: Callable[[], T]) -> T:
    """Return the job's result or raise its error; if the caller is cancelled, the thread still runs to its end."""
    done: Future[T] = Future()
    # A running future cannot be cancelled: a cancelled caller would make set_result fail in the thread.
    done.set_running_or_notify_cancel()

    def run() -> None:
        try:
            done.set_result(job())
        except BaseException as error:  # noqa: BLE001  raised again where it is waited for
            done.set_exception(error)

    threading.Thread(target=run, name="standfast-call", daemon=True).start()
    return await asyncio.wrap_future(done)
