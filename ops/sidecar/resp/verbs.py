"""Commands of the kinds of stores, as the table of kinds declares them (`standfast.ops.shared.kinds`).

    SF.WPUT store key start value [TS ms]   ──arguments──>   one call of the store   ──reply──>   +OK

Times are milliseconds, both ends of a range included; a key "" that bounds a range is open.

Rules of this file: from arguments to one call, and back to a reply; it knows words, options and shapes, and no kind.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from standfast.ops.shared.kinds import Verb
from standfast.ops.sidecar.resp.arguments import options, whole
from standfast.ops.sidecar.resp.connection import Answer, Connection, Handler
from standfast.ops.sidecar.resp.replies import OK, bulk, integer, replies
from standfast.ops.sidecar.resp.scans import collect
from standfast.ops.sidecar.resp.stores import of_kind, ordered
from standfast.store.results import PUT_NOT_VALID

Given: TypeAlias = Mapping[bytes, list[bytes]]
Parse: TypeAlias = Callable[[bytes], Any]


def handler_of(kind: str, verb: Verb) -> Handler:
    """The handler of a verb that is one call of the store."""
    call, takes, reply = verb.call, verb.options, _REPLIES[verb.reply]
    assert call is not None, verb.name
    parsers = [_parser(kind, word) for word in verb.words]
    writes = verb.access == "write"
    least, whole_length = 2 + verb.needed, 2 + len(verb.words)

    def handle(c: Connection, args: list[bytes]) -> Answer:
        if writes:
            store = of_kind(c.stores.deletes(args[1]) if verb.deletes else c.writes[args[1]], kind)
        else:
            # Reads of these kinds scan, and a scan must not meet a commit.
            c.engine.scan(c.binding)
            store = of_kind(c.reads[args[1]], kind)
        # An optional argument is given, unless an option stands in its place.
        full = least == whole_length or (len(args) >= whole_length and args[least].upper() not in takes)
        length = whole_length if full else least
        given = options(args, length, takes) if len(args) > length else {}
        named: dict[str, Any] = {"timestamp": _time(given, b"TS", c.now_ms)} if writes else {}
        if b"REV" in takes:
            named["reverse"] = b"REV" in given
        if b"ASC" in takes:
            named["ascending"] = b"ASC" in given
        if b"ASOF" in takes:
            named["as_of"] = _time(given, b"ASOF", None)
        values = [parse(raw) for parse, raw in zip(parsers, args[2:length], strict=False)]
        return reply(c, call(ordered(store, given), *values, **named), given)

    # COMMAND DOCS shows the first line of a handler's docstring.
    handle.__doc__ = verb.usage + "."
    return handle


def _time(given: Given, option: bytes, otherwise: int | None) -> int | None:
    return whole(given[option][0], option.decode()) if option in given else otherwise


def _parser(kind: str, word: str) -> Parse:
    if word in ("key", "value"):
        return bytes
    if word in ("keyfrom", "keyto"):
        return lambda raw: raw or None
    what = f"{kind} {word}" if word in ("start", "end") else word.replace("_", " ")
    return lambda raw: whole(raw, what)


def _version(c: Connection, record: Any, given: Given) -> Answer:
    if record is None:
        return c.nil
    return replies([bulk(record.value), integer(record.valid_from), integer(record.valid_to)])


def _windowed(c: Connection, rows: Any, given: Given) -> Answer:
    parts = ((bulk(key), integer(start), integer(end), bulk(value)) for (key, start, end), value in rows)
    return collect(c, parts, given, 4)


def _versions(c: Connection, rows: Any, given: Given) -> Answer:
    return collect(c, ((bulk(v), integer(since), integer(until)) for v, since, until in rows), given, 3)


_REPLIES: dict[str, Callable[[Connection, Any, Given], Answer]] = {
    "ok": lambda c, nothing, given: OK,
    "number": lambda c, number, given: integer(number),
    "value": lambda c, value, given: c.nil if value is None else bulk(value),
    "starts": lambda c, rows, given: collect(c, ((integer(start), bulk(value)) for start, value in rows), given, 2),
    "windowed": _windowed,
    "version": _version,
    "versions": _versions,
    "valid to": lambda c, valid_to, given: c.nil if valid_to == PUT_NOT_VALID else integer(valid_to),
}
