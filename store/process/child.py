"""A child process that takes orders from this process and ends with it.

    this process ── orders ───> stdin     child      a line each, whole, from any thread; `order` never waits
    this process <── answers ── stdout    child      a line each; an empty line is a heartbeat
    this process <── last words stderr    child      shared with this process, or a file whose end goes into errors
    this process ── pidfd ────> lent      child      the child polls it, and ends at once when this process has ended

    started ──> first word within `start_ms` ──> a word at least every `silent_ms` ──> stop: last order, drained
                                                       └── rubbish, silence, a flood of orders or of one line: killed

The child's side is `standfast.store.process.parent.Parent`. Handles that the child must inherit, such as that of a
directory's lock, are lent: the lock lasts until both processes have ended.

Rules of this file: pipes and one process; the meaning of orders and answers stays with the caller. It signals only the
process that it started, by its id, before waiting for it. Only `poll` with `wait_ms` and `stop` wait. All methods but
`order` belong to one thread.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any, BinaryIO, Generic, Self, TypeVar

from standfast.store.clock import Clock
from standfast.store.errors import InternalError, StandfastError
from standfast.store.log import child_environment
from standfast.store.process import forks
from standfast.store.process.parent import PARENT_VARIABLE
from standfast.store.timestamps import duration_text

Answer = TypeVar("Answer")

READ_BYTES = 1 << 20
READS_MAX = 64  # per poll, so that a child that never pauses does not keep this process from other work
LINE_BYTES_MAX = 32 << 20  # a page of rows has a mebibyte, a status of thousands of tasks a few
ORDERS_BYTES_MAX = 1 << 20  # bytes that wait for the child; past it the child is killed
WORDS_BYTES = 4_000  # the end of its standard error
DRAIN_MS = 5
VMSTAT = Path("/proc/vmstat")
KILLS_MS = 5_000  # how old the count of kills may be with which the count after an end is compared
RESTART_MS = 200
WELL_MS = 30_000


@dataclass(frozen=True, slots=True)
class ChildSilence:
    """A child's longest silence, in milliseconds: until its first word, and from one word to the next."""

    start_ms: int
    silent_ms: int


@dataclass(frozen=True, slots=True)
class Ended:
    """How a child ended. `code` is negative for a signal; `why` is set if this process killed it."""

    code: int
    why: str = ""
    words: str = ""  # the end of its standard error; "" if this process shares that
    # By how much the kernel's count of kills for want of memory grew about when it ended (measured: by two for one
    # process of a cgroup). Whom it killed is in the kernel's log alone, which takes rights to read.
    memory_kills: int = 0

    @property
    def for_memory(self) -> bool:
        """Whether the kernel may have killed it for want of memory."""
        return self.code == -signal.SIGKILL and not self.why and self.memory_kills > 0

    def __str__(self) -> str:
        how = f"signal {-self.code}" if self.code < 0 else f"exit code {self.code}"
        if self.for_memory:
            return f"{how}, when the kernel killed processes of this machine for want of memory"
        return f"{how}: {self.why}" if self.why else how


@dataclass(slots=True)
class Restarts:
    """Pauses before a child's restart: each twice the last, up to `most_ms`; a child that lived long resets them."""

    most_ms: int
    _next_ms: int = RESTART_MS

    def pause_ms(self, lived_ms: int) -> int:
        """The pause after a child that lived for `lived_ms`, in milliseconds."""
        pause_ms = RESTART_MS if lived_ms >= WELL_MS else self._next_ms
        self._next_ms = min(pause_ms * 2, self.most_ms)
        return pause_ms


def json_line(document: Mapping[str, Any]) -> bytes:
    """An order or an answer as a line."""
    return json.dumps(document, separators=(",", ":")).encode() + b"\n"


def json_object(line: bytes) -> dict[str, Any]:
    """Inverse of json_line. Raises InternalError for any other bytes."""
    try:
        found = json.loads(line)
    except ValueError as error:
        raise InternalError(f"it sent {line[:200]!r}, which is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise InternalError(f"it sent {line[:200]!r}, which is not a JSON object")
    return found


class ChildProcess(Generic[Answer]):
    """One process, from its start to its end. Raises OSError if it does not start.

    `module` runs as a program with `arguments`; `parse` reads an answer and raises StandfastError for rubbish.
    `stderr` is an open file for its standard error, closed with the child; with None it shares that of this process.
    """

    def __init__(
        self,
        module: str,
        arguments: Sequence[str] = (),
        *,
        parse: Callable[[bytes], Answer],
        clock: Clock,
        lend: Sequence[int] = (),
        stderr: BinaryIO | None = None,
        silence: ChildSilence | None = None,
    ) -> None:
        self._parse = parse
        self._clock = clock
        self._silence = silence
        self._stderr = stderr
        self._said = bytearray()
        self._spoke = False
        self._orders = bytearray()
        self._ordering = threading.Lock()
        self._flooded = False
        self._why = ""
        self.ended: Ended | None = None
        lent = [*lend]
        with contextlib.suppress(OSError):  # an old kernel, or a container that forbids it: the end of orders remains
            lent.append(os.pidfd_open(os.getpid()))
        try:
            # -P: a file of the working directory must not replace a module.
            self._process, self._stdin, self._stdout = self._spawn(
                [sys.executable, "-P", "-m", module, *arguments],
                lent,
                str(lent[-1] if len(lent) > len(lend) else ""),
                stderr,
            )
        finally:
            for handle in lent[len(lend) :]:
                os.close(handle)
        forks.dies_in_child(self)
        os.set_blocking(self._stdin.fileno(), False)
        os.set_blocking(self._stdout.fileno(), False)
        self.started_ms = self.heard_ms = self._kills_ms = clock.monotonic_ms()
        self._kills = memory_kills()

    @property
    def pid(self) -> int:
        """Process id, also of one that has ended."""
        return self._process.pid

    def fileno(self) -> int:
        """Handle to wait at for answers and for the end."""
        return self._stdout.fileno()

    def order(self, line: bytes) -> None:
        """Send a whole line, from any thread, without waiting: a later `poll` sends the bytes that the pipe refuses."""
        with self._ordering:
            self._orders += line
            self._write_orders()
            self._flooded = len(self._orders) > ORDERS_BYTES_MAX

    def poll(self, wait_ms: int = 0) -> list[Answer]:
        """Answers since the last call, after at most `wait_ms` for the first; sets `ended` when no more can come."""
        if self.ended is not None:
            return []
        now_ms = self._clock.monotonic_ms()
        if now_ms - self._kills_ms >= KILLS_MS and self._process.poll() is None:
            self._kills, self._kills_ms = memory_kills(), now_ms
        with self._ordering:
            self._write_orders()
        if wait_ms:
            waiting = select.poll()
            waiting.register(self._stdout, select.POLLIN)
            waiting.poll(wait_ms)
        answers, silent = self._read()
        if self._flooded:
            self._why = "it does not read its orders"
        if self._overdue():
            self._why = "it sent nothing for too long"
        if self._why or silent:
            self._end()
        return answers

    def stop(self, last: bytes, within_ms: int) -> list[Answer]:
        """Give the last order and wait for the end; a child that takes longer is killed, and `ended` says so.

        Returns all answers to the last; reading them also keeps the child from waiting for a full pipe.
        """
        self.order(last)
        deadline_ms = self._clock.monotonic_ms() + within_ms
        answers: list[Answer] = []
        while self.ended is None:
            if self._clock.monotonic_ms() >= deadline_ms:
                self._why = f"it did not stop within {duration_text(within_ms)}"
            answers += self.poll()
            if self.ended is None:
                self._clock.sleep_ms(DRAIN_MS)
        return answers

    def kill(self) -> list[Answer]:
        """Send SIGKILL and wait for the end; returns the child's last answers, and none if it had ended before."""
        if self.ended is not None:
            return []
        self._process.kill()
        self._process.wait()
        answers, _ = self._read()
        self._end()
        return answers

    def wait(self, within_ms: int) -> list[Answer]:
        """Answers until the child ends by itself. A child that takes longer is killed, and `ended` says so."""
        return self.stop(b"", within_ms)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    def forked(self) -> None:
        """As in `forks.Owned`: the process is the parent's, which its end of the orders must not seem to outlive."""
        self.ended, self._ordering = Ended(0, "it belongs to the process that forked this one"), threading.Lock()
        self._stdin.close()
        self._stdout.close()

    def give_up(self, why: str) -> None:
        """Have the next `poll` kill it, for a reason that `ended` then gives."""
        self._why = self._why or why

    def _spawn(
        self, command: Sequence[str], lent: Sequence[int], parent: str, stderr: BinaryIO | None
    ) -> tuple[subprocess.Popen[bytes], IO[bytes], IO[bytes]]:
        """The process, and the ends of its orders and answers here. `parent`: the lent handle of this process."""
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            bufsize=0,
            pass_fds=lent,
            # A group of its own: Ctrl-C is for this process, which ends its children itself, in order.
            process_group=0,
            env=os.environ | child_environment() | {PARENT_VARIABLE: parent},
        )
        assert process.stdin is not None and process.stdout is not None
        return process, process.stdin, process.stdout

    def _write_orders(self) -> None:
        while self._orders:
            try:
                written = os.write(self._stdin.fileno(), self._orders)
            except BlockingIOError:
                return
            except (OSError, ValueError):  # the child is dead or its pipe closed; `poll` finds that out by its silence
                written = len(self._orders)
            del self._orders[:written]

    def _read(self) -> tuple[list[Answer], bool]:
        """Answers that have arrived, and whether no more can come."""
        exited = self._process.poll() is not None  # before reading: asked after it, answers in between would be lost
        answers: list[Answer] = []
        for _ in range(READS_MAX):
            try:
                piece = os.read(self._stdout.fileno(), READ_BYTES)
            except BlockingIOError:
                return answers, exited
            if not piece:
                return answers, True
            # Any bytes count as a sign of life, so an empty line serves as heartbeat.
            self._spoke, self.heard_ms = True, self._clock.monotonic_ms()
            *lines, rest = piece.split(b"\n")
            if lines:
                lines[0], self._said = bytes(self._said) + lines[0], bytearray()
            self._said += rest
            try:
                for line in filter(None, lines):
                    answers.append(self._parse(line))
            except StandfastError as error:
                self._why = str(error)
            if len(self._said) > LINE_BYTES_MAX:
                self._why = f"it sent a line of more than {LINE_BYTES_MAX} bytes: {bytes(self._said[:200])!r}"
            if self._why:
                return answers, True
        return answers, False

    def _overdue(self) -> bool:
        if self._silence is None:
            return False
        now_ms = self._clock.monotonic_ms()
        if not self._spoke and now_ms - self.started_ms <= self._silence.start_ms:
            self.heard_ms = now_ms
        return now_ms - self.heard_ms > self._silence.silent_ms

    def _end(self) -> None:
        self._process.kill()
        code = self._process.wait()
        with contextlib.suppress(OSError), self._ordering:
            self._stdin.close()
        self._stdout.close()
        self.ended = Ended(code, self._why, self._last_words(), memory_kills() - self._kills)

    def _last_words(self) -> str:
        """The end of its standard error, once it has ended; "" if this process shares that."""
        if self._stderr is None:
            return ""
        with self._stderr as file:
            return last_words(file)


def memory_kills(path: Path = VMSTAT) -> int:
    """The kernel's count of its kills for want of memory since it started; 0 where it does not say."""
    try:
        lines = path.read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)


def last_words(file: BinaryIO) -> str:
    """The last lines of a file that another process writes, at most WORDS_BYTES bytes."""
    # pread, since the child shares the file's position and seeking would move its next write.
    begin = max(os.fstat(file.fileno()).st_size - WORDS_BYTES, 0)
    lines = os.pread(file.fileno(), WORDS_BYTES, begin).decode(errors="replace").splitlines()
    return "\n".join(lines[1:] if begin else lines)
