"""A page with the last records of a changelog; only where `http.peek` turns it on.

    GET /peek/STORE/PARTITION    the newest RECORDS_MAX offsets, the newest first

Rules of this file: one look at a time, bounded in offsets and milliseconds. Keys and values are shown by their first
bytes and escaped; the guard checks that the client has the role `read` for that store.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from starlette.requests import Request
from starlette.responses import Response

from standfast.ops.page.html import template
from standfast.ops.shared.in_thread import in_thread
from standfast.ops.shared.text import bytes_text
from standfast.replication.log import Log, Record
from standfast.replication.offsets import TopicPartition
from standfast.store.errors import InvalidRequest, StandfastError

RECORDS_MAX = 50
BYTES_SHOWN = 80
WAIT_MS = 500
FETCHES_MAX = 4
HTML = "text/html; charset=utf-8"


@dataclass(frozen=True, slots=True)
class PeekedRecords:
    """The last records of a changelog."""

    changelog: TopicPartition
    begin: int
    end: int
    records: list[Record]


Look = Callable[[str, int], PeekedRecords]  # called in a thread; raises errors of the library


def look(log: Log, changelog: TopicPartition) -> PeekedRecords:
    """Read the end of a changelog, by a reader of its own."""
    # Not by the session's reader, which holds the positions of its tasks.
    reader = log.reader()
    try:
        bounds = reader.bounds([changelog])[changelog]
        position = max(bounds.begin, bounds.end - RECORDS_MAX)
        reader.assign({changelog: position})
        records: list[Record] = []
        # Bounded, because a fetch may be empty while a broker is slow, and markers of transactions are no records.
        for _ in range(FETCHES_MAX):
            if position >= bounds.end:
                break
            for batch in reader.fetch(RECORDS_MAX, WAIT_MS):
                records += batch.records
                position = batch.next_offset
        return PeekedRecords(changelog, bounds.begin, bounds.end, records[-RECORDS_MAX:])
    finally:
        reader.close()


class PeekRoute:
    """The route's handler."""

    def __init__(self, look_at: Look, headers: dict[str, str]) -> None:
        self._look_at = look_at
        self._headers = headers
        self._turn = asyncio.Lock()

    async def page(self, request: Request) -> Response:
        """The page; it shows an error of the library."""
        store, partition = request.path_params["store"], request.path_params["partition"]
        looked, why, status = None, "", 200
        try:
            async with self._turn:
                looked = await in_thread(partial(self._look_at, store, partition))
        except StandfastError as error:
            why, status = str(error), 404 if isinstance(error, InvalidRequest) else 503
        title = f"Changelog of {store}/{partition}"
        values = {"looked": looked, "why": why, "shown": _shown, "shown_max": BYTES_SHOWN}
        html = template("peek.html", title=title, up="../../", **values)
        return Response(html, status, self._headers, HTML)


def _shown(raw: bytes) -> str:
    if len(raw) <= BYTES_SHOWN:
        return bytes_text(raw)
    # Cut before a character that the bound would split, since half of it would turn the whole text into hex.
    whole = len(raw[:BYTES_SHOWN].decode(errors="ignore").encode())
    return bytes_text(raw[: whole if whole > BYTES_SHOWN - 4 else BYTES_SHOWN]) + "…"
