"""An exception at a chosen point of our code, as one that a signal handler raises: by a trace of opcodes.

    record(act)           the points that `act` passes, with the number of times
    broken_off(at, act)   runs `act`, and raises `Interrupted` at that point

CPython runs a handler, in the main thread alone, after a call of a C function, at the begin of a function (also of a
generator that goes on), and at a jump backwards. An exception of a handler belongs to that instruction. A trace raises
before an instruction, so a point is the instruction that follows such a one in the same `try` or `with` block; where
the block ends between the two (`with lock: return f()`), a profile function raises at the end of the call itself.

Rules of this file: frames of our own packages only, of the thread that calls. One exception a run.
"""

from __future__ import annotations

import dis
import sys
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]
PACKAGES = ("store", "replication", "restore", "stream")
LOOKS = ("CALL", "RESUME", "JUMP_BACKWARD")


class Interrupted(Exception):
    """The exception of an application's handler."""


class Point(NamedTuple):
    """An instruction; `after`: at the end of the call that it makes."""

    file: str
    function: str
    line: int
    offset: int
    after: bool

    def __str__(self) -> str:
        return f"{self.file}:{self.line} {self.function}, {'after the call' if self.after else 'before'} {self.offset}"


class _Points(NamedTuple):
    before: dict[int, Point]
    after: dict[int, Point]


_NONE = _Points({}, {})
_known: dict[CodeType, _Points] = {}
_roots = tuple(f"{ROOT / package}/" for package in PACKAGES)


def widen(*modules: Any) -> None:
    """Take points of these modules, too."""
    global _roots
    _roots += tuple(module.__file__ for module in modules)


def record(act: Callable[[], Any]) -> Counter[Point]:
    """Run `act`; returns how often it passed each point."""
    passed: Counter[Point] = Counter()

    def met(point: Point) -> None:
        passed[point] += 1

    traced(act, met)
    return passed


def broken_off(at: Point, occurrence: int, act: Callable[[], Any]) -> bool:
    """Run `act` and raise at this point, when it is passed for the n-th time; False if it was not. Raises its error."""
    left, raised = occurrence, False

    def met(point: Point) -> None:
        nonlocal left, raised
        if point == at:
            left -= 1
            if not left:
                raised = True
                sys.settrace(None)
                sys.setprofile(None)
                raise Interrupted

    traced(act, met)
    return raised


def traced(act: Callable[[], Any], met: Callable[[Point], None]) -> None:
    """Run `act`, and call `met` at each point: there another thread may run, too."""

    def local(frame: FrameType, event: str, arg: Any) -> Any:
        if event == "opcode":
            point = _points(frame.f_code).before.get(frame.f_lasti)
            if point is not None:
                met(point)
        return local

    def trace(frame: FrameType, event: str, arg: Any) -> Any:
        if not _points(frame.f_code).before:
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return local

    def profile(frame: FrameType, event: str, arg: Any) -> None:
        if event == "c_return":
            point = _points(frame.f_code).after.get(frame.f_lasti)
            if point is not None:
                met(point)

    before = sys.gettrace()  # that of a measurement of coverage goes on afterwards
    sys.setprofile(profile)
    sys.settrace(trace)
    try:
        act()
    finally:
        sys.settrace(before)
        sys.setprofile(None)


def _points(code: CodeType) -> _Points:
    found = _known.get(code)
    if found is None:
        found = _known[code] = _found(code) if code.co_filename.startswith(_roots) else _NONE
    return found


def _found(code: CodeType) -> _Points:
    instructions = [one for one in dis.get_instructions(code) if one.opname != "CACHE"]
    jumps = {one.argval for one in instructions if one.opname.startswith("JUMP_BACKWARD")}
    handlers = [(entry.start, entry.end, entry.target) for entry in dis._parse_exception_table(code)]  # type: ignore[attr-defined]

    def handler(offset: int) -> int:
        return next((target for start, end, target in handlers if start <= offset < end), -1)

    file = code.co_filename.removeprefix(f"{ROOT}/")
    before, after = {}, {}
    line = code.co_firstlineno
    for previous, one in pairwise(instructions):
        line = one.positions.lineno if one.positions and one.positions.lineno else line
        looks = previous.opname.startswith(LOOKS)
        # An exception at a jump backwards belongs to the instruction in front of its target.
        if (looks or one.offset in jumps) and handler(previous.offset) == handler(one.offset):
            before[one.offset] = Point(file, code.co_qualname, line, one.offset, after=False)
        elif looks and previous.opname.startswith("CALL"):
            after[previous.offset] = Point(file, code.co_qualname, line, previous.offset, after=True)
    return _Points(before, after)
