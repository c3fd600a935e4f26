"""A look at the last records of a changelog, as a page of its own; only where `http.peek` turns it on.

    GET /peek/STORE/PARTITION    the newest RECORDS_MAX offsets, the newest first

Rules of this file: one look at a time, of so many offsets and so many milliseconds. Keys and values are shown by their
first bytes and escaped; whoever asks needs the role `read` for that store, which the guard sees to.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from html import escape

from starlette.requests import Request
from starlette.responses import Response

from standfast.ops.observe.verdict import size
from standfast.ops.page.html import head
from standfast.ops.page.model import clock_text, count
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
class Looked:
    """What a changelog ends with."""

    changelog: TopicPartition
    begin: int
    end: int
    records: list[Record]


Look = Callable[[str, int], Looked]  # called in a thread; raises errors of the library


def look(log: Log, changelog: TopicPartition) -> Looked:
    """Read the end of a changelog, by a reader of its own."""
    reader = log.reader()
    try:
        bounds = reader.bounds([changelog])[changelog]
        position = max(bounds.begin, bounds.end - RECORDS_MAX)
        reader.assign({changelog: position})
        records: list[Record] = []
        for _ in range(FETCHES_MAX):
            if position >= bounds.end:
                break
            for batch in reader.fetch(RECORDS_MAX, WAIT_MS):
                records += batch.records
                position = batch.next_offset
        return Looked(changelog, bounds.begin, bounds.end, records[-RECORDS_MAX:])
    finally:
        reader.close()


class Peek:
    """The route's handler."""

    def __init__(self, look_at: Look, headers: dict[str, str]) -> None:
        self._look_at = look_at
        self._headers = headers
        self._turn = asyncio.Lock()

    async def page(self, request: Request) -> Response:
        """The page; an error of the library is told on it."""
        store, partition = request.path_params["store"], request.path_params["partition"]
        status = 200
        try:
            async with self._turn:
                body = _table(await in_thread(partial(self._look_at, store, partition)))
        except StandfastError as error:
            status = 404 if isinstance(error, InvalidRequest) else 503
            body = f'<p class="verdict bad"><span aria-hidden="true">▲</span> {escape(str(error))}</p>'
        return Response(_document(f"{store}/{partition}", body), status, self._headers, HTML)


def _document(what: str, body: str) -> str:
    return f"""{head(f"Changelog of {what}", "../../")}</head>
<body>
<header><h1>Changelog of {escape(what)}</h1>
<nav aria-label="Back"><a href="../../#changelogs">All changelogs</a></nav></header>
<main id="main">{body}</main>
</body>
</html>
"""


def _table(looked: Looked) -> str:
    heads = "".join(
        f'<th scope="col"{" class=num" if name in ("offset", "bytes") else ""}>{name}</th>'
        for name in ("offset", "time (UTC)", "key", "value", "bytes")
    )
    rows = "".join(map(_row, reversed(looked.records)))
    about = (
        f"The newest records of {looked.changelog}, which holds {count(looked.begin)} to {count(looked.end)}; keys and "
        f"values by their first {BYTES_SHOWN} bytes. Load again for newer."
    )
    empty = "" if looked.records else '<p class="empty">The log holds no record there.</p>'
    return (
        f'<section aria-labelledby="h-peek"><h2 id="h-peek">Newest records</h2><p class="about">{escape(about)}</p>'
        f'<div class="wide" tabindex="0" role="region" aria-labelledby="h-peek"><table><thead><tr>{heads}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div>{empty}</section>"
    )


def _row(record: Record) -> str:
    held = len(record.key or b"") + len(record.value or b"")
    value = "<em>deleted</em>" if record.value is None else f"<code>{_shown(record.value)}</code>"
    key = "<em>none</em>" if record.key is None else f"<code>{_shown(record.key)}</code>"
    return (
        f'<tr><th scope="row" class="num">{count(record.offset)}</th><td>{clock_text(record.timestamp)}</td>'
        f'<td>{key}</td><td>{value}</td><td class="num">{escape(size(held))}</td></tr>'
    )


def _shown(raw: bytes) -> str:
    if len(raw) <= BYTES_SHOWN:
        return escape(bytes_text(raw))
    whole = len(raw[:BYTES_SHOWN].decode(errors="ignore").encode())  # not half a character
    return escape(bytes_text(raw[: whole if whole > BYTES_SHOWN - 4 else BYTES_SHOWN])) + "…"
