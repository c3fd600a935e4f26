"""The record that a process has in hand, in a mapped file of the state directory, which outlives the process.

    <state_dir>/<app>/.hands/<pid>          four words, mapped; behind them lines of JSON: the process, then its inputs
                             <pid>.stack    the stack of the thread that a fatal signal came to (faulthandler)

    word     meaning
    INPUT    number of the input whose record is in hand, by its line, from 1; 0: no record. Below 0: of that input, but
             it may not be the one to blame, since others are decoded with it, or calls run beside it
    OFFSET   its offset
    STEP     number of the step that has it, by the input's line, from 1; 0: none with a policy of its own; -1: a serde
    NOTED    the offset + 1 of a record at which this process was seen to stall, whose note is written; 0: none

The file of a process that ended well is removed. Another process reads the others: a supervisor when its worker has
ended, or the next owner of the state directory.

Rules of this file: a few stores a record, no call of the system. Without room for the file the words are of this
process alone: it goes on, and its record is named nowhere. One thread writes.
"""

from __future__ import annotations

import errno
import faulthandler
import json
import mmap
import os
import re
import signal
from array import array
from collections.abc import Iterator, MutableSequence, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, NamedTuple, cast

from standfast.store import files
from standfast.store.clock import boot_id
from standfast.store.log import as_event, logger
from standfast.store.outside import process_id

FOLDER = ".hands"
INPUT, OFFSET, STEP, NOTED = range(4)
DECODING = -1
DESERIALIZE = "deserialize"
_WORDS, _WORD_BYTES = 4, 8
_TEXT_AT = 4_096  # a page of its own: the lines are written by calls, the words by stores
_STACK = ".stack"
STACK_BYTES = 4_000  # of a stack, in a note
_FATAL = re.compile(r"Fatal Python error: (.*)")
_SIGNALS = {
    "Segmentation fault": signal.SIGSEGV,
    "Bus error": signal.SIGBUS,
    "Illegal instruction": signal.SIGILL,
    "Floating point exception": signal.SIGFPE,
    "Floating-point exception": signal.SIGFPE,
}


class HeldRecord(NamedTuple):
    """A record that a process had in hand, and the position behind it. `sure`: no other record was in work."""

    task: str
    topic: str
    partition: int
    offset: int
    position: int
    step: str  # one with a policy of its own; DESERIALIZE
    sure: bool

    def __str__(self) -> str:
        step = f", step {self.step!r}" if self.step else ""
        return f"record {self.topic}-{self.partition} at offset {self.offset} (task {self.task}{step})"


class LastWords(NamedTuple):
    """The words of a process that did not end well. `fatal`: the signal of its stack, 0 for none."""

    pid: int
    record: HeldRecord | None
    stack: str
    fatal: int
    same_boot: bool


class InHand:
    """The words of this process. Without a folder they are of this process alone."""

    def __init__(self, folder: Path | None = None) -> None:
        self.words: MutableSequence[int] = array("q", bytes(_WORDS * _WORD_BYTES))
        self._path: Path | None = None
        self._text = -1
        self._inputs = 0
        self._stack: IO[bytes] | None = None
        if folder is not None:
            try:
                self._begin(folder)
            except OSError as error:
                self.close()
                logger.warning(
                    "a record that ends this process will be named nowhere: %s cannot be written (%s)", folder, error,
                    extra=as_event("in_hand_not_kept"),
                )  # fmt: skip

    def add(self, task: str, topic: str, partition: int, behind: int, steps: Sequence[str]) -> int:
        """Name an input of a task; returns its number. `behind`: from a record's offset to the next position."""
        self._inputs += 1
        self._say({"task": task, "topic": topic, "partition": partition, "behind": behind, "steps": list(steps)})
        return self._inputs

    def held(self) -> HeldRecord | None:
        """The record in hand, for another thread of this process; None if there is none, or no file."""
        path = self._path
        found = None if path is None else _found(path)
        return None if found is None else found.record

    def noted(self, record: HeldRecord) -> None:
        """A stall at this record is noted: the end of the process there counts no second time."""
        self.words[NOTED] = record.offset + 1

    def close(self) -> None:
        """Remove the file: this process ends well, or processes no more. Closing twice is fine."""
        stack, self._stack = self._stack, None
        text, self._text = self._text, -1  # first: a second close would close a later file of this number
        if stack is not None:
            faulthandler.disable()
            stack.close()
        if text >= 0:
            os.close(text)
        if self._path is not None:
            _remove(self._path)
            self._path = None

    def _begin(self, folder: Path) -> None:
        files.make_folder(folder, exist_ok=True)
        path = folder / str(process_id())
        _remove(path)
        # O_APPEND: the lines come behind the words, which are written by the mapping alone.
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND
        self._text = files.open_handle(path, flags, 0o600)
        self._path = path
        if os.write(self._text, bytes(_TEXT_AT)) < _TEXT_AT:  # whole, so that no store needs room on the disk
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        memory = mmap.mmap(self._text, _WORDS * _WORD_BYTES)
        self.words = cast("MutableSequence[int]", memoryview(memory).cast("q"))
        self._say({"pid": process_id(), "boot": boot_id()})
        if not faulthandler.is_enabled():  # else the program has chosen where its stacks go
            self._stack = files.create(path.with_name(path.name + _STACK), buffering=0)
            faulthandler.enable(self._stack, all_threads=False)  # of the one that ended it
            os.register_at_fork(after_in_child=self._after_fork)

    def _after_fork(self) -> None:
        if self._stack is not None:
            faulthandler.disable()  # the stack of a child is none of this process

    def _say(self, line: dict[str, object]) -> None:
        if self._text >= 0:
            with suppress(OSError):  # a full disk: the words then name an input that no line describes
                os.write(self._text, json.dumps(line).encode() + b"\n")


def last_words(folder: Path, pid: int) -> LastWords | None:
    """The words of a process that has ended, which are removed; None if it ended well."""
    path = folder / str(pid)
    found = _found(path)
    _remove(path)
    return found


def left_behind(folder: Path) -> Iterator[LastWords]:
    """The words of all processes of a state directory; they have ended, since its lock is free."""
    names = sorted(path.name for path in folder.glob("*") if path.name.isdecimal())
    for name in names:
        found = last_words(folder, int(name))
        if found is not None:
            yield found


def _found(path: Path) -> LastWords | None:
    try:
        return _read(path)
    except (OSError, ValueError, KeyError, TypeError, IndexError):
        return None


def _read(path: Path) -> LastWords:
    content = path.read_bytes()
    words = memoryview(content[: _WORDS * _WORD_BYTES]).cast("q")
    process, *inputs = (json.loads(line) for line in content[_TEXT_AT:].splitlines())
    record = None
    if words[INPUT] and words[NOTED] != words[OFFSET] + 1:
        one = inputs[abs(words[INPUT]) - 1]
        offset, step = words[OFFSET], words[STEP]
        name = DESERIALIZE if step == DECODING else one["steps"][step - 1] if step else ""
        position = offset + one["behind"]
        record = HeldRecord(one["task"], one["topic"], one["partition"], offset, position, name, words[INPUT] > 0)
    stack = ""
    with suppress(OSError):
        stack = path.with_name(path.name + _STACK).read_bytes()[:STACK_BYTES].decode(errors="replace").strip()
    fatal = _FATAL.search(stack)
    # Any other fatal error of the interpreter ends by abort().
    number = 0 if fatal is None else _SIGNALS.get(fatal[1].strip(), signal.SIGABRT)
    return LastWords(process["pid"], record, stack, int(number), process["boot"] == boot_id())


def _remove(path: Path) -> None:
    for one in (path, path.with_name(path.name + _STACK)):
        with suppress(OSError):
            files.remove(one)
