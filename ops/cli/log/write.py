"""`topic write`: JSON lines as records of a topic, from a file or from standard input.

    {"key": "ada", "value": {"page": 7}, "timestamp": 1357020000000, "headers": {"trace": "1"}, "partition": 0}
      optional       null: a delete     milliseconds, else now        text or null           else by the key

    file    every line is checked before the first is written          a wrong line: nothing is written
    pipe    written as lines come, whenever the input pauses           a wrong line: the lines before it are written

Rules of this file: arguments, lines and messages; `standfast.stream.app.producer` writes. A line is bounded.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import stat
import sys
from collections.abc import Iterator
from contextlib import closing, suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from standfast.ops.cli.arguments import log_of, prints
from standfast.store.errors import InvalidRequest, StandfastError

if TYPE_CHECKING:
    from standfast.ops.shared.output import Output
    from standfast.store.serde import Serde
    from standfast.stream.app.producer import Checked, Producer

SCHEMA = "standfast.topic-write/1"
SERDES = ("string", "json", "int64", "float64", "bytes")
LINE_BYTES_MAX = 32 << 20
CHUNK_BYTES = 1 << 16
STDIN = "-"


def add_write(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    what = "write JSON lines as records of a topic"
    text = (
        f"{what[0].upper()}{what[1:]}. A line is an object with value (null: a delete), and optionally key, timestamp "
        "(milliseconds), headers (an object of texts) and partition."
    )
    command = commands.add_parser("write", help=what, description=text)
    command.add_argument("topic", metavar="NAME", help="the topic, which must exist")
    command.add_argument("file", metavar="FILE", nargs="?", default=STDIN, help="the lines (default: standard input)")
    command.add_argument("--log", metavar="ADDRESS", help="the log, as kafka://host:9092 or sqlite:///./log")
    for part, default in (("key", "string"), ("value", "json")):
        command.add_argument(
            f"--{part}-serde",
            choices=SERDES,
            default=default,
            help=f"of the {part}s; bytes are given in hex (default: {default})",
        )
    prints(command, run_write, "json", "config")


def run_write(args: argparse.Namespace, out: Output) -> int:
    """topic write."""
    from standfast.store.clock import SystemClock
    from standfast.stream.app.producer import Producer

    serdes = _serde(args.key_serde), _serde(args.value_serde)
    with closing(_Lines(args.file)) as lines, closing(Producer(log_of(args), {}, serdes, SystemClock())) as producer:
        producer.topic(args.topic)  # first, since an absent topic is not the fault of a line
        if lines.seekable:
            _check(lines, args.topic, producer)
            lines.rewind()
        written = _write(lines, args.topic, producer, out)
    out.document({"schema": SCHEMA, "topic": args.topic, "records": written})
    out.line(f"{written:,} {'record' if written == 1 else 'records'} written to {args.topic}")
    return 0


def _write(lines: _Lines, topic: str, producer: Producer, out: Output) -> int:
    """Write all lines; returns the number of records."""
    written, warned = 0, False
    try:
        with out.progress("writing", lines.size) as bar:
            for number, raw in lines:
                if raw is None:
                    written += producer.flush()
                    continue
                try:
                    checked = _checked(lines, number, raw, topic, producer)
                except InvalidRequest:
                    written += producer.flush()
                    raise
                if (twice := _twice(raw)) and not warned:
                    warned = True
                    out.note(
                        f"{lines.name}, line {number}: the name {twice!r:.100} stands twice in an object, and the last "
                        "one counts (said of the first such line only)"
                    )
                written += producer.add(checked)
                bar.advance(len(raw) + 1)
            return written + producer.flush()
    except StandfastError:
        if written:
            out.note(f"{written:,} records were written before the error below")
        raise


def _check(lines: _Lines, topic: str, producer: Producer) -> None:
    """Check all lines of a file, and write nothing."""
    try:
        for number, raw in lines:
            if raw is not None:
                _checked(lines, number, raw, topic, producer)
    except InvalidRequest as error:
        raise InvalidRequest(f"{error}; nothing is written") from error


def _checked(lines: _Lines, number: int, raw: bytes, topic: str, producer: Producer) -> Checked:
    """The record of a line. Raises InvalidRequest, which names the line."""
    try:
        return producer.check(topic, **_record(raw))
    except (InvalidRequest, ValueError) as error:
        raise InvalidRequest(f"{lines.name}, line {number}: {error}") from error


def _record(raw: bytes) -> dict[str, Any]:
    """The arguments of `check`. Raises ValueError."""
    from standfast.replication.shapes import read

    line = read(raw, _line_type())
    headers = tuple((name, None if text is None else text.encode()) for name, text in (line.headers or {}).items())
    return {
        "key": line.key,
        "value": line.value,
        "timestamp": line.timestamp,
        "headers": headers,
        "partition": line.partition,
    }


def _twice(raw: bytes) -> str:
    """The first name that stands twice in one object of a line, which is JSON; else an empty text."""
    found: list[str] = []

    def look(pairs: list[tuple[str, Any]]) -> None:
        names = [name for name, _ in pairs]
        if len(set(names)) < len(names):
            found.append(next(name for at, name in enumerate(names) if name in names[:at]))

    with suppress(ValueError, RecursionError):  # the line was read already, by a stricter reader
        json.loads(raw, object_pairs_hook=look)
    return found[0] if found else ""


@cache
def _line_type() -> Any:
    """The content of a line; made at its first use, since most commands need no msgspec."""
    from standfast.replication.shapes import Shape

    class Line(Shape, frozen=True):
        value: Any
        key: Any = None
        timestamp: int | None = None
        headers: dict[str, str | None] | None = None
        partition: int | None = None

    return Line


def _serde(name: str) -> Serde[Any]:
    from standfast.store import serde

    if name == "bytes":
        return serde.pair("hex", bytes.fromhex, bytes.hex)
    found = serde.by_name(name)
    assert found is not None, name
    return found


class _Lines:
    """Numbered lines of a file or of standard input; None for a line: the input pauses. Empty lines are passed over."""

    def __init__(self, path: str) -> None:
        self.name = "standard input" if path == STDIN else path
        try:
            self._fd = os.dup(sys.stdin.fileno()) if path == STDIN else os.open(Path(path), os.O_RDONLY)
        except OSError as error:
            raise InvalidRequest(f"{self.name} cannot be read: {error.strerror}") from error
        found = os.fstat(self._fd)
        self.seekable = stat.S_ISREG(found.st_mode)
        self.size = found.st_size if self.seekable else 0
        self._begin = os.lseek(self._fd, 0, os.SEEK_CUR) if self.seekable else 0

    def __iter__(self) -> Iterator[tuple[int, bytes | None]]:
        number, parts, size = 0, list[bytes](), 0  # the beginning of a line, without its end
        while True:
            if not select.select([self._fd], [], [], 0)[0]:
                yield number, None
            chunk = os.read(self._fd, CHUNK_BYTES)
            first, *more = chunk.split(b"\n") if chunk else (b"", b"")
            parts.append(first)
            size += len(first)
            for begin in more:
                number += 1
                raw = b"".join(parts)
                parts, size = [begin], len(begin)
                if raw.strip():
                    yield number, raw
            if not chunk:
                return
            if size > LINE_BYTES_MAX:
                raise InvalidRequest(f"{self.name}, line {number + 1}: longer than {LINE_BYTES_MAX:,} bytes")

    def rewind(self) -> None:
        """Begin again."""
        os.lseek(self._fd, self._begin, os.SEEK_SET)

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)
